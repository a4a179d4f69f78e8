"""The screen from its start to its end."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from gputui.tui.early import Connection
from gputui.tui.source import Connect, Options

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp
    from gputui.tui.early import Shown


def run_app(connect: Connect, options: Options | None = None, *, shown: Shown | None = None) -> int:
    """Show what a source emits until the person quits; gives the exit status.

    `connect` is called in a thread once the first frame is drawn, or at once where that is `shown`.
    The source is closed, and the terminal restored, however this ends. Status 2 without a terminal,
    1 after a failure.
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
    options = options or Options()
    begun = Connection(connect) if shown is not None else None
    app = None
    clean = True
    try:
        # Loaded while the driver starts.
        from gputui.state import Session
        from gputui.tui.app import GputuiApp
        from gputui.tui.errors import crash_line
        from gputui.tui.terminal import Terminal

        connect = begun.connect if begun is not None else connect
        app = GputuiApp(connect, Session(), options, driver_class=Terminal, starts=begun is None)
        if shown is not None:
            shown.hand_over()
        app.run(mouse=not app.options.reader)
    finally:
        if app is not None:
            clean = app.close_source()
        elif shown is not None:
            shown.take_back()
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
