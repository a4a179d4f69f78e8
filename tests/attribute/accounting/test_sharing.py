"""Two traced processes on one GPU: its tree adds up to its own time, with each one's part."""

from __future__ import annotations

import numpy as np
import pytest

from gputui.attribute.accounting import LATE_NS, GpuSharing, SharingProcess
from gputui.attribute.arrays import Slots
from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import ProcessAttached, RunStarted
from gputui.model.hub import Numbering
from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.time_tree import shared_gpus, time_tree
from gputui.ring import SLOT, RecordKind
from gputui.state import Run, Session
from tests.sessions_for_tests import analysed

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
NAMES = {1: "_Z6kernelv", 2: "cudaLaunchKernel_v7000"}

NEVER: dict[int, int] = {}
EACH, OTHER = (0, 10), (10, 16)
"""In every 20 ms: when the first process runs a kernel, and when the other one does."""


def records(process: int, intervals: list[tuple[int, int]], read_ns: int) -> Slots:
    """Kernels, each launched as it begins."""
    rows = np.zeros(2 * len(intervals) + 1, SLOT)
    calls, kernels = rows[: len(intervals)], rows[len(intervals) : -1]
    starts, ends = (np.array(column, np.uint64) for column in zip(*intervals, strict=True))
    calls["kind"], calls["thread"], calls["name"] = RecordKind.API, process, 2
    calls["correlation"] = kernels["correlation"] = np.arange(len(intervals)) + int(
        starts[0] // (20 * MS) % 1_000_000
    )
    calls["start"], calls["end"] = starts - 2000, starts - 1000
    kernels["kind"], kernels["name"] = RecordKind.KERNEL, 1
    kernels["start"], kernels["end"] = starts, ends
    rows["kind"][-1], rows["start"][-1] = RecordKind.FLUSH, read_ns
    return rows


def run_of(
    parts: dict[int, tuple[int, int]], visible: dict[int, str | None], ends: dict[int, int] = NEVER
) -> Run:
    """100 periods of 20 ms of each process, by its number, collected now and then: four times, or
    fewer if it `ends` after one."""
    session = Session.from_events(
        [RunStarted(time_ns=T0, run=1, kind="command", name="", arguments=(), pid=1)]
    )
    numbering, sharing = Numbering(), GpuSharing()
    traced = {number: TracedProcess(number, number, numbering) for number in parts}
    for number in parts:
        attached = ProcessAttached(
            time_ns=T0, run=1, process=number, pid=number, parent_pid=1, command="", cuda_status=""
        )
        session.apply([attached])
    for tick in range(4):
        now_ns = T0 + (tick + 1) * 500 * MS
        going = {number: one for number, one in traced.items() if tick <= ends.get(number, 3)}
        for number in going:
            start, end = parts[number]
            at = [T0 + (25 * tick + turn) * 20 * MS for turn in range(25)]
            intervals = [(ns + start * MS, ns + end * MS) for ns in at]
            # Each flushes at a moment of its own.
            flushed_ns = now_ns - number * MS
            traced[number].feed(records(number, intervals, flushed_ns), NAMES, now_ns)
        last = {number: tick == ends.get(number, 3) for number in going}
        sharing.exchange(
            [
                SharingProcess(
                    n, one.accounting, visible[n], one.complete_until_ns(now_ns, last[n])
                )
                for n, one in going.items()
            ]
        )
        for number, one in going.items():
            session.apply(one.collect(now_ns, ended=last[number]))
            [device] = one.accounting.devices.values()
            held_ns = now_ns - device.time.accounted_ns
            assert held_ns < LATE_NS + 50 * MS  # nobody is held back for long
    assert session.run is not None
    return session.run


def test_the_tree_of_a_shared_gpu_adds_up_to_its_time() -> None:
    run = run_of({1: EACH, 2: OTHER}, {1: None, 2: "0"})
    tree = time_tree(run)
    assert tree is not None
    assert tree.devices == 1
    assert sum(tree.leaves.values()) == tree.wall_ns
    busy = {1: 10, 2: 6}
    for part in shared_gpus(run, analysed(run).device_trees):
        assert part.busy_ns / tree.wall_ns == pytest.approx(busy[part.process] / 20, abs=0.01)
    assert tree.share(tree.idle_ns) == pytest.approx(0.2, abs=0.01)
    assert Leaf.PEER not in tree.leaves
    # Each process for itself: the GPU was not idle while the other had it.
    for (process, _), its in analysed(run).device_trees.items():
        other = its.share(its.leaves[Leaf.PEER])
        assert other == pytest.approx(busy[3 - process] / 20, abs=0.01)


def test_what_runs_at_once_is_shared_out() -> None:
    run = run_of({1: (0, 10), 2: (5, 15)}, {1: "3", 2: "3"})
    tree = time_tree(run)
    assert tree is not None
    assert tree.share(tree.idle_ns) == pytest.approx(0.25, abs=0.01)
    first, other = shared_gpus(run, analysed(run).device_trees)
    assert first.busy_ns == pytest.approx(other.busy_ns, rel=0.02)
    assert first.idle_ns + other.idle_ns == pytest.approx(tree.idle_ns, rel=1e-6)
    assert not any(LEAVES[leaf].key == "busy.peer" for leaf in tree.leaves)


def test_two_gpus_of_one_number_are_two() -> None:
    """CUDA numbers what it may see."""
    run = run_of({1: EACH, 2: OTHER}, {1: "0", 2: "1"})
    assert shared_gpus(run, analysed(run).device_trees) == []
    assert all(Leaf.PEER not in tree.leaves for tree in analysed(run).device_trees.values())


def test_a_process_that_ends_holds_nobody_back_and_all_it_ran_is_known() -> None:
    run = run_of({1: (10, 20), 2: (0, 10)}, {1: None, 2: None}, ends={1: 1})
    its = analysed(run).device_trees[2, 0]
    # Its last kernel ran on after what had come of the other process when it was collected.
    assert its.leaves[Leaf.PEER] == 50 * 10 * MS
    assert sum(its.leaves.values()) == its.wall_ns == (100 * 20 - 10) * MS
