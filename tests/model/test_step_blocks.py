"""Steady steps in blocks: bounded, in order, and nothing is lost from them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.model.events import CaptureDelta, LeafTime, LoopDelta, Scope, StepBlock
from gputui.model.steps import MOST_BLOCKS, MOST_LOOPS, MOST_PARTS, StepBlocks, blocks_of
from tests.events_for_tests import times


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**9)), max_size=300))
def test_blocks_are_bounded_and_add_up(added: list[tuple[int, int]]) -> None:
    found = StepBlocks()
    for steps, ns in added:
        found.append(StepBlock(0, 1, steps, ns, ((3, ns),), ((steps, ns),), 1, ((17, ns),)))
        found.append(StepBlock(0, 1, 0, 0, pauses=1))  # a pause goes to the steps before it
    blocks = found.loops.get((0, 1), [])
    assert len(blocks) == min(len(added), MOST_BLOCKS)
    assert sum(block.steps for block in blocks) == sum(steps for steps, _ in added)
    assert sum(block.ns for block in blocks) == sum(ns for _, ns in added)
    assert all(dict(block.leaves) == {3: block.ns} for block in blocks)
    assert all(dict(block.paused) == {17: block.ns} for block in blocks)
    assert sum(block.pauses for block in blocks) == 2 * len(added)
    for block in blocks:
        assert len(block.longest) <= MOST_PARTS
        assert sum(steps for steps, _ in block.longest) == block.steps
    longest = [ns for block in blocks for _, ns in block.longest]
    assert max(longest, default=0) == max((ns for _, ns in added), default=0)


def test_blocks_stay_of_like_size_and_in_order() -> None:
    found = StepBlocks()
    for number in range(1000):
        found.append(StepBlock(0, 1, 1, number))
    [blocks] = found.loops.values()
    assert max(block.steps for block in blocks) <= 4 * 1000 / MOST_BLOCKS
    means = [block.ns / block.steps for block in blocks]
    assert means == sorted(means)


def test_a_program_of_many_loops_is_bounded() -> None:
    found = StepBlocks()
    for loop in range(2 * MOST_LOOPS):
        found.append(StepBlock(0, loop, 1, 1))
    assert len(found.loops) == MOST_LOOPS


def test_a_delta_is_one_block_of_each_loop_unless_it_brings_blocks() -> None:
    """Its steps may be known in two parts; warm-up is in none."""
    parts = CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=(
            LeafTime(1, 0, Scope.STEADY, 1, 3, 40),
            LeafTime(1, 0, Scope.STEADY, 1, 3, 20),
            LeafTime(1, 0, Scope.WARMUP, 1, 3, 99),
        ),
        loops=(
            LoopDelta(1, 0, Scope.STEADY, 1, 2, 6, 1, 2, times(20, 20)),
            LoopDelta(1, 0, Scope.STEADY, 1, 1, 3, 2, 3, times(20)),
            LoopDelta(1, 0, Scope.WARMUP, 1, 1, 3, 2, 3, times(99)),
        ),
    )
    assert list(blocks_of(parts)) == [StepBlock(0, 1, 3, 60, ((3, 60),), ((2, 20), (1, 20)))]
    pause = LoopDelta(1, 0, Scope.PAUSE, 1, 2, 3, 4, 9, times(50, 60))
    of_pause = LeafTime(1, 0, Scope.PAUSE, 1, 17, 110)
    one_by_one = replace(parts.loops[0], newest=(15, 25))
    late = replace(parts, leaf_times=(*parts.leaf_times, of_pause), loops=(one_by_one, pause))
    assert list(blocks_of(late)) == [
        StepBlock(0, 1, 2, 40, ((3, 60),), ((1, 15), (1, 25)), 2, ((17, 110),))
    ]
    divided = (StepBlock(0, 1, 2, 40, ()), StepBlock(0, 1, 1, 20, ()))
    brought = CaptureDelta(time_ns=1, process=1, loops=parts.loops, step_blocks=divided)
    assert tuple(blocks_of(brought)) == divided
