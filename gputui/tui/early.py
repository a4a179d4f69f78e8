"""The first reading on the terminal while Textual, half of the way to a screen, is loaded.

Only the machine is shown so early, never a run: a signal that ends the program now leaves nothing
behind but the terminal, which is put back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputui.state import Session
    from gputui.tui.source import Connect, Source

ENDING_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGXCPU,
)
"""What would end the program and leave the terminal raw; keys never send these once Textual reads
them."""

PATIENCE_S = 0.6
"""A driver that takes longer is waited for by the screen itself."""

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class Early:
    """A source that connects at once, and what it read so far."""

    def __init__(self, connect: Connect) -> None:
        self._connect_to = connect
        self._news = threading.Event()
        self._tell: Callable[[], None] | None = None
        self._source: Source | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="connect", daemon=True)
        self._thread.start()

    def has_reading(self, session: Session) -> bool:
        """Fold in what comes until there is a reading, for a while."""
        end = time.monotonic() + PATIENCE_S
        while (left := end - time.monotonic()) > 0 and self._error is None:
            self._news.wait(left)
            self._news.clear()
            if self._source is not None:
                session.apply(self._source.hub.take())
                if session.samples:
                    return True
        return False

    def connect(self, notify: Callable[[], None]) -> Source:
        """The source, already started, which calls `notify` from here on."""
        self._tell = notify
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._source is not None
        return self._source

    def _main(self) -> None:
        try:
            source = self._connect_to(self._notice)
            source.start()
            self._source = source
        except Exception as error:  # the screen says it
            self._error = error
        self._notice()

    def _notice(self) -> None:
        self._news.set()
        if self._tell is not None:
            self._tell()


class Shown:
    """Rows on the alternate screen, until Textual takes it over; a signal gives it back."""

    def __init__(self, text: str) -> None:
        self._handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        for number in ENDING_SIGNALS:
            signal.signal(number, self._end)
        with contextlib.suppress(OSError):
            sys.stdout.write(_ENTER + text)
            sys.stdout.flush()

    def take_back(self) -> None:
        """Leave: Textual did not come to take over."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            os.write(1, _LEAVE.encode())

    def _end(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.take_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
