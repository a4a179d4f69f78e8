"""What pairs of measurements prove: a gain, its interval, and when there are enough of them.

Everything is of logarithms of ratios, because gains multiply. A pair is two blocks of one run next
to one another, one with the cure and one without, in a random order: what drifts, drifts as often
for as against. Of the pairs the middle counts (a mean of what is left when a fifth is cut off at
each end), with Yuen's interval, so that a checkpoint or an evaluation within a block does little
(Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61, 1974; for one
sample: Wilcox, "Introduction to Robust Estimation", 2.4).

One looks after certain numbers of pairs only (LOOKS), each time at a level that is so much stricter
that the interval at whichever look one stops still holds in LEVEL of all trials (Pocock, "Group
sequential methods", Biometrika 64, 1977). `tests/trial/test_statistics.py` simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Numbers of pairs after which one looks, each a third more than the one before."""

LEVEL = 0.95
"""Of the interval that is printed."""

AT_A_LOOK = 0.45
"""Part of the error allowed in all that is allowed at each look. Pocock's is 0.21 for eight looks
at one mean of normal values; the ends of few pairs, and looks that stop at once where all is plain,
leave more."""

CLAIM_ERROR = 0.005
"""How often a gain may be claimed where there is none, for all cures of a trial together."""

LEAST_GAIN = 1.02
"""A gain is claimed where the lower end is over this."""

TRIMMED = 0.2
"""Part of the pairs that is cut off at each end."""


class MeasuredGain(NamedTuple):
    """How many times faster a step is with the cure: between `low` and `high`, most likely
    `middle`; `claimed` is the lower end at the level at which gains are claimed."""

    middle: float
    low: float
    high: float
    claimed: float
    pairs: int

    @property
    def is_claimed(self) -> bool:
        return self.claimed > LEAST_GAIN

    @property
    def is_decided(self) -> bool:
        """Whether more pairs would change nothing: a gain is proven, or none worth having is
        possible."""
        width = self.high / self.low
        if self.is_claimed:
            return bool(width < max(PRECISE, self.middle**PART))
        # A large gain need not be known as precisely as a small one: nobody needs more pairs for
        # it.
        return self.high < LEAST_GAIN and (self.high > 1.0 / LEAST_GAIN or width < PRECISE)


PRECISE = 1.06
"""The interval of a gain is narrow enough where its ends are this factor apart: ±3 %,"""
PART = 0.15
"""or this power of the gain: 1.9 to 2.1 for 2.0, 5.2 to 6.9 for 6."""


def gain_of_pairs(ratios: Sequence[float], cures: int) -> MeasuredGain | None:
    """The gain by pairs, each the step's time without the cure over that with it, for one of
    `cures` that are tried; None for fewer than the first look."""
    count = max((look for look in LOOKS if look <= len(ratios)), default=0)
    if not count:
        return None
    logs = sorted(math.log(ratio) for ratio in ratios[:count])
    cut = int(TRIMMED * count)
    kept = logs[cut : count - cut]
    middle = fmean(kept)
    # Those cut off count as the last that are kept.
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = fmean(winsorized)
    variance = sum((value - mean) ** 2 for value in winsorized) / (count - 1)
    error = math.sqrt(variance / count) / (1.0 - 2.0 * cut / count)
    freedom = len(kept) - 1
    width = error * student(1.0 - AT_A_LOOK * (1.0 - LEVEL) / 2.0, freedom)
    claim = error * student(1.0 - AT_A_LOOK * CLAIM_ERROR / max(1, cures), freedom)
    return MeasuredGain(
        math.exp(middle), math.exp(middle - width), math.exp(middle + width),
        math.exp(middle - claim), count,
    )  # fmt: skip


def gain_of_runs(
    off: Sequence[float], on: Sequence[float], cures: int, spread: Sequence[Sequence[float]] = ()
) -> MeasuredGain | None:
    """The gain by runs of their own: mean times of a step of runs without and with the cure. How
    much runs differ is taken from all that were made alike, `spread` among them (several runs of
    each), at least LEAST_SPREAD; where no two were, ASSUMED_SPREAD. None where a run is missing."""
    groups = [[math.log(value) for value in group] for group in (off, on, *spread) if group]
    freedom = sum(len(group) - 1 for group in groups)
    if not off or not on:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    if freedom < 1:
        squares, freedom = ASSUMED_FREEDOM * ASSUMED_SPREAD**2, ASSUMED_FREEDOM
    sigma = max(math.sqrt(squares / freedom), LEAST_SPREAD)
    middle = fmean(map(math.log, off)) - fmean(map(math.log, on))
    error = sigma * math.sqrt(1.0 / len(off) + 1.0 / len(on))
    width = error * student(1.0 - (1.0 - LEVEL) / 2.0, freedom)
    claim = error * student(1.0 - CLAIM_ERROR / max(1, cures), freedom)
    return MeasuredGain(
        math.exp(middle), math.exp(middle - width), math.exp(middle + width),
        math.exp(middle - claim), min(len(off), len(on)),
    )  # fmt: skip


LEAST_SPREAD = 0.005
"""Standard deviation of a run's logarithm that is assumed at least: runs on a GPU of their own were
within 1 % of one another, and two that happen to be equal prove nothing."""


ASSUMED_SPREAD, ASSUMED_FREEDOM = 0.07, 6
"""The same of one run each, as if it were known from seven: so a gain is claimed from 1.5 on, or
1.8 for one of six cures; runs that differ by 10 % show that in three of a thousand trials."""


def block_step_ns(times_ns: Sequence[float]) -> float:
    """The time of a step of a run by its blocks: their median."""
    return median(times_ns)


# Student's t.


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution, by bisection of its distribution function."""
    low, high = 0.0, 1e8
    for _ in range(200):
        middle = math.sqrt(low * high) if low > 1.0 else (low + high) / 2.0
        if _below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
        if high - low <= 1e-9 * max(1.0, high):
            break
    return high


def _below(t: float, freedom: float) -> float:
    """P(T <= t), t >= 0: 1 - I(n / (n + t²); n / 2, 1 / 2) / 2 (Abramowitz and Stegun 26.7.1)."""
    return 1.0 - _beta(freedom / (freedom + t * t), freedom / 2.0, 0.5) / 2.0


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (26.5.8)."""
    if x <= 0.0 or x >= 1.0:
        return max(0.0, min(1.0, x))
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    # Lentz's method; even and odd terms in turn.
    result = c = 1.0
    d = 0.0
    for index in range(400):
        m = index // 2
        if index == 0:
            term = 1.0
        elif index % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / _nonzero(1.0 + term * d)
        c = _nonzero(1.0 + term / c)
        result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * (result - 1.0)


def _nonzero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
