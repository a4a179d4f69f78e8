"""Every nanosecond of a device under one leaf, against a model that looks at each nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.attribute.accounting.device import LEAVES, WAITED, DeviceTime
from gputui.attribute.accounting.device_steps import DeviceSteps
from gputui.attribute.accounting.host_threads import SHORT_NS, Doing, HostThreads
from gputui.attribute.accounting.operations import (
    FIRST_KERNEL,
    LATENCY_NS,
    RESTART_NS,
    Columns,
    stretch,
)
from gputui.attribute.accounting.step_rows import bounds_of, thread_lanes, within_bytes
from gputui.attribute.accounting.thread_readings import LineReading
from gputui.model import leaves
from gputui.model.events import StepBlock, StreamLane, ThreadLane
from gputui.model.leaves import Leaf, unpack

MAIN = 7
START = 1_000_000_000

_LEAVES = (Leaf.MATMUL, Leaf.ELEMENTWISE, Leaf.COMMUNICATION, Leaf.COPY_PINNED)


def device(
    calls: list[tuple[int, int, Doing]] = (),  # type: ignore[assignment]
    thread: int = MAIN,
) -> DeviceTime:
    threads = HostThreads()
    if calls:
        starts, ends, kinds = (np.array(column) for column in zip(*calls, strict=True))
        threads.add(np.full(len(calls), thread), starts, ends, kinds.astype(np.int8))
    return DeviceTime(threads, MAIN)


def operations(*rows: tuple[int, int, int, int, Leaf]) -> Columns:
    """(start, end, call start, call end, leaf)."""
    starts, ends, called, returned, leaves = np.array(rows, np.int64).T
    return Columns(
        starts,
        ends,
        called,
        returned,
        np.full(len(rows), MAIN, np.uint32),
        np.full(len(rows), 7, np.uint32),
        np.zeros(len(rows), np.uint32),
        np.zeros(len(rows), np.uint32),
        np.zeros(len(rows), np.int64),
        leaves.astype(np.uint8),
        np.zeros(len(rows), np.bool_),
    )


def by_leaf(of: DeviceTime) -> dict[Leaf, int]:
    """All time that is accounted for once nothing more comes."""
    of.account(None)
    sums = of.tracks.take_up_to(np.array([2**62])).sum(0)[:LEAVES].tolist()
    return {Leaf(leaf): ns for leaf, ns in enumerate(sums) if ns}


@st.composite
def timelines(draw: st.DrawFn) -> list[tuple[int, int, int, int, Leaf]]:
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        start = START + draw(st.integers(0, 300))
        end = start + draw(st.integers(1, 80))
        called = start - draw(st.integers(1, 60))
        returned = called + draw(st.integers(0, 40))
        rows.append((start, end, called, returned, draw(st.sampled_from(_LEAVES))))
    return rows


@given(rows=timelines(), cuts=st.lists(st.integers(0, 400), max_size=4))
def test_leaves_sum_to_the_time_from_the_first_operation_to_the_last(
    rows: list[tuple[int, int, int, int, Leaf]], cuts: list[int]
) -> None:
    """In one go, or in portions cut anywhere."""
    of = device([(called, returned, Doing.LAUNCHING) for _, _, called, returned, _ in rows])
    of.add(operations(*rows))
    for cut in sorted(cuts):
        of.account(START + cut)
    found = by_leaf(of)
    span = max(row[1] for row in rows) - min(row[0] for row in rows)
    assert sum(found.values()) == span


@given(rows=timelines())
def test_busy_leaves_are_those_of_a_model(rows: list[tuple[int, int, int, int, Leaf]]) -> None:
    """Compute first, then communication, then copies: what is exposed, nanosecond by nanosecond."""
    of = device()
    of.add(operations(*rows))
    found = by_leaf(of)
    groups = (
        (Leaf.MATMUL, Leaf.ELEMENTWISE),
        (Leaf.COMMUNICATION,),
        (Leaf.COPY_PINNED,),
    )
    taken: set[int] = set()
    for group in groups:
        covered = {
            ns for start, end, _, _, leaf in rows if leaf in group for ns in range(start, end)
        }
        shown = sum(ns for leaf, ns in found.items() if leaf in group)
        assert shown == len(covered - taken)
        taken |= covered


def test_a_gap_between_two_launches_is_launch_bound() -> None:
    calls = [(START - 5_000, START - 1_000, Doing.LAUNCHING)]
    late = START + 30_000
    calls.append((late, late + 4_000, Doing.LAUNCHING))
    of = device(calls)
    of.add(
        operations(
            (START, START + 10_000, START - 5_000, START - 1_000, Leaf.MATMUL),
            (late + 6_000, late + 16_000, late, late + 4_000, Leaf.MATMUL),
        )
    )
    assert by_leaf(of) == {Leaf.MATMUL: 20_000, Leaf.LAUNCH: 26_000}


def test_a_long_stretch_outside_cuda_is_the_hosts_own_code() -> None:
    late = START + 10_000 + 50 * SHORT_NS
    of = device([(START - 10, START, Doing.LAUNCHING), (late, late + 10, Doing.LAUNCHING)])
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.HOST] == 50 * SHORT_NS
    assert found[Leaf.LAUNCH] == 10


def test_starting_over_after_a_wait_is_its_price() -> None:
    """The GPU ran dry while the CPU sat in a synchronizing call."""
    waits = (START + 1_000, START + 12_000, Doing.WAITING)
    late = START + 60_000
    of = device([(START - 10, START, Doing.LAUNCHING), waits, (late, late + 10, Doing.LAUNCHING)])
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
        )
    )
    assert by_leaf(of)[Leaf.SYNC] == late + 10 - START - 10_000


def test_waits_are_counted_once_whatever_the_gpu_does() -> None:
    """Two calls that wait, one of them while the GPU works, in the step that each lies in."""
    late = START + 60_000
    of = device(
        [
            (START - 10, START, Doing.LAUNCHING),
            (START + 1_000, START + 12_000, Doing.WAITING),
            (START + 20_000, START + 25_000, Doing.WAITING),
            (late, late + 10, Doing.LAUNCHING),
        ]
    )
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
        )
    )
    of.account(None)
    steps = of.tracks.take_up_to(np.array([START + 5_000, START + 22_000, late + 20]))
    assert steps[:, WAITED].tolist() == [4_000, 9_000, 3_000]


def test_a_wait_long_ago_is_not_to_blame() -> None:
    waits = (START + 1_000, START + 12_000, Doing.WAITING)
    late = START + 12_000 + 2 * RESTART_NS
    of = device([(START - 10, START, Doing.LAUNCHING), waits, (late, late + 10, Doing.LAUNCHING)])
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.SYNC] == 2_000
    assert found[Leaf.HOST] == 2 * RESTART_NS


def test_a_full_queue_is_no_idle_time() -> None:
    """Back-pressure: launches that take milliseconds while the GPU works cost nothing."""
    rows, calls = [], []
    for number in range(20):
        start = START + number * 1_000_000
        called = START + number * 900_000 - 2_000_000
        rows.append((start, start + 1_000_000, called, called + 850_000, Leaf.MATMUL))
        calls.append((called, called + 850_000, Doing.LAUNCHING))
    of = device(calls)
    of.add(operations(*rows))
    assert by_leaf(of) == {Leaf.MATMUL: 20_000_000}


def test_launched_in_time_is_a_dependency_and_not_seen_is_unknown() -> None:
    of = device([(START - 10, START, Doing.LAUNCHING)])
    of.add(
        operations(
            (START, START + 1_000, START - 10, START, Leaf.MATMUL),
            (START + 1_000 + 3 * LATENCY_NS, START + 70_000, START - 5, START, Leaf.MATMUL),
            (START + 80_000, START + 90_000, 0, 0, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.DEPENDENCY] == 3 * LATENCY_NS
    assert found[Leaf.UNKNOWN] == 10_000


def test_what_the_system_says_of_a_thread_divides_its_absence() -> None:
    late = START + 10_000 + 1_000_000_000
    of = device([(START - 10, START, Doing.LAUNCHING), (late, late + 10, Doing.LAUNCHING)])
    threads = of._threads  # what the reader of the process fills
    threads.add_state(MAIN, START, 0, 0, Leaf.WAIT)
    threads.add_state(MAIN, START + 500_000_000, 250_000_000, 250_000_000, Leaf.WAIT)
    threads.add_state(MAIN, late + 10, 250_000_000, 250_000_000, Leaf.INPUT)
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert abs(found[Leaf.HOST] - 250_000_000) < 1_000_000
    assert abs(found[Leaf.SCHEDULER] - 250_000_000) < 1_000_000
    assert abs(found[Leaf.INPUT] - 500_000_000) < 1_000_000


def test_gpu_time_is_shared_among_the_lines_that_launch_it() -> None:
    """Each step launches 3 ms of kernels from one line, then 1 ms from another, then rests;
    readings come at any moment, in every second step."""
    of = device()
    rows, readings = [], 0
    random = np.random.default_rng(5)
    for step in range(2000):
        begun = START + step * 10_000_000
        for number in range(10):
            called = begun + number * 300_000
            rows.append((called + 10, called + 300_010, called, called + 5, Leaf.MATMUL))
        for number in range(10):
            called = begun + 3_000_000 + number * 300_000
            rows.append((called + 10, called + 100_010, called, called + 5, Leaf.MATMUL))
        if random.random() < 0.5:
            moment = int(random.integers(0, 10_000_000))
            line = 1 if moment < 3_000_000 else 2 if moment < 6_000_000 else 3
            of._threads.lines.add(MAIN, LineReading(begun + moment, line))
            readings += 1
    ran = operations(*rows)
    launched_by = np.array([1 if end - start == 300_000 else 2 for start, end, *_ in rows])
    of.add(ran._replace(codes=(FIRST_KERNEL + launched_by).astype(np.uint32)))
    of.account(None)
    found = {line: seen for (line, kernel), seen in of.samples.line_launches.items() if not kernel}
    whole = sum(gpu_ns for _, gpu_ns in found.values())
    assert sum(seen for seen, _ in found.values()) < readings
    near = {place: seen for place, (seen, _) in of.samples.line_launches.items() if place[1]}
    wrong = sum(seen for (line, kernel), seen in near.items() if line != kernel)
    assert sum(near.values()) > 10 * wrong  # read up to 50 µs before another line launches
    shares = {line: gpu_ns / whole for line, (_, gpu_ns) in found.items()}
    assert shares == pytest.approx({1: 0.75, 2: 0.25, 3: 0.0}, abs=0.05)


@pytest.mark.parametrize("thread", [MAIN, MAIN + 1])
@pytest.mark.parametrize(
    ("kind", "leaf"), [(Doing.WAITING, Leaf.SYNC), (Doing.ALLOCATING, Leaf.ALLOCATION)]
)
def test_lines_that_hold_the_thread_up_in_a_call_are_read_there(
    kind: Doing, leaf: Leaf, thread: int
) -> None:
    """Each step launches a kernel of 5 ms from line 1, waits for it at line 2, maybe as cudaFree
    does, and restarts 50 µs later from line 3; a reading comes at any moment of it, and time is
    accounted for in parts. A thread without Python does it at the main thread's lines."""
    step_ns, count = 5_060_000, 600
    begins = START + step_ns * np.arange(count)
    random = np.random.default_rng(11)
    calls = [
        part
        for begin in begins.tolist()
        for part in (
            (begin, begin + 4_000, Doing.LAUNCHING),
            (begin + 5_000, begin + 5_010_000, kind),
        )
    ]
    of = device(calls, thread)
    waited = 0
    for begin in begins.tolist():
        moment = int(random.integers(0, step_ns))
        line = 1 if moment < 5_000 else 2 if moment < 5_010_000 else 3
        # The last wait may end after what is accounted for.
        waited += line == 2 and begin < begins[-1]
        of._threads.lines.add(MAIN, LineReading(begin + moment, line))
    for part in np.array_split(begins, 7):
        rows = [(at + 2_000, at + 5_005_000, at, at + 4_000, Leaf.MATMUL) for at in part.tolist()]
        of.add(operations(*rows)._replace(threads=np.full(len(rows), thread, np.uint32)))
        of.account(None)
    hits = [hit for hit in of.blame.line_hits if hit.leaf is leaf]
    assert {hit.line for hit in hits} == {2}
    assert len(hits) == len({hit.time_ns for hit in hits}) == waited


