"""What pairs of measurements prove: a gain, its interval, and when there are enough of them.

Gains are of logarithms of ratios, because gains multiply. A pair is two blocks of one run next
to one another, one with the cure and one without, whose order was drawn. Of the pairs the middle
counts (a mean of what is left when a fifth is cut off at each end), with Yuen's interval, so that a
checkpoint or an evaluation within a block does little (Yuen, "The two-sample trimmed t for unequal
population variances", Biometrika 61, 1974; for one sample: Wilcox, "Introduction to Robust
Estimation", 2.4).

Whether there is a gain at all is asked without any assumption of what steps take. Where a cure does
nothing, the two blocks of a pair would have taken the same in the other order, so that of each pair
only a coin has decided which is called faster: how rare that makes what was seen is counted over
all throws (Fisher's randomization test; of ranks: Wilcoxon, "Individual comparisons by ranking
methods", Biometrics Bulletin 1, 1945). That holds for bursts, drift, two speeds and heavy tails
alike; the hook has both blocks of a pair begin alike for it.

One looks after certain numbers of pairs only (LOOKS), each time at a level that is so much stricter
that the interval at whichever look one stops still holds in LEVEL of all trials (SPENT).
`tests/trial/simulated.py` has trials by the thousand.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from gputui.trial.blocks import Pair
from gputui.trial.runs import RunStep

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Numbers of pairs after which one looks, each a third more than the one before. A claim takes 11,
or 15 of one cure of seven and more: of fewer coins all are heads too often."""

LEVEL = 0.95
"""Of the interval that is printed."""

SPENT = 2.5
"""Part of the error allowed in all that is allowed at a look: this over the root of its number of
pairs, from FEWEST on (of spending it so: Lan and DeMets, "Discrete sequential boundaries for
clinical trials", Biometrika 70, 1983). Most trials stop at the first looks, where all is plain, and
those that come to the last have shown something that is not. Simulated trials hold in 94 to 98 %
so, with twelve cures too, of which only those go on that happened to show something; those that go
on until all is plain in 94 to 97 %; gains that are there in 95 to 97 %. With as much at each look
those that stopped at the second held in 99 %, those at the last in 86 to 92."""

CLAIMED_AT_A_LOOK = 0.3
"""The same of claims, which end a trial at the first look that allows one."""

CLAIM_ERROR = 0.01
"""How often a gain may be claimed where there is none, for all cures of a trial together."""

LEAST_GAIN = 1.02
"""A gain is claimed where the lower end is over this."""

TRIMMED = 0.2
"""Part of the pairs that is cut off at each end."""


class MeasuredGain(NamedTuple):
    """How many times faster a step is with the cure: between `low` and `high`, most likely
    `middle`; `is_claimed` is whether that it is faster at all, by LEAST_GAIN, is beyond doubt."""

    middle: float
    low: float
    high: float
    is_claimed: bool
    pairs: int
    doubt: str = ""
    """Why a gain that the pairs show needs runs of its own."""
    bounded: str = ""
    """Why `low` is less than the pairs' interval has it."""

    @property
    def is_decided(self) -> bool:
        """Whether more pairs would change nothing: a gain is proven, or none worth having is
        possible."""
        width = (self.high / self.middle) ** 2
        if self.doubt == WAITS:
            return self.pairs >= FEWEST  # runs must tell
        if self.doubt:
            return self.pairs >= ENOUGH_PAIRS  # more of them cost less than runs
        if self.is_claimed:
            return self.pairs >= ENOUGH_PAIRS or bool(width < max(PRECISE, self.middle**PART))
        # A large gain need not be known as precisely as a small one: nobody needs more pairs for
        # it.
        return self.high < LEAST_GAIN and (self.high > 1.0 / LEAST_GAIN or width < PRECISE)


PRECISE = 1.1
"""The interval of a gain is narrow enough where its ends are this factor apart: ±5 %, of which the
middle is off by a quarter. Half of that took twice the pairs,"""
PART = 0.2
"""or this power of the gain: 1.9 to 2.1 for 2.0, 5.0 to 7.2 for 6;"""
ENOUGH_PAIRS = 20
"""and what is proven by so many pairs needs no more: of a program whose blocks differ by 15 % the
middle is within 5 % in four of five then, and twice as many make that 19 of 20."""


