"""Intervals in order of their starts: what each covers alone, and what lies before a moment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s


def exclusive(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """What each interval covers beyond those that began before it: rows, starts, ends."""
    reach = np.maximum.accumulate(ends)
    begins = starts.copy()
    begins[1:] = np.maximum(starts[1:], reach[:-1])
    rows = np.flatnonzero(ends > begins)
    return rows, begins[rows], ends[rows]


def covered_before(moments: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """How much of disjoint intervals, in order, lies before each moment."""
    if not len(starts):
        return np.zeros(len(moments), np.int64)
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    at = np.searchsorted(starts, moments, side="right") - 1
    inside = np.maximum(at, 0)
    covered: Int64s = sums[inside] + np.clip(
        moments - starts[inside], 0, ends[inside] - starts[inside]
    )
    return np.where(at < 0, 0, covered)


class Busy(NamedTuple):
    """When something ran: disjoint intervals in order."""

    starts: Int64s
    ends: Int64s

    def after(self, moment_ns: int, most: int) -> Busy:
        """Those that go on after a moment, the newest ones where they are too many."""
        first = max(int(np.searchsorted(self.ends, moment_ns)), len(self.ends) - most)
        return Busy(self.starts[first:], self.ends[first:])

    def covered(self, starts: Int64s, ends: Int64s) -> Int64s:
        """How much of each interval it takes."""
        return covered_before(ends, *self) - covered_before(starts, *self)
