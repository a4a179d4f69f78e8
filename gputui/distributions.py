"""Mergeable statistics of integers (nanoseconds, bytes): what travels, and how it adds up.

Count, total, minimum, maximum and the sum of squared differences merge exactly (Chan, Golub and
LeVeque 1983). The median needs the values: they travel as (value, count) pairs while few differ,
and as buckets no further than 1 % from each value after that. Arrays become distributions in
`gputui.sources.capture.grouping`; this module, which every view needs, does without NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gputui.events import Distribution

EXACT_VALUES = 4096
"""An accumulator with more different values than this keeps buckets from then on."""

EXACT_BELOW = 1000
GAMMA = 1.018
# A value is at most (γ − 1)/(γ + 1) = 0.9 % from its bucket's middle; rounding the middle to an
# integer adds at most 0.05 % where buckets begin.
LOG_GAMMA = math.log(GAMMA)


def bucket_middle(value: int) -> int:
    """The representative of a value: itself below 1000, else its bucket's middle."""
    if value < EXACT_BELOW:
        return value
    index = math.ceil(math.log(value) / LOG_GAMMA)
    return round(2.0 * math.pow(GAMMA, index) / (GAMMA + 1.0))


class Accumulator:
    """A distribution that grows. Empty ones have no average, median, minimum or maximum."""

    __slots__ = ("_squares", "_values", "count", "exact", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.minimum: int | None = None
        self.maximum: int | None = None
        self.exact = True
        self._squares = 0.0
        self._values: dict[int, int] = {}

    @classmethod
    def of(cls, parts: Iterable[Distribution | Accumulator]) -> Accumulator:
        """The sum of several."""
        result = cls()
        for part in parts:
            result.add(part.freeze() if isinstance(part, Accumulator) else part)
        return result

    def add(self, part: Distribution) -> None:
        """Merge `part` in."""
        if part.count <= 0:
            return
        if self.count:
            difference = part.total / part.count - self.total / self.count
            self._squares += part.squares + (
                difference * difference * self.count * part.count / (self.count + part.count)
            )
        else:
            self._squares = part.squares
        self.count += part.count
        self.total += part.total
        self.minimum = part.minimum if self.minimum is None else min(self.minimum, part.minimum)
        self.maximum = part.maximum if self.maximum is None else max(self.maximum, part.maximum)
        pairs: Iterable[tuple[int, int]] = part.values
        if not part.exact:
            self._coarsen()
        elif not self.exact:
            pairs = _coarse(part.values)
        values = self._values
        for value, count in pairs:
            values[value] = values.get(value, 0) + count
        if self.exact and len(values) > EXACT_VALUES:
            self._coarsen()

    @property
    def average(self) -> float | None:
        """The mean, None when empty."""
        return self.total / self.count if self.count else None

    @property
    def median(self) -> float | None:
        """The middle value, of an even count the mean of the two middle ones, as nsys has it.

        Exact while `exact`, otherwise within 1 %.
        """
        return self._middle(0.5)

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` of all lie at or under, interpolated between neighbours."""
        return self._middle(percent / 100.0)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation (n − 1), 0 for a single value, None when empty."""
        if not self.count:
            return None
        if self.count == 1:
            return 0.0
        return math.sqrt(max(0.0, self._squares) / (self.count - 1))

    def freeze(self) -> Distribution:
        """The same as a record. Empty accumulators give a count of 0."""
        return Distribution(
            count=self.count,
            total=self.total,
            squares=self._squares,
            minimum=self.minimum or 0,
            maximum=self.maximum or 0,
            values=tuple(sorted(self._values.items())),
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
        for value, count in sorted(self._values.items()):
            seen += count
            if index < seen:
                # A bucket's middle can lie outside what was seen; the true value cannot.
                return float(min(max(value, self.minimum or 0), self.maximum or 0))
        return float(self.maximum or 0)

    def _coarsen(self) -> None:
        if self.exact:
            self.exact = False
            coarse: dict[int, int] = {}
            for value, count in _coarse(self._values.items()):
                coarse[value] = coarse.get(value, 0) + count
            self._values = coarse


def _coarse(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(bucket_middle(value), count) for value, count in pairs]
