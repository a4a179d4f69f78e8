"""What a rate came to over time: energy from power, means over any part of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import msgspec

POINTS = 128
"""Moments kept, at least half of it once there are enough: a part of a run is cut to 1/64 of it at
worst, and exactly where the run had no more readings than this."""


class Integral(msgspec.Struct):
    """A total that grows with time, at equal distances of readings.

    A rate counts for the time since the reading before it: utilization, GPM's counters and power
    are the driver's means over the time before they are read.
    """

    moments_ns: tuple[int, ...] = ()
    """Tuples: copies of a session share them. The last is always the newest reading's."""
    totals: tuple[float, ...] = ()
    readings: int = 0
    every: int = 1
    """Readings from one kept moment to the next."""
    first_rate: float | None = None
    last_rate: float | None = None
    """Per second, at the first and at the newest reading."""

    def add_rate(self, time_ns: int, per_second: float) -> None:
        """One more reading of a rate."""
        if self.moments_ns and time_ns <= self.moments_ns[-1]:
            return
        if self.first_rate is None:
            self.first_rate = per_second
        since_ns = time_ns - self.moments_ns[-1] if self.moments_ns else 0
        total = self.totals[-1] if self.totals else 0.0
        self._add(time_ns, total + per_second * since_ns / 1e9)
        self.last_rate = per_second

    def add_total(self, time_ns: int, total: float) -> None:
        """One more reading of a counter. One that went back counts from there on."""
        if self.moments_ns:
            since_ns, more = time_ns - self.moments_ns[-1], total - self.totals[-1]
            if since_ns <= 0:
                return
            if more < 0:
                self.moments_ns, self.totals = (), ()
                self.readings, self.every = 0, 1
                self.first_rate = self.last_rate = None
            else:
                self.last_rate = 1e9 * more / since_ns
                if self.first_rate is None:
                    self.first_rate = self.last_rate
        self._add(time_ns, total)

    def _add(self, time_ns: int, total: float) -> None:
        moments, totals = self.moments_ns, self.totals
        if len(moments) > 1 and (self.readings - 1) % self.every:
            moments, totals = moments[:-1], totals[:-1]
        self.moments_ns, self.totals = (*moments, time_ns), (*totals, total)
        if len(self.moments_ns) > POINTS and not self.readings % (2 * self.every):
            self.moments_ns, self.totals = self.moments_ns[::2], self.totals[::2]
            self.every *= 2
        self.readings += 1

    def covered(self, first_ns: int, last_ns: int) -> tuple[int, int] | None:
        """The part of a time between the first and the newest reading; None if there is none."""
        if not self.moments_ns:
            return None
        first_ns, last_ns = max(first_ns, self.moments_ns[0]), min(last_ns, self.moments_ns[-1])
        return (first_ns, last_ns) if last_ns > first_ns else None

    def rates(self, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, float]]:
        """(start, end, mean rate) of each stretch between kept moments that is inside a time."""
        for start, end in pairwise(range(len(self.moments_ns))):
            since_ns, until_ns = self.moments_ns[start], self.moments_ns[end]
            if first_ns <= since_ns and until_ns <= last_ns:
                more = self.totals[end] - self.totals[start]
                yield since_ns, until_ns, 1e9 * more / (until_ns - since_ns)

    def between(self, first_ns: int, last_ns: int) -> float | None:
        """How much it grew from one moment to another, carried on at the nearest rate where there
        are no readings; None if no rate is known.
        """
        first, last = self.first_rate, self.last_rate
        if first is None or last is None or last_ns < first_ns:
            return None
        return self._at(last_ns, first, last) - self._at(first_ns, first, last)

    def _at(self, time_ns: int, first_rate: float, last_rate: float) -> float:
        moments, totals = self.moments_ns, self.totals
        if time_ns <= moments[0]:
            return totals[0] - first_rate * (moments[0] - time_ns) / 1e9
        if time_ns >= moments[-1]:
            return totals[-1] + last_rate * (time_ns - moments[-1]) / 1e9
        at = bisect_right(moments, time_ns)
        share = (time_ns - moments[at - 1]) / (moments[at] - moments[at - 1])
        return totals[at - 1] + share * (totals[at] - totals[at - 1])
