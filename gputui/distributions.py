"""Mergeable statistics of integers (nanoseconds, bytes): what travels, and how it adds up.

Count, total, minimum, maximum and the sum of squared differences merge exactly (Chan, Golub and
LeVeque 1983). The median needs the values: they travel as (value, count) pairs while few differ,
and as buckets no further than 1 % from each value after that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gputui.events import Distribution

DELTA_VALUES = 256
"""A delta with more different values than this travels in buckets."""

EXACT_VALUES = 4096
"""An accumulator with more different values than this keeps buckets from then on."""

_EXACT_BELOW = 1000
_GAMMA = 1.018
# A value is at most (γ − 1)/(γ + 1) = 0.9 % from its bucket's middle; rounding the middle to an
# integer adds at most 0.05 % where buckets begin.
_LOG_GAMMA = math.log(_GAMMA)

Int64s = npt.NDArray[np.int64]


def bucket_middles(values: Int64s) -> Int64s:
    """The representative of each value: itself below 1000, else its bucket's middle."""
    index = np.ceil(np.log(np.maximum(values, 1)) / _LOG_GAMMA)
    middles = np.rint(2.0 * np.power(_GAMMA, index) / (_GAMMA + 1.0)).astype(np.int64)
    return np.where(values < _EXACT_BELOW, values, middles)


def distribution(values: Int64s) -> Distribution:
    """The distribution of one non-empty array."""
    return distributions(np.zeros(len(values), np.int64), values)[1][0]


def distributions(
    keys: Int64s, values: Int64s, exact_limit: int = DELTA_VALUES
) -> tuple[Int64s, list[Distribution]]:
    """The distribution of `values` for each different key.

    Gives the sorted different keys and, beside each, its distribution. Arrays are of one length.
    """
    if not len(keys):
        return np.empty(0, np.int64), []
    order = np.lexsort((values, keys))
    keys = keys[order]
    values = values[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    ends = np.r_[starts[1:], len(keys)]
    counts = ends - starts
    totals = np.add.reduceat(values, starts)
    differences = values - np.repeat(totals / counts, counts)
    squares = np.add.reduceat(differences * differences, starts)
    run_starts = np.flatnonzero(np.r_[True, (values[1:] != values[:-1]) | (keys[1:] != keys[:-1])])
    run_values = values[run_starts]
    run_counts = np.diff(np.r_[run_starts, len(values)])
    first_runs = np.searchsorted(run_starts, starts)
    last_runs = np.r_[first_runs[1:], len(run_starts)]
    result = []
    for i in range(len(starts)):
        pairs_values = run_values[first_runs[i] : last_runs[i]]
        pairs_counts = run_counts[first_runs[i] : last_runs[i]]
        exact = len(pairs_values) <= exact_limit
        if not exact:
            pairs_values, inverse = np.unique(bucket_middles(pairs_values), return_inverse=True)
            pairs_counts = np.bincount(inverse, weights=pairs_counts).astype(np.int64)
        result.append(
            Distribution(
                count=int(counts[i]),
                total=int(totals[i]),
                squares=float(squares[i]),
                minimum=int(values[starts[i]]),
                maximum=int(values[ends[i] - 1]),
                values=tuple(zip(pairs_values.tolist(), pairs_counts.tolist(), strict=True)),
                exact=exact,
            )
        )
    return keys[starts], result


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
    pairs = list(pairs)
    middles = bucket_middles(np.array([value for value, _ in pairs], np.int64))
    return [(middle, count) for middle, (_, count) in zip(middles.tolist(), pairs, strict=True)]
