"""What a rate came to over time: energy from power, means over any part of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec

POINTS = 128
"""Moments kept, at least half of it once there are enough: a part of a run is cut to 1/64 of it at
worst, and exactly where the run had no more readings than this."""


class Integral(msgspec.Struct):
    """A total that grows with time, at equal distances of readings.

    A rate counts for the time since the reading before it: utilization, GPM's counters and power
    are the driver's means over the time before they are read.
    """

    kept_ns: tuple[int, ...] = ()
    """Moments at equal distances. Tuples: copies of a session share them."""
    kept_totals: tuple[float, ...] = ()
    newest_ns: int = -1
    newest_total: float = 0.0
    """At the newest reading, kept or not: most are not, and cost no more than these two."""
    readings: int = 0
    every: int = 1
    """Readings from one kept moment to the next."""
    first_rate: float | None = None
    last_rate: float | None = None
    """Per second, at the first and at the newest reading."""

    @property
    def moments_ns(self) -> tuple[int, ...]:
        """The kept moments, and the newest reading's last."""
        kept = self.kept_ns
        return kept if not self.readings or kept[-1] == self.newest_ns else (*kept, self.newest_ns)

    @property
    def totals(self) -> tuple[float, ...]:
        """What it had come to at each of `moments_ns`."""
        if not self.readings or self.kept_ns[-1] == self.newest_ns:
            return self.kept_totals
        return *self.kept_totals, self.newest_total

    def add_rates(self, times_ns: Sequence[int], per_second: Sequence[float]) -> None:
        """More readings of a rate, in order. Those not after the newest do not count."""
        if self.readings and times_ns and times_ns[0] <= self.newest_ns:
            at = bisect_right(times_ns, self.newest_ns)
            times_ns, per_second = times_ns[at:], per_second[at:]
        if not times_ns:
            return
        if not self.readings:
            self.first_rate = per_second[0]
            self.newest_ns = times_ns[0]
        before_ns = (self.newest_ns, *times_ns)
        grown = (
            rate * (now_ns - since_ns) / 1e9
            for rate, since_ns, now_ns in zip(per_second, before_ns, times_ns, strict=False)
        )
        totals = list(accumulate(grown, initial=self.newest_total))[1:]
        self.last_rate = per_second[-1]
        at = -self.readings % self.every
        while at < len(times_ns):
            until = at + self.every * max(1, POINTS - len(self.kept_ns))
            part = slice(at, until, self.every)
            at += self.every * len(times_ns[part])
            self._keep(self.readings + at, times_ns[part], totals[part])
        self.newest_ns, self.newest_total = times_ns[-1], totals[-1]
        self.readings += len(times_ns)

    def add_total(self, time_ns: int, total: float) -> None:
        """One more reading of a counter. One that went back counts from there on."""
        if self.readings:
            since_ns, more = time_ns - self.newest_ns, total - self.newest_total
            if since_ns <= 0:
                return
            if more < 0:
                self.kept_ns, self.kept_totals = (), ()
                self.readings, self.every = 0, 1
                self.first_rate = self.last_rate = None
            else:
                self.last_rate = 1e9 * more / since_ns
                if self.first_rate is None:
                    self.first_rate = self.last_rate
        self.newest_ns, self.newest_total = time_ns, total
        if not self.readings % self.every:
            self._keep(self.readings + self.every, (time_ns,), (total,))
        self.readings += 1

    def _keep(self, due: int, times_ns: Sequence[int], totals: Sequence[float]) -> None:
        """Keep moments, of which no more than one is beyond POINTS; the next is reading `due`."""
        self.kept_ns, self.kept_totals = (*self.kept_ns, *times_ns), (*self.kept_totals, *totals)
        if len(self.kept_ns) > POINTS and due % (2 * self.every):
            self.kept_ns, self.kept_totals = self.kept_ns[::2], self.kept_totals[::2]
            self.every *= 2

    def covered(self, first_ns: int, last_ns: int) -> tuple[int, int] | None:
        """The part of a time between the first and the newest reading; None if there is none."""
        if not self.readings:
            return None
        first_ns, last_ns = max(first_ns, self.kept_ns[0]), min(last_ns, self.newest_ns)
        return (first_ns, last_ns) if last_ns > first_ns else None

    def rates(self, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, float]]:
        """(start, end, mean rate) of each stretch between kept moments that is inside a time."""
        points = zip(self.moments_ns, self.totals, strict=True)
        for (since_ns, before), (until_ns, total) in pairwise(points):
            if first_ns <= since_ns and until_ns <= last_ns:
                yield since_ns, until_ns, 1e9 * (total - before) / (until_ns - since_ns)

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
