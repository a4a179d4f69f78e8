"""Least, most and mean of readings over a time, and the uncertainty of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

import msgspec

STRETCHES = 16
"""Readings fall into this many stretches at least, and less than twice as many, once there are
enough."""


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
    """Of complete stretches. A tuple: copies of a session share it."""
    open_total: float = 0.0
    open_samples: int = 0

    def add(self, value: float) -> None:
        """Count one more value."""
        self.extend((value,))

    def extend(self, values: Sequence[float]) -> None:
        """Count more values; sums are the same as if they were added one by one."""
        known = (self.minimum, self.maximum) if self.count else ()
        self.minimum, self.maximum = min((*known, *values)), max((*known, *values))
        self.count += len(values)
        self.total = reduce(add, values, self.total)
        at = 0
        while at < len(values):
            part = values[at : at + self.stretch_samples - self.open_samples]
            at += len(part)
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
        """One more report."""
        self.spread.add(value)
        self.only_rises = self.only_rises and value >= self.last
        self.last = value
