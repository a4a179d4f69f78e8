"""Intervals in order of their starts: what each covers alone, and what lies before a moment."""

from __future__ import annotations

from collections.abc import Iterable
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


MOST_INTERVALS = 1 << 18
"""Kept of one process on one GPU: those that nobody else's gap reaches back to."""


class Busy(NamedTuple):
    """When something ran: disjoint intervals in order."""

    starts: Int64s
    ends: Int64s

    def after(self, moment_ns: int) -> Busy:
        """Those that go on after a moment, the newest ones where they are too many."""
        first = max(int(np.searchsorted(self.ends, moment_ns)), len(self.ends) - MOST_INTERVALS)
        return Busy(self.starts[first:], self.ends[first:])

    def covered(self, starts: Int64s, ends: Int64s) -> Int64s:
        """How much of each interval it takes."""
        return covered_before(ends, *self) - covered_before(starts, *self)


NEVER = Busy(np.empty(0, np.int64), np.empty(0, np.int64))


def union(parts: Iterable[Busy]) -> Busy:
    """When any of them ran something."""
    starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    _, starts, ends = exclusive(starts[order], ends[order])
    return Busy(starts, ends)
