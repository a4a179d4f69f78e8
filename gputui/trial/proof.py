"""What pairs of measurements prove: a gain, its interval, and when there are enough of them; and
whether a program computes the same with a cure, by the values that `backward` is called of.

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
that the interval at whichever look one stops still holds in LEVEL of all trials (Pocock, "Group
sequential methods", Biometrika 64, 1977). `tests/trial/simulated.py` has trials by the thousand.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Literal, NamedTuple

from gputui.cures import BOUND, DIFFERENT, EXACT, ROUNDING
from gputui.trial.runs import (
    MEASURED_S,
    Pair,
    ProgramResult,
    RunInFolder,
    RunStep,
    Steps,
    is_measured,
)

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Numbers of pairs after which one looks, each a third more than the one before. A claim takes 11,
or 15 of one cure of seven and more: of fewer coins all are heads too often."""

LEVEL = 0.95
"""Of the interval that is printed."""

AT_A_LOOK = 0.45
"""Part of the error allowed in all that is allowed at each look. Pocock's is 0.21 for eight looks
at one mean of normal values; the ends of few pairs, and looks that stop at once where all is plain,
leave more."""

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
        if self.doubt not in ("", WAITS):
            return self.pairs >= ENOUGH_PAIRS  # more of them cost less than runs
        if self.is_claimed or self.doubt:
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
    width = error * student(1.0 - AT_A_LOOK * (1.0 - LEVEL) / 2.0, len(kept) - 1)
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


def is_hopeless(gain: MeasuredGain) -> bool:
    return gain.pairs >= HOPELESS_PAIRS and gain.middle < LEAST_GAIN


def show_nothing(pairs: Sequence[Pair]) -> bool:
    return len(pairs) >= EARLY_PAIRS and max(_ratios(pairs)) < LEAST_GAIN


def is_near(pairs: Sequence[Pair]) -> bool:
    """Whether pairs that are too few for a claim yet show a gain."""
    return 1 < len(pairs) < FEWEST and median(_ratios(pairs)) > NEAR


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    return [pair.ratio for pair in pairs]