def test_kernels_are_stretched_against_their_own_like() -> None:
    """Half of one kernel's launches wait out a time slice of 2 ms; another kernel varies by 8 %,
    and of a third there are too few."""
    random = np.random.default_rng(3)
    sliced = 400_000 + (np.arange(200) % 2) * 2_000_000
    even = random.integers(1_000_000, 1_080_000, 200)
    few = np.array([1_000, 9_000_000, 1_000])
    alike = np.repeat([1, 2, 3], [200, 200, 3])
    took = np.concatenate((sliced, even, few))
    shuffled = random.permutation(len(took))
    compared, stretched = stretch(alike[shuffled], took[shuffled])
    assert compared == sliced.sum() + even.sum()
    assert stretched == 100 * 2_000_000


@given(rows=timelines(), cuts=st.lists(st.integers(0, 400), min_size=1, max_size=6))
def test_steps_share_out_what_lies_across_their_boundaries(
    rows: list[tuple[int, int, int, int, Leaf]], cuts: list[int]
) -> None:
    """Each step holds its own length, wherever operations and gaps are cut, taken at once or one
    by one; and every operation is counted in one step."""
    first = min(row[0] for row in rows)
    end = max(row[1] for row in rows)
    boundaries = np.array(sorted(first + cut for cut in cuts))
    lengths = np.diff(np.minimum(boundaries, end), prepend=first)
    counted = []
    for at_once in (True, False):
        of = device([(called, returned, Doing.LAUNCHING) for _, _, called, returned, _ in rows])
        of.add(operations(*rows))
        of.account(None)
        parts = [boundaries] if at_once else [np.array([ns]) for ns in boundaries.tolist()]
        steps = np.concatenate([of.tracks.take_up_to(part) for part in parts])
        counts = [count for part in parts for count in of.take_starts(part)]
        assert (np.abs(steps[:, :LEAVES].sum(axis=1) - lengths) <= len(Leaf)).all()
        rest = of.tracks.take_up_to(np.array([2**62]))[:, :LEAVES].sum()
        assert steps[:, :LEAVES].sum() + rest == end - first
        counted.append(counts)
    began = [sum(row[0] < ns for row in rows) for ns in boundaries.tolist()]
    assert counted == [np.diff(began, prepend=0).tolist()] * 2


