"""Arrays of durations or sizes → one distribution per key, a whole batch at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Bools, Int64s, join, run_starts
from gputui.model.events import Distribution
from gputui.model.events.distributions import COARSE, EXACT_VALUES, FINE, Buckets, encoded_values

DELTA_VALUES = 256
"""A delta with more distinct values than this is sent in buckets."""

_LARGEST = 1 << 62


def bucket_middles(values: Int64s, buckets: Buckets = FINE) -> Int64s:
    """What stands for each value, as Buckets.middle has it."""
    index = np.ceil(np.log(np.maximum(values, 1)) / buckets.log_gamma).astype(np.int64)
    return np.where(values < buckets.exact_below, values, _table_of_middles(buckets).take(index))


@functools.cache
def _table_of_middles(buckets: Buckets) -> Int64s:
    return _middles(np.arange(math.log(1 << 63) / buckets.log_gamma + 2), buckets)


def _middles(index: npt.NDArray[Any], buckets: Buckets) -> Int64s:
    # One formula for coarse and fine buckets: with its own a coarse value of 32 fell 6 % too low.
    middles = np.rint(2.0 * np.power(buckets.gamma, index) / (buckets.gamma + 1.0))
    integers: Int64s = np.minimum(middles, _LARGEST).astype(np.int64)
    return integers


def grouped(
    keys: Int64s, values: Int64s, exact_limit: int = DELTA_VALUES
) -> Iterator[tuple[int, Distribution]]:
    """Each distinct key, in order, with the distribution of its values."""
    different, of_each = distributions(keys, values, exact_limit)
    return zip(different.tolist(), of_each, strict=True)


def in_buckets(values: Int64s) -> Distribution:
    """The distribution of values from FINE.exact_below on, in FINE buckets: a third of the bytes of
    `values` in a recording. Of `squares` four figures are kept."""
    index = np.ceil(np.log(values) / FINE.log_gamma).astype(np.int64)
    first, total = int(index.min()), int(values.sum())
    return Distribution(
        count=len(values),
        total=total,
        squares=float(f"{((values - total / len(values)) ** 2).sum():.4g}"),
        minimum=int(values.min()),
        maximum=int(values.max()),
        values=(),
        exact=False,
        buckets=(first, *np.bincount(index - first).tolist()),
    )


def distributions(
    keys: Int64s, values: Int64s, exact_limit: int = DELTA_VALUES
) -> tuple[Int64s, list[Distribution]]:
    """The distribution of `values` for each distinct key.

    Returns the sorted distinct keys and the distribution of each. The arrays have equal length.
    """
    if not len(keys):
        return np.empty(0, np.int64), []
    counted = _Counted.of_values(keys, values)
    return counted.keys, counted.distributions(exact_limit)


@dataclass(slots=True)
class _Counted:
    """The values of each key, sorted by key and value. The first columns have one entry a key;
    `values` and `often` have a row for each different value, and a key's rows begin at its
    `firsts`."""

    keys: Int64s
    counts: Int64s
    totals: Int64s
    squares: npt.NDArray[np.float64]
    """Σ(x − mean)² of each key's values, for the standard deviation."""
    minima: Int64s
    maxima: Int64s
    exact: Bools
    """Whether the values of its rows are themselves, not the middles of buckets."""
    firsts: Int64s
    values: Int64s
    often: Int64s

    @classmethod
    def of_values(cls, keys: Int64s, values: Int64s) -> _Counted:
        """All values as they are. There is at least one."""
        keys, values = sorted_pairs(keys, values)
        starts = run_starts(keys)
        ends = np.append(starts[1:], len(keys))
        counts = ends - starts
        totals = np.add.reduceat(values, starts)
        differences = values - np.repeat(totals / counts, counts)
        squares: npt.NDArray[Any] = np.add.reduceat(differences * differences, starts)
        runs = _run_starts(starts, values)
        return cls(
            keys=keys[starts],
            counts=counts,
            totals=totals,
            # Squares of nanoseconds: the rounding is too small to show in a deviation.
            squares=np.round(squares, 3),
            minima=values[starts],
            maxima=values[ends - 1],
            exact=np.ones(len(starts), np.bool_),
            firsts=np.searchsorted(runs, starts),
            values=values[runs],
            often=np.diff(np.append(runs, len(values))),
        )

    @property
    def different(self) -> Int64s:
        """The number of rows of each key."""
        return np.diff(np.append(self.firsts, len(self.values)))

    def merged(self, more: _Counted) -> _Counted:
        """Both together. A key whose values are in buckets in one of them has buckets in the
        result."""
        keys = np.union1d(self.keys, more.keys)
        places = [np.searchsorted(keys, part.keys) for part in (self, more)]
        counts, totals = np.zeros((2, len(keys)), np.int64)
        squares = np.zeros(len(keys))
        minima, maxima = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), np.int64)
        exact = np.ones(len(keys), np.bool_)
        for place, part in zip(places, (self, more), strict=True):
            # Sums of two parts: Chan, Golub and LeVeque 1983, as in Accumulator.
            before = counts[place]
            apart = part.totals / part.counts - totals[place] / np.maximum(before, 1)
            weight = before * (part.counts / (before + part.counts))
            squares[place] += part.squares + apart * apart * weight
            counts[place] += part.counts
            totals[place] += part.totals
            minima[place] = np.minimum(minima[place], part.minima)
            maxima[place] = np.maximum(maxima[place], part.maxima)
            exact[place] &= part.exact
        of_row = np.concatenate(
            [
                np.repeat(place, part.different)
                for place, part in zip(places, (self, more), strict=True)
            ]
        )
        values, often = (
            np.concatenate(column)
            for column in ((self.values, more.values), (self.often, more.often))
        )
        is_coarse = ~exact[of_row]
        if is_coarse.any():
            values[is_coarse] = bucket_middles(values[is_coarse])
        firsts, values, often = _counted_rows(of_row, values, often)
        return _Counted(keys, counts, totals, squares, minima, maxima, exact, firsts, values, often)

    def limited(self, exact_limit: int) -> _Counted:
        """The same distributions, but with buckets for each key that has more different values than
        the limit."""
        exact = self.exact & (self.different <= exact_limit)
        if not (self.exact & ~exact).any():
            return self
        of_row = np.repeat(np.arange(len(self.keys)), self.different)
        is_coarse = ~exact[of_row]
        values = self.values.copy()
        values[is_coarse] = bucket_middles(values[is_coarse])
        firsts, values, often = _counted_rows(of_row, values, self.often)
        return replace(self, exact=exact, firsts=firsts, values=values, often=often)

    def distributions(self, exact_limit: int) -> list[Distribution]:
        """The distribution of each key."""
        limited = self.limited(exact_limit)
        steps, firsts = _steps(limited.firsts, limited.values, limited.often)
        columns = zip(
            self.counts.tolist(),
            self.totals.tolist(),
            self.squares.tolist(),
            self.minima.tolist(),
            self.maxima.tolist(),
            (tuple(steps[first:last]) for first, last in pairwise(firsts)),
            limited.exact.tolist(),
            strict=True,
        )
        return [Distribution(*part) for part in columns]


