"""Distributions of integers (nanoseconds, bytes) that grow.

Count, total, minimum, maximum and the sum of squared differences merge exactly (Chan, Golub and
LeVeque 1983). The median needs the values: they are sent one by one while few differ, and as
buckets of a constant relative width after that. Arrays become distributions in
`gputui.attribute`; this module, which every view needs, does not use NumPy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec

from gputui.model.events import Distribution
from gputui.model.statistics import FINE, Statistics

_Key = TypeVar("_Key", bound=Hashable)

EXACT_VALUES = 4096
"""An accumulator with more distinct values than this switches to buckets."""

BUCKETS = EXACT_VALUES
"""More than there are buckets: more distinct values than this are put into buckets."""


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
            values=steps(self.counted()),
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
