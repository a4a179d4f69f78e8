"""Steps that waited for a better idea of what a step is, and come all at once, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gputui.attribute.accounting.scopes import Step, Steps
from gputui.attribute.accounting.tracks import FETCHING, LEAVES
from gputui.attribute.arrays import Int64s
from gputui.model.events import StepBlock
from gputui.model.leaves import Leaf
from gputui.model.step_blocks import parts_of
from gputui.model.step_kinds import SLOW

BLOCK_STEPS = 4
BLOCK_NS = 250_000_000
"""Least of such a block."""


def divided(device: int, loop: int, steps: Steps, pauses: Sequence[Step]) -> list[StepBlock]:
    """Blocks of the steps and the pauses among them; none where they are few: else the steps of
    one delta are a block."""
    whole = len(steps.starts)
    count = min(whole // BLOCK_STEPS, int(steps.ends[-1] - steps.starts[0]) // BLOCK_NS)
    if count < 2:
        return []
    bounds = [whole * at // count for at in range(count + 1)]
    of_pauses = np.searchsorted(
        steps.starts[bounds[1:-1]], [pause.start_ns for pause in pauses], side="right"
    ).tolist()
    found = []
    for at in range(count):
        part = slice(bounds[at], bounds[at + 1])
        lengths = steps.lengths[part].tolist()
        paused = [pause.leaves for pause, of in zip(pauses, of_pauses, strict=True) if of == at]
        found.append(
            StepBlock(
                device,
                loop,
                len(lengths),
                sum(lengths),
                _of_leaves(steps.leaves[part].sum(axis=0)),
                _longest(lengths),
                len(paused),
                _of_leaves(in_a_pause(np.sum(paused, axis=0))) if paused else (),
            )
        )
    return found


def in_a_pause(leaves: Int64s) -> Int64s:
    """In a pause a queue or a socket that is read may be a server's, which has no requests."""
    found = leaves.copy()
    found[Leaf.INPUT] = min(leaves[Leaf.INPUT], leaves[FETCHING])
    found[Leaf.WAIT] += leaves[Leaf.INPUT] - found[Leaf.INPUT]
    return found


def _longest(lengths: list[int]) -> tuple[tuple[int, int], ...]:
    """Where steps are alike one part says it, in a tenth of the bytes."""
    longest = max(lengths)
    return parts_of(lengths) if longest >= SLOW * min(lengths) else ((len(lengths), longest),)


def _of_leaves(sums: Int64s) -> tuple[tuple[int, int], ...]:
    return tuple((leaf, int(sums[leaf])) for leaf in np.flatnonzero(sums[:LEAVES]).tolist())
