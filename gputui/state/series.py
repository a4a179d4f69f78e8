"""The figures of a GPU or of the host over a run, or over the time without one.

A `Series` is one figure: its samples' least, most and mean, how uncertain the mean is, and the
integral over time. Whoever wants the mean of a figure over some time asks it, so that tables,
comparisons and the screen agree. The samples themselves are kept for longer than a run lasts, in
gputui.state.history.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate, compress, pairwise
from operator import add
from typing import NamedTuple

import msgspec

from gputui.model.metrics import metrics_of, spread_fields

STRETCHES = 16
"""Readings fall into this many stretches at least, and less than twice as many, once there are
enough."""

POINTS = 128
"""The most times at which sums are kept; once there are enough readings, at least half as many are.
A part of a run can then be cut out to 1/64 of the run at worst, and exactly if the run had no more
readings than this."""


class BatchMeans(msgspec.Struct):
    """Least, most and mean of one field over samples.

    Samples a second apart are correlated, so their own deviation does not give the error of their
    mean. They are therefore averaged over equal stretches, 16 to 31 of them whatever the number of
    samples (batch means: 10 to 30 are enough, Schmeiser 1982, Operations Research 30(3); merged in
    pairs as samples arrive, so that memory stays bounded). Stretches much longer than the readings'
    correlation are nearly independent.
    """

    count: int = 0
    total: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0
    stretch_samples: int = 1
    stretch_totals: tuple[float, ...] = ()
    """The sums of complete stretches. They are a tuple, so that copies of a session share it."""
    open_total: float = 0.0
    open_samples: int = 0

    def add(self, value: float) -> None:
        """Count `value` into extremes, sum and spread."""
        self.extend((value,))

    def extend(self, values: Sequence[float]) -> None:
        """Count more values; sums are the same as if they were added one by one."""
        extremes = (self.minimum, self.maximum) if self.count else ()
        self.minimum, self.maximum = min((*extremes, *values)), max((*extremes, *values))
        self.count += len(values)
        # A column of readings at a time: an hour of eight GPUs opens in 0.73 s of CPU, and took 1.3
        # by single readings.
        self.total = reduce(add, values, self.total)
        start = 0
        while start < len(values):
            part = values[start : start + self.stretch_samples - self.open_samples]
            start += len(part)
            self.open_total = reduce(add, part, self.open_total)
            self.open_samples += len(part)
            if self.open_samples == self.stretch_samples:
                self._close()

    def _close(self) -> None:
        totals = (*self.stretch_totals, self.open_total)
        if len(totals) == 2 * STRETCHES:
            totals = tuple(map(sum, zip(totals[::2], totals[1::2], strict=True)))
            self.stretch_samples *= 2
        self.stretch_totals = totals
        self.open_total, self.open_samples = 0.0, 0

    @property
    def average(self) -> float | None:
        """The mean, None without values."""
        return self.total / self.count if self.count else None

    @property
    def stretches(self) -> int:
        """How many complete stretches there are."""
        return len(self.stretch_totals)

    @property
    def stretch_deviation(self) -> float | None:
        """Sample standard deviation (n − 1) of the stretches' means; None for fewer than two, or if
        it is not finite.
        """
        if self.stretches < 2:
            return None
        means = [total / self.stretch_samples for total in self.stretch_totals]
        middle = sum(means) / len(means)
        squares = sum((mean - middle) * (mean - middle) for mean in means)
        deviation = math.sqrt(squares / (len(means) - 1)) if math.isfinite(squares) else math.nan
        return deviation if math.isfinite(deviation) else None


class Reports(msgspec.Struct):
    """The values a program reported of one metric."""

    spread: BatchMeans = msgspec.field(default_factory=BatchMeans)
    last: float = -math.inf
    only_rises: bool = True
    """Rising so far: then it is a count of something, and its values are not a spread."""

    def add(self, value: float) -> None:
        """Count `value`, the newest report of the program."""
        self.spread.add(value)
        self.only_rises = self.only_rises and value >= self.last
        self.last = value


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
            start = bisect_right(times_ns, self.newest_ns)
            times_ns, per_second = times_ns[start:], per_second[start:]
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
        start = -self.readings % self.every
        while start < len(times_ns):
            until = start + self.every * max(1, POINTS - len(self.kept_ns))
            part = slice(start, until, self.every)
            start += self.every * len(times_ns[part])
            self._keep(self.readings + start, times_ns[part], totals[part])
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
        # Only the newest reading between two kept moments is copied: each one of nine figures had
        # an hour of eight GPUs open in 1.9 s instead of 1.0.
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
        return self._total_at(last_ns, first, last) - self._total_at(first_ns, first, last)

    def _total_at(self, time_ns: int, first_rate: float, last_rate: float) -> float:
        moments, totals = self.moments_ns, self.totals
        if time_ns <= moments[0]:
            return totals[0] - first_rate * (moments[0] - time_ns) / 1e9
        if time_ns >= moments[-1]:
            return totals[-1] + last_rate * (time_ns - moments[-1]) / 1e9
        after = bisect_right(moments, time_ns)
        share = (time_ns - moments[after - 1]) / (moments[after] - moments[after - 1])
        return totals[after - 1] + share * (totals[after] - totals[after - 1])


Span = tuple[int, int]
"""The first and the last moment of a time, in ns since the epoch."""

NEGLIGIBLE = 0.01
"""Part of a time that a counter is carried on over at the rate it had."""


class Total(NamedTuple):
    """What a figure came to over a time: of power in watts the energy in joules."""

    amount: float
    uncounted_ns: int | None
    """The part of the time that the driver's counter says nothing of, for which samples were
    integrated: 0 if it counted all, None if there is no counter."""


class Series(BatchMeans):
    """One figure of one GPU, or of the host, over a time; `count` is 0 while only its counter was
    read."""

    is_integrated: bool = False
    """Whether its mean is its integral over the time, as Metric.total says."""
    integral: Integral = msgspec.field(default_factory=Integral)
    counter: Integral | None = None
    """The integral as the driver counts it, where it does."""

    def add_samples(self, times_ns: Sequence[int], values: Sequence[float]) -> None:
        """Add samples, in order; the same as if they were added one by one."""
        self.extend(values)
        self.integral.add_rates(times_ns, values)

    def total_over(self, first_ns: int, last_ns: int) -> Total | None:
        """The integral over a time: by the counter, and by the samples where it was not read; None
        if it is unknown, or no time passed.
        """
        if last_ns <= first_ns:
            return None
        covered = self.counter.covered(first_ns, last_ns) if self.counter is not None else None
        if self.counter is None or covered is None:
            amount = self.integral.between(first_ns, last_ns)
            return None if amount is None else Total(amount, None)
        uncounted_ns = last_ns - first_ns - (covered[1] - covered[0])
        if uncounted_ns <= NEGLIGIBLE * (last_ns - first_ns):
            amount = self.counter.between(first_ns, last_ns)
            return None if amount is None else Total(amount, 0)
        counted = self.counter.between(*covered)
        before = self.integral.between(first_ns, covered[0])
        after = self.integral.between(covered[1], last_ns)
        if counted is None or before is None or after is None:
            return None
        return Total(before + counted + after, uncounted_ns)

    def mean(self, *spans: Span | None) -> float | None:
        """The mean over some time: its integral over its length. None if it is unknown of a part,
        a part is None, or no time passed.
        """
        amount, length_ns = 0.0, 0
        for span in spans:
            total = None if span is None else self._integral(*span)
            if span is None or total is None:
                return None
            amount += total
            length_ns += max(0, span[1] - span[0])
        return 1e9 * amount / length_ns if length_ns else None

    def mean_of_all(self, span: Span) -> float | None:
        """The mean over a time that the samples cover: the mean of the samples, or the integral
        over the time if the figure is declared so."""
        mean = self.mean(span) if self.is_integrated else None
        return self.average if mean is None else mean

    def _integral(self, first_ns: int, last_ns: int) -> float | None:
        if not self.is_integrated:
            return self.integral.between(first_ns, last_ns)
        total = self.total_over(first_ns, last_ns)
        return None if total is None else total.amount


MOST_WAITING = 256
"""Samples that wait to be added to the series."""


class FigureSeries(msgspec.Struct):
    """The series of all figures of one GPU, or of the host.

    Samples wait in a row each, and are added to a series when that is asked for, or to all once
    there are MOST_WAITING: a sample of ten figures takes 3 µs so, and 33 µs if it is added at once,
    which would double the time that opening hours of eight GPUs takes.
    """

    fields: tuple[str, ...]
    integrated: tuple[str, ...] = ()
    """The fields whose mean is their integral over the time."""
    _series: dict[str, Series] = {}
    _times_ns: list[int] = []
    _rows: list[tuple[float | None, ...]] = []
    """The fields of each waiting sample."""
    _added: dict[str, int] = {}
    """How many of the waiting samples a series has already."""

    @classmethod
    def for_samples(cls, kind: type[msgspec.Struct]) -> FigureSeries:
        """None so far, of a kind of sample: of its figures that say `spread`."""
        fields = spread_fields(kind)
        metrics = metrics_of(kind)
        return cls(fields, tuple(field for field in fields if metrics[field].total))

    def add(self, time_ns: int, row: tuple[float | None, ...]) -> None:
        """Add a sample: the values of `fields`."""
        times_ns = self._times_ns
        if len(times_ns) >= MOST_WAITING or (times_ns and time_ns <= times_ns[-1]):
            self._add_waiting()
            times_ns = self._times_ns
        times_ns.append(time_ns)
        self._rows.append(row)

    def count(self, field: str, time_ns: int, total: float) -> None:
        """Add a reading of the driver's counter of a field's integral."""
        series = self._series_of(field)
        if series.counter is None:
            series.counter = Integral()
        series.counter.add_total(time_ns, total)

    def counter(self, field: str) -> Integral | None:
        """The readings of that counter; None if there was none."""
        series = self._series.get(field)
        return None if series is None else series.counter

    def get(self, field: str) -> Series | None:
        """The series of a figure; None if it was never read."""
        if field in self.fields and self._added.get(field, 0) < len(self._rows):
            place = self.fields.index(field)
            self._add_column(field, [row[place] for row in self._rows])
        return self._series.get(field)

    def sampled(self) -> Iterator[tuple[str, Series]]:
        """(field, series) of each figure with samples, by name."""
        for field in sorted(self.fields):
            series = self.get(field)
            if series is not None and series.count:
                yield field, series

    def forget(self, field: str) -> None:
        """Drop the samples of a figure so far."""
        self._add_waiting()
        self._series.pop(field, None)

    def _add_waiting(self) -> None:
        for field, column in zip(self.fields, zip(*self._rows, strict=True), strict=False):
            self._add_column(field, column)
        self._times_ns, self._rows, self._added = [], [], {}

    def _add_column(self, field: str, column: Sequence[float | None]) -> None:
        first = self._added.get(field, 0)
        times_ns, values = self._times_ns[first:], column[first:]
        self._added[field] = len(self._rows)
        if None in values:
            is_read = [value is not None for value in values]
            times_ns, values = list(compress(times_ns, is_read)), list(compress(values, is_read))
        if values:
            self._series_of(field).add_samples(times_ns, values)  # type: ignore[arg-type]

    def _series_of(self, field: str) -> Series:
        series = self._series.get(field)
        if series is None:
            series = self._series[field] = Series(is_integrated=field in self.integrated)
        return series