class Alternation:
    """Says when a run with cures that are switched is over, and which get pairs next. `before`
    has the pairs of each cure from earlier runs; the run may be timed for `limit_s`; `others` is
    the number of cures measured beside these. `input_share` is as for `gain_of_pairs`, and `tell`
    gets a line about what the pairs show so far. Where nothing is left but `brief` ones, LATER of
    that time is enough. `bounds` are ablations, which come when cures need no more pairs or have
    had their time, for `bounds_s`; `other_bounds` were measured beside these. For the cures that
    wait for runs of their own (`waiting`, with the ablations that come after each), time for
    another start of the program is left of `whole_s`, unless the program has no use for them."""

    def __init__(
        self,
        before: dict[str, list[Pair]],
        limit_s: float,
        others: int = 0,
        input_share: float = 0.0,
        tell: Callable[[str], None] = lambda _: None,
        brief: Sequence[str] = (),
        bounds: Sequence[str] = (),
        bounds_s: float = 0.0,
        other_bounds: int = 0,
        waiting: Mapping[str, Set[str]] | None = None,
        whole_s: float = math.inf,
        promise: Set[str] | None = None,
    ) -> None:
        self._brief, self._bounds = set(brief), set(bounds)
        self._before, self._limit_s, self._tell = before, limit_s, tell
        self._told = ""
        self._others, self._other_bounds = others, other_bounds
        self._input_share, self._bounds_s = input_share, bounds_s
        self._waiting, self._whole_s = waiting or {}, whole_s
        self._promise = before.keys() if promise is None else promise
        self._began_s = 0.0
        self._bounds_since_s: float | None = None
        self._kept = self._asked_for = set(before)
        self._claimed: Set[str] = set()

    def look(self, run: RunInFolder, seconds: float) -> str:
        """Why it is over, so many seconds after its start; empty to go on."""
        steps = run.reader.steps
        if steps is None:
            return ""  # loading takes what it takes
        self._began_s = self._began_s or seconds
        waiting = self._waiting.keys() - run.reader.not_applied.keys()
        left_out = run.reader.not_applied.keys() | set().union(
            *(self._waiting[name] for name in waiting)
        )
        pairs = {
            name: self._before[name] + steps.pairs(name)
            for name in self._before
            if name not in left_out
        }
        if not pairs:
            return steps.over or is_measured(run, MEASURED_S)
        still = self._open(pairs)
        if waiting or still & self._bounds:
            still = {name for name in still if self._may_show(name, pairs[name])}
        cures = still - self._bounds
        kept = self._kept & pairs.keys()
        is_brief = bool(kept) and kept <= self._brief | self._bounds
        limit_s = self._limit_s * (LATER if is_brief else 1.0)
        has_passed = bool(waiting) and seconds > max(
            self._began_s + LEAST_S, self._whole_s - NEEDED * (self._began_s + RUN_S)
        )
        is_over = (has_passed or seconds - self._began_s > limit_s) and not any(
            is_near(pairs[name]) for name in kept - self._bounds
        )
        if (
            self._bounds_since_s is None and (is_over or not cures) and not has_passed
            and self._bounds_s > 0.0 and still & self._bounds
        ):  # fmt: skip
            self._bounds_since_s = seconds
        if self._bounds_since_s is not None:
            still &= self._bounds
            is_over = has_passed or (
                seconds - self._bounds_since_s > self._bounds_s
                and not any(is_near(pairs[name]) for name in kept & self._bounds)
            )
        if not still:
            return "the gains are known"
        if is_over:
            return PART_SPENT
        if steps.over:
            return steps.over
        ratios = {name: median(_ratios(pairs[name])) for name in still if pairs[name]}
        if ratios:
            self._say(pairs, ratios)
        self._kept, asked_for = still, self._next(still, pairs, ratios)
        if asked_for != self._asked_for:
            self._asked_for = asked_for
            last = max((block.pair for block in steps.blocks), default=0)
            run.keep(sorted(asked_for), last + 2)
        return ""

    def _open(self, pairs: dict[str, list[Pair]]) -> set[str]:
        """Those of which more pairs may still show a gain."""
        bounds = len(pairs.keys() & self._bounds)
        tried = {
            True: bounds + self._other_bounds, False: len(pairs) - bounds + self._others
        }  # fmt: skip
        gains = {
            name: gain_of_pairs(pairs[name], tried[name in self._bounds], self._input_share)
            for name in pairs
        }
        still = {
            name for name in pairs
            if not show_nothing(pairs[name])
            and not is_decided(gains[name], is_bound=name in self._bounds)
        }  # fmt: skip
        claimed = {name: gain for name, gain in gains.items() if gain and gain.is_claimed}
        self._claimed = claimed.keys()
        shown = [median(_ratios(pairs[name])) for name in still if pairs[name]]
        shown += [gain.middle for gain in claimed.values()]
        if max(shown, default=0.0) > NEAR:
            # The time of those that show nothing is another's, which does; beside a proven one
            # nobody waits for what little they may gain.
            least = NEAR if claimed else LEAST_GAIN
            still = {
                name for name in still
                if name in claimed or len(pairs[name]) < BESIDE_PAIRS
                or median(_ratios(pairs[name])) >= least
            }  # fmt: skip
        return still

    def _may_show(self, name: str, pairs: list[Pair]) -> bool:
        """Whether it takes time that others wait for: blocks that differ by 8 % gave one that did
        nothing nine pairs of a second each."""
        is_promised = name in self._promise or name in self._bounds
        return is_promised or len(pairs) < EARLY_PAIRS or median(_ratios(pairs)) > NEAR

    def _next(
        self, still: set[str], pairs: dict[str, list[Pair]], ratios: dict[str, float]
    ) -> set[str]:
        """Of these the one whose pairs show most, until it is proven or shows it no more; all,
        where none shows any. In turn with twelve others a gain of 2 took 38 s to prove."""
        still = still - self._bounds or still
        shows = [
            name for name in sorted(still & ratios.keys() - self._claimed)
            if ratios[name] > (SURE if len(pairs[name]) == 1 else NEAR)
        ]  # fmt: skip
        return {max(shows, key=lambda name: ratios[name])} if shows else still

    def _say(self, pairs: dict[str, list[Pair]], ratios: dict[str, float]) -> None:
        best = max(ratios, key=lambda name: ratios[name])
        count = len(pairs[best])
        least = f" of {FEWEST} or more" if count < FEWEST else ""
        said = f"{best}: {ratios[best]:.2f}× so far, pair {count}{least}"
        if said != self._told:
            self._tell(said)
        self._told = said


SURE = 1.25
"""A gain of a single pair from which its cure gets the next ones alone."""


LEAST_S = 10.0
"""Of a run of cures that are switched, whatever waits for it."""
RUN_S, NEEDED = MEASURED_S + 1.0, 1.2
"""What a run of its own takes beside its start, at least; and how many times as much is left for
it."""

