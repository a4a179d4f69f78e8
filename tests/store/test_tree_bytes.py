"""What steps and leaves take of a recording, where that is most: short steps, each of its own
length, written once a second."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import AnyEvent, CaptureDelta, Scope
from gputui.model.events.distributions import Accumulator
from gputui.model.hub import Numbering
from gputui.model.steps import SLOW, blocks_of
from gputui.ring import SLOT, RecordKind
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import header

NAMES = {
    1: "cudaLaunchKernel_v7000", 2: "cudaMemcpyAsync_v3020", 3: "cudaStreamSynchronize_v3020",
    10: "nvjet_tst_128x64", 11: "elementwise_kernel", 12: "softmax_warp_forward", 13: "adam",
}  # fmt: skip
BEGAN_NS = 1_700_000_000_000_000_000
STEP_NS = 2_000_000
KERNELS = 20
SECONDS = 30


def _records(starts: np.ndarray, lengths: np.ndarray, first: int) -> np.ndarray:
    """A step: kernels, a copy, and a wait for them, at the same parts of its time."""
    calls = np.zeros((len(starts), KERNELS + 2), SLOT)
    calls["kind"], calls["thread"] = RecordKind.API, 100
    number = first + np.arange(len(starts))
    calls["correlation"] = number[:, None] * (KERNELS + 2) + np.arange(KERNELS + 2)
    parts = np.arange(KERNELS + 2) / (KERNELS + 2)
    calls["start"] = starts[:, None] + (lengths[:, None] * parts).astype(np.int64)
    calls["end"] = calls["start"] + 4000
    calls["name"] = [1] * KERNELS + [2, 3]
    work = calls[:, :-1].copy()
    work["kind"] = [RecordKind.KERNEL] * KERNELS + [RecordKind.MEMCPY]
    work["name"], work["sub"][:, KERNELS] = [*[10, 11, 12, 13] * 5, 0], 2
    work["source_kind"][:, KERNELS], work["destination_kind"][:, KERNELS] = 3, 2
    work["start"] += 6000
    work["end"] = work["start"] + (lengths[:, None] // (2 * KERNELS)).astype(np.uint64)
    flush = np.zeros(1, SLOT)
    flush["kind"], flush["start"] = RecordKind.FLUSH, starts[-1] + lengths[-1]
    return np.concatenate((calls.ravel(), work.ravel(), flush))


def uneven_run(slow: float) -> tuple[list[AnyEvent], np.ndarray]:
    """The events of some seconds, and how long steps were, a part of which is `slow`."""
    process, noise = TracedProcess(1, 100, Numbering()), np.random.default_rng(1)
    events: list[AnyEvent] = []
    texts, taken = dict(NAMES), []
    now_ns = BEGAN_NS
    for second in range(SECONDS):
        lengths = (STEP_NS * np.exp(noise.normal(0, 0.1, 500))).astype(np.int64)
        lengths[noise.random(500) < slow] *= 3
        ends = now_ns + np.cumsum(lengths)
        process.feed(_records(ends - lengths, lengths, 500 * second), texts, int(ends[-1]))
        texts, now_ns = {}, int(ends[-1])
        events += process.collect(now_ns)
        taken.append(lengths)
    return [*events, *process.collect(now_ns, ended=True)], np.concatenate(taken)


@pytest.mark.parametrize("slow", [0.0, 0.01])
def test_short_uneven_steps_take_200_bytes_a_second(slow: float, tmp_path: Path) -> None:
    events, lengths = uneven_run(slow)
    without = [
        replace(event, leaf_times=(), loops=(), step_blocks=())
        if isinstance(event, CaptureDelta)
        else event
        for event in events
    ]
    sizes = []
    for number, some in enumerate((events, without)):
        writer = JournalWriter(tmp_path / f"{number}.gputui.gz")
        writer.write([header()])
        for event in some:
            writer.write([event])
        sizes.append(writer.bytes_written)  # without the sums at the end, which grow no more
        writer.close()
    assert sizes[0] - sizes[1] <= 200 * SECONDS
    deltas = [event for event in events if isinstance(event, CaptureDelta)]
    steady = [loop for delta in deltas for loop in delta.loops if loop.scope is Scope.STEADY]
    spread = Accumulator.merged(loop.step_ns for loop in steady if loop.step_ns is not None)
    assert spread.count > 0.99 * len(lengths)
    assert spread.median == pytest.approx(np.median(lengths), rel=0.01)
    # In which half of a second a step was slow is known all along.
    parts = [part for delta in deltas for block in blocks_of(delta) for part in block.longest]
    assert max(ns for _, ns in parts) == spread.maximum
    assert len([ns for _, ns in parts if ns > SLOW * STEP_NS]) > (SECONDS if slow else -1)


def test_blocks_divide_their_time_as_the_leaves_do() -> None:
    """Rounded leaves of a block add up to its steps, and to those of the loop within 0.1 %."""
    events, _ = uneven_run(0.0)
    deltas = [event for event in events if isinstance(event, CaptureDelta) and event.step_blocks]
    steps_ns, of_blocks, of_loop = 0, Counter[int](), Counter[int]()
    for delta in deltas:
        for block in delta.step_blocks:
            assert sum(ns for _, ns in block.leaves) == block.ns
            steps_ns += block.ns
            of_blocks.update(dict(block.leaves))
        loops = {block.loop for block in delta.step_blocks}
        for time in delta.leaf_times:
            if time.scope is Scope.STEADY and time.loop in loops:
                of_loop[time.leaf] += time.ns
    assert of_blocks.total() == of_loop.total() == steps_ns > 0
    assert len(of_loop) > 3
    for leaf, ns in of_loop.items():
        assert of_blocks[leaf] == pytest.approx(ns, abs=0.001 * steps_ns)