def gain_of_pairs(
    pairs: Sequence[Pair], cures: int, input_share: float = 0.0
) -> MeasuredGain | None:
    """The gain by pairs, for one of `cures` that are tried; None for fewer than the first look.
    `input_share` is the part of the time that the GPU waits for input, as was captured: it counts
    where the pairs do not tell how long loaders were waited for."""
    count = max((look for look in LOOKS if look <= len(pairs)), default=0)
    if not count:
        return None
    logs = [math.log(pair.ratio) for pair in pairs[:count]]
    cut = int(TRIMMED * count)
    kept = sorted(logs)[cut : count - cut]
    middle = fmean(kept)
    # Those cut off count as the last that are kept.
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = fmean(winsorized)
    variance = sum((value - mean) ** 2 for value in winsorized) / (count - 1)
    error = math.sqrt(variance / count) / (1.0 - 2.0 * cut / count)
    spent = SPENT / math.sqrt(max(count, FEWEST)) * (1.0 - LEVEL)
    width = error * student(1.0 - spent / 2.0, len(kept) - 1)
    allowed = CLAIMED_AT_A_LOOK * CLAIM_ERROR / max(1, cures)
    least = math.log(LEAST_GAIN)
    shows = middle > least and chance_of_signs(_ranked([log - least for log in logs])) <= allowed
    doubt = bounded = ""
    low = middle - width
    if shows and _waited_share(pairs[:count], input_share) > MOST_WAITED:
        doubt = WAITS
    elif shows:
        # Kernels are loaded and tuned while the cure is on for the first time.
        whole = [pairs[0].without_settling, *pairs[1:count]]
        in_all = chance_of_signs(_rounded([pair.saved_ns(LEAST_GAIN) for pair in whole]))
        if in_all > IN_ALL:
            least, share = _despite_pauses(whole)
            if least > LEAST_GAIN:
                low = min(low, math.log(least))
                bounded = f"at least {math.exp(low):.3g}×: {100 * share:.0f} % with it are pauses"
            else:
                doubt = "the pauses are too long to tell"
    # What is said with its interval has it above 1.
    return MeasuredGain(
        math.exp(middle), math.exp(low), math.exp(middle + width),
        shows and not doubt and middle > width, count, doubt, bounded,
    )  # fmt: skip


WAITS = "steps wait for input"

MOST_WAITED = 0.03
"""Part of the time from which on what makes steps shorter may only make them wait: a loader's
queue is filled in blocks without the cure, and emptied in those with it, so that both are what they
seem, and the program is no faster."""


def _waited_share(pairs: Sequence[Pair], input_share: float) -> float:
    blocks = [block for pair in pairs for block in pair]
    waited = [block.waited_ns for block in blocks if block.waited_ns is not None]
    # A block of one step may wait for nothing each time, and what went before it each time.
    whole_ns = sum(block.ns + block.settled_ns for block in blocks)
    return sum(waited) / whole_ns if waited else input_share


IN_ALL = 0.01
"""The same of all the time since each switch, pauses, loading and all: a gain of most pairs that is
waited for in the others is none."""


