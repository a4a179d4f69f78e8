"""A program's steps: when they count as steady, and blocks of many steps, a bounded history of what
they took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from gputui.model.events import CaptureDelta, LoopDelta, Scope, StepBlock, StepSource

# How long it takes until steps are known, and how long a step is that is not as the others.

HELD_NS = 10_000_000_000
"""How long launches wait until it is clear where steps begin."""

PAUSE = 10.0
PAUSE_NS = 100_000_000
"""A step this many times as long as the usual one, and this long, holds a pause."""

SLOW = 1.5
"""A step this many times as long as the usual one is slow."""


# Which source of marks is believed first.

BELIEVED: tuple[tuple[StepSource, ...], ...] = (
    ("optimizer",), ("accelerate",), ("keras",), ("lightning",), ("trainer",), ("token",),
    ("request",), ("loop",), ("jax", "module", "tqdm"),
)  # fmt: skip
"""Sources of a program's marks, those first that say best what a step is: what ends a training step
before what is called in it. A loop of the program is believed before what it calls. A module is
called once for each micro-batch too, and a progress bar may count steps, or epochs, or files: of
the last ones what each spans decides."""

SOURCES_FIRST: tuple[StepSource, ...] = tuple(source for equals in BELIEVED for source in equals)


# Steady steps in blocks: a bounded history of what a loop's steps took.
#
# Steps in a row are alike, so the deviation of single ones does not give the error of their mean;
# blocks of many steps are nearly independent (batch means: Schmeiser 1982, Operations Research
# 30(3)).

# The two neighbours with the fewest steps become one: a run of any length keeps as many blocks.
MOST_BLOCKS = 64
MOST_PARTS = 8
"""Parts of a block whose longest step is kept."""

FEW = 8
"""Blocks of a loop below which its newest steps say more."""

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
        if not block.steps:  # pauses only: those of the steps before
            blocks[-1:] = [_joined(last, block) for last in blocks[-1:]]
            return
        blocks.append(block)
        if len(blocks) > MOST_BLOCKS:
            least = min(
                range(MOST_BLOCKS), key=lambda index: blocks[index].steps + blocks[index + 1].steps
            )
            blocks[least : least + 2] = [_joined(*blocks[least : least + 2])]

    def freeze(self) -> tuple[StepBlock, ...]:
        """All of them, loop by loop."""
        return tuple(block for blocks in self.loops.values() for block in blocks)


def blocks_of(delta: CaptureDelta) -> Iterator[StepBlock]:
    """The steady steps of a delta: its blocks, and one for each device and loop without any."""
    yield from delta.step_blocks
    divided = {(block.device, block.loop) for block in delta.step_blocks}
    whole: dict[tuple[int, int], StepBlock] = {}
    for loop in delta.loops:
        # A delta may bring a loop's steps in two parts: they are one block.
        key = loop.device, loop.loop
        if key in divided:
            continue
        if loop.scope == Scope.STEADY and loop.step_ns is not None and loop.steps:
            block = StepBlock(*key, loop.steps, loop.step_ns.total, (), longest_of(loop))
        elif loop.scope == Scope.PAUSE and loop.steps:
            block = StepBlock(*key, 0, 0, pauses=loop.steps)
        else:
            continue
        whole[key] = _joined(whole[key], block) if key in whole else block
    for (device, number), block in whole.items():
        leaves: dict[Scope, list[tuple[int, int]]] = {Scope.STEADY: [], Scope.PAUSE: []}
        for time in delta.leaf_times:
            if (time.device, time.loop) == (device, number) and time.scope in leaves:
                leaves[time.scope].append((time.leaf, time.ns))
        yield msgspec.structs.replace(
            block,
            leaves=_added(leaves[Scope.STEADY]) if block.steps else (),
            paused=_added(leaves[Scope.PAUSE]) if block.pauses else (),
        )


def longest_of(loop: LoopDelta) -> tuple[tuple[int, int], ...]:
    """The parts of steps that are not alike or whose lengths are known in order; of others the
    longest of all."""
    if loop.longest:
        return loop.longest
    if len(loop.newest) == loop.steps:
        return parts_of(loop.newest)
    maximum = loop.step_ns.maximum if loop.step_ns is not None else None
    return () if maximum is None else ((loop.steps, maximum),)


def parts_of(lengths: Sequence[int], most: int = MOST_PARTS) -> tuple[tuple[int, int], ...]:
    """Divides steps, in order, into parts of equal size: pairs of a number of steps and the length
    of the longest."""
    count = min(most, len(lengths))
    bounds = [len(lengths) * index // count for index in range(count)] + [len(lengths)]
    return tuple((end - first, max(lengths[first:end])) for first, end in pairwise(bounds))


def _joined_parts(longest: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """At most MOST_PARTS: the smallest neighbours become one."""
    joined = list(longest)
    while len(joined) > MOST_PARTS:
        sizes = [steps + joined[index + 1][0] for index, (steps, _) in enumerate(joined[:-1])]
        least = sizes.index(min(sizes))
        joined[least : least + 2] = [(sizes[least], max(ns for _, ns in joined[least : least + 2]))]
    return tuple(joined)


def _added(leaf_times: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    sums: dict[int, int] = {}
    for leaf, ns in leaf_times:
        sums[leaf] = sums.get(leaf, 0) + ns
    return tuple(sums.items())


def _joined(first: StepBlock, second: StepBlock) -> StepBlock:
    is_known = all(block.longest or not block.steps for block in (first, second))
    return StepBlock(
        first.device,
        first.loop,
        first.steps + second.steps,
        first.ns + second.ns,
        _added((*first.leaves, *second.leaves)),
        _joined_parts((*first.longest, *second.longest)) if is_known else (),
        first.pauses + second.pauses,
        _added((*first.paused, *second.paused)),
    )