def test_every_leaf_has_a_name() -> None:
    assert set(leaves.LEAVES) == set(Leaf)
    assert len({meaning.key for meaning in leaves.LEAVES.values()}) == len(Leaf)


def test_steps_that_come_all_at_once_are_divided_into_blocks() -> None:
    """Steps wait until it is clear what a step is; what they took is still known part by part."""
    steps = DeviceSteps(1, 0, DeviceTime(HostThreads(), MAIN))
    rows, boundaries, at = [], [], START
    lengths = [100_000_000 + 2_000_000 * number for number in range(60)]
    for length in lengths:
        rows.append((at, at + length, at - 10, at - 5, Leaf.MATMUL))
        boundaries.append(at)
        at += length
    steps.add(operations(*rows))
    steps.mark(boundaries, renewed=False)
    blocks = [part for part in steps.collect(None, False) if isinstance(part, StepBlock)]
    # The last step ends with the program, and comes by itself.
    assert sum(block.steps for block in blocks) == len(lengths) - 1
    assert sum(block.ns for block in blocks) == sum(lengths[:-1])
    assert len(blocks) == 14
    means = [block.ns / block.steps for block in blocks]
    assert means == sorted(means)
    assert all(dict(block.leaves) == {Leaf.MATMUL: block.ns} for block in blocks)
    first = 0
    for block in blocks:  # its steps are alike: the longest says how long they were
        assert block.longest == ((block.steps, lengths[first + block.steps - 1]),)
        first += block.steps


