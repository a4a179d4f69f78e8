"""Time covered by at least one of many intervals, per key, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import Int64s, durations_ns, run_starts

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