LATER = 0.3
"""Of the time of a run that cures get which answer nothing that was found, where others wait."""

PART_SPENT = "its part of the budget is spent"


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
    """The gain by runs of their own without and with the cure. How much runs differ is taken from
    all that were made alike, `spread` among them (several runs of each), at least LEAST_SPREAD,
    and what each differs by within itself; where no two were, ASSUMED_SPREAD; and where those few
    differ by no more than such runs may, from both, if that says more. None where a run is
    missing."""
    groups = [[math.log(run.ns) for run in group] for group in (off, on, *spread) if group]
    freedom = sum(len(group) - 1 for group in groups)
    if not off or not on:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    spreads = [(squares, freedom)] if freedom else []
    if squares <= freedom * MOST_SPREAD**2:
        assumed = ASSUMED_FREEDOM * ASSUMED_SPREAD**2
        spreads.append((squares + assumed, freedom + ASSUMED_FREEDOM))
    middle = fmean(groups[0]) - fmean(groups[1])
    least = max(LEAST_SPREAD, math.sqrt(fmean(run.spread**2 for run in (*off, *on))))
    widths, claims = [], []
    for squares, freedom in spreads:
        sigma = max(math.sqrt(squares / freedom), least)
        error = sigma * math.sqrt(1.0 / len(off) + 1.0 / len(on))
        widths.append(error * student(1.0 - (1.0 - LEVEL) / 2.0, freedom))
        claims.append(error * student(1.0 - CLAIMED_OF_RUNS / max(1, cures), freedom))
    width, claim = min(widths), min(claims)
    return MeasuredGain(
        math.exp(middle), math.exp(middle - width), math.exp(middle + width),
        math.exp(middle - claim) > LEAST_GAIN, min(len(off), len(on)),
    )  # fmt: skip


CLAIMED_OF_RUNS = 0.005
"""As CLAIM_ERROR, where what runs differ by is partly assumed."""

LEAST_SPREAD = 0.005
"""Standard deviation of a run's logarithm that is assumed at least: runs on a GPU of their own were
within 1 % of one another, and two that happen to be equal prove nothing."""


ASSUMED_SPREAD, ASSUMED_FREEDOM = 0.07, 6
"""The same of one run each, as if it were known from seven: so a gain is claimed from 1.5 on, or
1.8 for one of six cures; runs that differ by 10 % show that in three of a thousand trials."""

MOST_SPREAD = 0.1
"""Of two runs each that differ by more nothing is assumed. Simulated, runs that differ by 7 % are
covered in 93 % of 4,000 trials, and 0.3 % claim a gain."""


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


# Whether the results are the same.

Kind = Literal["same", "rounding", "other", "unknown"]

TOLERANCE = {EXACT: 1e-3, ROUNDING: 1e-2, DIFFERENT: 5e-2, BOUND: math.inf}
"""By which share losses may differ, by the class of the cure, once each step has built on the one
before. Kernels that add up in another order each time differ by up to 1e-3 after some hundred
steps, TF32 and bf16 products by up to 1e-2."""

AS = {
    EXACT: "as sums in another order do",
    ROUNDING: "as rounding does",
    DIFFERENT: "as fewer bits do",
    BOUND: "as an ablation does",
}
"""What such a difference is like, by the class."""

STRAYS = 5.0
"""How many times as much may a step differ, where the mean of all does not."""

REPRODUCIBLE = 1e-5
"""Two runs of a program are alike where their losses differ by less before anything is tried."""

LEAST_STEPS = 8
"""Values from which something is said."""

IDENTICAL = 1e-7
"""Losses are kept with nine digits."""


class Sameness(NamedTuple):
    """What was seen, and in a clause for people."""

    kind: Kind
    text: str
    difference: float | None = None
    """The share by which the losses differ, in the middle step or of the means."""


UNKNOWN = Sameness("unknown", "no loss was seen")


