"""Traces of torch.profiler: read as the events of a session, and checked by other sums."""

from __future__ import annotations

import gzip
import io
import json
import re
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gputui
from gputui.base import JournalError
from gputui.imports import RangeRows, kineto, kineto_columns, kineto_events
from gputui.imports.kineto import KinetoTrace, NestedRanges
from gputui.imports.kineto_columns import RANGE, OperationTable, TimedRows
from gputui.imports.kineto_events import TraceEvents
from gputui.model.events import NO_PAYLOAD, AnyEvent, Payload, RunEnded
from gputui.playback.opening import open_recording
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import main_step, phase_rows
from gputui.report.statistics import api_rows, kernel_rows, memory_size_rows
from gputui.ring import RecordKind
from gputui.state import Session
from tests.imports.kineto_for_tests import EPOCH_NS, PID, US, training
from tests.sessions_for_tests import read_whole

# --- against torch itself ----------------------------------------------------------------------


def test_operators_add_up_as_in_key_averages(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    path = tmp_path / "trace.json.gz"
    # Without operators that call themselves: those key_averages() counts once.
    expected: dict[str, tuple[int, float, float]] = {}

    def ready(profiler: profile) -> None:
        profiler.export_chrome_trace(str(path))
        for event in profiler.key_averages():
            times = (event.cpu_time_total * US, event.self_cpu_time_total * US)
            expected[event.key.removesuffix("*")] = (event.count, *times)

    layer = torch.nn.Linear(8, 8, bias=False)
    steps = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=ready
    ) as profiler:
        for _ in range(4):
            with record_function("forward"):
                hidden = layer(torch.ones(4, 8)).relu()
            hidden.backward(torch.ones(4, 8))
            profiler.step()

    found: dict[str, tuple[int, float, float]] = {}
    for row in phase_rows(read_whole(path)[1]):
        count, total, own = found.get(row.name, (0, 0.0, 0.0))
        found[row.name] = (
            count + row.cpu.count, total + row.cpu.total, own + row.cpu_exclusive_ns
        )  # fmt: skip
    assert found.keys() == expected.keys()
    assert len(found) > 15
    for name, (count, total, own) in expected.items():
        # torch sums in µs, as floating point.
        assert found[name] == (count, pytest.approx(total, abs=2), pytest.approx(own, abs=2)), name
    [step] = [row for row in phase_rows(read_whole(path)[1]) if row.name == "ProfilerStep"]
    assert step.per_step_ns == step.cpu.total / 3


# --- what the events mean ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "worker.pt.trace.json"])
def test_kernels_belong_to_the_ranges_around_their_launch(tmp_path: Path, name: str) -> None:
    session, run = read_whole(training().write(tmp_path / name))
    rows = {row.key[2]: row for row in phase_rows(run)}
    addmm = rows["ProfilerStep", "forward", "aten::linear", "aten::addmm"]
    assert (addmm.kernels, addmm.kernel_ns) == (2, 200_010)
    assert addmm.cpu.total == 2 * (160 * US + 7)
    assert rows["AddmmBackward0",].kernel_ns == 100 * US
    [gemm] = kernel_rows(session, run)
    assert (gemm.name, gemm.instances, gemm.total) == ("gemm", 4, 300_010)
    calls = {row.name: row.instances for row in api_rows(run)}
    assert calls == {"cudaLaunchKernel": 4, "cudaMemcpyAsync": 2, "cudaMemsetAsync": 2}
    sizes = {row.name: row.total for row in memory_size_rows(run)}
    assert sizes == {"[CUDA memcpy Host-to-Device]": 8192, "[CUDA memset]": 128}
    [copy] = [row for row in run.memory_operations.values() if "memcpy" in row.operation]
    assert (copy.source_kind, copy.destination_kind) == ("pageable", "device")
    [use] = run.timing.devices.values()
    assert use.busy_ns == 2 * (100 + 50 + 50 + 10) * US + 10
    [shape] = session.launch_shapes.values()
    assert (shape.grid, shape.block) == ((128, 1, 1), (256, 1, 1))


