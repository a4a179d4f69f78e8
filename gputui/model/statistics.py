"""Figures of a distribution of integers (nanoseconds, bytes): count, mean, quantiles, deviation; of
one that still grows (gputui.model.sketch.Accumulator) and of one that came in an event
(gputui.model.events.Distribution) alike.

The buckets that stand for many different values have a constant relative width (DDSketch: Masson,
Rim and Lee 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

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
