"""Steady steps in blocks: bounded, in order, and nothing is lost from them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import StepBlock
from gputui.model.step_blocks import MOST_BLOCKS, MOST_LOOPS, StepBlocks


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
