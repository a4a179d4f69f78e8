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
    from gputui.tui.early import Early, Shown

__all__ = ["Connect", "Options", "Source", "run_app"]


def run_app(connect: Connect, options: Options | None = None) -> int:
    """Show what a source emits until the person quits; gives the exit status.

    `connect` is called in a thread once the first frame is drawn, or at once with `draws_early`.
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
    early = None
    if options.draws_early and not (options.ascii or options.reader):
        from gputui.tui.early import Early

        early = Early(connect)
    # Loaded while the driver starts.
    from gputui.state import Session

    session = Session()
    shown = _first_reading(early, session) if early is not None else None
    app = None
    clean = True
    try:
        from gputui.tui.app import GputuiApp
        from gputui.tui.errors import crash_line
        from gputui.tui.terminal import Terminal

        at_once = early.connect if early is not None else connect
        app = GputuiApp(at_once, session, options, driver_class=Terminal, starts=early is None)
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


def _first_reading(early: Early, session: Session) -> Shown | None:
    """Draw the first reading, where there is one and room for it."""
    from gputui.tui.early import Shown
    from gputui.tui.first_frame import first_frame

    if not early.has_reading(session):
        return None
    size = os.get_terminal_size(sys.stdout.fileno())
    if size.columns < 60 or size.lines < 16:
        return None
    return Shown(first_frame(session, size.columns, size.lines))


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
