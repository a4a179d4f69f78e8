"""The screen: the only part that knows Textual."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from gputui.tui.source import Connect, Options, Source

if TYPE_CHECKING:
    from gputui.state import Session
    from gputui.tui.app import GputuiApp

__all__ = ["Connect", "Options", "Source", "run_app"]


def run_app(connect: Connect, session: Session, options: Options | None = None) -> int:
    """Show `session` until the person quits; gives the exit status.

    `connect` is called in a thread once the first frame is drawn. The source is closed, and the
    terminal restored, however this ends. Status 2 without a terminal, 1 after a failure.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write(
            "gputui: the screen needs a terminal for input and output; "
            "--record and --once work without one\n"
        )
        return 2
    # Keys are answered at once and nothing is animated, so 30 frames a second are enough.
    os.environ.setdefault("TEXTUAL_FPS", "30")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    # Nothing made while starting is garbage: looking for some costs the first frame 20 ms.
    gc.disable()
    from gputui.tui.app import GputuiApp
    from gputui.tui.errors import crash_line
    from gputui.tui.terminal import Terminal

    app = GputuiApp(connect, session, options, driver_class=Terminal)
    clean = True
    try:
        app.run()
    finally:
        clean = app.close_source()
    if app.crash is not None:
        sys.stderr.write(f"gputui: {crash_line(app.crash)}\n")
        return 1
    if app.model.failure:
        sys.stderr.write(f"gputui: {app.model.failure}\n")
        return 1
    _leave(app)
    return 0 if clean else 1


def _leave(app: GputuiApp) -> None:
    """What stays on the terminal of the newest run: the answer."""
    from gputui.base.standard_streams import columns, release
    from gputui.render.answer import answer_text, ways_on

    session = app.last_session()
    if session is None or session.run is None:
        return
    recording = app.recording
    more = ways_on(str(recording.path)) if recording and recording.path else []
    try:
        sys.stdout.write(answer_text(session, session.run, columns(sys.stdout), more))
        sys.stdout.flush()
    except OSError:
        release()  # the terminal is gone
