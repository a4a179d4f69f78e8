"""How late each rank came over the steps: whether it always was, became so, or only at times.

From the blocks of steady steps that every rank keeps (model.step_blocks): what its collectives
take less than those of the rank that waits longest, a step. Ranks run the same steps, so step n of
one is step n of the other, and no clock is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gputui.model.events import StepBlock
from gputui.model.leaves import Leaf
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import STEPS_ALIKE

GROUPS = 32
"""Of steps, at most."""

Place = tuple[int, int]


def late_over_steps(ranks: Sequence[RankTime], groups: int = GROUPS) -> dict[Place, list[float]]:
    """By process and device: how late a step, in ns, for each of up to so many groups of as many
    steps, the oldest first. Empty where ranks cannot be compared."""
    blocks = {
        (one.process, one.device): found
        for one in ranks
        if one.late is not None and one.device is not None and (found := _blocks(one))
    }
    counts = [sum(block.steps for block in found) for found in blocks.values()]
    if len(blocks) < 2 or min(counts) < STEPS_ALIKE * max(counts):
        return {}
    groups = min(groups, *counts, max(map(len, blocks.values())))
    if groups < 2:
        return {}
    each = {place: _in_groups(found, groups) for place, found in blocks.items()}
    longest = [max(values[at] for values in each.values()) for at in range(groups)]
    return {
        place: [most - own for most, own in zip(longest, values, strict=True)]
        for place, values in each.items()
    }


def _blocks(one: RankTime) -> list[StepBlock]:
    """Those of the loop that took the most time on the rank's device."""
    known = one.run.step_blocks.get(one.process)
    loops = [
        blocks
        for (device, _), blocks in (known.loops.items() if known is not None else ())
        if device == one.device
    ]
    return max(loops, key=lambda blocks: sum(block.ns for block in blocks), default=[])


def _in_groups(blocks: Sequence[StepBlock], groups: int) -> list[float]:
    """What collectives took a step, in groups of as many steps; blocks of any size are spread."""
    ends = [0, *accumulate(block.steps for block in blocks)]
    sums = [0, *accumulate(dict(block.leaves).get(Leaf.COMMUNICATION, 0) for block in blocks)]

    def up_to(step: float) -> float:
        at = min(max(bisect_right(ends, step) - 1, 0), len(blocks) - 1)
        part = (step - ends[at]) / max(1, ends[at + 1] - ends[at])
        return sums[at] + part * (sums[at + 1] - sums[at])

    edges = [ends[-1] * at / groups for at in range(groups + 1)]
    totals = [up_to(edge) for edge in edges]
    size = ends[-1] / groups
    return [(totals[at + 1] - totals[at]) / size for at in range(groups)]
