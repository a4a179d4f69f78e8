"""How steps change over a run: those that grow, as where a text is computed again for each token or
a list gone through in each step; and what a program does between its steps that no usual step has:
it validates, or compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median, pvariance
from typing import NamedTuple

from gputui.model.leaves import CAUSES, LEAVES, Leaf, idle_sum
from gputui.model.units import duration
from gputui.report.explain.advice import is_of_plans
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.evidence import CUDNN_PLANS, place_of, where
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.gains import OF_COMPILING, as_launched, with_one_more
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import verdict
from gputui.state.run import MarkedSteps

LEAST_STEPS = 20
"""Steps that make a trend."""

LEAST_POINTS = 8
MOVED = 0.10
"""Growth of a step's length from which it is a trend, of the mean."""

PRODUCTS_MOVED = 0.25
"""Growth of the time of matrix products a step from which it is a trend, of its mean."""

# Leaves that the CPU's speed decides: after a wait it wakes and launches again, and it moves what
# is copied from pageable memory.
_CPU_SPEED = {
    Leaf.LAUNCH, Leaf.SYNC, Leaf.INPUT, Leaf.SCHEDULER, Leaf.RANK, Leaf.COPY_PAGEABLE,
}  # fmt: skip

_PRODUCTS = {Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED}

CERTAIN = 2.58
"""Standard deviations of Kendall's S: 99 %."""

SKEWED = 1.5
"""Mean over median of the steps' lengths from which a few long ones (a checkpoint, a pause) decide
the mean: then it does not say how each step goes."""

FALL = 0.15
"""A step this much shorter than those before begins anew: the next request, the next epoch."""

CHUNK = 8


class Point(NamedTuple):
    """The mean length of some steps, and how many steps lie before their middle."""

    steps_before: float
    ns: float


class Trend(NamedTuple):
    """Growth of a step's length by each step, and from what to what."""

    ns_per_step: float
    first_ns: float
    last_ns: float
    steps: int


def steps_grow(analysis: Analysis) -> Iterator[Finding]:
    """Steps that take longer and longer, or give the GPU more and more to compute."""
    tree = analysis.tree
    if tree is None or tree.benchmark_rows:
        return
    if (text := _text_again(analysis)) is not None:
        yield _of_text(analysis, tree, text)
        return
    if (trend := step_trend(tree)) is not None:
        what = "takes {more} longer than the one before"
    elif (trend := work_trend(tree)) is not None:
        what = "gives the GPU {more} more work than the one before"
    else:
        return
    grown_ns = (trend.last_ns - trend.first_ns) / 2
    grown = min(grown_ns / tree.step_mean_ns, 1 - trend.first_ns / tree.step_mean_ns)
    also = ""
    if (planned := _plans_of_growth(analysis, tree)) is not None:
        # What cuDNN plans for each length goes with a KV cache, as the growth does: growing steps
        # lead.
        share = f"{100 * planned.recoverable:.0f} % of each step"
        also = f" For each length cuDNN plans attention anew: {share}, under CPU code."
        grown += planned.recoverable
    yield Finding(
        cause="steps_grow",
        view="timeline",
        word="steps grow",
        sentence=(
            f"Each step {what.format(more=duration(trend.ns_per_step))}: "
            f"{duration(trend.first_ns)} to {duration(trend.last_ns)} within {trend.steps:,} steps."
            f"{also}"
        ),
        advice=(KEEPS_NONE if _multiplies_more(tree) else "") + LOOK_FOR,
        value=100 * (trend.last_ns / trend.first_ns - 1),
        threshold=100 * MOVED,
        source="Theil-Sen slope over the steps, Kendall's test at 99 %",
        recoverable=max(0.0, grown),
        gains=gain_of(grown),
        leads=True,
        # Memory then holds what each step goes through again.
        explains=("memory_grows", CUDNN_PLANS),
    )


KEEPS_NONE = "in a decoder keep a KV cache (use_cache=True); else "
LOOK_FOR = "look for a text, list or graph that each step goes through again"

KEEP_CACHE = (
    "keep a KV cache (use_cache=True, past_key_values), so that a step computes its new token only"
)

OFTEN = 0.5
"""Part of a module's calls whose input is one longer than the one before from which it goes through
a text again and again: with a cache each call has one token, in training all have as many."""

FEW_TOKENS = 600
"""Tokens of a step, of all its texts together, up to which products wait for the weights that they
read, as those of one token do: 300 operations a byte of an H100, two bytes a weight."""


