"""Whether a program computes the same with a cure, by the values that `backward` is called of, by
what it prints, or by what its modules give."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Literal, NamedTuple

from gputui.cures import BOUND, DIFFERENT, EXACT, ROUNDING
from gputui.trial.blocks import Steps
from gputui.trial.proof import student
from gputui.trial.runs import ProgramResult

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
    *,
    redraws: bool = False,
) -> Sameness:
    """Step by step, of two runs from the same beginning. The cure was on from `alike_until` on:
    before that they show whether the program repeats itself. One that `redraws` gives it other
    random numbers."""
    count = min(len(reference), len(tried))
    if count < LEAST_STEPS:
        return UNKNOWN
    differences = [_difference(reference[n], tried[n]) for n in range(count)]
    before = differences[:alike_until]
    after = differences[alike_until:]
    if len(after) < LEAST_STEPS:
        return UNKNOWN
    draws = bool(before) and max(before) > REPRODUCIBLE
    means = _by_means(
        reference[alike_until:count], tried[alike_until:count], result, redraws or draws
    )
    if draws:
        return means
    # A program without a seed, or with one for each worker, differs from its first step on.
    if not before and after[0] > TOLERANCE[result]:
        return means
    # Rounding grows step by step; the middle of them does not depend on how long it was seen.
    typical = median(after)
    if max(after) <= IDENTICAL:
        return Sameness("same", f"losses identical in {len(after)} steps", 0.0)
    if redraws and typical > TOLERANCE[result]:
        return means  # its first steps may be the same
    if typical <= TOLERANCE[result]:
        how: Kind = "rounding" if typical > REPRODUCIBLE else "same"
        return Sameness(how, f"losses differ by {_percent(typical)}, {AS[result]}", typical)
    begins_alike = median(after[:LEAST_STEPS]) <= TOLERANCE[result] and math.isfinite(max(after))
    if (typical <= STRAYS * TOLERANCE[result] or begins_alike) and means.kind == "same":
        # Other random numbers (dropout), or rounding that has grown: kernels that add up in another
        # order each time had a program's losses 0.5 % from its own after some hundred steps.
        said = f"losses differ by {_percent(typical)}, not in the mean"
        return Sameness("rounding", said, typical)
    return Sameness("other", f"another result: losses differ by {_percent(typical)}", typical)


LEAST_PRINTED = 3
"""Printed values that are compared at least, of a program that calls no backward."""

# What programs call their results; times and rates differ anyway.
_RESULT = re.compile(
    r"\b(?P<name>[\w/.-]{0,40}?(?:loss|acc|accuracy|ppl|perplexity|reward|error|rmse|mse|mae|f1|auc"
    r"|iou|dice|psnr|ssim|bleu|rouge|wer|nll|elbo|entropy|likelihood|residual|checksum))\b"
    r"[\"']?\s?[:=]?\s?(?P<value>[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf))"
    r"(?![\w.])(?!\s?(?:m|u|n)?s\b)",
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
        return Sameness("rounding", _differ(count, typical, result), typical)
    # Few values of what may draw its own random numbers: they say that something differs only.
    kind: Kind = "other" if typical > STRAYS * TOLERANCE[result] else "unknown"
    return Sameness(kind, f"{count} differ by {_percent(typical)}", typical)


Outputs = Mapping[tuple[float, int], float]
"""Weighted sums of what modules gave, by the norm of what they were given and how many elements
they gave."""


def sameness_of_outputs(reference: Outputs, tried: Outputs, result: str) -> Sameness:
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
        return Sameness("rounding", _differ(count, typical, result), typical)
    kind: Kind = "other" if typical > STRAYS * TOLERANCE[result] else "unknown"
    return Sameness(kind, f"{count} differ by {_percent(typical)}", typical)


def _differ(values: str, typical: float, result: str) -> str:
    """How values that are not all the same differ."""
    if typical <= IDENTICAL:
        return f"most {values} are the same, others as rounding makes them"
    return f"{values} differ by {_percent(typical)}, {AS[result]}"


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
        "rounding", f"losses differ by {_percent(seen)}, runs as it is by {_percent(own)}", seen
    )


def _by_means(
    reference: Sequence[float | None], tried: Sequence[float | None], result: str, redrawn: bool
) -> Sameness:
    """A program that draws its own random numbers: whether the losses are as they may be. Of many
    steps the second half says so: while losses fall fast, other random numbers move them by some
    steps (7.5 and 4.9 in the mean of 33 steps of one program, with workers and without). Where
    there is a reason for other numbers (`redrawn`), and losses have fallen in both, nothing is
    said."""
    every = list(zip(reference, tried, strict=True))
    if sum(b is None for _, b in every) > sum(a is None for a, _ in every):
        return Sameness("other", "another result: the loss is no number")
    pairs = [(a, b) for a, b in every if a is not None and b is not None]
    if len(pairs) < LEAST_STEPS:
        return UNKNOWN
    fall = redrawn and _has_fallen(pairs)
    if len(pairs) >= 4 * LEAST_STEPS:
        pairs = pairs[len(pairs) // 2 :]
    scale = fmean(abs(a) for a, _ in pairs) or 1.0
    changes = [(b - a) / scale for a, b in pairs]
    mean = fmean(changes)
    error = stdev(changes) / math.sqrt(len(changes))
    if abs(mean) <= 4.0 * error > SAYS_NOTHING:
        return UNKNOWN
    if abs(mean) <= max(TOLERANCE[result], 4.0 * error):
        return Sameness(
            "same", f"losses as before (they scatter by {_percent(stdev(changes))})", abs(mean)
        )
    if fall:
        return Sameness("unknown", "losses fall in both runs")
    return Sameness("other", f"another result: losses differ by {_percent(abs(mean))}", abs(mean))


FALLS, NEARLY = 0.8, 0.3
"""To which part of the first ones losses have fallen at least, and what part of that fall another
run has at least."""


def _has_fallen(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether losses of two runs have fallen, of the second by part of that at least."""
    half = pairs[len(pairs) // 2 :]
    begun = fmean(a for a, _ in pairs[:LEAST_STEPS])
    left, other = (fmean(pair[run] for pair in half) for run in (0, 1))
    fall = begun - left
    return fall >= (1.0 - FALLS) * abs(begun) and begun - other >= NEARLY * fall


def sameness_of(
    reference: ProgramResult,
    tried: ProgramResult,
    result: str,
    *,
    constant: bool = True,
    held: bool = False,
    by_outputs: bool = True,
    redraws: bool = False,
) -> Sameness:
    """Of a run as it is and one with cures, some on from its start (`constant`), some from the end
    of its warm-up (`held`), which may give it other random numbers (`redraws`): by their losses, or
    where they have none by what they print, or with `by_outputs` by what their modules gave while
    the cures were on."""
    if reference.steps is None or tried.steps is None:
        return UNKNOWN
    if reference.steps.losses_a_step == tried.steps.losses_a_step:
        alike = 0 if constant else min(reference.steps.first, tried.steps.first)
        losses = reference.steps.losses, tried.steps.losses
        same = sameness_of_runs(*losses, result, alike, redraws=redraws)
    else:
        both = reference.steps.losses_by_step, tried.steps.losses_by_step
        same = sameness_of_runs(*both, result, redraws=redraws)
    if same.kind == "unknown":
        same = sameness_of_prints(reference.lines, tried.lines, result)
    if same.kind != "unknown" or not by_outputs:
        return same
    every = {**reference.steps.outputs, **reference.steps.held_outputs}
    same = sameness_of_outputs(
        every, tried.steps.held_outputs if held else tried.steps.outputs, result
    )
    if same.kind == "other" and not constant:
        before = sameness_of_outputs(every, tried.steps.outputs, EXACT)
        # A program that draws its own random numbers gives others each time.
        return same if before.kind == "same" else UNKNOWN
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
        said = f"another result: losses differ by {_percent(abs(mean))}"
        return Sameness("other", said, abs(mean))
    if abs(mean) + width > SAYS_NOTHING:
        return UNKNOWN
    return Sameness("same", f"losses as before (±{_percent(abs(mean) + width)})", abs(mean))


SAYS_NOTHING = 0.25
"""Losses that may differ by such a share as far as is seen have shown nothing: they fall by more
from block to block."""


def _difference(reference: float | None, tried: float | None) -> float:
    if reference is None or tried is None:
        return 0.0 if reference is tried else math.inf
    if not math.isfinite(reference) or not math.isfinite(tried):
        return 0.0 if repr(reference) == repr(tried) else math.inf  # one NaN is another
    return abs(tried - reference) / max(abs(reference), 1e-12)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "more than can be said"
    if 0.0 < share < 1e-5:
        return "less than 0.001 %"
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