def test_steps_process_and_devices_are_those_of_the_trace(tmp_path: Path) -> None:
    trace = training(
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
        deviceProperties=[
            {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "numSms": 132,
             "computeMajor": 9, "computeMinor": 0},
            {"id": 1, "name": "NVIDIA H100"},
        ],
    )  # fmt: skip
    for name, arguments in (
        ("process_name", "python3"),
        ("thread_name", "thread 501 (pt_autograd_0)"),
    ):
        trace.events.append({"ph": "M", "name": name, "pid": PID, "tid": PID + 1, "ts": 0,
                             "args": {"name": arguments}})  # fmt: skip
    session, run = read_whole(trace.write(tmp_path / "trace.json"))
    [process] = run.processes.values()
    assert (process.attached.pid, process.attached.rank) == (PID, 3)
    assert process.threads[PID + 1].name == "pt_autograd_0"
    assert run.started.name == "python3"
    assert run.started.time_ns == EPOCH_NS + 1000 * US
    [gpu] = session.gpus.values()
    assert (gpu.facts.name, gpu.facts.sm_count) == ("NVIDIA H100", 132)
    step = next(row for row in phase_rows(run) if row.name == "ProfilerStep")
    assert step.per_step_ns == 900 * US
    assert step.payload == Payload("int64", 2)


def test_time_of_the_device_is_accounted_for(tmp_path: Path) -> None:
    _, run = read_whole(training().write(tmp_path / "trace.json"))
    tree = time_tree(run)
    assert tree is not None
    [use] = run.timing.devices.values()
    assert tree.wall_ns == use.span_ns
    assert tree.wall_ns - tree.idle_ns == use.busy_ns


def test_memory_of_the_allocator_is_reported(tmp_path: Path) -> None:
    trace = training()
    trace.memory(1100 * US, 700, 1024)
    trace.memory(1200 * US, 300, 2048)
    trace.memory(1300 * US, 99_999, 99_999, kind=0)  # the host's
    _, run = read_whole(trace.write(tmp_path / "trace.json"))
    assert run.metrics == {
        "memory_allocated_bytes": 300, "peak_memory_allocated_bytes": 700,
        "memory_reserved_bytes": 2048, "peak_memory_reserved_bytes": 2048,
    }  # fmt: skip


def test_older_traces_count_from_the_epoch(tmp_path: Path) -> None:
    """Before torch 2.4 `ts` was since the epoch: more digits than a double holds."""
    at = EPOCH_NS // US
    events = (
        f'{{"ph": "X", "cat": "Operator", "name": "aten::add", "pid": {PID}, "tid": {PID}, '
        f'"ts": {at}.123, "dur": 10.5}},'
        '{"ph": "X", "cat": "Kernel", "name": "add", "pid": 0, "tid": "stream 7", '
        f'"ts": {at + 1}.001, "dur": 2.002, "args": {{"device": 0, "stream": 7, '
        '"correlation": 5}}'
    )
    path = tmp_path / "trace.json"
    path.write_text(f"[{events}]")
    _, run = read_whole(path)
    assert run.started.time_ns == EPOCH_NS + 123
    [row] = phase_rows(run)
    assert row.cpu.total == 10_500
    [use] = run.timing.devices.values()
    assert (use.first_start_ns, use.busy_ns) == (EPOCH_NS + 1001, 2002)


@given(st.lists(st.integers(0, (1 << 33) * 1000), min_size=1), st.integers(0, 4))
def test_times_of_a_trace_are_those_that_are_written(times_ns: list[int], more: int) -> None:
    """To the ns, and what is written beyond that is cut off, as with Decimals."""
    written = [f"{Decimal(time) / 1000:f}{'0001'[:more] if time % 1000 else ''}"
               for time in times_ns]  # fmt: skip
    events = ",".join(f'{{"ph": "X", "cat": "cpu_op", "ts": {text}}}' for text in written)
    stream = io.BytesIO(f'{{"traceEvents": [{events}]}}'.encode())
    table = OperationTable()
    for portion in TraceEvents(stream):
        table.add(portion)
    starts = table.ranges.rows_until(1 << 62)["start"].tolist()
    assert starts == sorted(int(Decimal(text) * 1000) for text in written)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=20),
    st.sets(st.integers(0, 30), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_ranges_nest_or_overlap_freely(spans: list[tuple[int, int]], moments: set[int]) -> None:
    """However many are read at once."""

    def read(*until: int) -> RangeRows:
        ranges = TimedRows(RANGE)
        for start, length in spans:
            end = (start + length) * US + length % 2 * 400
            ranges.add(np.array([(start * US, end, 0, 1, 1, 0, NO_PAYLOAD)], RANGE))
        nested = NestedRanges(ranges)
        pieces = [nested.rows_until(moment * US) for moment in (*until, 100)]
        return RangeRows._make(map(np.concatenate, zip(*pieces, strict=True)))

    rows = read()
    for first, second in zip(rows, read(*sorted(moments)), strict=True):
        assert first.tolist() == second.tolist()
    stacked = rows.kind == RecordKind.RANGE_PUSH
    open_until: list[int] = []
    for start, end in zip(rows.start[stacked].tolist(), rows.end[stacked].tolist(), strict=True):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)
    lengths = Counter((rows.end - rows.start).tolist())
    given_lengths = Counter(length * US + length % 2 * 400 for _, length in spans)
    assert (lengths - given_lengths).total() <= len(spans)
    assert all(abs(a - b) <= US for a, b in zip(
        sorted(lengths.elements()), sorted(given_lengths.elements()), strict=True))  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60),
       st.lists(st.integers(0, 22), max_size=5), st.booleans())  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_rows_are_in_order_of_time_wherever_they_wait(
    given_rows: list[tuple[int, bool]], moments: list[int], has_room: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kineto_columns, "ROWS_HELD", 7)
        patched.setattr(kineto_columns, "ROWS_AT_ONCE", 3)
        if not has_room:
            patched.setattr(tempfile, "tempdir", "/nowhere")
        rows = TimedRows(RANGE, lambda some: some["thread"] == 1)
        for number, (start, is_later) in enumerate(given_rows):
            rows.add(np.array([(start, 30, number, is_later, 0, 0, 0)], RANGE))
        read: list[int] = []
        for moment in sorted(moments):
            horizon = rows.horizon(moment)
            some = rows.rows_until(horizon)
            assert (some["start"] <= horizon).all()
            read += some["payload"].tolist()
        read += rows.rows_until(99)["payload"].tolist()
        rows.close()
    order = sorted(range(len(given_rows)), key=lambda number: given_rows[number])
    assert read == order