def test_single_slow_steps_of_a_block_are_not_lost_in_its_mean() -> None:
    """13, 13, 13, 340 ms: each block of four had one, and all looked alike."""
    steps = DeviceSteps(1, 0, DeviceTime(HostThreads(), MAIN))
    rows, boundaries, at = [], [], START
    lengths = [(20 if number % 4 == 3 else 13) * 1_000_000 for number in range(161)]
    for length in lengths:
        rows.append((at, at + length, at - 10, at - 5, Leaf.MATMUL))
        boundaries.append(at)
        at += length
    steps.add(operations(*rows))
    steps.mark(boundaries, renewed=False)
    blocks = [part for part in steps.collect(None, False) if isinstance(part, StepBlock)]
    parts = [part for block in blocks for part in block.longest]
    assert sum(size for size, _ in parts) == sum(block.steps for block in blocks) >= 160
    assert [longest for _, longest in parts if longest == 20_000_000] == [20_000_000] * 40
    assert max(len(block.longest) for block in blocks) == 8


def test_the_pauses_of_steps_that_come_all_at_once_stay_in_their_places() -> None:
    """14 pauses took 30 % of a loop, and stood nowhere among its steps."""
    steps = DeviceSteps(1, 0, DeviceTime(HostThreads(), MAIN))
    rows, boundaries, at = [], [], START
    for number in range(60):
        length = 2_000_000_000 if number in (30, 50) else 40_000_000
        rows.append((at, at + 40_000_000, at - 10, at - 5, Leaf.MATMUL))
        boundaries.append(at)
        at += length
    steps.add(operations(*rows))
    steps.mark(boundaries, renewed=False)
    blocks = [part for part in steps.collect(None, False) if isinstance(part, StepBlock)]
    assert sum(block.steps for block in blocks) == 57  # the last step comes by itself
    before, after = 0, []
    for block in blocks:
        after += [(before, before + block.steps)] * block.pauses
        before += block.steps
    assert [first <= at <= last for at, (first, last) in zip((30, 49), after, strict=True)]
    for block in blocks:
        assert sum(ns for _, ns in block.paused) == 2_000_000_000 * block.pauses


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ([50, 10, 10, 11, 10, 12, 30], [11]),  # warm-up first, which is no steady step
        ([10, 10, 50, 11, 10, 12, 30], [50, 11]),  # a slow one among them
        ([10, 11, 12, 11, 14], [11]),
        ([10, 90], [90]),  # of two neither is usual
    ],
)
def test_a_usual_step_is_kept_in_parts_and_the_longest_beside_it(
    lengths: list[int], kept: list[int]
) -> None:
    """The step that Timeline opened with was the newest or the longest of a short run: a pause."""
    steps = DeviceSteps(1, 0, DeviceTime(HostThreads(), MAIN))
    ms, ends = 1_000_000, np.cumsum(lengths).tolist()
    starts = [START + (end - length) * ms for end, length in zip(ends, lengths, strict=True)]
    # Half of each is work, in the first half.
    rows = [(at, at + length * ms // 2, at - 10, at - 5, Leaf.MATMUL)
            for at, length in zip(starts, lengths, strict=True)]  # fmt: skip
    end = START + ends[-1] * ms
    steps.add(operations(*rows, (end, end + ms, end - 10, end - 5, Leaf.MATMUL)))
    steps.mark([*starts, end], renewed=False)
    steps.collect(None, False)
    found = steps.take_lanes(1)
    assert [one.duration_ns // ms for one in found] == kept
    for one in found:
        assert sum(one.busy) == pytest.approx(1000 * 96 / 2, rel=0.01)
        assert sum(one.busy[:48]) > 0.98 * sum(one.busy)
    assert steps.take_lanes(2) == []


def test_rows_of_threads_show_a_data_loader_beside_the_one_that_launches() -> None:
    """In 48 ms: the main thread launches for 12, waits for the GPU for 12, then for a batch, which
    a thread without a CUDA call makes meanwhile."""
    ms = 1_000_000
    threads, loader = HostThreads(), 99
    starts = np.arange(START, START + 12 * ms, 100_000)
    waits = np.array([START + 12 * ms])
    threads.add(np.full(120, MAIN), starts, starts + 50_000, np.full(120, Doing.LAUNCHING, np.int8))
    threads.add(np.array([MAIN]), waits, waits + 12 * ms, np.array([Doing.WAITING], np.int8))
    threads.add(np.array([MAIN]), waits + 36 * ms, waits + 37 * ms, np.array([0], np.int8))
    for at, run in ((0, 0), (24, 24), (48, 24)):
        threads.add_state(MAIN, START + at * ms, run * ms, 0, Leaf.INPUT)
    for at, run in ((0, 0), (24, 0), (48, 24)):
        threads.add_state(loader, START + at * ms, run * ms, 0, Leaf.WAIT)
    threads.lines.add(loader, LineReading(START + 40 * ms, 5))
    bounds = bounds_of(START, START + 48 * ms)
    lanes = thread_lanes(threads, MAIN, bounds, START + 48 * ms)
    assert [(lane.thread, lane.line) for lane in lanes] == [(MAIN, None), (loader, 5)]
    assert unpack(lanes[0].doing) == "l" * 12 + "s" * 12 + "i" * 24
    assert unpack(lanes[1].doing) == "w" * 24 + "h" * 24
    assert thread_lanes(threads, MAIN, bounds, START + 10**10) == []


def test_rows_beyond_the_bytes_there_are_stay_out() -> None:
    threads = [ThreadLane(number, "lh" * 24) for number in range(4)]
    streams = [StreamLane(number, 1, "ab" * 24) for number in range(3)]
    kept = within_bytes(threads, streams)
    assert [len(rows) for rows in kept] == [2, 1]
