"""Rates from monotonic counters."""

from __future__ import annotations

import time


class CounterRate:
    """Units per second between two readings of one counter."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def update(self, value: int, now_ns: int | None = None) -> float | None:
        """The rate since the previous reading; None for the first, and if the counter went back (it
        wrapped or was reset, so the difference is unknown).
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        before, self._last = self._last, (value, now_ns)
        if before is None or value < before[0] or now_ns <= before[1]:
            return None
        return (value - before[0]) * 1e9 / (now_ns - before[1])