# --- portions, damage and hostile input --------------------------------------------------------


@pytest.mark.parametrize("portion", [1, 7, 64, 1000])
def test_portions_do_not_matter(
    tmp_path: Path, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = training(deviceProperties=[{"id": 0, "name": 'a "traceEvents": [ \\" GPU'}])
    trace.add("cpu_op", 'quotes \\" and }{][ \\\\', 3000 * US, 3001 * US)
    trace.write(tmp_path / "trace.json")
    session, run = read_whole(tmp_path / "trace.json")
    whole = (run.ranges, kernel_rows(session, run))
    assert 'quotes \\" and }{][ \\\\' in {row.name for row in phase_rows(run)}
    monkeypatch.setattr(kineto_events, "PORTION_BYTES", portion)
    session, run = read_whole(tmp_path / "trace.json")
    assert (run.ranges, kernel_rows(session, run)) == whole
    assert next(iter(session.gpus.values())).facts.name == 'a "traceEvents": [ \\" GPU'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "has no traceEvents"),
        ('{"traceEvents": 5}', "has no traceEvents"),
        ('{"traceEvents": []}', "no operators, annotations, CUDA calls or kernels"),
        ("[]", "no operators, annotations, CUDA calls or kernels"),
        ('{"schema": 1, "run": {}}', "has no traceEvents"),
        ("[" * 100_000, "no operators, annotations"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(JournalError, match=words) as caught:
        open_recording(str(path))
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_cut_off_is_read_to_there(tmp_path: Path) -> None:
    data = training().text().encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data)[:-200])
    recording = open_recording(str(path))
    session = Session.from_events(recording)
    assert recording.damage is not None
    assert "cut off" in recording.damage
    assert session.run is not None
    assert phase_rows(session.run)


def test_what_was_read_of_a_trace_before_the_stop_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training().write(tmp_path / "trace.json")
    whole = len(list(open_recording(str(tmp_path / "trace.json"))))
    monkeypatch.setattr(kineto_events, "PORTION_BYTES", 100)
    recording = open_recording(str(tmp_path / "trace.json"))
    assert isinstance(recording, KinetoTrace)
    assert 0 < recording.share_read < 0.5
    recording.stop()
    events = list(recording)
    assert isinstance(events[-1], RunEnded)
    assert len(events) < whole
    assert re.search(r"reading was stopped at \d+%$", str(recording.damage))


