"""Steps that waited for a better idea of what a step is, and come all at once, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gputui.attribute.accounting.device import FETCHING, LEAVES
from gputui.attribute.accounting.scopes import Step, Steps
from gputui.attribute.arrays import Int64s
from gputui.model.events import StepBlock
from gputui.model.leaves import Leaf
from gputui.model.step_blocks import FEW, MOST_PARTS, parts_of
from gputui.model.step_kinds import SLOW

BLOCK_STEPS = 4
BLOCK_NS = 250_000_000
"""Least of such a block."""

BLOCKS = 16
"""A loop has about as many at least (batch means, as state.series): a block takes at least
this part of its time so far."""

DIGITS = 4
"""Of a block's time, to which its leaves are rounded: all digits would be half of what is written
for it, and blocks differ by more."""


class LoopBlocks:
    """The blocks of the newest loop of a device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._loop = -1
        self._ns = 0
        self._count = 0

    @property
    def are_few(self) -> bool:
        """Whether the newest steps say more than they do."""
        return self._count < FEW

    def divide(self, loop: int, steps: Steps, pauses: Sequence[Step]) -> list[StepBlock]:
        """Blocks of the steps and the pauses among them; none where they are few: else the steps
        of one delta are a block."""
        if loop != self._loop:
            self._loop, self._ns, self._count = loop, 0, 0
        whole_ns = int(steps.ends[-1] - steps.starts[0])
        self._ns += whole_ns
        least_ns = max(BLOCK_NS, self._ns // BLOCKS)
        count = min(len(steps.starts) // BLOCK_STEPS, whole_ns // least_ns)
        self._count += max(1, count)
        return _divided(self._device, loop, steps, pauses, count) if count > 1 else []


def _divided(
    device: int, loop: int, steps: Steps, pauses: Sequence[Step], count: int
) -> list[StepBlock]:
    whole = len(steps.starts)
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
                longest_parts(lengths, MOST_PARTS) or ((len(lengths), max(lengths)),),
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


def longest_parts(lengths: Sequence[int], most: int) -> tuple[tuple[int, int], ...]:
    """The parts of steps that are not alike; none of others: it would be ten times the bytes."""
    return parts_of(lengths, most) if max(lengths) >= SLOW * min(lengths) else ()


def _of_leaves(sums: Int64s) -> tuple[tuple[int, int], ...]:
    """Rounded, with their exact sum: what is over is the largest one's."""
    sums = sums[:LEAVES]
    total = int(sums.sum())
    unit = 10 ** max(0, len(str(total)) - DIGITS)
    rounded = (sums + unit // 2) // unit * unit
    rounded[sums.argmax()] += total - rounded.sum()
    return tuple((leaf, int(rounded[leaf])) for leaf in np.flatnonzero(rounded).tolist())
