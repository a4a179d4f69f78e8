"""Every figure of the summary's document stands under the name that says what it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    KernelDefined,
    LaunchShape,
    MarkDelta,
    ResultColumn,
    ResultTable,
    RunEnded,
    RunResult,
    ShapeLaunches,
    ThreadNamed,
)
from gputui.report.summary_document import summary_document
from gputui.state import Session
from tests.events_for_tests import at, attached, header, run_started
from tests.report.test_summary import EVENTS


def document(*events: AnyEvent) -> dict[str, Any]:
    session = Session.from_events(events)
    assert session.run is not None
    return summary_document(session, session.run)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return document(*EVENTS)


def test_a_finished_run(whole: dict[str, Any]) -> None:
    run = whole["run"]
    assert run["arguments"] == ["python", "-m", "workloads", "inference"]
    assert (run["stopped"], run["unavailable"], run["remarks"]) == (False, {}, [])
    assert run["capture_unavailable_reason"] is None
    first, second = run["processes"]
    expected: dict[str, Any] = {
        "pid": 101, "parent_pid": 100, "rank": None, "local_rank": None, "command": "python",
        "cuda_status": "tracing", "started": "2023-11-14T22:13:21.500+00:00",
        "ended": "2023-11-14T22:13:28.000+00:00", "start_ns": 500_000_000,
        "end_ns": 7_000_000_000, "state": "ended", "records": 1600, "dropped": 3, "threads": {},
        "gpus": [0], "ended_cleanly": True, "losses": [], "resources": [],
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    later = expected | {
        "pid": 102, "rank": 1, "ended": None, "end_ns": None, "state": "not seen to end",
        "records": 0, "dropped": 0, "gpus": [], "ended_cleanly": None,
    }  # fmt: skip
    assert {name: second[name] for name in later} == later


def test_a_phase(whole: dict[str, Any]) -> None:
    step = whole["phases"][1]
    said = ("domain", "style", "category", "threads", "rank", "pid", "cpu_exclusive_ns")
    assert [step[name] for name in said] == ["", "PushPop", None, [], None, 101, 3000]
    assert step["share_percent"] == 100
    assert step["gpu_busy_percent"] == 100


def test_operations_by_time_and_size(whole: dict[str, Any]) -> None:
    times = {
        "total_ns": 32, "time_percent": 100, "avg_ns": 8, "med_ns": 8, "min_ns": 5, "max_ns": 11,
        "stddev_ns": pytest.approx((20 / 3) ** 0.5), "median_exact": True,
        "p99_ns": pytest.approx(10.94),
    }  # fmt: skip
    assert whole["api"] == [times | {"name": "cudaLaunchKernel", "num_calls": 4}]
    assert whole["all"][-1] == times | {
        "category": "CUDA_API", "operation": "cudaLaunchKernel", "instances": 4,
        "time_percent": pytest.approx(100 * 32 / 1032),
    }  # fmt: skip
    assert whole["memops_time"] == [
        {
            "operation": "[CUDA memcpy Host-to-Device]", "count": 2, "total_ns": 200,
            "time_percent": 100, "avg_ns": 100, "med_ns": 100, "min_ns": 50, "max_ns": 150,
            "stddev_ns": pytest.approx(5000**0.5), "median_exact": True, "p99_ns": 149,
        }
    ]  # fmt: skip
    assert whole["memops_size"] == [
        {
            "operation": "[CUDA memcpy Host-to-Device]", "count": 2, "total_bytes": 12288,
            "avg_bytes": 6144, "med_bytes": 6144, "min_bytes": 4096, "max_bytes": 8192,
            "stddev_bytes": pytest.approx(2048 * 2**0.5),
        }
    ]  # fmt: skip


def test_a_verdict_and_what_is_missing(whole: dict[str, Any]) -> None:
    # A power cap at full load is how the card works, and no finding.
    assert [found["cause"] for found in whole["findings"]] == ["lost_records"]
    assert whole["launch_shapes"] is None
    assert whole["time"] is None
    reason = "not measured when this was recorded"
    no_energy = "no phase ran a kernel"
    assert whole["unavailable"] == {
        "launch_shapes": reason, "time": reason, "phase_energy": no_energy,
        "roofline": "no sample was taken in steady steps or an outermost phase",
    }  # fmt: skip
    assert whole["tables"] == []
    assert whole["schema"] == 2


def test_marks_threads_shapes_and_tables() -> None:
    table = ResultTable(
        name="sizes",
        title="Sizes",
        columns=(ResultColumn(name="n", unit="bytes", help="how many"),),
        rows=((1,), (None,)),
    )
    found = document(
        header(),
        run_started(),
        attached(),
        KernelDefined(time_ns=at(2), kernel=1, name="gemm", mangled="_Z4gemm"),
        LaunchShape(
            time_ns=at(2), shape=1, kernel=1, grid=(1, 2, 3), block=(4, 5, 6),
            registers_per_thread=7, static_shared_bytes=8, dynamic_shared_bytes=9,
        ),
        ThreadNamed(time_ns=at(2), process=1, thread=9, name="loader", source="nvtx"),
        ThreadNamed(time_ns=at(2), process=1, thread=8, name="main", source="system"),
        CaptureDelta(
            time_ns=at(3), process=1, shapes=(ShapeLaunches(1, 10),),
            marks=(MarkDelta("d", "here", 3, at(2), at(2.5)),),
        ),
        RunResult(
            time_ns=at(4), run=1, complete=False, parameters={}, results={},
            unavailable={"mfu": "no peak"}, tables=(table,),
        ),
        RunEnded(time_ns=at(9), run=1, signal=15, reason="stopped", stopped=True),
    )  # fmt: skip
    assert found["launch_shapes"] == [
        {
            "name": "gemm", "launches": 10, "grid": (1, 2, 3), "block": (4, 5, 6),
            "registers_per_thread": 7, "static_shared_bytes": 8, "dynamic_shared_bytes": 9,
            "occupancy_percent": None, "occupancy_limiter": None,
        }
    ]  # fmt: skip
    no_energy = "no GPU's power or energy was read while the run went on"
    assert found["unavailable"] == {
        "energy": no_energy, "phase_energy": no_energy,
        "phase_causes": "the program has no ranges",
        "roofline": "no sample was taken in steady steps or an outermost phase",
    }  # fmt: skip
    assert list(found["run"]["processes"][0]["threads"].items()) == [("8", "main"), ("9", "loader")]
    (mark,) = found["marks"]
    assert (mark["domain"], mark["name"]) == ("d", "here")
    assert found["tables"] == [
        {
            "name": "sizes", "title": "Sizes", "rows": [[1], [None]],
            "columns": [{"name": "n", "unit": "bytes", "help": "how many"}],
        }
    ]  # fmt: skip
    run = found["run"]
    assert (run["complete"], run["unavailable"]) == (False, {"mfu": "no peak"})
    assert (run["exit_code"], run["signal"], run["stopped"]) == (None, 15, True)


def test_a_recording_that_was_cut_off_says_so() -> None:
    started = msgspec.structs.replace(run_started(), capture_unavailable_reason="no library")
    found = document(header(reason="no driver"), started)
    run = found["run"]
    assert (run["complete"], run["exit_code"], run["signal"], run["stopped"]) == (None,) * 4
    assert run["reason"] == "the recording ends before the run does"
    assert run["gpu_unavailable_reason"] == "no driver"
    assert run["capture_unavailable_reason"] == "no library"
    assert run["remarks"] == ["not captured: no library"]
    assert (found["dropped_events"], found["metrics"], found["tables"]) == (0, {}, [])


def test_without_a_header_nothing_is_known_of_the_machine() -> None:
    run = document(run_started())["run"]
    for name in ("hostname", "system", "driver_version", "cuda_driver_version", "gputui_version"):
        assert run[name] is None