def sameness_of_runs(
    reference: Sequence[float | None],
    tried: Sequence[float | None],
    result: str,
    alike_until: int = 0,
) -> Sameness:
    """Step by step, of two runs from the same beginning. The cure was on from `alike_until` on:
    before that they show whether the program repeats itself."""
    count = min(len(reference), len(tried))
    if count < LEAST_STEPS:
        return UNKNOWN
    differences = [_difference(reference[n], tried[n]) for n in range(count)]
    before = differences[:alike_until]
    if before and max(before) > REPRODUCIBLE:
        return _by_means(reference[:count], tried[:count], result)
    after = differences[alike_until:]
    if len(after) < LEAST_STEPS:
        return UNKNOWN
    # A program without a seed, or with one for each worker, differs from its first step on.
    if not before and after[0] > TOLERANCE[result]:
        return _by_means(reference[:count], tried[:count], result)
    # Rounding grows step by step; the middle of them does not depend on how long it was seen.
    typical = median(after)
    if max(after) <= IDENTICAL:
        return Sameness("same", f"the same in {len(after)} steps", 0.0)
    if typical <= TOLERANCE[result]:
        how: Kind = "rounding" if typical > REPRODUCIBLE else "same"
        return Sameness(how, f"differs by {_percent(typical)}, {AS[result]}", typical)
    means = _by_means(reference[:count], tried[:count], result)
    begins_alike = median(after[:LEAST_STEPS]) <= TOLERANCE[result] and math.isfinite(max(after))
    if (typical <= STRAYS * TOLERANCE[result] or begins_alike) and means.kind == "same":
        # Other random numbers (dropout), or rounding that has grown: kernels that add up in another
        # order each time had a program's losses 0.5 % from its own after some hundred steps.
        return Sameness("rounding", f"differs by {_percent(typical)}, not in the mean", typical)
    return Sameness("other", f"another result: differs by {_percent(typical)}", typical)


LEAST_PRINTED = 3
"""Printed values that are compared at least, of a program that calls no backward."""

# What programs call their results; times and rates differ anyway.
_RESULT = re.compile(
    r"\b(?P<name>[\w/.-]{0,40}?(?:loss|acc|accuracy|ppl|perplexity|reward|error|rmse|mse|mae|f1|auc"
    r"|iou|dice|psnr|ssim|bleu|rouge|wer|nll|elbo|entropy|likelihood|residual|checksum))\b"
    r"[\"']?\s?[:=]?\s?(?P<value>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.])(?!\s?(?:m|u|n)?s\b)",
    re.I,
)


def printed_values(lines: Iterable[str]) -> dict[str, list[float]]:
    """The results that a program prints, by their names in its lines: `loss 2.31`, `acc=0.9`."""
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for match in _RESULT.finditer(line[:500]):
            values[match["name"].lower()].append(float(match["value"]))
    return values


def sameness_of_prints(reference: Iterable[str], tried: Iterable[str], result: str) -> Sameness:
    """Of two runs from the same beginning by what they print, each value with the one in its
    place."""
    before, after = printed_values(reference), printed_values(tried)
    differences = [
        [_difference(a, b) for a, b in zip(before[name], after[name], strict=False)]
        for name in before.keys() & after.keys()
    ]
    number = sum(map(len, differences))
    if number < LEAST_PRINTED:
        return UNKNOWN
    typical = max(map(median, differences))  # of the value that differs most
    count = f"{number} printed values"
    if max(map(max, differences)) <= REPRODUCIBLE:
        return Sameness("same", f"{count} are the same", 0.0)
    if typical <= TOLERANCE[result]:
        return Sameness("rounding", f"{count} differ by {_percent(typical)}, {AS[result]}", typical)
    # Few values of what may draw its own random numbers: they say that something differs only.
    kind: Kind = "other" if typical > STRAYS * TOLERANCE[result] else "unknown"
    return Sameness(kind, f"{count} differ by {_percent(typical)}", typical)


def sameness_of_outputs(
    reference: Mapping[float, float], tried: Mapping[float, float], result: str
) -> Sameness:
    """Of two runs by what modules gave in the warm-up, for what both runs gave them."""
    differences = [
        _difference(reference[given], tried[given]) for given in reference.keys() & tried.keys()
    ]
    if len(differences) < LEAST_PRINTED:
        return UNKNOWN
    typical = median(differences)
    count = f"outputs of {len(differences)} calls"
    if max(differences) <= REPRODUCIBLE:
        return Sameness("same", f"{count} are the same", typical)
    if typical <= TOLERANCE[result]:
        return Sameness("rounding", f"{count} differ by {_percent(typical)}, {AS[result]}", typical)
    kind: Kind = "other" if typical > STRAYS * TOLERANCE[result] else "unknown"
    return Sameness(kind, f"{count} differ by {_percent(typical)}", typical)


SCATTER = 3.0
"""How many times as much as two runs of a program as it is may one with a cure differ."""


