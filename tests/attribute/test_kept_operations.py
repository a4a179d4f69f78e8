"""Some steps of a live program are kept with every operation, call and range, within limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from gputui.attribute import collection
from gputui.attribute.collection import KeptOperations
from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import (
    AnyEvent,
    KernelDefined,
    StepLanes,
    StepOperations,
)
from gputui.model.hub import Numbering
from gputui.playback.lanes import LaneKind, kept_steps, open_kept
from gputui.state import Session
from gputui.store.trace import TRACE, KeptTrace, TraceKind
from tests.bench.bench_reader import (
    BEGAN_NS,
    CALLS,
    FLUSH_NS,
    FLUSHES_A_TICK,
    KERNELS,
    TOKEN_NS,
    flush_of,
    strings,
)
from tests.events_for_tests import attached, gpu, header, run_started

SECOND = 10**9


def decoding(seconds: int) -> Iterator[AnyEvent]:
    """Events of a decode whose steps are tokens of 3 ms, read once a second."""
    noise = np.random.default_rng(1)
    yield header(gpu())
    yield replace(run_started(), time_ns=BEGAN_NS)
    yield replace(attached(), time_ns=BEGAN_NS)
    process = TracedProcess(1, 101, Numbering(), keeps_operations=True)
    names = strings()
    for number in range(seconds * FLUSHES_A_TICK):
        records = flush_of(number, noise, True)
        now_ns = BEGAN_NS + (number + 1) * FLUSH_NS
        records["start"][-1] = now_ns
        process.feed(records, names, now_ns)
        names = {}
        if number % FLUSHES_A_TICK == FLUSHES_A_TICK - 1:
            yield from process.collect(now_ns, ended=number == seconds * FLUSHES_A_TICK - 1)


@pytest.fixture(scope="module")
def events() -> list[AnyEvent]:
    return list(decoding(14))


def test_a_kept_step_has_every_operation_with_its_launch_and_its_ranges(
    events: list[AnyEvent],
) -> None:
    kept = [event for event in events if isinstance(event, StepOperations)]
    assert len(kept) >= 2
    for step in kept:
        [records] = KeptTrace([step]).portions()
        end_ns = step.start_ns + step.duration_ns
        kinds = records["kind"]
        operations = records[np.isin(kinds, (TraceKind.KERNEL, TraceKind.COPY))]
        # A token's own ones; the step may begin or end in the middle of a neighbour's.
        assert KERNELS + 3 <= len(operations) <= KERNELS + 6
        assert ((operations["start"] < end_ns) & (operations["end"] > step.start_ns)).all()
        calls = records[kinds == TraceKind.CALL]
        assert np.isin(operations["correlation"], calls["correlation"]).all()
        assert CALLS <= len(calls) <= CALLS + 6
        # A token, 12 layers of three parts, and four more.
        assert 53 <= np.count_nonzero(kinds == TraceKind.RANGE) <= 60
        assert not step.left_out
        assert len(step.packed) < 12 * step.records
        assert step.duration_ns == pytest.approx(TOKEN_NS, rel=0.01)


def test_a_session_has_lanes_of_it_with_names(events: list[AnyEvent]) -> None:
    session = Session.from_events(events)
    run = session.run
    assert run is not None
    step = kept_steps(run)[-1]
    assert isinstance(step, StepOperations)
    lanes = open_kept(session, run, step)
    kinds = {lane.kind for lane in lanes.lanes}
    assert {LaneKind.STREAM, LaneKind.RANGES, LaneKind.CALLS, LaneKind.DOING} <= kinds
    [stream] = [lane for lane in lanes.lanes if lane.kind is LaneKind.STREAM]
    known = {event.name for event in events if isinstance(event, KernelDefined)}
    names = {lanes.names[number] for number in stream.names.tolist()}
    assert names <= known | {"DtoH", "Device-to-Host"}
    assert len(names) > 30
    for row in (0, len(stream) // 2, len(stream) - 1):
        launch = lanes.launch_of(stream, row)
        assert launch is not None
        called = lanes.lanes[launch[0]]
        assert called.kind is LaneKind.CALLS
        assert called.spans.starts[launch[1]] < stream.spans.starts[row]
        assert lanes.launch_of(called, launch[1]) is not None


def test_pauses_grow_and_what_they_cost_is_bounded() -> None:
    process, spent, moments = KeptOperations(), 0, []
    for second in range(3600):
        now_ns = BEGAN_NS + second * SECOND
        if process.is_open:
            records = np.zeros(2000, TRACE)
            noise = np.random.default_rng(second)
            records["start"] = now_ns + SECOND // 2 + np.arange(2000) * 1000
            records["end"] = records["start"] + noise.integers(100, 900, 2000)
            records["kind"] = TraceKind.KERNEL
            records["name"] = noise.integers(1, 2**32, 2000)
            process.append(records)
        step = StepLanes(time_ns=now_ns + SECOND, process=1, device=0, duration_ns=3_000_000,
                         start_ns=now_ns + SECOND // 2, busy=())  # fmt: skip
        for event in process.collect([step], now_ns + SECOND, ended=False):
            spent += len(event.packed)
            moments.append(second)
    pauses = np.diff(moments)
    early = collection.EARLY_NS // SECOND
    assert set(pauses[: early - 2]) == {1}  # of a run of seconds each collection has one
    assert len(moments) > 20
    assert pauses[-1] > 50
    most = collection.FIRST_BYTES + 3600 * collection.BYTES_A_SECOND
    # What is on its way when the limit is met comes yet.
    assert spent <= most + collection.SETTLING * spent / len(moments)


def test_what_is_held_while_no_step_ends_is_bounded() -> None:
    process = KeptOperations()
    for number in range(40):
        records = np.zeros(10_000, TRACE)
        records["kind"], records["start"], records["end"] = TraceKind.KERNEL, number, number + 1
        process.append(records)
        assert process._held <= collection.MOST_HELD + 10_000
    process.collect([], BEGAN_NS, ended=False)
    assert process.is_open
    process.collect([], BEGAN_NS + collection.AWAITED_NS + 1, ended=False)
    assert not process.is_open
    assert not process._held


def test_a_step_of_the_loop_is_kept_soon_after_a_small_one_of_a_long_set_up() -> None:
    """As of JAX: ten operations after 40 s, then 60 ms steps from 46 s on, for five seconds."""
    process, kept = KeptOperations(), []
    for second in range(52):
        now_ns = BEGAN_NS + second * SECOND
        count = 10 if second == 40 else 500 if second >= 46 else 0
        if process.is_open and count:
            records = np.zeros(count, TRACE)
            records["start"] = now_ns + SECOND // 2 + np.arange(count) * 1000
            records["end"] = records["start"] + 900
            records["kind"] = TraceKind.KERNEL
            process.append(records)
        step = StepLanes(time_ns=now_ns + SECOND, process=1, device=0, duration_ns=3_000_000,
                         start_ns=now_ns + SECOND // 2, busy=())  # fmt: skip
        events = process.collect([step] * (count > 0), now_ns + SECOND, ended=second == 51)
        kept += [event.records for event in events]
    assert 500 in kept
