"""Distributions in few buckets, for numerous things that travel every tick.

A value is within 5 % of its bucket's middle; below 32 it is exact. Count, total, minimum, maximum
and deviation are exact.
"""

from __future__ import annotations

import math

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.model.events import Distribution
from gputui.model.sketch import steps

GAMMA = 1.1
EXACT_BELOW = 32
_BUCKETS = 512
"""More buckets than 50-bit values fill."""

_LARGEST = 1 << 62
_STEPS = np.arange(_BUCKETS - EXACT_BELOW, dtype=np.float64)
_MIDDLES = np.concatenate(
    (
        np.arange(EXACT_BELOW),
        np.minimum(np.rint(EXACT_BELOW * 2.0 * GAMMA**_STEPS / (GAMMA + 1.0)), _LARGEST),
    )
).astype(np.int64)


def coarse_distributions(keys: Int64s, values: Int64s) -> dict[int, Distribution]:
    """The distribution of the non-negative `values` for each of the small numbers `keys`."""
    if not len(keys):
        return {}
    count = int(keys.max()) + 1
    places = keys * _BUCKETS + _bucket(values)
    table = np.bincount(places, minlength=count * _BUCKETS).reshape(count, _BUCKETS)
    counts = table.sum(axis=1)
    exactly = values.astype(np.float64)
    totals = np.bincount(keys, exactly, count)
    means = totals / np.maximum(counts, 1)
    squares = np.bincount(keys, (exactly - means[keys]) ** 2, count)
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.zeros(count, np.int64)
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
            values=steps(zip(_MIDDLES[filled].tolist(), table[key][filled].tolist(), strict=True)),
            exact=False,
        )
    return result


def _bucket(values: Int64s) -> Int64s:
    powers = np.ceil(np.log(np.maximum(values, 1) / EXACT_BELOW) / math.log(GAMMA))
    larger = EXACT_BELOW + np.maximum(powers, 0.0).astype(np.int64)
    return np.where(values < EXACT_BELOW, values, np.minimum(larger, _BUCKETS - 1))
