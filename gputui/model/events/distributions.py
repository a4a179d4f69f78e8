"""Distributions of integers (nanoseconds, bytes): as an event has them, and growing; and the
figures of both: count, mean, quantiles, deviation.

Count, total, minimum, maximum and the sum of squared differences merge exactly (Chan, Golub and
LeVeque 1983). The median needs the values: they are sent one by one while few differ, and as
buckets of a constant relative width after that (DDSketch: Masson, Rim and Lee 2019). Arrays become
distributions in `gputui.attribute`; this module, which every view needs, does not use NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta

from gputui.model.events.base import Amount, Step

_BITS = 80
"""The bits of the largest value that has a bucket: 8,192 steps of 64 bits, as an event may have
them."""


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
        return self.middles[math.ceil(math.log(value) / self.log_gamma)]

    @cached_property
    def middles(self) -> list[int]:
        """What stands for the values of each bucket."""
        return [
            round(2.0 * math.pow(self.gamma, index) / (self.gamma + 1.0))
            for index in range(math.ceil(_BITS / math.log2(self.gamma)) + 1)
        ]


FINE = Buckets(1.018, 1000)
"""Within 1 %."""

COARSE = Buckets(1.1, 32)
"""Within 5 %, for numerous things that travel every tick."""


class Statistics:
    """Mean, deviation and percentiles of a distribution, in the unit of its values."""

    __slots__ = ()

    if TYPE_CHECKING:
        # Fields of the classes that derive from this one.

        @property
        def count(self) -> int:
            """How many values there are."""

        @property
        def total(self) -> int:
            """The sum of the values, in their own unit."""

        @property
        def minimum(self) -> int | None:
            """The smallest; None if there is none."""

        @property
        def maximum(self) -> int | None:
            """The largest; None if there is none."""

        @property
        def squares(self) -> float:
            """Σ(x − mean)²: divided by the count, the variance."""

        @property
        def exact(self) -> bool:
            """Whether values are themselves, not the middles of their buckets."""

    def counted(self) -> Iterable[tuple[int, int]]:
        """(value, how often it came) in ascending order."""
        raise NotImplementedError

    @property
    def average(self) -> float | None:
        """The mean; None if empty."""
        return self.total / self.count if self.count else None

    @property
    def median(self) -> float | None:
        """The middle value, for an even count the mean of the two middle ones, as in nsys.

        Exact while `exact`, otherwise within 1 %.
        """
        return self.percentile(50.0)

    def percentile(self, percent: float) -> float | None:
        """The value below or at which `percent` of all lie, interpolated between neighbours; None
        if empty."""
        if not self.count:
            return None
        position = percent / 100.0 * (self.count - 1)
        low = math.floor(position)
        first = self._value_at(low)
        if position == low:
            return first
        return first + (self._value_at(low + 1) - first) * (position - low)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation (n − 1); 0 for a single value, None if empty."""
        if not self.count:
            return None
        if self.count == 1:
            return 0.0
        return math.sqrt(max(0.0, self.squares) / (self.count - 1))

    def _value_at(self, index: int) -> float:
        seen = 0
        for value, count in self.counted():
            seen += count
            if index < seen:
                # A bucket's middle can lie outside the observed range; the true value cannot.
                return float(min(max(value, self.minimum or 0), self.maximum or 0))
        return float(self.maximum or 0)