def _despite_pauses(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The gain if all that took longer than steps do since each switch to the cure were due to it,
    and nothing of the like without it; and the part of the time with it that this was."""
    off_ns, on_ns = (
        median(block.step_ns for block in blocks) for blocks in zip(*pairs, strict=True)
    )
    whole_ns = sum(pair.on.ns + pair.on.settled_ns for pair in pairs)
    steps = sum(pair.on.steps + pair.on.settled_steps for pair in pairs)
    share = max(0.0, 1.0 - steps * on_ns / whole_ns)
    return off_ns / on_ns * (1.0 - share), share


def chance_of_signs(values: Sequence[int]) -> float:
    """Of all ways to give these numbers signs, the share in which their sum is as large as it is,
    or larger. 1 for none."""
    positive = sum(value for value in values if value > 0)
    # The product of all 1 + x^value counts the ways to each sum of positive ones; its coefficients,
    # at most 2^n, stand next to one another in one number, which is added up digit by digit.
    digit = len(values) + 2
    ways = 1
    for value in values:
        ways += ways << digit * abs(value)
    return (ways >> digit * positive) % ((1 << digit) - 1) / (1 << len(values))


def _ranked(values: Sequence[float]) -> list[int]:
    """Twice the ranks of their sizes, with their signs; equal ones share theirs."""
    sizes = sorted(map(abs, values))
    ranks = [bisect_left(sizes, size) + bisect_right(sizes, size) + 1 for size in map(abs, values)]
    return [rank if value > 0 else -rank for rank, value in zip(ranks, values, strict=True)]


GRID = 400
"""Parts of the largest time that others are rounded to."""


def _rounded(values: Sequence[float]) -> list[int]:
    largest = max(map(abs, values)) or 1.0
    return [round(GRID * value / largest) for value in values]


LITTLE_GAIN = 1.05
"""What is not proven by ENOUGH_PAIRS and gains less gets no more of them."""

HOPELESS_PAIRS = 8
"""Pairs after which a cure that shows no gain gets no more of them,"""
EARLY_PAIRS = 3
"""or where none of so many shows any: each is worth a second of somebody's budget."""

FEWEST = 11
"""Pairs that a claim takes."""

BESIDE_PAIRS = 4
"""Pairs of a cure without a gain in their middle after which it gets no more of them beside one
that shows a gain: with 7 each of three that did nothing one of 2.1 had 8 of 11 in a minute."""

NEAR = 1.1
"""A gain in the middle of a few pairs from which they are continued beyond their part of the
budget, until there are enough."""

HELD = 1.5
"""A proven gain from which its cure stays on while others are measured."""


def is_hopeless(gain: MeasuredGain) -> bool:
    """Whether more pairs are not worth their time: one of 1.03 had 167 of them in 130 s."""
    least = LITTLE_GAIN if gain.pairs >= ENOUGH_PAIRS else LEAST_GAIN
    return gain.pairs >= HOPELESS_PAIRS and gain.middle < least and not gain.is_claimed


def show_nothing(pairs: Sequence[Pair]) -> bool:
    return len(pairs) >= EARLY_PAIRS and max(ratios_of(pairs)) < LEAST_GAIN


def is_near(pairs: Sequence[Pair]) -> bool:
    """Whether pairs that are too few for a claim yet show a gain."""
    return 1 < len(pairs) < FEWEST and median(ratios_of(pairs)) > NEAR


def ratios_of(pairs: Sequence[Pair]) -> list[float]:
    return [pair.ratio for pair in pairs]


def is_decided(gain: MeasuredGain | None, *, is_bound: bool = False) -> bool:
    """Whether more pairs would change nothing, or are not worth their time: of an ablation nobody
    needs the precise figure."""
    if gain is None:
        return False
    return gain.is_decided or is_hopeless(gain) or (is_bound and gain.is_claimed)


def gain_of_runs(
    off: Sequence[RunStep],
    on: Sequence[RunStep],
    cures: int,
    spread: Sequence[Sequence[RunStep]] = (),
) -> MeasuredGain | None:
    """The gain by runs of their own without and with the cure; None where a run is missing.

    What a run differs by from others that were made alike is what it differs by within itself, and
    more: each is what it is for all of its time (DerSimonian and Laird, "Meta-analysis in clinical
    trials", Controlled Clinical Trials 7, 1986). The first is taken from all runs, `spread` among
    them (several of each), because a program varies alike in all of them, and a shorter one
    averages less of it; the second from how those differ that were made alike, with USUAL_SPREAD
    as if it had been seen USUAL_FREEDOM times before. How sure their sum is: Satterthwaite, "An
    approximate distribution of estimates of variance components", Biometrics Bulletin 2, 1946."""
    if not off or not on:
        return None
    groups = [group for group in (off, on, *spread) if group]
    runs = [run for group in groups for run in group]
    logs = [[math.log(run.ns) for run in group] for group in groups]
    middle = fmean(logs[0]) - fmean(logs[1])
    freedom = len(runs) - len(groups)
    squares = sum((value - fmean(group)) ** 2 for group in logs for value in group)
    # Variances of a second of a run.
    noises = [run.error**2 * run.seconds for run in runs]
    noise = fmean(noises)
    within = noise * fmean(1.0 / run.seconds for run in runs)
    more = max(0.0, squares - freedom * within)
    all_freedom = USUAL_FREEDOM + freedom
    between = (USUAL_FREEDOM * USUAL_SPREAD**2 + more) / all_freedom
    of_runs = between * (1.0 / len(off) + 1.0 / len(on))
    of_steps = noise * sum(
        fmean(1.0 / run.seconds for run in side) / len(side) for side in (off, on)
    )
    unsure = of_runs**2 / all_freedom
    if noise:
        # The part of each run in what they differ by within themselves.
        shares = [each / sum(noises) for each in noises]
        unsure += of_steps**2 * sum(
            share**2 / run.freedom for share, run in zip(shares, runs, strict=True)
        )
    variance = of_runs + of_steps
    error, sure = math.sqrt(variance), variance**2 / unsure
    width = error * student(1.0 - (1.0 - LEVEL) / 2.0, sure)
    claim = error * student(1.0 - CLAIMED_OF_RUNS / max(1, cures), sure)
    return MeasuredGain(
        math.exp(middle), math.exp(middle - width), math.exp(middle + width),
        math.exp(middle - claim) > LEAST_GAIN, min(len(off), len(on)),
    )  # fmt: skip


CLAIMED_OF_RUNS = 0.002
"""As CLAIM_ERROR, at each number of runs, where what runs differ by is mostly assumed."""

USUAL_SPREAD, USUAL_FREEDOM = 0.05, 5
"""What runs of a program differ by (one standard deviation of the logarithm), and from how many
that would be known. Of twelve programs that ran two to five times on one host with H200s it was at
most 1 % in eight and 4 to 10 % in four: this is as wide as these four are, which are of the kind
that such runs are made of. So of one run each a gain is claimed from 1.46 on, or 1.73 for one of
six cures; of two that are alike from 1.22 on. Where each run is at one of two speeds from its start
to its end, few runs cannot show it: of two each one trial in sixteen has both slow ones without the
cure, of four one in 256."""


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
