"""How sure a mean is, and a difference of two means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.model.statistics import Statistics

FEWEST_BLOCKS = 4
"""Blocks that give the error of a mean; from fewer it would be of chance."""

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for 1 to 30 degrees of freedom, two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A figure of one run. `error` is its standard error, None where nobody knows it; `freedom`
    the degrees of freedom that it has."""

    amount: float
    error: float | None = None
    freedom: float = 0.0


def mean_of_blocks(blocks: Sequence[tuple[float, float]]) -> Mean:
    """Σ amount / Σ count over (count, amount) of blocks, with the error of that ratio
    (W. G. Cochran, Sampling Techniques, 6.19). The blocks are not empty."""
    count = sum(block[0] for block in blocks)
    mean = sum(block[1] for block in blocks) / count
    size = len(blocks)
    if size < FEWEST_BLOCKS:
        return Mean(mean)
    squares = sum((amount - mean * steps) ** 2 for steps, amount in blocks)
    return Mean(mean, math.sqrt(squares * size / (size - 1)) / count, size - 1.0)


def inflation(mean: Mean, single: Statistics) -> float:
    """How many times the error of a mean is that of as many independent instances, at least 1."""
    if mean.error is None or single.count < 2 or not single.deviation:
        return 1.0
    return max(1.0, mean.error / (single.deviation / math.sqrt(single.count)))


def noise(first: Mean, second: Mean) -> float | None:
    """Half the width of the 95 % interval of their difference (Welch 1947); None if unknown."""
    if first.error is None or second.error is None:
        return None
    if not math.isfinite(first.error) or not math.isfinite(second.error):
        return None
    squares = first.error * first.error, second.error * second.error
    square = sum(squares)
    if not math.isfinite(square * square):
        return None
    if not square:
        return 0.0
    # Squares of squares of small errors may vanish: then the better known mean decides.
    spread = sum(
        one * one / mean.freedom
        for one, mean in zip(squares, (first, second), strict=True)
        if mean.freedom
    )
    freedom = square * square / spread if spread else max(first.freedom, second.freedom)
    return _student(freedom) * math.sqrt(square)


def half_width(mean: Mean) -> float | None:
    """Half the width of its 95 % interval; None if its error is not known."""
    return None if mean.error is None else _student(mean.freedom) * mean.error


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, that of the next lower whole number of degrees."""
    whole = max(1, int(min(freedom, 1e9)))
    if whole <= len(_T_975):
        return _T_975[whole - 1]
    return 1.960 + 2.4 / whole
