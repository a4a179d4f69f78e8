"""Sums among the capture events of a recording: whoever passes over what they add up sees the
same session, and no sum can do more than an event could."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    CaptureSum,
    DeviceDelta,
    Distribution,
    HostSample,
    KernelDelta,
    LaunchDelta,
    LeafTime,
    LoopDelta,
    MachineSample,
    MarkDelta,
    MemoryOperationDelta,
    OpenRange,
    Payload,
    ProcessDetached,
    RangeDelta,
    RangeKernels,
    RangeLeaf,
    Scope,
    ShapeLaunches,
    StreamDelta,
    ThreadLaunches,
)
from gputui.state import Session
from gputui.store.journal.reader import HELD_BYTES, HeldLines, JournalReader
from gputui.store.journal.writer import JournalWriter, ProcessSum, Sums
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times
from tests.sessions_for_tests import contents

RANGES = 3
"""Of each process; the first two are outermost."""

values = st.lists(st.integers(0, 10**7), min_size=1, max_size=8).map(lambda some: times(*some))


def number(process: int, place: int) -> int:
    return 10 * process + place


payloads = st.none() | st.builds(
    Payload, st.sampled_from(["int64", "double"]), st.integers(-9, 9) | st.just("nan")
)


@st.composite
def deltas(draw: st.DrawFn) -> CaptureDelta:
    process = draw(st.integers(1, 3))
    node = number(process, draw(st.integers(1, RANGES)))
    some = draw(st.sets(st.integers(0, 13)))
    moment = draw(st.integers(at(10), at(1000)))
    open_ranges = draw(st.dictionaries(st.integers(1, RANGES), st.integers(at(3), at(9))))
    return CaptureDelta(
        time_ns=moment,
        process=process,
        ranges=(
            RangeDelta(range=node, cpu=draw(values), gpu_busy_ns=7, gpu_operations=2,
                       payload=draw(payloads)),
            RangeDelta(range=number(process, 1), projected=draw(values), levels=1),
        ) if 0 in some else (),
        kernels=(
            KernelDelta(process=process, range=node, kernel=draw(st.integers(1, 2)), device=0,
                        inherited=draw(st.booleans()), time=draw(values), repeats=1),
        ) if 1 in some else (),
        secondary_domain_kernels=(
            KernelDelta(process=process, range=node, kernel=1, device=0, time=draw(values)),
        ) if 2 in some else (),
        range_kernels=(RangeKernels(node, 1, 3, 2),) if 3 in some else (),
        launches=(
            LaunchDelta(process=process, thread=7, device=0, name="cudaLaunchKernel", kernel=1,
                        total=draw(values), call=draw(values), kernel_time=draw(values),
                        queue=draw(st.none() | values)),
        ) if 4 in some else (),
        shapes=(ShapeLaunches(5, 2),) if 5 in some else (),
        memory_operations=(
            MemoryOperationDelta(process=process, range=node, operation="[CUDA memset]", device=0,
                                 time=draw(values), size=draw(values)),
        ) if 6 in some else (),
        api=(ApiDelta(process=process, range=node, name="cuInit", time=draw(values)),)
        if 7 in some else (),
        devices=(
            DeviceDelta(process=process, device=0, busy_ns=5, operations=1,
                        first_start_ns=moment - draw(st.integers(0, 9)), last_end_ns=moment),
        ) if 8 in some else (),
        streams=(
            StreamDelta(device=0, stream=draw(st.integers(0, 1)), operations=1, busy_ns=4,
                        latency=draw(values)),
        ) if 9 in some else (),
        launching_threads=(ThreadLaunches(7, 2, draw(values)),) if 10 in some else (),
        range_leaves=(RangeLeaf(device=0, range=node, leaf=1, ns=3),) if 11 in some else (),
        marks=(
            MarkDelta("", draw(st.sampled_from("ab")), 2, moment - draw(st.integers(0, 9)), moment,
                      draw(payloads)),
        ) if 12 in some else (),
        leaf_times=(
            LeafTime(process, 0, Scope.STEADY, 1, draw(st.integers(0, 2)), draw(st.integers(1, 9))),
        ) if 13 in some else (),
        loops=(
            LoopDelta(process, 0, Scope.STEADY, 1, 2, 6, moment, moment, draw(values)),
        ) if 13 in some else (),
        open_ranges=tuple(
            OpenRange(number(process, place), since) for place, since in sorted(open_ranges.items())
        ),
        records=draw(st.integers(0, 5)),
        traced_ns=9,
    )  # fmt: skip


samples = st.integers(3, 900).map(
    lambda second: MachineSample(time_ns=at(second), host=HostSample(cpu_percent=1.0))
)

BEGINNING: list[AnyEvent] = [
    header(gpu()), run_started(),
    *(attached(process) for process in (1, 2, 3)),
    *(defined(number(process, place), f"range {place}", parent=0 if place < 3 else
              number(process, 1), process=process)
      for process in (1, 2, 3) for place in range(1, RANGES + 1)),
]  # fmt: skip


def written(events: Iterable[AnyEvent], sums: Sums) -> list[bytes]:
    """Lines as the writer writes them."""
    encode = msgspec.json.encode
    lines: list[bytes] = []

    def add(found: Iterable[CaptureSum]) -> None:
        for event in found:
            lines.append(encode(event) + b"\n")
            sums.wrote(event.process, 0)

    for event in events:
        add(sums.before(event))
        lines.append(encode(event) + b"\n")
        add(sums.after(event, len(lines[-1])))
    add(sums.end())
    return lines


def read(data: bytes, summed: bool) -> Session:
    return Session.from_events(JournalReader(io.BytesIO(data), "x.gputui", summed=summed))


@given(
    st.lists(deltas() | samples, max_size=12),
    st.sets(st.integers(1, 3)),
    st.sampled_from([0, 600, 3000]),
    st.booleans(),
    st.data(),
)
def test_passing_over_what_sums_add_up_gives_the_same_session(
    middle: list[AnyEvent], detached: set[int], least_bytes: int, ended: bool, data: st.DataObject
) -> None:
    end = [ProcessDetached(time_ns=at(1001), process=process, clean=True) for process in detached]
    events = [*BEGINNING, *middle, *end, *([run_ended()] if ended else [])]
    lines = written(events, Sums(least_bytes, least_bytes // 2))
    # Killed at any line.
    kept = b"".join(lines[: data.draw(st.integers(1, len(lines)))])
    summed, whole = contents(read(kept, summed=True)), contents(read(kept, summed=False))
    moments = [event.time_ns for event in middle]
    if moments != sorted(moments):
        # Where the clock was set back, the session's time may be that of a later delta.
        del summed["time_ns"], whole["time_ns"]
    assert summed == whole
    assert list(JournalReader(io.BytesIO(b"".join(lines)), "x")) == events


def test_a_sum_is_what_its_events_add_up_to() -> None:
    total = ProcessSum()
    first = OpenRange(11, at(3))
    total.add(
        CaptureDelta(time_ns=at(4), process=1, ranges=(RangeDelta(range=11, cpu=times(6, 6)),),
                     open_ranges=(first,), records=3),
        {11},
    )  # fmt: skip
    total.add(
        CaptureDelta(time_ns=at(5), process=1, ranges=(RangeDelta(range=11, cpu=times(6)),),
                     records=4),
        {11},
    )  # fmt: skip
    assert total.freeze() == CaptureSum(
        time_ns=at(5), process=1, ranges=(RangeDelta(range=11, cpu=times(6, 6, 6)),), records=7,
        phase_starts=(first,),
    )  # fmt: skip


def busy(second: int) -> CaptureDelta:
    """A tick whose line is some ten kilobytes long."""
    time = times(*range(second, second + 40))
    kernels = tuple(
        KernelDelta(process=1, range=11, kernel=kernel, device=0, time=time)
        for kernel in range(1, 60)
    )
    return CaptureDelta(time_ns=at(second), process=1, kernels=kernels, records=1)


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz", ".gputui.zst"])
def test_who_wants_the_end_of_a_long_recording_is_given_few_capture_events(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path)
    events = [*BEGINNING, *(busy(second) for second in range(3, 203)), run_ended()]
    for event in events:
        writer.write([event])
    writer.close()
    assert list(JournalReader.open(path)) == events
    summed = list(JournalReader.open(path, summed=True))
    assert sum(isinstance(event, CaptureDelta) for event in summed) == 1
    assert summed[-1] == run_ended()
    session, whole = Session(), Session()
    session.apply(summed)
    whole.apply(events)
    assert contents(session) == contents(whole)


def test_short_recordings_have_no_sums(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "x.gputui")
    writer.write([*BEGINNING, busy(3), run_ended()])
    writer.close()
    assert b"capture_sum" not in (tmp_path / "x.gputui").read_bytes()


def test_a_sum_too_large_to_be_written_is_left_out(tmp_path: Path) -> None:
    large = KernelDelta(
        process=1, range=11, kernel=99, device=0, time=Distribution(1, 2**62, 0.0, 1, 1, (1,))
    )
    writer = JournalWriter(tmp_path / "x.gputui")
    events = [
        *BEGINNING,
        *(msgspec.structs.replace(tick, kernels=(*tick.kernels, large))
          for tick in map(busy, range(3, 103))),
    ]  # fmt: skip
    writer.write(events)
    writer.close()
    assert (writer.failure, writer.left_out) == (None, 0)
    assert list(JournalReader.open(tmp_path / "x.gputui", summed=True)) == events


@functools.cache
def summed_twice() -> list[bytes]:
    """The lines of a recording with a sum after each of two ticks."""
    return written([*BEGINNING, *(busy(second) for second in (3, 4)), run_ended()], Sums(0, 0))


@given(st.data())
def test_sums_that_lie_or_are_damaged_never_crash(data: st.DataObject) -> None:
    lines = summed_twice()
    raw = bytearray(b"".join(lines))
    start = len(b"".join(lines[: len(BEGINNING)]))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(start, len(raw) - 1))
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    for summed in (False, True):
        read(bytes(raw), summed)


def test_damage_in_what_is_held_is_said() -> None:
    lines = written([*BEGINNING, busy(3), busy(4)], Sums())
    lines[-1] = lines[-1].replace(b"[1,11,", b"[1,x,", 1)
    for summed in (False, True):
        reader = JournalReader(io.BytesIO(b"".join(lines)), "x.gputui", summed=summed)
        list(reader)
        assert reader.damage is not None
        assert f"line {len(lines)} is damaged" in reader.damage


def test_what_is_held_is_bounded_and_late_sums_are_left_out() -> None:
    held = HeldLines()
    line = msgspec.json.encode(busy(3)) + b"\n"
    late = line.replace(b'"capture"', b'"capture_sum"', 1)
    count = 0
    while not held.is_full:
        assert held.holds_back(count, line)
        count += 1
    assert count * len(line) < HELD_BYTES + len(line)
    assert [number for number, _ in held.hand_out()] == list(range(count))
    assert not held.holds_back(count, line)
    assert held.holds_back(count, late)
    assert list(held.hand_out()) == []
