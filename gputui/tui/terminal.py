"""The terminal the screen is drawn on: what it is in is undone however the program ends.

Textual's own driver reads in a loop that never ends once standard input is at its end, and its
writer thread dies of the first failed write, after which the 31st write blocks for ever. Here
the end of input, or a failed write, makes the program quit. It draws on standard output, so that
standard error can go to a file. Where the line is slower than what is drawn, frames wait until the
last one is out; the mouse reports clicks, drags and the wheel, not each movement.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from gputui.tui.early import ENDING_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

_WAIT_S = 0.1
_TICKS = 10
"""An Escape may begin a sequence: it is a key once nothing came for this many waits, or sooner.
From then on nothing wakes the thread but input, or the end."""

_MOUSE_ON = "\x1b[?1000h\x1b[?1002h\x1b[?1006h"
_MOUSE_OFF = "\x1b[?1006l\x1b[?1002l\x1b[?1000l"
"""Buttons, drags, places as numbers: without 1003, which would report each movement, bytes both
ways."""


class ForgivingFile:
    """A text file whose failed writes are reported once, and dropped from then on."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        self._file = file
        self._lost: Callable[[], None] | None = lost
        self.is_writing = False

    def write(self, text: str) -> int:
        """Write, or drop the text when the terminal is gone."""
        if self._lost is not None:
            self.is_writing = True
            try:
                return self._file.write(text)
            except (OSError, ValueError):
                self._give_up()
            finally:
                self.is_writing = False
        return len(text)

    def flush(self) -> None:
        """Flush, unless the terminal is gone."""
        if self._lost is not None:
            self.is_writing = True
            try:
                self._file.flush()
            except (OSError, ValueError):
                self._give_up()
            finally:
                self.is_writing = False

    def fileno(self) -> int:
        """Of the file behind."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Of the file behind."""
        return self._file.isatty()

    def _give_up(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()


class Terminal(LinuxDriver):
    """Textual's driver, quitting when the terminal is gone."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert sys.__stdout__ is not None  # run_app draws on a terminal
        # Textual asks Rich until the first event says the size, and Rich takes a terminal that does
        # not know its own for 80 × 25, where the event says 24: each laid the screen out anew, and
        # both went round for ever.
        self._size = self._size or self._get_terminal_size()
        self._file: Any = ForgivingFile(sys.__stdout__, self._terminal_lost)
        self._woken, self._waker = os.pipe()

    def start_application_mode(self) -> None:
        """Switch the terminal over; from before that on, a signal quits as the key does."""
        if threading.current_thread() is threading.main_thread():
            for number in ENDING_SIGNALS:
                self._loop.add_signal_handler(number, self._app.exit)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def _get_terminal_size(self) -> tuple[int, int]:
        """The terminal's own: exported COLUMNS and LINES, which Textual prefers, do not change
        with the window."""
        with contextlib.suppress(OSError):
            if all(size := tuple(os.get_terminal_size(self.fileno))):
                return size[0], size[1]
        return super()._get_terminal_size()

    @property
    def is_behind(self) -> bool:
        """Whether the line has not taken yet what was drawn."""
        writer = self._writer_thread
        return self._file.is_writing or (writer is not None and writer._queue.qsize() > 0)

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            self.write(_MOUSE_ON)
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write(_MOUSE_OFF)
            self.flush()

    def _terminal_lost(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
            self._loop.call_soon_threadsafe(self._app.exit)

    def disable_input(self) -> None:
        """End the thread that reads keys."""
        os.write(self._waker, b"\0")
        super().disable_input()

    def run_input_thread(self) -> None:
        """Read keys until the program quits or the input ends."""
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            quiet = 0
            while not self.exit_event.is_set():
                ready = selector.select(_WAIT_S if quiet < _TICKS else None)
                quiet = 0 if ready else quiet + 1
                for key, _ in ready:
                    if key.fd == self._woken:  # it may end only a moment later
                        os.read(self._woken, 1)
                        continue
                    try:
                        data = os.read(self.fileno, 4096)
                    except OSError:
                        data = b""
                    if not data:
                        self._terminal_lost()
                        return
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
