"""Waking a loop, also from a signal's handler."""

from __future__ import annotations

import contextlib
import queue


class Wake:
    """An event that a handler may set while it interrupts the thread that waits for it:
    threading.Event holds a lock then, which the handler would wait for, for ever."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Have the newest or the next `wait` return."""
        self._calls.put(None)

    def wait(self, timeout_s: float | None) -> None:
        """Until `set` was called since the last time, `timeout_s` at most."""
        with contextlib.suppress(queue.Empty):
            self._calls.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
            while True:
                self._calls.get_nowait()
