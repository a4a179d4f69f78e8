"""Mergeable statistics of integers (nanoseconds, bytes).

Count, total, minimum, maximum and the sum of squared differences merge exactly (Chan, Golub and
LeVeque 1983). The median needs the values: they are sent one by one while few differ, and as
buckets of a constant relative width after that (DDSketch: Masson, Rim and Lee 2019). Arrays become
distributions in `gputui.attribute.distributions`; this module, which every view needs, does not use
NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import TypeVar

import msgspec

from gputui.model.events import Distribution

_Key = TypeVar("_Key", bound=Hashable)

EXACT_VALUES = 4096
"""An accumulator with more distinct values than this switches to buckets."""

BUCKETS = EXACT_VALUES
"""More than there are buckets: more distinct values than this are put into buckets."""


class Buckets:
    """Bucket i holds the values over γⁱ⁻¹ up to γⁱ; values under `exact_below` have their own.

    A value is at most (γ − 1)/(γ + 1) from its bucket's middle, and half a unit more where that is
    rounded.
    """

    def __init__(self, gamma: float, exact_below: int) -> None:
        self.gamma = gamma
        self.log_gamma = math.log(gamma)
        self.exact_below = exact_below

    def middle(self, value: int) -> int:
        """What stands for a value."""
        if value < self.exact_below:
            return value
        return self._middle(math.ceil(math.log(value) / self.log_gamma))

    @cached_property
    def middles(self) -> list[int]:
        """What stands for the values of each bucket, as far as 64 bits go."""
        return [self._middle(index) for index in range(math.ceil(63 / math.log2(self.gamma)))]

    def _middle(self, index: int) -> int:
        return round(2.0 * math.pow(self.gamma, index) / (self.gamma + 1.0))


FINE = Buckets(1.018, 1000)
"""Within 1 %."""

COARSE = Buckets(1.1, 32)
"""Within 5 %, for numerous things that travel every tick."""


def steps(pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """(value, count) pairs, sorted by value, from the encoded `values` of a Distribution."""
    result = []
    before = 0
    for value, count in pairs:
        result.append(value - before)
        if count > 1:
            result.append(-count)
        before = value
    return tuple(result)


class Accumulator(msgspec.Struct, array_like=True):
    """A growing distribution. An empty one has no average, median, minimum or maximum."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None
    exact: bool = True
    squares: float = 0.0
    """Σ(x − mean)²."""
    values: dict[int, int] = {}
    """How often each value, or each bucket's middle, came."""

    @classmethod
    def of(cls, parts: Iterable[Distribution | Accumulator]) -> Accumulator:
        """The sum of several."""
        result = cls()
        for part in parts:
            result.add(part)
        return result

    def add(self, part: Distribution | Accumulator) -> None:
        """Merge `part`."""
        more, count = part.count, self.count
        if more <= 0:
            return
        if count:
            difference = part.total / more - self.total / count
            self.squares += part.squares + difference * difference * count * more / (count + more)
        else:
            self.squares = part.squares
        self.count = count + more
        self.total += part.total
        least, most = part.minimum, part.maximum
        if self.minimum is None or (least is not None and least < self.minimum):
            self.minimum = least
        if self.maximum is None or (most is not None and most > self.maximum):
            self.maximum = most
        if not part.exact:
            self._make_coarse()
        values = self.values
        known = values.get
        value = 0
        if isinstance(part, Accumulator):
            is_coarser = part.exact and not self.exact
            for value, often in part.values.items():
                key = FINE.middle(value) if is_coarser else value
                values[key] = known(key, 0) + often
        elif part.buckets:
            first, *counts = part.buckets
            for value, often in zip(FINE.middles[first:], counts, strict=False):
                if often:
                    values[value] = known(value, 0) + often
        elif part.exact and not self.exact:
            key = 0
            for step in part.values:
                if step >= 0:
                    value += step
                    key = FINE.middle(value)
                    values[key] = known(key, 0) + 1
                else:  # this is a count, not a value
                    values[key] = known(key, 0) - step - 1
        else:  # the usual case, and most of the time that folding takes
            for step in part.values:
                if step >= 0:
                    value += step
                    values[value] = known(value, 0) + 1
                else:
                    values[value] = known(value, 0) - step - 1
        if self.exact and len(values) > EXACT_VALUES:
            self._make_coarse()
        elif len(values) > BUCKETS:
            self._put_into_buckets()

    @property
    def average(self) -> float | None:
        """The mean; None if empty."""
        return self.total / self.count if self.count else None

    @property
    def median(self) -> float | None:
        """The middle value, for an even count the mean of the two middle ones, as in nsys.

        Exact while `exact`, otherwise within 1 %.
        """
        return self._middle(0.5)

    def percentile(self, percent: float) -> float | None:
        """The value below or at which `percent` of all lie, interpolated between neighbours."""
        return self._middle(percent / 100.0)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation (n − 1); 0 for a single value, None if empty."""
        if not self.count:
            return None
        if self.count == 1:
            return 0.0
        return math.sqrt(max(0.0, self.squares) / (self.count - 1))

    def freeze(self) -> Distribution:
        """The same as a record. An empty accumulator gives a count of 0."""
        return Distribution(
            count=self.count,
            total=self.total,
            squares=self.squares,
            minimum=self.minimum or 0,
            maximum=self.maximum or 0,
            values=steps(sorted(self.values.items())),
            exact=self.exact,
        )

    def _middle(self, fraction: float) -> float | None:
        if not self.count:
            return None
        position = fraction * (self.count - 1)
        low = math.floor(position)
        first = self._at(low)
        if position == low:
            return first
        return first + (self._at(low + 1) - first) * (position - low)

    def _at(self, index: int) -> float:
        seen = 0
        for value, count in sorted(self.values.items()):
            seen += count
            if index < seen:
                # A bucket's middle can lie outside the observed range; the true value cannot.
                return float(min(max(value, self.minimum or 0), self.maximum or 0))
        return float(self.maximum or 0)

    def _make_coarse(self) -> None:
        if self.exact:
            self.exact = False
            self._put_into_buckets()

    def _put_into_buckets(self) -> None:
        coarse: dict[int, int] = {}
        for value, count in self.values.items():
            middle = FINE.middle(value)
            coarse[middle] = coarse.get(middle, 0) + count
        self.values = coarse


class Totals(dict[_Key, Accumulator]):
    """Accumulators added up by a key.

    What is the only one of its key is not copied: it still grows with whoever holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copied: set[_Key] = set()

    def add(self, key: _Key, times: Accumulator) -> None:
        """Add one that has values."""
        known = self.get(key)
        if known is None:
            self[key] = times
            return
        if key not in self._copied:
            self._copied.add(key)
            known = self[key] = Accumulator.of((known,))
        known.add(times)
