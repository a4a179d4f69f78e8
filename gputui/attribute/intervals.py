"""Intervals of time: unions, what they cover, and where nothing is known.

For everything that adds up time on a device or asks whether a time was seen whole. They know
nothing of records, ranges or steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, durations_ns, run_starts

# --- Intervals in order of their starts: what each covers alone, and what lies before a moment.


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
    place = np.searchsorted(starts, moments, side="right") - 1
    inside = np.maximum(place, 0)
    covered: Int64s = sums[inside] + np.clip(
        moments - starts[inside], 0, ends[inside] - starts[inside]
    )
    return np.where(place < 0, 0, covered)


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


def union(many: Iterable[Busy]) -> Busy:
    """When any of them ran something."""
    starts, ends = (np.concatenate(column) for column in zip(*many, strict=True))
    order = np.argsort(starts, kind="stable")
    _, starts, ends = exclusive(starts[order], ends[order])
    return Busy(starts, ends)


# --- Time covered by at least one of many intervals, per key, in order of arrival.

_SPAN_BITS = 46
_SPAN = (1 << _SPAN_BITS) - 1
"""Intervals further than 10 hours from the middle one of a call are clamped to that distance."""


@dataclass(slots=True)
class Covered:
    """For each key: the time newly covered, the sum of durations, count, first start, last end.

    `gap_rows` index the intervals that began after a time in which nothing of their key was
    covered, and `gaps_ns` give the length of that time.
    """

    keys: Int64s
    busy_ns: Int64s
    total_ns: Int64s
    counts: Int64s
    first_ns: Int64s
    last_ns: Int64s
    gap_rows: Int64s
    gaps_ns: Int64s


class Unions:
    """Keeps, for each key under 65,536, the end of the covered time.

    Of later intervals that begin before that end, only the part beyond it counts: exact if
    intervals arrive in order of time.
    """

    def __init__(self) -> None:
        self._reach_ns = np.zeros(256, np.int64)

    def add(self, keys: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Covered:
        """Intervals sorted by start, at least one."""
        while int(keys.max()) >= len(self._reach_ns):
            self._reach_ns = np.concatenate((self._reach_ns, np.zeros_like(self._reach_ns)))
        base = int(starts_ns[len(starts_ns) // 2]) - (_SPAN >> 1)
        order = None
        if (keys != keys[0]).any():
            order = np.argsort(keys.astype(np.uint16), kind="stable")
            keys, starts_ns, ends_ns = keys[order], starts_ns[order], ends_ns[order]
        firsts = run_starts(keys)
        present = keys[firsts]
        counts = np.diff(np.append(firsts, len(keys)))
        # Each key's intervals are shifted to a range of numbers of its own, so that one running
        # maximum serves all.
        shift = np.repeat(np.arange(len(firsts)) << _SPAN_BITS, counts)
        starts = np.clip(starts_ns - base, 0, _SPAN) + shift
        ends = np.clip(ends_ns - base, 0, _SPAN) + shift
        reached = np.clip(self._reach_ns[present] - base, 0, _SPAN) + shift[firsts]
        candidates = ends.copy()
        candidates[firsts] = np.maximum(candidates[firsts], reached)
        reach = np.maximum.accumulate(candidates)
        before = np.empty_like(reach)
        before[1:] = reach[:-1]
        before[firsts] = reached
        busy = np.maximum(0, ends - np.maximum(starts, before))
        gap = starts > before
        gap[firsts] &= self._reach_ns[present] > 0
        gaps = np.flatnonzero(gap)
        last_ns = np.maximum.reduceat(ends_ns, firsts)
        self._reach_ns[present] = np.maximum(self._reach_ns[present], last_ns)
        return Covered(
            keys=present,
            busy_ns=np.add.reduceat(busy, firsts),
            total_ns=np.add.reduceat(durations_ns(starts_ns, ends_ns), firsts),
            counts=counts,
            first_ns=starts_ns[firsts],
            last_ns=last_ns,
            gap_rows=gaps if order is None else order[gaps],
            gaps_ns=starts[gaps] - before[gaps],
        )


# --- Where nothing is known of the GPU: between windows of tracing, and where records were lost.

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
        place = int(np.searchsorted(self._ends, start_ns))
        if place < len(self._starts):
            start_ns = min(start_ns, int(self._starts[place]))
        self._starts = np.append(self._starts[:place], start_ns)[-MOST_HOLES:]
        self._ends = np.append(self._ends[:place], end_ns)[-MOST_HOLES:]

    def touch(self, starts_ns: Int64s, ends_ns: Int64s) -> Bools:
        """Which of these intervals share time with one."""
        touched = np.zeros(len(starts_ns), np.bool_)
        if len(self._starts):
            places = np.searchsorted(self._ends, starts_ns, side="right")
            starts = self._starts[np.minimum(places, len(self._starts) - 1)]
            touched = (places < len(self._starts)) & (starts < ends_ns)
        if self._open_ns is not None:
            touched |= ends_ns > self._open_ns
        return touched