def _text_again(analysis: Analysis) -> MarkedSteps | None:
    """The calls of a module whose input grows by one from call to call; None where none does."""
    marked = [
        marks
        for marks in analysis.run.marked_steps.values()
        if marks.grown >= max(LEAST_STEPS, OFTEN * marks.marks)
    ]
    return max(marked, key=lambda marks: marks.grown, default=None)


def _of_text(analysis: Analysis, tree: TimeTree, text: MarkedSteps) -> Finding:
    """A model that is called for all of a text to get one token more. Its length is known by the
    items of the calls: what one new token takes is bounded by reading the weights."""
    busy = 1.0 - tree.share(tree.idle_ns)
    tokens = (text.items or 0) / max(1, text.marks)
    spared = max(0.0, 1.0 - FEW_TOKENS / tokens) if tokens else 0.0
    outcome = verdict(analysis)
    findings = outcome.findings if outcome is not None else ()
    planned = next((each for each in findings if is_of_plans(each.advice)), None)
    plans = planned.recoverable if planned is not None else 0.0
    # A cache that grows has attention planned for each length, too.
    gains = as_launched(analysis, gain_of(0.8 * spared * busy, 0.97 * busy + plans), always=True)
    also = f" For each length cuDNN plans attention anew: {100 * plans:.0f} %." if plans else ""
    return Finding(
        cause="steps_grow",
        view="timeline",
        word="text gone through again",
        sentence=(
            f"{text.site} goes through all of its input again for each token: {text.grown:,} of "
            f"{text.marks:,} calls have one more than the call before, {tokens:,.0f} on "
            f"average.{also}"
        ),
        advice=KEEP_CACHE,
        value=100 * text.grown / text.marks,
        threshold=100 * OFTEN,
        source="shapes of the input of the module that no other calls",
        recoverable=max(0.5 * busy, plans),
        gains=gains,
        leads=True,
        explains=("memory_grows", *((planned.cause,) if planned is not None else ())),
    )


def _plans_of_growth(analysis: Analysis, tree: TimeTree) -> Finding | None:
    """The finding that the CPU plans attention for each new length: where steps grow by a text
    gone through again they give attention these lengths, and the plans go with them."""
    outcome = verdict(analysis)
    if outcome is None or work_trend(tree) is None:
        return None
    return next((finding for finding in outcome.findings if is_of_plans(finding.advice)), None)


def step_trend(tree: TimeTree) -> Trend | None:
    """How steps grow, None if they do not or there are too few."""
    if tree.steps < LEAST_STEPS * tree.devices:
        return None
    if tree.step_mean_ns > SKEWED * (tree.step_ns.median or 0.0) or _is_slower_cpu(tree):
        return None
    return _trend(_points(tree))


def _is_slower_cpu(tree: TimeTree) -> bool:
    """Whether longer steps are the same work on a CPU that is slower for a while: most of what
    they take longer is launching or loading data, and they give the GPU no more to do."""
    blocks = [block for block in max(tree.blocks, key=len, default=()) if block.steps]
    lengths = [block.ns / block.steps for block in blocks]
    if len(lengths) < LEAST_POINTS // 2 or not (spread := pvariance(lengths)):
        return False

    def mean_and_growth(wanted: Callable[[Leaf], bool]) -> tuple[float, float]:
        """The mean, and how much of a longer step it is."""
        values = [
            sum(ns for leaf, ns in block.leaves if wanted(Leaf(leaf))) / block.steps
            for block in blocks
        ]
        mean, middle = fmean(values), fmean(lengths)
        together = fmean((a - mean) * (b - middle) for a, b in zip(values, lengths, strict=True))
        return mean, together / spread

    _, by_speed = mean_and_growth(_CPU_SPEED.__contains__)
    busy, more_busy = mean_and_growth(
        lambda leaf: not LEAVES[leaf].is_idle and leaf not in _CPU_SPEED
    )
    # The same work on a CPU that is slower for a while is no growth: launches and loading took
    # longer on an H100's host, twice.
    return by_speed > 0.5 and more_busy * fmean(lengths) < 0.25 * busy


def work_trend(tree: TimeTree) -> Trend | None:
    """How the GPU's work a step grows where the CPU's unevenness hides it in the steps' lengths;
    None if it does not.

    Matrix products have to grow with it: with a KV cache attention grows with the text, but each
    step multiplies as many rows.
    """
    if tree.steps < LEAST_STEPS * tree.devices:
        return None
    busy_trend = _trend(_sums_of_blocks(tree, lambda leaf: not LEAVES[leaf].is_idle))
    if busy_trend is None or not _multiplies_more(tree):
        return None
    grown = busy_trend.last_ns - busy_trend.first_ns
    return busy_trend if grown >= MOVED * tree.step_mean_ns else None


