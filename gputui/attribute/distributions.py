"""Arrays of durations or sizes → one distribution per key, a whole batch at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Int64s, run_starts
from gputui.model.events import Distribution
from gputui.model.sketch import steps
from gputui.model.statistics import COARSE, FINE, Buckets

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
    keys, values = sorted_pairs(keys, values)
    starts = run_starts(keys)
    ends = np.append(starts[1:], len(keys))
    counts = ends - starts
    totals = np.add.reduceat(values, starts)
    differences = values - np.repeat(totals / counts, counts)
    squares = np.add.reduceat(differences * differences, starts)
    # Squares of nanoseconds: the rounding is too small to show in a deviation.
    squares = np.round(squares, 3)
    minima, maxima = values[starts], values[ends - 1]
    exact = _different(starts, values) <= exact_limit
    if not exact.all():
        coarse = np.repeat(~exact, counts)
        values = values.copy()
        values[coarse] = bucket_middles(values[coarse])
    steps, firsts = _steps(starts, values)
    columns = zip(
        counts.tolist(),
        totals.tolist(),
        squares.tolist(),
        minima.tolist(),
        maxima.tolist(),
        (tuple(steps[first:last]) for first, last in pairwise(firsts)),
        exact.tolist(),
        strict=True,
    )
    return keys[starts], [Distribution(*part) for part in columns]


def sorted_pairs(keys: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Both sorted by key, then by value. If both fit into one number, sorting those takes a fifth
    of the time of sorting indexes.
    """
    bits = int(values.max()).bit_length()
    if keys.min() >= 0 <= values.min() and int(keys.max()).bit_length() + bits < 64:
        packed = keys << bits | values
        packed.sort()
        return packed >> bits, packed & ((1 << bits) - 1)
    different = np.unique(keys)
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


def _different(starts: Int64s, values: Int64s) -> Int64s:
    """The number of distinct values in each group."""
    runs = _run_starts(starts, values)
    different: Int64s = np.diff(np.append(np.searchsorted(runs, starts), len(runs)))
    return different


def _steps(starts: Int64s, values: Int64s) -> tuple[list[int], list[int]]:
    """The `values` of a Distribution for all groups, where each group's begin, and the end."""
    runs = _run_starts(starts, values)
    first_runs = np.searchsorted(runs, starts)
    steps = np.empty((len(runs), 2), np.int64)
    steps[:, 0] = np.diff(values[runs], prepend=0)
    steps[first_runs, 0] = values[starts]
    steps[:, 1] = -np.diff(np.append(runs, len(values)))
    written = np.ones(steps.shape, np.bool_)
    written[:, 1] = steps[:, 1] < -1
    before = np.concatenate(([0], np.cumsum(written.sum(axis=1))))
    return steps[written].tolist(), [*before[first_runs].tolist(), int(before[-1])]


_TABLE_BUCKETS = 512
"""More buckets than 50-bit values fill."""

_FIRST_BUCKET = math.ceil(math.log(COARSE.exact_below) / COARSE.log_gamma)
"""The number of the bucket of the first value that has no bucket of its own."""

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
            values=steps(
                zip(_TABLE_MIDDLES[filled].tolist(), table[key][filled].tolist(), strict=True)
            ),
            exact=False,
        )
    return result


def _table_bucket(values: Int64s) -> Int64s:
    index = np.ceil(np.log(np.maximum(values, COARSE.exact_below)) / COARSE.log_gamma)
    larger = COARSE.exact_below - _FIRST_BUCKET + index.astype(np.int64)
    return np.where(values < COARSE.exact_below, values, np.minimum(larger, _TABLE_BUCKETS - 1))