def sameness_by_scatter(
    reference: ProgramResult, again: ProgramResult, tried: ProgramResult
) -> Sameness | None:
    """Whether a run differs from one of the program as it is by no more than another such run
    does, in the middle of the steps that all three have: sums in another order each time (atomics)
    grow step by step. None where it differs more, or those two do by more than fewer bits do."""
    if reference.steps is None or again.steps is None or tried.steps is None:
        return None
    losses = [steps.losses_by_step for steps in (reference.steps, again.steps, tried.steps)]
    own, seen = (
        median([_difference(a, b) for a, b in zip(losses[0], other, strict=False)][:count])
        if (count := min(map(len, losses))) >= LEAST_STEPS else math.inf
        for other in losses[1:]
    )  # fmt: skip
    if not REPRODUCIBLE < own <= TOLERANCE[DIFFERENT] or seen > SCATTER * own:
        return None
    return Sameness(
        "rounding", f"differs by {_percent(seen)}, runs as it is by {_percent(own)}", seen
    )


def _by_means(
    reference: Sequence[float | None], tried: Sequence[float | None], result: str
) -> Sameness:
    """A program that draws its own random numbers: whether the losses are as they may be."""
    pairs = [
        (a, b) for a, b in zip(reference, tried, strict=True) if a is not None and b is not None
    ]
    if len(pairs) < LEAST_STEPS:
        return UNKNOWN
    scale = fmean(abs(a) for a, _ in pairs) or 1.0
    changes = [(b - a) / scale for a, b in pairs]
    mean = fmean(changes)
    error = stdev(changes) / math.sqrt(len(changes))
    if abs(mean) <= max(TOLERANCE[result], 4.0 * error):
        return Sameness(
            "same", f"no difference beyond its own {_percent(stdev(changes))}", abs(mean)
        )
    return Sameness("other", f"another result: differs by {_percent(abs(mean))}", abs(mean))


def sameness_of(
    reference: ProgramResult, tried: ProgramResult, result: str, alike: int = 0
) -> Sameness:
    """Of two runs, by their losses, or where they have none by what they print, or by what their
    modules gave. `alike` of the losses are from before the cure was on."""
    if reference.steps is None or tried.steps is None:
        return UNKNOWN
    if reference.steps.losses_a_step == tried.steps.losses_a_step:
        same = sameness_of_runs(reference.steps.losses, tried.steps.losses, result, alike)
    else:
        both = reference.steps.losses_by_step, tried.steps.losses_by_step
        same = sameness_of_runs(*both, result)
    if same.kind == "unknown":
        same = sameness_of_prints(reference.lines, tried.lines, result)
    if same.kind == "unknown" and not alike:  # it was on in the warm-up
        same = sameness_of_outputs(reference.steps.outputs, tried.steps.outputs, result)
    return same


def sameness_within_a_run(steps: Steps, cure: str, result: str) -> Sameness:
    """Of the blocks with and without the cure in one run: whether losses go on as before. It finds
    what goes wrong, not what differs by less than losses do from batch to batch."""
    means: dict[int, dict[bool, float]] = {}
    for block, following in pairwise([*steps.blocks, None]):
        if block is None or block.cure != cure:
            continue
        last = following.first if following is not None else len(steps.losses)
        seen = steps.losses[block.first : max(block.first, min(last, block.first + block.steps))]
        if any(value is None for value in seen):
            if block.on:
                return Sameness("other", "another result: the loss is no number")
            return UNKNOWN
        values = [value for value in seen if value is not None]
        if values:
            means.setdefault(block.pair, {})[block.on] = fmean(values)
    both = [(pair[False], pair[True]) for pair in means.values() if len(pair) == 2]
    if len(both) < 4:
        return UNKNOWN
    scale = fmean(abs(off) for off, _ in both) or 1.0
    changes = [(on - off) / scale for off, on in both]
    error = stdev(changes) / math.sqrt(len(changes))
    mean, width = fmean(changes), error * student(0.999, len(changes) - 1)
    if abs(mean) - width > TOLERANCE[result]:
        return Sameness("other", f"another result: differs by {_percent(abs(mean))}", abs(mean))
    if abs(mean) + width > SAYS_NOTHING:
        return UNKNOWN
    return Sameness("same", f"no difference in losses (±{_percent(abs(mean) + width)})", abs(mean))


SAYS_NOTHING = 0.25
"""Losses that may differ by such a share as far as is seen have shown nothing: they fall by more
from block to block."""


def _difference(reference: float | None, tried: float | None) -> float:
    if reference is None or tried is None:
        return 0.0 if reference is tried else math.inf
    return abs(tried - reference) / max(abs(reference), 1e-12)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "more than can be said"
    return "less than 0.001 %" if 0.0 < share < 1e-5 else f"{100 * share:.2g} %"
