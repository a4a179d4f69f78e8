"""Stopping on request: the first SIGINT or SIGTERM asks, the second one ends the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def die_quietly_on_signals() -> None:
    """Restore the signals' default meaning: the process ends, without a traceback.

    Importing torch and creating tensors cannot be interrupted half-way in any useful way, so this
    is what a signal does outside a `StopRequest`. A signal that the parent chose to ignore stays
    ignored.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Interrupted(BaseException):
    """A request to stop came where nothing may be waited for."""


class StopRequest:
    """Inside `with StopRequest() as stop:` a signal sets `stop.signal` instead of killing.

    The loop checks it between steps, breaks, and what was measured so far is reported. With
    `is_late` a signal ends the process until `begin` is called: loading a model and its first step
    (an optimizer imports torch._dynamo: 1 s, on a busy machine more than the 5 s that a run has to
    end in) have nothing to report. Main thread only, like Python's signal handlers.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._is_late = is_late
        self._interrupts = False

    def __enter__(self) -> Self:
        if not self._is_late:
            self.begin()
        return self

    def begin(self) -> None:
        """From here on there is something to report; further calls change nothing, nor do those of
        other threads, which cannot set a handler."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._asked)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """In `with stop.interruptible():` a signal raises Interrupted: compiling takes up to 20 s,
        a run has 5 s to end in, and what was measured before would be lost. So does one that came
        before."""
        if self.signal is not None:
            raise Interrupted
        self._interrupts = True
        try:
            yield
        finally:
            self._interrupts = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = number
        signal.signal(number, signal.SIG_DFL)
        if self._interrupts:
            raise Interrupted