def _counted_rows(of_row: Int64s, values: Int64s, often: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Sorts rows by key (numbered from 0, each with rows) and value, and counts equal rows once:
    returns where each key's rows begin, the values, and how often each occurred."""
    order = np.lexsort((values, of_row))
    of_row, values, often = of_row[order], values[order], often[order]
    starts = run_starts(of_row)
    runs = _run_starts(starts, values)
    return np.searchsorted(runs, starts), values[runs], np.add.reduceat(often, runs)


HELD_VALUES = 1 << 18
"""How many values are held one by one before equal ones are counted; more if there are already more
different values."""


MOST_DIFFERENT = 1 << 18
"""How many different values are kept exactly, of all keys together. Beyond that, the keys with the
most different values are put into buckets. A value takes 100 bytes in a session: in a report with
5.6 million ranges, keeping all took 500 MB."""


class ValueSums:
    """Distributions of values by key, for as long as nobody asks for them. The memory grows with
    the number of different values of each key, up to EXACT_VALUES and MOST_DIFFERENT, and not with
    the number of values."""

    def __init__(self) -> None:
        self._new: list[tuple[Int64s, Int64s]] = []
        self._held = 0
        self._counted: _Counted | None = None

    @property
    def counted_keys(self) -> int:
        """How many keys there are, not counting those of the newest, uncounted values."""
        return len(self._counted.keys) if self._counted is not None else 0

    def add(self, keys: Int64s, values: Int64s) -> None:
        """Adds values to the keys at the same positions. No value is below 0."""
        self._new.append((keys, values))
        self._held += len(keys)
        if self._held >= HELD_VALUES:
            different = len(self._counted.values) if self._counted is not None else 0
            if self._held >= different:
                self._counted = self._count()

    def drain(self, exact_limit: int = EXACT_VALUES) -> Iterator[tuple[int, Distribution]]:
        """Takes out what was added since the last call: each key, in order, with the distribution
        of its values. A distribution is exact up to `exact_limit` different values."""
        counted = self._count()
        self._counted = None
        if counted is None:
            return iter(())
        return zip(counted.keys.tolist(), counted.distributions(exact_limit), strict=True)

    def _count(self) -> _Counted | None:
        new, self._new, self._held = self._new, [], 0
        keys, values = (join([part[index] for part in new], np.int64) for index in (0, 1))
        if not len(keys):
            return self._counted
        counted = _Counted.of_values(keys, values)
        if self._counted is not None:
            counted = self._counted.merged(counted)
        different, limit = counted.different[counted.exact], EXACT_VALUES
        while different[different <= limit].sum() > MOST_DIFFERENT:
            limit //= 2
        return counted.limited(limit)


def sorted_pairs(keys: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Keys and values sorted by key, then by value. If both fit into one number, sorting that takes
    a fifth of the time of sorting indexes."""
    bits = int(values.max()).bit_length()
    if keys.min() >= 0 <= values.min() and int(keys.max()).bit_length() + bits < 64:
        packed = keys << bits | values
        packed.sort()
        return packed >> bits, packed & ((1 << bits) - 1)
    different = np.unique(keys)
    # One sort of keys with their values packed in, where both fit: sorting indexes by two columns
    # was a third of the reader's time (1.13 million records a second of a core became 1.48).
    if len(different).bit_length() + bits >= 64 or values.min() < 0:
        order = np.lexsort((values, keys))
        return keys[order], values[order]
    packed = np.searchsorted(different, keys) << bits | values
    packed.sort()
    return different[packed >> bits], packed & ((1 << bits) - 1)


def _run_starts(starts: Int64s, values: Int64s) -> Int64s:
    """The rows at which a new value begins, in groups of sorted values that begin at `starts`."""
    begins = np.ones(len(values), np.bool_)
    begins[1:] = values[1:] != values[:-1]
    begins[starts] = True
    run_begins: Int64s = np.flatnonzero(begins)
    return run_begins


def _steps(firsts: Int64s, values: Int64s, often: Int64s) -> tuple[list[int], list[int]]:
    """The `values` of a Distribution for all groups, where each group's begin, and the end. The
    groups' rows, a value and how often it came, begin at `firsts`."""
    steps = np.empty((len(values), 2), np.int64)
    steps[:, 0] = np.diff(values, prepend=0)
    steps[firsts, 0] = values[firsts]
    steps[:, 1] = -often
    written = np.ones(steps.shape, np.bool_)
    written[:, 1] = steps[:, 1] < -1
    before = np.concatenate(([0], np.cumsum(written.sum(axis=1))))
    return steps[written].tolist(), [*before[firsts].tolist(), int(before[-1])]


# More buckets than 50-bit values fill.
_TABLE_BUCKETS = 512

# The number of the bucket of the first value that has no bucket of its own.
_FIRST_BUCKET = math.ceil(math.log(COARSE.exact_below) / COARSE.log_gamma)

_TABLE_MIDDLES = np.concatenate(
    (
        np.arange(COARSE.exact_below),
        _middles(_FIRST_BUCKET + np.arange(_TABLE_BUCKETS - COARSE.exact_below), COARSE),
    )
)


def coarse_distributions(keys: Int64s, values: Int64s) -> dict[int, Distribution]:
    """The distribution of the non-negative `values` for each of the small numbers `keys`, in COARSE
    buckets: they are so few that counting in a table takes half the time of sorting.
    """
    if not len(keys):
        return {}
    count = int(keys.max()) + 1
    places = keys * _TABLE_BUCKETS + _table_bucket(values)
    table = np.bincount(places, minlength=count * _TABLE_BUCKETS).reshape(count, _TABLE_BUCKETS)
    counts = table.sum(axis=1)
    exactly = values.astype(np.float64)
    totals = np.bincount(keys, exactly, count)
    means = totals / np.maximum(counts, 1)
    squares = np.bincount(keys, (exactly - means[keys]) ** 2, count)
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.zeros(count, np.int64)
    if counts[-1] == len(values):
        least[-1], most[-1] = values.min(), values.max()
    else:
        np.minimum.at(least, keys, values)
        np.maximum.at(most, keys, values)
    result: dict[int, Distribution] = {}
    for key in np.flatnonzero(counts).tolist():
        filled = np.flatnonzero(table[key])
        result[key] = Distribution(
            count=int(counts[key]),
            total=min(int(totals[key]), _LARGEST),
            squares=float(squares[key]),
            minimum=int(least[key]),
            maximum=int(most[key]),
            values=encoded_values(
                zip(_TABLE_MIDDLES[filled].tolist(), table[key][filled].tolist(), strict=True)
            ),
            exact=False,
        )
    return result


def _table_bucket(values: Int64s) -> Int64s:
    index = np.ceil(np.log(np.maximum(values, COARSE.exact_below)) / COARSE.log_gamma)
    larger = COARSE.exact_below - _FIRST_BUCKET + index.astype(np.int64)
    return np.where(values < COARSE.exact_below, values, np.minimum(larger, _TABLE_BUCKETS - 1))
