"""Steady steps in blocks: a bounded history of what a loop's steps took.

Steps in a row are alike, so the deviation of single ones does not give the error of their mean;
blocks of many steps are nearly independent (batch means: Schmeiser 1982, Operations Research
30(3)).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gputui.model.events import CaptureDelta, Scope, StepBlock

MOST_BLOCKS = 64
MOST_LOOPS = 64
"""Loops of a process whose blocks are kept, the first ones."""


class StepBlocks(msgspec.Struct):
    """The blocks of one process's loops, by device and loop."""

    loops: dict[tuple[int, int], list[StepBlock]] = {}

    def add(self, delta: CaptureDelta) -> None:
        """Append the steady steps of a delta."""
        for block in blocks_of(delta):
            self.append(block)

    def append(self, block: StepBlock) -> None:
        """Append the newest block; the two smallest neighbours become one if there are too many."""
        key = block.device, block.loop
        if key not in self.loops and len(self.loops) >= MOST_LOOPS:
            return
        blocks = self.loops.setdefault(key, [])
        blocks.append(block)
        if len(blocks) > MOST_BLOCKS:
            least = min(range(MOST_BLOCKS), key=lambda at: blocks[at].steps + blocks[at + 1].steps)
            blocks[least : least + 2] = [_joined(*blocks[least : least + 2])]

    def freeze(self) -> tuple[StepBlock, ...]:
        """All of them, loop by loop."""
        return tuple(block for blocks in self.loops.values() for block in blocks)


def blocks_of(delta: CaptureDelta) -> Iterator[StepBlock]:
    """The steady steps of a delta: its blocks, and one for each device and loop without any."""
    yield from delta.step_blocks
    divided = {(block.device, block.loop) for block in delta.step_blocks}
    whole: dict[tuple[int, int], tuple[int, int]] = {}
    for loop in delta.loops:
        key = loop.device, loop.loop
        if loop.scope == Scope.STEADY and loop.step_ns is not None and key not in divided:
            steps, ns = whole.get(key, (0, 0))
            whole[key] = steps + loop.steps, ns + loop.step_ns.total
    for (device, number), (steps, ns) in whole.items():
        leaves: dict[int, int] = {}
        for time in delta.leaf_times:
            if (time.device, time.loop, time.scope) == (device, number, Scope.STEADY):
                leaves[time.leaf] = leaves.get(time.leaf, 0) + time.ns
        if steps:
            yield StepBlock(device, number, steps, ns, tuple(leaves.items()))


def _joined(first: StepBlock, second: StepBlock) -> StepBlock:
    leaves = dict(first.leaves)
    for leaf, ns in second.leaves:
        leaves[leaf] = leaves.get(leaf, 0) + ns
    return StepBlock(
        first.device,
        first.loop,
        first.steps + second.steps,
        first.ns + second.ns,
        tuple(leaves.items()),
    )