def _multiplies_more(tree: TimeTree) -> bool:
    """Whether matrix products grow from step to step, as without a KV cache."""
    return _trend(_sums_of_blocks(tree, _PRODUCTS.__contains__), PRODUCTS_MOVED) is not None


def _sums_of_blocks(tree: TimeTree, wanted: Callable[[Leaf], bool]) -> list[Point]:
    points: list[Point] = []
    done = 0
    for block in max(tree.blocks, key=len, default=()):
        ns = sum(ns for leaf, ns in block.leaves if wanted(Leaf(leaf)))
        points.append(Point(done + block.steps / 2, ns / block.steps))
        done += block.steps
    return points


def _trend(points: Sequence[Point], moved: float = MOVED) -> Trend | None:
    if len(points) < LEAST_POINTS:
        return None
    rising = [part for part in _cut_at_falls(points) if len(part) >= LEAST_POINTS // 2]
    if sum(map(len, rising)) < max(LEAST_POINTS, len(points) / 2):
        return None
    # The newest steps are more points than those before: 15 of 59 equal steps rose.
    if sum(map(_steps_of, rising)) < _steps_of(points) / 2:
        return None
    # Kendall's S of all parts together: its variance is that of their sum (Hirsch 1982).
    score = sum(_kendall(part) for part in rising)
    variance = sum(n * (n - 1) * (2 * n + 5) / 18 for n in map(len, rising))
    if score <= 0 or (score - 1) / math.sqrt(variance) < CERTAIN:
        return None
    longest = max(rising, key=lambda part: part[-1].steps_before - part[0].steps_before)
    slope = _theil_sen(longest)
    steps = longest[-1].steps_before - longest[0].steps_before
    middle = median(point.ns for point in longest)
    first_ns, last_ns = middle - slope * steps / 2, middle + slope * steps / 2
    if first_ns <= 0 or last_ns - first_ns < moved * middle:
        return None
    # One jump is another phase of the program, growth goes on in both halves: of the steps, since
    # 73 of 921 that warmed up were a quarter of the blocks.
    middle_step = (longest[0].steps_before + longest[-1].steps_before) / 2
    half = next(n for n, point in enumerate(longest) if point.steps_before >= middle_step)
    halves = longest[: half + 1], longest[half - 1 :]
    if any(_theil_sen(part) < slope / 4 for part in halves):
        return None
    return Trend(slope, first_ns, last_ns, round(steps))


def _steps_of(points: Sequence[Point]) -> float:
    return points[-1].steps_before - points[0].steps_before


def _points(tree: TimeTree) -> list[Point]:
    """The steps of the device that has most blocks, in order; the newest ones more finely."""
    points: list[Point] = []
    done = 0
    blocks = max(tree.blocks, key=len, default=())
    # Where there are blocks enough, single steps would only add their noise.
    newest = tree.newest if len(blocks) < LEAST_POINTS else ()
    for block in blocks:
        is_last = block is blocks[-1]
        steps, ns = block.steps, float(block.ns)
        if is_last and newest and len(newest) < steps:
            steps, ns = steps - len(newest), ns - sum(newest)
        elif is_last and len(newest) >= 2 * CHUNK:
            break
        points.append(Point(done + steps / 2, ns / steps))
        done += steps
    # A step alone is uneven: several together.
    size = CHUNK if len(newest) >= LEAST_POINTS * CHUNK // 2 else 1
    for start in range(0, len(newest) - size + 1, size):
        chunk = newest[start : start + size]
        points.append(Point(done + start + size / 2, sum(chunk) / size))
    return points


def _cut_at_falls(points: Sequence[Point]) -> list[list[Point]]:
    """Cut where a step falls back."""
    groups = [[points[0]]]
    for before, point in pairwise(points):
        if point.ns < (1 - FALL) * before.ns:
            groups.append([])
        groups[-1].append(point)
    return groups


def _kendall(points: Sequence[Point]) -> int:
    return sum(
        (later.ns > earlier.ns) - (later.ns < earlier.ns)
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
    )


def _theil_sen(points: Sequence[Point]) -> float:
    """The median slope of all pairs."""
    return median(
        (later.ns - earlier.ns) / (later.steps_before - earlier.steps_before)
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
    )


# --- What a program does between its steps that no usual step has: it validates, or compiles.

LEAST = 0.15
"""Share of the time from which validation is a finding, as for idle time."""

# Steps of validation, which the program's library marks.

EVALUATES = (
    ("trainer", "prediction step"),
    ("lightning", "validation batch"),
    ("keras", "test batch"),
)
"""Sources and sites of marks (inject/hook/step_marks) of steps that validate."""

OF_LONGER = 0.5
"""Part of what some steps take longer, or of the pauses, that steps of validation take."""

VALIDATE_LESS = (
    "validate less often or on fewer batches (eval_steps, val_check_interval, limit_val_batches)"
)


def evaluations(analysis: Analysis) -> Iterator[Finding]:
    """Validation between the steps of a training, where the library says which steps validate."""
    tree = analysis.tree
    marked = [
        marks
        for marks in analysis.run.marked_steps.values()
        if (marks.source, marks.site) in EVALUATES and marks.marks > 1
    ]
    if tree is None or not tree.has_steps or not marked:
        return
    batches = sum(marks.marks for marks in marked)
    lengths = (median(marks.lengths_ns) * marks.marks for marks in marked if marks.lengths_ns)
    validating_ns = sum(lengths)
    paused_ns = sum(tree.paused.values()) / max(1, tree.devices)
    within_ns = tree.slowed_ns / max(1, tree.devices)
    longer_ns = max(within_ns, paused_ns)
    whole_ns = tree.step_mean_ns * tree.steps / max(1, tree.devices)
    whole_ns += paused_ns if paused_ns > within_ns else 0
    share = min(1.0, longer_ns / whole_ns) if whole_ns else 0.0
    if share < LEAST or validating_ns < OF_LONGER * longer_ns:
        return
    yield Finding(
        cause="other_work",
        view="timeline",
        word=f"validation {100 * share:.0f} % of the time",
        sentence=(
            f"Validation takes {100 * share:.0f} % of the time: {batches:,} batches of it between "
            f"{tree.program_steps:,} steps of training."
        ),
        advice=VALIDATE_LESS,
        value=100 * share,
        threshold=100 * LEAST,
        source="marks of the library's validation steps, and what steps take beyond the median",
        recoverable=share,
        gains=gain_of(0.85 * share, 1.2 * share),
        leads=True,
        # Steps of training have so much less of each leaf as validation has of it.
        explains=tuple(
            LEAVES[leaf].key
            for leaf, ns in tree.leaves.items()
            if tree.share(ns) * (1.0 - share) < share
        ),
    )


# Compiling between the steps.

COMPILES = 0.25
"""Share of the time from which compiling between steps leads: what is compiled once is set-up."""


def compiles_between(analysis: Analysis) -> Iterator[Finding]:
    """Compiling in pauses of the loop, few and long, so that the usual step has none of it."""
    tree, outcome = analysis.tree, verdict(analysis)
    key = LEAVES[Leaf.COMPILE].key
    if tree is None or outcome is None or not tree.has_steps:
        return
    if any(finding.cause == key for finding in outcome.findings):
        return
    whole_ns = tree.wall_ns + sum(tree.paused.values())
    compiling_ns = tree.leaves.get(Leaf.COMPILE, 0) + tree.paused.get(Leaf.COMPILE, 0)
    share = compiling_ns / whole_ns if whole_ns else 0.0
    if share < COMPILES:
        return
    idle = (tree.idle_ns + idle_sum(tree.paused)) / whole_ns
    beside_ns = sum(
        leaves.get(leaf, 0)
        for leaves in (tree.leaves, tree.paused)
        for leaf in (Leaf.HOST, Leaf.WAIT)
    )
    least = share + OF_COMPILING * beside_ns / whole_ns
    yield Finding(
        cause=key,
        view="timeline",
        word=CAUSES[Leaf.COMPILE].word,
        sentence=(
            f"The program compiles {100 * share:.0f} % of the loop's time, between its steps: "
            f"{tree.pauses:,} {'pause' if tree.pauses == 1 else 'pauses'}."
        ),
        advice=CAUSES[Leaf.COMPILE].advice,
        value=100 * share,
        threshold=100 * COMPILES,
        source="lines of the compiler in the pauses of the loop",
        recoverable=share,
        gains=with_one_more(tree, gain_of(0.97 * least, 0.98 * idle)),
        evidence=tuple(filter(None, [where(analysis, Leaf.COMPILE)])),
        place=place_of(analysis, Leaf.COMPILE),
        leads=True,
        explains=(LEAVES[Leaf.LAUNCH].key,),
    )


RULES = (RunRule(15, steps_grow), RunRule(16, evaluations), RunRule(16, compiles_between))
