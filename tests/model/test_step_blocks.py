"""Steady steps in blocks: bounded, in order, and nothing is lost from them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import CaptureDelta, LeafTime, LoopDelta, Scope, StepBlock
from gputui.model.step_blocks import MOST_BLOCKS, MOST_LOOPS, StepBlocks, blocks_of
from tests.events_for_tests import times


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**9)), max_size=300))
def test_blocks_are_bounded_and_add_up(added: list[tuple[int, int]]) -> None:
    found = StepBlocks()
    for steps, ns in added:
        found.append(StepBlock(0, 1, steps, ns, ((3, ns),)))
    blocks = found.loops.get((0, 1), [])
    assert len(blocks) == min(len(added), MOST_BLOCKS)
    assert sum(block.steps for block in blocks) == sum(steps for steps, _ in added)
    assert sum(block.ns for block in blocks) == sum(ns for _, ns in added)
    assert all(dict(block.leaves) == {3: block.ns} for block in blocks)


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
    assert list(blocks_of(parts)) == [StepBlock(0, 1, 3, 60, ((3, 60),))]
    divided = (StepBlock(0, 1, 2, 40, ()), StepBlock(0, 1, 1, 20, ()))
    brought = CaptureDelta(time_ns=1, process=1, loops=parts.loops, step_blocks=divided)
    assert tuple(blocks_of(brought)) == divided
