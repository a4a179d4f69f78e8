"""Arrays of durations or sizes → distributions, one for each key, a whole batch at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.distributions import EXACT_BELOW, GAMMA, LOG_GAMMA
from gputui.events import Distribution

DELTA_VALUES = 256
"""A delta with more different values than this travels in buckets."""

Int64s = npt.NDArray[np.int64]


def bucket_middles(values: Int64s) -> Int64s:
    """The representative of each value: itself below 1000, else its bucket's middle."""
    index = np.ceil(np.log(np.maximum(values, 1)) / LOG_GAMMA)
    middles = np.rint(2.0 * np.power(GAMMA, index) / (GAMMA + 1.0)).astype(np.int64)
    return np.where(values < EXACT_BELOW, values, middles)


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
