"""The length of a step where the CPU runs ahead: copies bunch, work keeps the pace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gputui.report.explain.time_tree import TimeTree, time_tree
from tests.attribute.capture_program import Program, Traced

US = 1_000
WORK, COPIES = 7, 9
KERNELS, KERNEL_NS, COPY_NS, CAST_NS = 4, 1_000 * US, 1_500 * US, 100 * US
STEP_NS = KERNELS * KERNEL_NS
BURST = 16
"""Steps that the CPU launches before it waits for the GPU."""


def on(slot: np.void, stream: int) -> np.void:
    slot["b"] = stream
    return slot


def prefetching(
    program: Program, bursts: int, streams: tuple[int, ...] = (WORK,), *, named: bool = False
) -> Iterator[np.void]:
    """Each step copies and casts the next batch on a stream of its own, then computes on this one;
    all of a burst is launched at once, and the copies wait for nobody."""
    correlation = 0
    for burst in range(bursts):
        began = 1_000 * US + burst * BURST * STEP_NS
        clock, copied, worked = began - 500 * US, began, began
        for step in range(BURST):
            stream = streams[step % len(streams)]
            own = stream if len(streams) > 1 else COPIES
            if named:
                yield program.push(clock - 1_000, "step")
            for number in range(-1, 1 + KERNELS):
                correlation += 1
                yield program.call(clock, clock + 2_000, correlation)
                clock += 5_000
                if number == 0:
                    yield on(program.kernel(copied, copied + CAST_NS, correlation, "cast"), own)
                    copied += CAST_NS
                elif number > 0:
                    name = "gemm" if number % 2 else "relu"
                    ran = program.kernel(worked, worked + KERNEL_NS, correlation, name)
                    yield on(ran, stream)
                    worked += KERNEL_NS
                else:
                    # Where steps take turns on two streams, a copy waits for its stream.
                    start = max(copied, worked - STEP_NS) if len(streams) > 1 else copied
                    yield on(program.copy(start, start + COPY_NS, correlation), own)
                    copied = start + COPY_NS
            if named:
                yield program.pop(clock - 1_000)


def tree_of(streams: tuple[int, ...] = (WORK,), *, named: bool = False) -> TimeTree:
    program = Program()
    traced = Traced(program, step_range="step" if named else None)
    records = list(prefetching(program, 8, streams, named=named))
    # In the order in which a driver hands them over: by when they were over.
    records.sort(key=lambda slot: int(slot["end"] or slot["start"]))
    for at in range(0, len(records), 500):
        part = records[at : at + 500]
        seconds = (int(part[-1]["end"] or part[-1]["start"]) - 1_700_000_000_000_000_000) / 1e9
        traced.feed([*part, program.flush(int(seconds * 1e9))], seconds)
        traced.collect(seconds)
    found = time_tree(traced.finish(seconds=2))
    assert found is not None
    return found


@pytest.mark.parametrize("named", [False, True])
def test_a_step_is_as_long_as_its_work_where_copies_run_ahead(named: bool) -> None:
    found = tree_of(named=named)
    assert found.steps > 6 * BURST
    assert found.step_ns.median == pytest.approx(STEP_NS, rel=0.02)
    assert found.step_mean_ns == pytest.approx(STEP_NS, rel=0.02)
    assert not found.slow_steps


def test_steps_that_take_turns_on_two_streams_are_steps_all_the_same() -> None:
    found = tree_of((WORK, WORK + 1))
    assert found.steps > 6 * BURST
    assert found.step_ns.median == pytest.approx(STEP_NS, rel=0.02)