class Distribution(Statistics, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Many durations (ns) or sizes (bytes) in a form in which two distributions can be merged.

    `squares` is Σ(x − mean)². `values` are the distinct values in order: the values themselves
    while `exact`, otherwise bucket midpoints within 1 % of each value. Each value is written as the
    difference from the previous one, the first from 0; a following −n means that the value occurred
    n times, not once: [500, 32, -3, 64] is 500 once, 532 three times, 596 once.

    A distribution has either `values` or `buckets`. `buckets` begins with the number of the first
    bucket; then come the counts of values in that bucket and in each one after it. Bucket i holds
    the values above 1.018^(i−1) up to 1.018^i.
    """

    count: Amount
    total: Amount
    squares: float
    minimum: Amount
    maximum: Amount
    values: Annotated[tuple[Step, ...], Meta(max_length=8192)]
    exact: bool = True
    buckets: Annotated[tuple[Amount, ...], Meta(max_length=8192)] = ()

    def counted(self) -> list[tuple[int, int]]:
        """Pairs of a value and how often it occurred, in ascending order."""
        if self.buckets:
            first, *counts = self.buckets
            return [pair for pair in zip(FINE.middles[first:], counts, strict=False) if pair[1]]
        pairs: list[tuple[int, int]] = []
        value = 0
        for step in self.values:
            if step >= 0:
                value += step
                pairs.append((value, 1))
            elif pairs:
                pairs[-1] = value, -step
        return pairs


_Key = TypeVar("_Key", bound=Hashable)

EXACT_VALUES = 4096
"""An accumulator with more distinct values than this switches to buckets."""

BUCKETS = EXACT_VALUES
"""More than there are buckets: more distinct values than this are put into buckets."""


def encoded_values(pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The `values` of a Distribution, of pairs of a value and its count, sorted by value."""
    result = []
    before = 0
    for value, count in pairs:
        result.append(value - before)
        if count > 1:
            result.append(-count)
        before = value
    return tuple(result)


class Accumulator(Statistics, msgspec.Struct, array_like=True):
    """A growing distribution. An empty one has no average, median, minimum or maximum."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None
    exact: bool = True
    squares: float = 0.0
    """Σ(x − mean)², for the standard deviation."""
    values: dict[int, int] = {}
    """How often each value, or each bucket's middle, came."""

    @classmethod
    def merged(cls, several: Iterable[Statistics]) -> Accumulator:
        """The statistics of the values of `several` together."""
        result = cls()
        for statistics in several:
            result.add(statistics)
        return result

    def add(self, part: Statistics) -> None:
        """Add the values that `part` summarises."""
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
        count_of = values.get
        is_coarser = part.exact and not self.exact
        if not isinstance(part, Distribution) or part.buckets:
            pairs = part.values.items() if isinstance(part, Accumulator) else part.counted()
            for value, often in pairs:
                # A distribution of values and one of buckets add up as records of either do,
                # whatever came first.
                key = FINE.middle(value) if is_coarser else value
                values[key] = count_of(key, 0) + often
        elif is_coarser:
            value = key = 0
            for step in part.values:
                if step >= 0:
                    value += step
                    key = FINE.middle(value)
                    values[key] = count_of(key, 0) + 1
                else:  # this is a count, not a value
                    values[key] = count_of(key, 0) - step - 1
        else:  # the usual case, and most of the time that folding takes
            value = 0
            for step in part.values:
                if step >= 0:
                    value += step
                    values[value] = count_of(value, 0) + 1
                else:
                    values[value] = count_of(value, 0) - step - 1
        if self.exact and len(values) > EXACT_VALUES:
            self._make_coarse()
        elif len(values) > BUCKETS:
            self._put_into_buckets()

    def counted(self) -> list[tuple[int, int]]:
        """Pairs of a value and how often it occurred, in ascending order."""
        return sorted(self.values.items())

    def freeze(self) -> Distribution:
        """The values as a part of an event. An empty accumulator gives a count of 0."""
        return Distribution(
            count=self.count,
            total=self.total,
            squares=self.squares,
            minimum=self.minimum or 0,
            maximum=self.maximum or 0,
            values=encoded_values(self.counted()),
            exact=self.exact,
        )

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


class Totals(dict[_Key, Statistics]):
    """Distributions added up by a key.

    What is the only one of its key is not copied: it still grows with whoever holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[_Key, Accumulator] = {}

    def add(self, key: _Key, times: Statistics) -> None:
        """Add one that has values."""
        present = self.get(key)
        if present is None:
            self[key] = times
            return
        sums = self._sums.get(key)
        if sums is None:
            sums = self[key] = self._sums[key] = Accumulator.merged((present,))
        sums.add(times)