def test_sums_by_name_are_told_while_a_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_events, "PORTION_BYTES", 100)
    monkeypatch.setattr(kineto, "FIRST_SUMS_S", 0.0)
    training().write(tmp_path / "trace.json")
    kept = list(open_recording(str(tmp_path / "trace.json")))
    reader = open_recording(str(tmp_path / "trace.json"))
    assert isinstance(reader, KinetoTrace)
    so_far, counts = Session(), []

    def told(events: Sequence[AnyEvent]) -> None:
        so_far.apply(events)
        assert so_far.run is not None
        counts.append(sum(row.time.count for row in so_far.run.kernels.values()))

    reader.tell_sums = told
    with closing(reader):
        assert list(reader) == kept
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 4
    run, whole = so_far.run, Session.from_events(kept).run
    assert run is not None
    assert whole is not None
    assert run.started.time_ns == whole.started.time_ns
    [gemm] = run.kernels.values()
    assert so_far.kernel_names[gemm.kernel].name == "gemm"
    assert (gemm.time.count, gemm.time.total) == (4, 2 * (150 * US + 5))
    copies = {
        row.operation: (row.time.count, row.time.total, row.size.total)
        for row in run.memory_operations.values()
    }
    assert copies == {
        "[CUDA memcpy Host-to-Device]": (2, 100 * US, 8192), "[CUDA memset]": (2, 20 * US, 128)
    }  # fmt: skip
    assert not run.api
    ranges = {row.definition.name: row.cpu.total for row in run.ranges.values() if row.cpu}
    # No steps: a part of them would be taken for the loop.
    assert ranges == {
        "forward": 580 * US, "aten::linear": 360 * US, "aten::addmm": 320 * US + 14,
        "AddmmBackward0": 180 * US,
    }  # fmt: skip
    assert not run.leaf_times
    assert whole.leaf_times
    assert main_step(run, phase_rows(run)) is None
    assert main_step(whole, phase_rows(whole)) is not None


def test_events_may_end_in_any_bracket(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(training().text().rpartition("]")[0] + "}")
    recording = open_recording(str(path))
    assert Session.from_events(recording).run is not None
    assert recording.damage == f"{path}: what follows the events is not JSON"


def test_events_that_are_none_are_skipped(tmp_path: Path) -> None:
    trace = training()
    whole = len(trace.events)
    trace.events[3:3] = [
        {"ph": 5}, {"ph": "X", "cat": "cpu_op", "name": None, "ts": "now"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": [], "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "no UTF-8: \xe9", "ts": 1, "dur": 1},
    ]  # fmt: skip
    # Arguments of another form are left out, not the event.
    trace.add("cpu_op", "odd", 950 * US, 960 * US, args={"grid": "wide", "correlation": {}})
    text = trace.text().replace('"ts": 3.', '"ts": 1e999999999, "was": 3.')
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode().replace(rb"\u00e9", b"\xe9"))
    recording = open_recording(str(path))
    session = Session.from_events(recording)
    assert recording.skipped == 4
    assert session.run is not None
    assert "odd" in {row.name for row in phase_rows(session.run)}
    assert whole


@pytest.mark.parametrize(
    "number", ["1e999999999", "-5", "1e30", "99999999999999999999999", '"NaN"', '"sNaN"']
)
@pytest.mark.parametrize("field", ["ts", "dur", "correlation", "bytes", "stream", "device"])
def test_numbers_of_any_size_are_read(tmp_path: Path, field: str, number: str) -> None:
    trace = training()
    text = trace.text()
    start = text.index(f'"{field}": ', text.index("Memcpy"))
    end = min(text.index(mark, start) for mark in (",", "}") if mark in text[start:])
    path = tmp_path / "trace.json"
    path.write_text(text[:start] + f'"{field}": {number}' + text[end:])
    session = Session.from_events(open_recording(str(path)))
    assert session.run is not None


def test_memory_does_not_grow_with_what_is_not_read(tmp_path: Path) -> None:
    function = json.dumps(
        {"ph": "X", "cat": "python_function", "name": "f" * 200, "pid": 1, "tid": 1, "ts": 5,
         "dur": 1, "args": {"Python id": 1}}
    ).encode()  # fmt: skip

    def peak_bytes(functions: int) -> int:
        path = tmp_path / "trace.json.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(training().text().encode()[:-2])
            for _ in range(functions // 1000):
                file.write(b"," + b",".join([function] * 1000))
            file.write(b"]}")
        tracemalloc.start()
        _, run = read_whole(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(phase_rows(run)) == 5
        return peak

    few = peak_bytes(10_000)
    assert peak_bytes(40_000) < few + 30_000 * len(function) / 10


# --- where recordings are read -----------------------------------------------------------------


def test_the_library_and_the_exports_read_it(tmp_path: Path) -> None:
    path = training(distributedInfo={"rank": 1}).write(tmp_path / "trace.json")
    run = gputui.read(path).runs[0]
    assert run.ranks == (1,)
    assert {row["name"] for row in run.rows("kernels")} == {"gemm"}
    assert gputui.compare(path, path).rows()
