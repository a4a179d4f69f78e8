"""The raw trace, and the exports that are made of it: read back by the tools they are for."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputui.base import JournalError
from gputui.cli.dispatch import run as gputui
from gputui.imports.nsys import NsysReport
from gputui.model.events import GpuSample, HostSample, MachineSample
from gputui.playback.opening import load, open_recording
from gputui.render import ExportError, formats
from gputui.render.chrome import write_chrome
from gputui.render.traces import open_traced
from gputui.report.phases import phase_rows
from gputui.report.statistics import api_rows, kernel_rows, memory_size_rows, memory_time_rows
from gputui.report.tables.launches import shape_rows
from gputui.report.tables.time import leaf_rows
from gputui.state import Session
from gputui.store import trace_path
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from gputui.store.trace import HEAD, RECORDS_AT, TRACE, TraceKind, TraceReader, TraceWriter
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started
from tests.imports.kineto_for_tests import US, training
from tests.imports.nsys_for_tests import PID, REAL, TASK, Export

needs_real = pytest.mark.skipif(not REAL.is_file(), reason="no real nsys export beside the project")


# --- the file ----------------------------------------------------------------------------------


def numbered(*starts: int) -> np.ndarray[Any, Any]:
    records = np.zeros(len(starts), TRACE)
    records["start"] = starts
    records["kind"] = TraceKind.RANGE
    return records


def starts_of(path: Path) -> list[int]:
    return [
        start for portion in TraceReader(path).portions() for start in portion["start"].tolist()
    ]


def test_records_and_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 30)
    assert [writer.name(name) for name in ("cudaMalloc", "cuInit", "cudaMalloc")] == [1, 2, 1]
    writer.append(numbered(1, 2, 3))
    # Readable before it is closed: a killed writer closes nothing.
    assert starts_of(path) == [1, 2, 3]
    writer.append(numbered(4))
    writer.close()
    reader = TraceReader(path)
    assert starts_of(path) == [1, 2, 3, 4]
    assert reader.call_names == {0: "(other calls)", 1: "cudaMalloc", 2: "cuInit"}
    assert reader.dropped == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_over_the_limit_the_oldest_go_first_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui-trace"
    limit = 1 << 20
    writer = TraceWriter(path, limit)
    capacity = (limit - RECORDS_AT) // TRACE.itemsize
    total = 2 * capacity + 100
    for start in range(0, total, 777):
        writer.append(numbered(*range(start, min(start + 777, total))))
    writer.close()
    assert starts_of(path) == list(range(total - capacity, total))
    assert writer.dropped == TraceReader(path).dropped == total - capacity
    assert limit - TRACE.itemsize < path.stat().st_size <= limit


def test_a_trace_that_is_cut_while_it_is_read_ends_nothing(tmp_path: Path) -> None:
    """Mapped into memory, the end of the file ended the program with SIGBUS."""
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 20)
    writer.append(numbered(*range(4096)))
    writer.close()
    portions = TraceReader(path).portions()
    os.truncate(path, RECORDS_AT + 1025 * TRACE.itemsize + 5)
    assert sum(len(portion) for portion in portions) == 1025
    portions = TraceReader(path).portions()
    path.unlink()
    assert not any(len(rest) for rest in portions)


def test_a_limit_that_could_not_be_kept_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--record", "-o", str(tmp_path / "x.gputui"), "--trace", "--trace-limit", "100k"]
    assert gputui([*words, "--", "true"]) == 2
    assert capsys.readouterr().err == (
        "gputui: --trace-limit 100k is too small for a step: give 1M or more\n"
    )
    assert not any(tmp_path.iterdir())


def test_a_trace_that_nothing_was_written_to_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gputui"
    TraceWriter(trace_path(path), 1 << 30).close()
    assert len(TraceReader(trace_path(path))) == 0
    assert list(TraceReader(trace_path(path)).portions()) == []
    with closing(JournalWriter(path)) as journal:
        journal.write([header(), run_started(), run_ended()])
    out = str(tmp_path / "out")
    assert gputui(["export", str(path), "--format", "chrome", "-o", out]) == 1
    assert capsys.readouterr().err == f"gputui: the trace of {path} has nothing of run 1\n"
    assert gputui(["export", str(path), "--format", "nsys", "-o", out]) == 0


@pytest.mark.parametrize("data", [b"", b"hello", b"\0" * 300_000, b"GPUTRACE" + b"\xff" * 300_000])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gputui-trace"
    path.write_bytes(data)
    with pytest.raises(JournalError) as caught:
        TraceReader(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 30, 5000, 270_000, 300_000])
def test_a_cut_trace_gives_what_is_there(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 30)
    writer.append(numbered(*range(2000)))
    writer.close()
    path.write_bytes(path.read_bytes()[:size])
    try:
        found = starts_of(path)
    except JournalError:
        return
    assert found == list(range(len(found)))


def test_a_trace_lies_beside_its_recording() -> None:
    for name in ("x.gputui", "x.gputui.gz", "x.gputui.zst"):
        assert trace_path(Path("a", name)) == Path("a/x.gputui-trace")


# --- a small program ---------------------------------------------------------------------------


def small() -> Export:
    export = Export()
    thread = {"globalTid": TASK | PID}
    export.range("step", 1000, 9000)
    export.range("attention", 2000, 5000)
    export.add("NVTX_EVENTS", start=0, eventType=75, text="mine", domainId=3, **thread)
    export.range("copy", 6000, 8000, domainId=3)
    export.kernel('gemm<"x">', (2100, 2200), (3000, 3500), 11)
    export.kernel("relu", (2300, 2400), (3500, 3750), 12)
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=6100, end=6300, eventClass=0, correlationId=13,
               nameId=export.string("cudaMemcpyAsync_v3020"), returnValue=0, **thread)  # fmt: skip
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=6400, end=6800, deviceId=0, contextId=1,
               streamId=9, correlationId=13, globalPid=TASK, bytes=4000, copyKind=1, srcKind=1,
               dstKind=2)  # fmt: skip
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=8500, end=8600, eventClass=0, correlationId=14,
               nameId=export.string("cudaStreamSynchronize_v3020"), returnValue=0,
               **thread)  # fmt: skip
    return export


def exported(name: Path, format_name: str, out: Path, number: int | None = None) -> list[Path]:
    return list(formats.export(formats.ExportSource(str(name), number), format_name, out).paths)


def chrome(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_time_goes_the_same_way_in_every_format(tmp_path: Path) -> None:
    """A report of nsys, a trace of torch, and what they are exported to: one tree, to the ns."""
    report, trace = small().write(tmp_path / "r.sqlite"), training().write(tmp_path / "t.json")
    for source, other in ((report, "chrome"), (trace, "nsys")):
        [again] = exported(source, other, tmp_path / f"again.{other}")
        known = leaf_rows(load(str(source)).needed_run())
        assert leaf_rows(load(str(again)).needed_run()) == known
        assert sum(row.share_percent for row in known) == pytest.approx(100)


def test_chrome_events_say_what_ran_where_and_when(tmp_path: Path) -> None:
    [out] = exported(small().write(tmp_path / "r.sqlite"), "chrome", tmp_path / "t.json")
    document = chrome(out)
    events = document["traceEvents"]
    complete = {(event["cat"], event["name"]): event for event in events if event["ph"] == "X"}
    gemm = complete["kernel", 'gemm<"x">']
    # Times are microseconds after the first record: the step that began at 1000 ns.
    assert (gemm["ts"], gemm["dur"], gemm["pid"], gemm["tid"]) == (2.0, 0.5, 0, 7)
    assert gemm["args"] == {
        "device": 0, "context": 1, "stream": 7, "correlation": 11, "grid": [11, 2, 1],
        "block": [256, 1, 1], "registers per thread": 40, "shared memory": 1024,
    }  # fmt: skip
    copy = complete["gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"]
    assert copy["args"]["bytes"] == 4000
    assert copy["args"]["memory bandwidth (GB/s)"] == 10.0
    launch = complete["cuda_runtime", "cudaMemcpyAsync"]
    assert (launch["pid"], launch["tid"], launch["args"]) == (PID, PID, {"correlation": 13})
    # A call that launched nothing joins nothing.
    alone = complete["cuda_runtime", "cudaStreamSynchronize"]["args"]["correlation"]
    assert alone > 13
    assert complete["user_annotation", "step"]["dur"] == 8.0
    on_gpu = complete["gpu_user_annotation", "attention"]
    assert (on_gpu["pid"], on_gpu["tid"], on_gpu["ts"], on_gpu["dur"]) == (0, 7, 2.0, 0.75)
    on_cpu = complete["user_annotation", "attention"]
    assert on_gpu["args"]["External id"] == on_cpu["args"]["External id"]
    flows = [(event["ph"], event["id"]) for event in events if event["ph"] in "sf"]
    assert sorted(flows) == [(phase, number) for phase in "fs" for number in (11, 12, 13)]
    assert all(event["bp"] == "e" for event in events if event["ph"] == "f")
    assert '"rank": 0' in out.read_text()
    assert events[-1]["name"] == "end"
    assert events[-1]["ts"] >= max(
        event["ts"] + event.get("dur", 0) for event in events[:-1] if "ts" in event
    )


def test_spans_of_a_track_nest(tmp_path: Path) -> None:
    [out] = exported(small().write(tmp_path / "r.sqlite"), "chrome", tmp_path / "t.json")
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in chrome(out)["traceEvents"]:
        if event["ph"] == "X":
            span = (event["ts"], round(event["ts"] + event["dur"], 3))
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in tracks.values():
        for one in spans:
            for other in spans:
                apart = one[1] <= other[0] or other[1] <= one[0]
                inside = one[0] <= other[0] and other[1] <= one[1]
                around = other[0] <= one[0] and one[1] <= other[1]
                assert apart or inside or around


def test_a_trace_of_torch_is_written_as_it_was_read(tmp_path: Path) -> None:
    """What tools made for Kineto rely on: correlations, annotations on streams, operators."""
    first = training(distributedInfo={"rank": 2, "world_size": 4})
    first.add("cuda_runtime", "cudaDeviceSynchronize", 1600 * US, 1700 * US)
    path = first.write(tmp_path / "first.json")
    [out] = exported(path, "chrome", tmp_path / "again.json.gz")
    document = json.loads(gzip.decompress(out.read_bytes()))
    assert document["distributedInfo"]["rank"] == 2
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    calls = [event for event in events if event["cat"] in {"cuda_runtime", "cuda_driver"}]
    operations = [e for e in events if e["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}]
    launched = [event["args"]["correlation"] for event in operations]
    assert len({call["args"]["correlation"] for call in calls}) == len(calls) == 9
    assert len(set(launched)) == len(launched) == 8
    for category in ("cpu_op", "user_annotation"):
        names = sorted(event["name"] for event in first.events if event["cat"] == category)
        assert sorted(event["name"] for event in events if event["cat"] == category) == names
    on_gpu = [
        (event["name"], event["pid"], event["tid"], event["ts"], event["dur"])
        for event in events
        if event["cat"] == "gpu_user_annotation"
    ]
    # From the first operation that the main thread launched inside to the end of the last.
    assert sorted(on_gpu) == [
        ("ProfilerStep#1", 0, 7, 60.0, 470.0), ("ProfilerStep#2", 0, 7, 1060.0, 470.0),
        ("forward", 0, 7, 60.0, 100.005), ("forward", 0, 7, 1060.0, 100.005),
    ]  # fmt: skip
    # And it is read again as what it was.
    before, after = (Session(), Session())
    before.apply(open_recording(str(path)))
    after.apply(open_recording(str(out)))
    assert before.run is not None
    assert after.run is not None
    assert [row.key[2] for row in phase_rows(after.run)] == [
        row.key[2] for row in phase_rows(before.run)
    ]
    assert kernel_rows(after, after.run) == kernel_rows(before, before.run)


def test_a_chrome_trace_can_be_packed(tmp_path: Path) -> None:
    [out] = exported(small().write(tmp_path / "r.sqlite"), "chrome", tmp_path / "t.json.gz")
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]


def traced_ranks(folder: Path) -> Path:
    """A recording of two ranks with a trace and readings of the GPU beside it."""
    path = folder / "x.gputui"
    trace = TraceWriter(trace_path(path), 1 << 30)
    for process in (1, 2):
        records = np.zeros(3, TRACE)
        records["process"] = process
        records["kind"] = [TraceKind.RANGE, TraceKind.CALL, TraceKind.KERNEL]
        records["start"] = [at(2), at(2.1), at(2.2)]
        records["end"] = [at(3), at(2.11), at(2.3)]
        records["range"] = process
        records["name"] = [0, trace.name("cudaLaunchKernel"), 0]
        records["correlation"] = [0, 5, 5]
        trace.append(records)
    trace.close()
    writer = JournalWriter(path)
    writer.write([header(gpu()), run_started(), attached(1, rank=0), attached(2, rank=1),
                  defined(1, "step"), defined(2, "step", process=2)])  # fmt: skip
    for second in range(2, 5):
        sample = GpuSample(index=0, power_watts=100.0 + second, utilization_percent=None)
        writer.write([MachineSample(time_ns=at(second), host=HostSample(), gpus=(sample,))])
    writer.write([run_ended()])
    writer.close()
    return path


def test_each_rank_has_a_file_and_readings_are_counters(tmp_path: Path) -> None:
    written = exported(traced_ranks(tmp_path), "chrome", tmp_path / "t.json")
    assert [path.name for path in written] == ["t-rank0.json", "t-rank1.json"]
    documents = [chrome(path) for path in written]
    assert [found["distributedInfo"]["rank"] for found in documents] == [0, 1]
    assert [found["distributedInfo"]["world_size"] for found in documents] == [2, 2]
    counters = [event for event in documents[0]["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"Power (W)"}
    assert [event["args"]["value"] for event in counters] == [102.0, 103.0, 104.0]
    assert counters[0]["ts"] == 0.0


def test_the_newest_run_alone_is_exported(tmp_path: Path) -> None:
    path = traced_ranks(tmp_path)
    writer = JournalWriter(tmp_path / "y.gputui")
    writer.write([*JournalReader.open(path), run_started(2), attached(3, run=2),
                  defined(3, "later", process=3)])  # fmt: skip
    writer.close()
    trace_path(path).rename(tmp_path / "y.gputui-trace")
    with pytest.raises(ExportError, match="nothing of run 2"):
        exported(tmp_path / "y.gputui", "chrome", tmp_path / "t.json")
    exported(tmp_path / "y.gputui", "nsys", tmp_path / "t.sqlite")
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection:
        rows = connection.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
        assert rows.fetchone() == (0,)
    written = exported(tmp_path / "y.gputui", "chrome", tmp_path / "first.json", number=1)
    assert len(written) == 2


def test_operations_whose_call_was_dropped_join_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    trace = TraceWriter(trace_path(path), 1 << 30)
    records = np.zeros(1, TRACE)
    records["kind"], records["process"], records["correlation"] = TraceKind.KERNEL, 1, 9
    trace.append(records)
    session = Session.from_events([header(), run_started(), attached(), run_ended()])
    assert session.run is not None
    out = tmp_path / "t.json"
    with out.open("w") as file:
        write_chrome(file, session, session.run, TraceReader(trace.path), 1)
    [kernel] = [event for event in chrome(out)["traceEvents"] if event.get("cat") == "kernel"]
    assert kernel["args"]["correlation"] != 9


# --- nsys --------------------------------------------------------------------------------------


def test_an_nsys_export_reads_as_what_it_was_made_of(tmp_path: Path) -> None:
    first = small().write(tmp_path / "r.sqlite")
    exported(first, "nsys", tmp_path / "again.sqlite")
    tables = [_everything(first), _everything(tmp_path / "again.sqlite")]
    assert tables[0] == tables[1]


def _everything(path: Path) -> list[Any]:
    session = Session.from_events(NsysReport(path))
    run = session.run
    assert run is not None
    phases = [
        (row.path, row.domain, row.style, row.instances, row.cpu_total_ns, row.kernels,
         row.launches, row.memcpy_bytes, row.gpu_busy_ns, row.projected.total)
        for row in phase_rows(run)
    ]  # fmt: skip
    kernels = kernel_rows(session, run)
    shapes = [
        (row.name, row.launches, row.grid, row.block, row.shape.registers_per_thread,
         row.shape.static_shared_bytes, row.shape.dynamic_shared_bytes)
        for row in shape_rows(session, run)
    ]  # fmt: skip
    return [
        sorted(phases),
        kernels,
        sorted(shapes),
        api_rows(run),
        memory_time_rows(run),
        memory_size_rows(run),
    ]


@needs_real
def test_rows_of_the_real_report_come_back(tmp_path: Path) -> None:
    exported(REAL, "nsys", tmp_path / "again.sqlite")
    assert _everything(REAL) == _everything(tmp_path / "again.sqlite")
    queries = (
        "SELECT k.start - (SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_KERNEL), k.end - k.start, "
        "k.deviceId, k.streamId, k.correlationId, k.globalPid, s.value, "
        "gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, "
        "dynamicSharedMemory "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName "
        "ORDER BY k.start, k.correlationId",
        "SELECT r.start - (SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_KERNEL), r.end - r.start, "
        "r.globalTid, r.correlationId, r.eventClass FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ORDER BY r.start, r.correlationId",
        "SELECT n.start - (SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_KERNEL), n.end - n.start, "
        "s.value, n.globalTid, n.domainId FROM NVTX_EVENTS n "
        "JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 59 ORDER BY n.start, n.end",
        "SELECT bytes, copyKind, srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY start",
    )
    for query in queries:
        rows = []
        for path in (REAL, tmp_path / "again.sqlite"):
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                rows.append(connection.execute(query).fetchall())
        assert rows[0] == rows[1]
        assert rows[0]


def test_a_trace_of_another_layout_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traced_ranks(tmp_path)
    with trace_path(path).open("r+b") as file:
        file.seek(HEAD.fields["version"][1])
        file.write((1).to_bytes(4, "little"))
    out = str(tmp_path / "t.sqlite")
    assert gputui(["export", str(path), "--format", "nsys", "-o", out]) == 1
    assert capsys.readouterr().err == (
        f"gputui: {trace_path(path)} was traced by another version of gputui (layout 1, this one "
        "reads 3); record it again\n"
    )


def test_a_recording_without_a_trace_is_told_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traced_ranks(tmp_path)
    trace_path(path).unlink()
    assert gputui(["export", str(path), "--format", "chrome", "-o", str(tmp_path / "t.json")]) == 1
    assert "record with --trace" in capsys.readouterr().err
    assert gputui(["export", str(path), "--format", "chrome"]) == 2


# --- Holistic Trace Analysis -------------------------------------------------------------------


def _analysis(folder: Path) -> Any:
    hta = pytest.importorskip("hta.trace_analysis", reason="Holistic Trace Analysis not installed")
    return hta.TraceAnalysis(trace_dir=str(folder))


@needs_real
def test_holistic_trace_analysis_agrees_to_the_nanosecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise it cuts times to whole microseconds.
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    exported(REAL, "chrome", tmp_path / "t.json")
    with open_traced(str(REAL)) as traced:
        [device] = traced.run.devices.values()
        kernels = kernel_rows(traced.session, traced.run)
        calls = {row.name: row.instances for row in api_rows(traced.run)}
    assert device.first_start_ns is not None
    assert device.last_end_ns is not None
    analysis = _analysis(tmp_path)
    validate = importlib.import_module("hta.utils.validate_trace").validate_trace_format
    assert validate(str(tmp_path / "t.json"), "complete") == (True, {})
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    span_ns = device.last_end_ns - device.first_start_ns
    for theirs, ours_ns in (
        (breakdown["compute_time(us)"] + breakdown["non_compute_time(us)"], device.busy_ns),
        (breakdown["idle_time(us)"], span_ns - device.busy_ns),
        (breakdown["kernel_time(us)"], span_ns),
    ):
        assert round(theirs * 1000) == ours_ns
    _, found = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=len(kernels) + 5)
    theirs = {
        row["name"]: [round(row[f"{what} (us)"] * 1000) for what in ("sum", "max", "min", "mean")]
        for _, row in found.iterrows()
        if row["kernel_type"] == "COMPUTATION"
    }
    assert theirs == {
        row.name: [row.total, row.maximum, row.minimum, round(row.average)] for row in kernels
    }
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    # It counts launches of the runtime alone, not those of the driver (cuLaunchKernel).
    assert len(launches) == calls["cudaLaunchKernel"] + calls["cudaMemcpyAsync"]


def test_holistic_trace_analysis_sees_two_ranks(tmp_path: Path) -> None:
    written = exported(traced_ranks(tmp_path), "chrome", tmp_path / "t.json")
    folder = tmp_path / "ranks"
    folder.mkdir()
    for path in written:
        path.rename(folder / path.name)
    analysis = _analysis(folder)
    assert sorted(analysis.t.get_all_traces() if hasattr(analysis.t, "get_all_traces")
                  else analysis.t.traces) == [0, 1]  # fmt: skip
