"""What makes an accounting go wrong: several threads and streams, graphs, attaching, clocks."""

from __future__ import annotations

import numpy as np

from gputui.attribute.accounting.device import DeviceTime
from gputui.attribute.accounting.gaps import LATENCY_NS
from gputui.attribute.accounting.host import SHORT_NS, Doing, HostThreads
from gputui.attribute.accounting.operations import Columns
from gputui.model.leaves import LEAVES, Leaf
from tests.attribute.accounting.test_device import MAIN, START, by_leaf, device, operations

WORKER = 8
LAUNCH = Doing.LAUNCHING


def of_threads(calls: dict[int, list[tuple[int, int, Doing]]]) -> DeviceTime:
    threads = HostThreads()
    for thread, made in calls.items():
        starts, ends, kinds = (np.array(column) for column in zip(*made, strict=True))
        threads.add(np.full(len(made), thread), starts, ends, kinds.astype(np.int8))
    return DeviceTime(threads, MAIN)


def by(found: Columns, **columns: list[int]) -> Columns:
    """With other threads or streams."""
    return found._replace(**{name: np.array(values, np.uint32) for name, values in columns.items()})


def test_a_gap_is_blamed_on_the_thread_that_launched_what_ends_it() -> None:
    """The main thread sleeps for long, a worker feeds the GPU and stops in a wait."""
    late = START + 400_000
    of = of_threads(
        {
            MAIN: [(START - 10, START, LAUNCH), (START + 10**9, START + 10**9 + 10, LAUNCH)],
            WORKER: [(START - 5, START + 12_000, Doing.WAITING), (late, late + 10, LAUNCH)],
        }
    )
    rows = operations(
        (START, START + 10_000, START - 10, START, Leaf.MATMUL),
        (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
    )
    of.add(by(rows, threads=[MAIN, WORKER]))
    found = by_leaf(of)
    assert Leaf.HOST not in found
    assert found[Leaf.SYNC] > 300_000


def test_gaps_inside_a_graph_are_dependencies() -> None:
    """One launch, many kernels: the CPU has nothing to do with what lies between them."""
    call = START - 20_000, START - 5_000
    of = device([(*call, LAUNCH), (START + 50 * SHORT_NS, START + 50 * SHORT_NS + 10, LAUNCH)])
    of.add(
        operations(
            *(
                (START + at, START + at + 4_000, *call, Leaf.MATMUL)
                for at in range(0, 100_000, 10_000)
            )
        )
    )
    assert by_leaf(of) == {Leaf.MATMUL: 40_000, Leaf.DEPENDENCY: 54_000}


def test_streams_are_never_summed() -> None:
    """Two streams that run side by side fill the time once, compute before copies."""
    calls = [(START - 20, START - 10, LAUNCH), (START - 10, START, LAUNCH)]
    of = device(calls)
    rows = operations(
        (START, START + 10_000, START - 20, START - 10, Leaf.MATMUL),
        (START + 4_000, START + 14_000, START - 10, START, Leaf.COPY_PINNED),
    )
    of.add(by(rows, streams=[7, 9]))
    assert by_leaf(of) == {Leaf.MATMUL: 10_000, Leaf.COPY_PINNED: 4_000}


def test_attached_in_the_middle() -> None:
    """Launches from before are not known: that is said, not blamed on the program."""
    late = START + 30_000
    of = device([(late, late + 2_000, LAUNCH)])
    of.add(
        operations(
            (START, START + 10_000, 0, 0, Leaf.MATMUL),
            (START + 12_000, START + 20_000, 0, 0, Leaf.MATMUL),
            (late + 3_000, late + 9_000, late, late + 2_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.UNKNOWN] == 2_000
    assert sum(found.values()) == 39_000


def test_a_kernel_that_begins_before_its_launch_does_by_the_clocks() -> None:
    """Clocks a few microseconds apart must not make time out of nothing."""
    late = START + 30_000
    of = device([(START - 10, START, LAUNCH), (late, late + 8_000, LAUNCH)])
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late - 5_000, late + 5_000, late, late + 8_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert sum(found.values()) == 35_000
    assert found[Leaf.MATMUL] == 20_000
    assert sum(ns for leaf, ns in found.items() if LEAVES[leaf].is_idle) == 15_000


def test_latency_is_no_fault_of_anyone() -> None:
    """A kernel starts some microseconds after its launch, however idle the GPU is."""
    late = START + 10_000 + 2 * SHORT_NS
    of = device([(START - 10, START, LAUNCH), (late, late + 5_000, LAUNCH)])
    begin = late + 5_000 + LATENCY_NS // 2
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (begin, begin + 1_000, late, late + 5_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.HOST] == 2 * SHORT_NS
    assert found.get(Leaf.DEPENDENCY, 0) + found[Leaf.LAUNCH] == 5_000 + LATENCY_NS // 2
