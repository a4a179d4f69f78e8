"""Where nothing is known of the GPU: between windows of tracing, and where records were lost."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Int64s

MOST_HOLES = 4096
"""Holes remembered, the newest: what is accounted for is seconds behind at most."""


class Holes:
    """Intervals of time, in the order of their ends."""

    def __init__(self) -> None:
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self._open_ns: int | None = None

    def begin(self, moment_ns: int) -> None:
        """From here on nothing is known, until `end`."""
        if self._open_ns is None:
            self._open_ns = moment_ns

    def end(self, moment_ns: int) -> None:
        """Here the one that was begun ends, if there is one."""
        if self._open_ns is not None:
            self.add(self._open_ns, moment_ns)
            self._open_ns = None

    def add(self, start_ns: int, end_ns: int) -> None:
        """A whole one, which ends after those before."""
        if len(self._ends) and end_ns < self._ends[-1]:
            return  # a clock that was set back
        at = int(np.searchsorted(self._ends, start_ns))
        if at < len(self._starts):
            start_ns = min(start_ns, int(self._starts[at]))
        self._starts = np.append(self._starts[:at], start_ns)[-MOST_HOLES:]
        self._ends = np.append(self._ends[:at], end_ns)[-MOST_HOLES:]

    def touch(self, starts_ns: Int64s, ends_ns: Int64s) -> Bools:
        """Which of these intervals share time with one."""
        touched = np.zeros(len(starts_ns), np.bool_)
        if len(self._starts):
            at = np.searchsorted(self._ends, starts_ns, side="right")
            starts = self._starts[np.minimum(at, len(self._starts) - 1)]
            touched = (at < len(self._starts)) & (starts < ends_ns)
        if self._open_ns is not None:
            touched |= ends_ns > self._open_ns
        return touched
