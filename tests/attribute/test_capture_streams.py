"""Launch latency, queues, gaps and overlap of streams, worked out by hand and by brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.attribute.distributions import coarse_distributions
from gputui.attribute.operation_sums import MAX_STREAMS
from gputui.model.events import OTHER_STREAMS, Distribution
from gputui.model.leaves import LEAVES, Leaf
from tests.attribute.capture_program import MAIN, Program, Traced


@pytest.fixture
def program() -> Program:
    return Program()


def test_latency_is_from_the_call_to_the_first_kernel_and_the_queue_from_its_return(program):
    run = Traced(program).finish(
        program.call(100, 130, 1),
        program.kernel(120, 200, 1),  # began inside the call
        program.call(140, 150, 2, name="cudaGraphLaunch_v10000"),
        program.kernel(210, 220, 2, "gemm"),
        program.kernel(230, 240, 2, "gemm"),  # of the same launch: it waits for no call
        program.call(300, 310, 3, name="cudaMemcpyAsync_v3020"),
        program.copy(400, 410, 3),
    )
    times = run.timing.streams[1, 0, 0]
    assert (times.operations, times.busy_ns) == (4, 80 + 10 + 10 + 10)
    assert (times.latency.count, times.latency.total) == (2, 20 + 70)
    assert (times.queue.count, times.queue.total) == (2, 0 + 60)
    assert (times.idle.count, times.idle.total) == (3, 10 + 10 + 160)


def test_idle_time_lies_in_the_range_that_the_launching_thread_was_in(program):
    """A step launches, then loads data for long, then launches again."""
    run = Traced(program).finish(
        program.push(0, "step"),
        program.call(10, 12, 1),
        program.kernel(20, 100, 1),
        program.push(90, "data"),
        program.push(150, "decode image", domain="NCCL"),  # a library's: not the program's
        program.pop(160, domain="NCCL"),
        program.pop(700),
        program.call(750, 752, 2),
        program.pop(760),
        program.kernel(800, 900, 2),
    )
    use = run.timing.devices[1, 0]
    assert (use.busy_ns, use.idle.total, use.span_ns) == (180, 700, 880)
    found = run.timing.idle_by_range(1, 0)
    shares = {run.ranges[n].path if n else None: ns for n, ns in found.items()}
    assert shares == {"step/data": 600, "step": 60, None: 40}
    leaves = {
        (run.ranges[time.range].path if time.range else None, LEAVES[Leaf(time.leaf)].key): time.ns
        for time in run.timing.range_leaves.values()
    }
    # Until the call is launching, and its latency; time of the GPU's is the range's that launched.
    assert leaves == {
        ("step", "busy.matmul"): 180,
        ("step", "idle.launch"): 60,
        ("step/data", "idle.launch"): 600,
        (None, "idle.launch"): 40,
    }
    assert sum(leaves.values()) == use.span_ns


def test_a_thread_without_ranges_idles_where_the_main_thread_is(program):
    run = Traced(program).finish(
        program.push(0, "backward"),
        program.call(10, 12, 1, thread=101),
        program.kernel(20, 100, 1),
        program.call(190, 192, 2, thread=101),
        program.kernel(200, 300, 2),
        program.pop(400),
    )
    shares = run.timing.idle_by_range(1, 0)
    assert [(run.ranges[n].path, ns) for n, ns in shares.items()] == [("backward", 100)]


def test_streams_that_run_together_overlap(program):
    def kernel(start: int, end: int, stream: int) -> np.void:
        return program.slot(16, start=start, end=end, name=program.id("k"), b=stream)

    run = Traced(program).finish(
        kernel(0, 100, 7), kernel(50, 150, 13), kernel(140, 160, 7), seconds=100
    )
    assert run.timing.devices[1, 0].overlap_ns == 50 + 10
    assert run.timing.devices[1, 0].busy_ns == 160
    assert {t.stream: t.busy_ns for t in run.timing.streams.values()} == {7: 120, 13: 100}


def test_an_operation_left_behind_with_a_time_that_no_clock_showed_is_counted_only(program):
    """A program that ends with work in its queue: CUPTI hands over what never ran."""
    day = 86_400_000_000_000
    run = Traced(program).finish(
        program.call(day, day + 5, 1),
        program.kernel(day + 10, day + 20, 1),
        program.call(day + 30, day + 35, 2),
        program.kernel(1234, day + 50, 2),
        program.call(day + 60, day + 65, 3),
        program.kernel(day + 70, day + 90, 3),
        seconds=2 * 86_400,
    )
    use = run.timing.devices[1, 0]
    assert (use.busy_ns, use.span_ns) == (10 + 20, 80)
    assert sum(times.time.count for times in run.kernels.values()) == 3
    assert sum(times.time.total for times in run.kernels.values()) == 30


def test_gaps_between_two_collections_count_once(program):
    traced = Traced(program)
    traced.feed([program.call(0, 5, 1), program.kernel(10, 20, 1)])
    traced.collect()
    traced.feed([program.call(80, 85, 2), program.kernel(90, 95, 2)])
    run = traced.finish()
    assert (run.timing.devices[1, 0].idle.count, run.timing.devices[1, 0].idle.total) == (1, 70)
    assert run.timing.launching_threads[1, MAIN].interval.total == 80


def test_launch_intervals_are_of_one_thread_and_of_launches_alone(program):
    run = Traced(program).finish(
        program.call(0, 5, 1, thread=100),
        program.call(10, 15, 2, thread=101),
        program.call(20, 25, 3, thread=100, name="cudaMemcpyAsync_v3020"),
        program.call(40, 45, 4, thread=100),
        program.call(70, 75, 5, thread=101),
    )
    threads = {
        t.thread: (t.launches, t.interval.total) for t in run.timing.launching_threads.values()
    }
    assert threads == {100: (2, 40), 101: (2, 60)}


def test_thousands_of_streams_take_bounded_room(program):
    traced = Traced(program)
    traced.feed(
        program.slot(16, start=10 * i, end=10 * i + 5, name=program.id("k"), a=i % 2, b=i)
        for i in range(3 * MAX_STREAMS)
    )
    run = traced.finish(seconds=100)
    others = [row for row in run.timing.streams.values() if row.stream == OTHER_STREAMS]
    assert {row.device for row in others} == {0, 1}
    assert len(run.timing.streams) == MAX_STREAMS + 2
    assert sum(t.operations for t in run.timing.streams.values()) == 3 * MAX_STREAMS


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_idle_time_is_shared_out_as_a_clock_that_ticks_every_nanosecond_would(data):
    program, main = Program(), []
    clock, depth = 0, 0
    innermost: list[tuple[int, str | None]] = [(-1, None)]
    stack: list[str] = []
    for push, wait in data.draw(st.lists(st.tuples(st.booleans(), st.integers(1, 30)))):
        clock += wait
        if push:
            stack.append(f"r{depth}")
            depth += 1
            main.append(program.push(clock, stack[-1]))
        elif stack:
            stack.pop()
            main.append(program.pop(clock))
        innermost.append((clock, stack[-1] if stack else None))
    time, busy = 0, []
    gaps = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=20))
    for number, (gap, length) in enumerate(gaps):
        main += [
            program.call(time, time, number),
            program.kernel(time + gap, time + gap + length, number),
        ]
        busy.append((time + gap, time + gap + length))
        time += gap + length
    expected: dict[str | None, int] = {}
    for (_, began), (ended, _) in pairwise(busy):
        for moment in range(began, ended):
            name = [n for at, n in innermost if at <= moment][-1]
            expected[name] = expected.get(name, 0) + 1
    run = Traced(program).finish(*main, seconds=100)
    found = run.timing.idle_by_range(1, 0)
    # A process without ranges has its idle time in the leaves only.
    assert {run.ranges[n].definition.name if n else None: ns for n, ns in found.items()} == (
        expected if run.ranges else {}
    )


def middles_of(part: Distribution) -> list[int]:
    found: list[int] = []
    for step in part.values:
        if step >= 0:
            found.append((found[-1] if found else 0) + step)
        else:
            found += found[-1:] * (-step - 1)
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 50)), min_size=1))
def test_coarse_distributions_keep_sums_and_stay_within_5_percent(pairs):
    keys, values = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    found = coarse_distributions(keys, values)
    assert set(found) == set(keys.tolist())
    for key, part in found.items():
        own = sorted(values[keys == key].tolist())
        assert (part.count, part.minimum, part.maximum) == (len(own), own[0], own[-1])
        assert part.total == pytest.approx(sum(own), rel=1e-9)
        middles = middles_of(part)
        for value, middle in zip(own, middles, strict=True):
            assert abs(middle - value) <= 0.05 * value + 1
