"""The screen from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import RenderableType

from gputui.tui.early import ENDING_SIGNALS, Connection
from gputui.tui.source import Connect, Options
from gputui.tui.textual_internals import Reporting

if TYPE_CHECKING:
    from gputui.state import Session
    from gputui.tui.app import GputuiApp
    from gputui.tui.early import Shown


# How the application ends: once, and after a failure with one line instead of a report.


class Ending(Reporting):
    """An application that ends once, because a person or a signal says so, or of a failure."""

    is_wished = False
    """Whether it was asked to end, before it failed."""
    outlives_terminal = False
    """Whether a run goes on without the terminal."""
    takes_signals = False
    """Whether what would end the program quits as the key does."""
    _leaving = False
    _event_loop: asyncio.AbstractEventLoop | None = None

    def on_load(self) -> None:
        """Before the terminal is switched over: SIGQUIT, SIGABRT and SIGUSR1 once left raw mode,
        the alternate screen and the mouse on."""
        self.error_console.quiet = True
        self._event_loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS if self.takes_signals else ():
            if number == signal.SIGHUP and self.outlives_terminal:
                # Not by the loop, whose end sets the default again: the next would kill.
                signal.signal(number, lambda *_: self.lose_terminal())
            else:
                leave = self.hang_up if number == signal.SIGHUP else self.exit
                self._event_loop.add_signal_handler(number, leave)

    def quit_now(self) -> None:
        """Leave. What must be closed is closed by `run_app`, after the terminal is restored."""
        if not self._leaving:
            self._leaving = True
            self.exit()

    def exit(
        self, result: None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """Leave because a person or a signal says so."""
        self.is_wished = self.is_wished or self.crash is None
        super().exit(result, return_code, message)

    def hang_up(self) -> None:
        """The terminal is gone: leave, as a shell's programs do, or without ending the run."""
        if self.outlives_terminal:
            super().exit()
        else:
            self.exit()

    def lose_terminal(self) -> None:
        """The same, said from any thread."""
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self.hang_up)


_LEAVES = (
    b"\x1b[?2004l\x1b[?1006l\x1b[?1002l\x1b[?1000l\x1b[?7h\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""Undoes what the driver asks the terminal for: pasting in brackets, the mouse, lines that do not
wrap, the keyboard protocol, the other screen, no cursor, words of the focus."""


GoOn = Callable[["str | None", "Session | None"], "int | None"]
"""Goes on without the screen with a run that is still active, and gives the exit status; None where
there is none. Its arguments are what the screen failed of, None where only its terminal is gone,
and what was shown, None where that is unknown."""


def run_app(
    connect: Connect,
    options: Options | None = None,
    *,
    shown: Shown | None = None,
    connects_first: bool = False,
    go_on: GoOn = lambda _why, _session: None,
) -> int:
    """Show what a source emits until the person quits; gives the exit status.

    `connect` is called in a thread once the first frame is drawn, or at once where that is `shown`
    or it `connects_first`, which is for what takes longer than the screen takes to load.
    The terminal is restored however this ends. Where a person or a signal ended it, the source is
    closed, and a run with it; after a failure of the screen, whatever it is, `go_on` goes on with
    the run first. Status 2 without a terminal, 1 after a failure.
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
    begun = Connection(connect) if connects_first or shown is not None else None
    app: GputuiApp | None = None
    crash: BaseException | None = None
    is_closed = False
    clean = True
    put_back = _terminal_keeper()
    try:
        # Loaded while the driver starts.
        from asyncio import CancelledError

        from gputui.base import crash_line
        from gputui.state import Session
        from gputui.tui.app import GputuiApp
        from gputui.tui.textual_internals import Terminal

        to = begun.connect if begun is not None else connect
        app = GputuiApp(to, Session(), options, driver_class=Terminal, starts=begun is None)
        app.takes_signals = True
        if shown is not None:
            shown.hand_over()
        try:
            app.run(mouse=not app.options.reader)
        except (Exception, CancelledError) as error:
            app.crash = app.crash or error
        crash = app.crash
        if crash is None and app.return_code:  # of which Textual tells nobody
            crash = RuntimeError("the screen failed")
        if not app.is_wished:
            put_back(app)
            app.await_source()
            gc.enable()  # the first frame may not have come
            why = None if app.outlives_terminal else "it ended by itself"
            status = go_on(crash_line(crash) if crash else why, _session_of(app))
            if status is not None:
                is_closed = True
                return status
    finally:
        if app is not None:
            put_back(app)
            clean = is_closed or app.close_source()
        elif shown is not None:
            shown.take_back()
    if crash is not None:
        sys.stderr.write(f"gputui: {crash_line(crash)}\n")
        return 1
    if app.model.failure:
        sys.stderr.write(f"gputui: {app.model.failure}\n")
        return 1
    _leave(app)
    return 0 if clean else 1


def _terminal_keeper() -> Callable[[GputuiApp], None]:
    """What puts the terminal back as it is now where the screen could not do so itself."""
    modes = None
    with suppress(termios.error):
        modes = termios.tcgetattr(0)

    def put_back(app: GputuiApp) -> None:
        driver = app.terminal
        if driver is None or not driver.is_entered:
            return
        with suppress(Exception):
            driver.disable_input()  # its thread would go on reading
        with suppress(OSError):
            os.write(1, _LEAVES)
        with suppress(termios.error):
            if modes is not None:
                termios.tcsetattr(0, termios.TCSANOW, modes)
        for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            signal.signal(number, signal.SIG_DFL)
        driver.is_entered = False

    return put_back


def _session_of(app: GputuiApp) -> Session | None:
    try:
        return app.last_session()
    except Exception:  # the failure itself may be in what was shown
        return None


def _leave(app: GputuiApp) -> None:
    """What stays on the terminal of the newest run: the answer."""
    from gputui.base.standard_streams import columns, release_streams
    from gputui.render.summary import answer_text, ways_on

    session = app.last_session()
    if session is None or session.run is None:
        return
    recording = app.recording
    more = ways_on(str(recording.path)) if recording and recording.path else []
    try:
        sys.stdout.write(answer_text(session, session.run, columns(sys.stdout), more))
        sys.stdout.flush()
    except OSError:
        release_streams()  # the terminal is gone
