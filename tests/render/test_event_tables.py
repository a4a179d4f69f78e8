"""Tables of single calls and GPU operations."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

from gputui.cli.dispatch import run as gputui
from gputui.store import trace_path
from gputui.store.trace import TraceWriter
from tests.events_for_tests import header, run_started
from tests.imports.nsys_for_tests import PID, REAL, TASK, Export

needs_real = pytest.mark.skipif(not REAL.is_file(), reason="no real nsys export beside the project")


@pytest.fixture
def report(tmp_path: Path) -> str:
    """Two kernels, the pageable copy of a checkpoint, a memset, a call that launched nothing."""
    export = Export()
    export.kernel('gemm<"x">', (2100, 2200), (3000, 3500), 11)
    export.kernel("relu", (2300, 2400), (3500, 3750), 12)
    thread = {"globalTid": TASK | PID, "eventClass": 0, "returnValue": 0}
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=6100, end=6300, correlationId=13,
               nameId=export.string("cudaMemcpy_v3020"), **thread)  # fmt: skip
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=7000, end=36_170_000, deviceId=0, contextId=1,
               streamId=9, correlationId=13, globalPid=TASK, bytes=497_903_616, copyKind=1,
               srcKind=0, dstKind=2)  # fmt: skip
    export.add(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=1000,
        end=90_000,
        correlationId=10,
        nameId=export.string("cudaMalloc_v3020"),
        **thread | {"returnValue": 2},
    )
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=40_000_000, end=40_001_000, deviceId=0,
               contextId=1, streamId=9, correlationId=99, globalPid=TASK, value=0, bytes=2_000,
               memKind=2)  # fmt: skip
    export.add("ThreadNames", nameId=export.string("test_gpt2"), globalTid=TASK | PID)
    return str(export.write(tmp_path / "r.sqlite"))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_call_in_order_of_start(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gputui(["summary", report, "--table", "cuda_api_trace", "--format", "csv"]) == 0
    calls = rows(capsys.readouterr().out)
    assert [
        (row["Start (ns)"], row["Duration (ns)"], row["Name"], row["CorrID"]) for row in calls
    ] == [
        ("1000", "89000", "cudaMalloc", "10"),
        ("2100", "100", "cudaLaunchKernel", "11"),
        ("2300", "100", "cudaLaunchKernel", "12"),
        ("6100", "200", "cudaMemcpy", "13"),
    ]
    assert {(row["Pid"], row["Tid"], row["Thread Name"]) for row in calls} == {
        (str(PID), str(PID), "test_gpt2")
    }
    assert [row["Result"] for row in calls] == ["2", "0", "0", "0"]  # out of memory, and well


def test_a_copy_says_its_bytes_rate_ends_thread_and_latency(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gputui(["summary", report, "--table", "cuda_gpu_trace", "--format", "json"]) == 0
    operations = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    copy = operations["[CUDA memcpy Host-to-Device]"]
    assert next(iter(operations.values())) == copy  # the longest first
    assert copy["mb"] == 497.903616
    # 12.82 GiB/s.
    assert copy["mb_per_s"] == pytest.approx(497_903_616 / 36_163e-6 / 1e6, abs=1e-3)
    assert (copy["source_kind"], copy["destination_kind"], copy["stream"]) == (
        "Pageable",
        "Device",
        9,
    )
    assert (copy["tid"], copy["latency_ns"], copy["grid_x"]) == (PID, 900, None)
    gemm = operations['gemm<"x">']
    figures = gemm["grid_x"], gemm["block_x"], gemm["registers_per_thread"], gemm["mb"]
    assert figures == (11, 256, 40, None)
    # Its call was not recorded.
    memset = operations["[CUDA memset]"]
    assert (memset["tid"], memset["source_kind"]) == (None, None)


@needs_real
def test_the_events_are_those_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(f"file:{REAL}?mode=ro&immutable=1", uri=True)
    for table, sources in (
        ("cuda_api_trace", ("RUNTIME",)),
        ("cuda_gpu_trace", ("KERNEL", "MEMCPY")),
    ):
        queries = (f"SELECT start, end - start FROM CUPTI_ACTIVITY_KIND_{name}" for name in sources)
        wanted = sorted(row for query in queries for row in connection.execute(query))
        assert gputui(["summary", str(REAL), "--table", table, "--format", "csv"]) == 0
        told = rows(capsys.readouterr().out)
        assert [int(row["Duration (ns)"]) for row in told] == [length for _, length in wanted]
        starts = [int(row["Start (ns)"]) for row in told]
        assert starts == sorted(starts)
        assert gputui(["summary", str(REAL), "--table", table]) == 0
        shown = capsys.readouterr().out
        assert f"the 100 longest of {len(wanted)}; --format csv has all" in shown
        assert len(shown.splitlines()) == 103


def test_a_recording_without_a_trace_says_what_it_takes(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(Path(__file__).parents[1] / "data" / "h200-inference.gputui")
    assert gputui(["summary", recording, "--table", "cuda_api_trace"]) == 1
    assert "has no trace beside it" in capsys.readouterr().err
    assert gputui(["summary", report, "--table", "cuda_api_trace", "--domain", "x"]) == 2
    assert "cuda_api_trace has no ranges" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cuda_api_trace", "cuda_gpu_trace"])
def test_a_trace_without_events_is_a_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    recording = tmp_path / "x.gputui"
    recording.write_bytes(msgspec.json.Encoder().encode_lines((header(), run_started())))
    TraceWriter(trace_path(recording), 1 << 20).close()
    assert gputui(["summary", str(recording), "--table", name, "--format", "csv"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("Start (ns),Duration (ns),")
    for other in ("table", "json", "md"):
        assert gputui(["summary", str(recording), "--table", name, "--format", other]) == 0
