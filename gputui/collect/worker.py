"""A thread for calls that may hang, so that callers wait only as long as they choose."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Runs one call at a time in its own daemon thread. Used from one thread.

    A call that hangs blocks only this worker, and does not keep the program from exiting.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
        self._asked_at: float | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def waiting_s(self) -> float:
        """How long the current call has been waited for; 0 if there is none."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    @property
    def is_busy(self) -> bool:
        """Whether an answer has yet to be taken."""
        return self._asked_at is not None

    def ask(self, call: Callable[[], T]) -> bool:
        """Start `call`; False if the previous one has not ended. A late answer is dropped."""
        if self._asked_at is not None:
            try:
                self._answers.get_nowait()
            except queue.Empty:
                return False
        self._asked_at = time.monotonic()
        self._calls.put(call)
        return True

    def answer(self, until: float) -> T:
        """The answer, waiting until the monotonic time `until`.

        Raises `TimeoutError` if there is none by then, and whatever the call raised.
        """
        try:
            value, error = self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        self._asked_at = None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # None here is T's own None

    def rest(self, until: float) -> bool:
        """Whether no call is under way, or it ends before the monotonic time `until`.

        Its answer is dropped.
        """
        if self._asked_at is None:
            return True
        try:
            self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        self._asked_at = None
        return True

    def stop(self) -> None:
        """Let the thread end after the current call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:
                self._answers.put((None, error))
