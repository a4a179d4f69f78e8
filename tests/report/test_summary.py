"""The documents for programs, of a session whose every figure is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    GpuUnavailable,
    HostSample,
    HostUnavailable,
    KernelDefined,
    KernelDelta,
    MachineSample,
    MemoryOperationDelta,
    ProcessDetached,
    ProcessSample,
    RangeDelta,
    RangeLeaf,
    RunMetrics,
    RunResult,
)
from gputui.model.leaves import Leaf
from gputui.report.machine_now import machine_document, machine_lines, reason_lines
from gputui.report.statistics import all_rows, category_rows, gpu_rows, kernel_rows
from gputui.report.summary_document import summary_document
from gputui.state import Session
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times

GEMM = "void cublas::gemm_kernel<int>(int)"
SOFTMAX = "softmax_kernel(float*)"


def sample(seconds: float, *gpus: GpuSample) -> MachineSample:
    host = HostSample(
        cpu_percent=25.0, memory_used_bytes=2 << 30, load_1m=1.5, swap_used_bytes=1 << 20
    )
    return MachineSample(
        time_ns=at(seconds),
        host=host,
        gpus=gpus,
        processes=(ProcessSample(pid=7, gpu=1, user="ada", command="python"),),
        own_cpu_percent=2.5,
    )


EVENTS: tuple[AnyEvent, ...] = (
    msgspec.structs.replace(
        header(gpu(1), gpu(0)), driver_version="580.1", cuda_driver_version="13.0"
    ),
    run_started(),
    attached(),
    attached(2, rank=1),
    defined(1, "decode"),
    defined(2, "step", parent=1),
    KernelDefined(time_ns=at(2), kernel=1, name=GEMM, mangled="_Z4gemm"),
    KernelDefined(time_ns=at(2), kernel=2, name=SOFTMAX, mangled="_Z7softmax"),
    sample(
        2,
        GpuSample(index=1, memory_used_bytes=10, power_watts=100.0),
        GpuSample(index=0, memory_used_bytes=30, throttle_reasons=("power cap",)),
    ),
    sample(
        3,
        GpuSample(index=1, memory_used_bytes=20, power_watts=300.0),
        GpuSample(index=0, memory_used_bytes=25, throttle_reasons=()),
    ),
    CaptureDelta(
        time_ns=at(4),
        process=1,
        ranges=(
            RangeDelta(range=1, cpu=times(4000)),
            RangeDelta(
                range=2, cpu=times(1000, 2000), gpu_busy_ns=900, gpu_total_ns=950,
                projected=times(400, 600),
            ),
        ),
        kernels=(
            KernelDelta(process=1, range=2, kernel=1, device=0, time=times(100, 200, 300)),
            KernelDelta(process=1, range=2, kernel=2, device=0, time=times(200)),
        ),
        memory_operations=(
            MemoryOperationDelta(
                process=1, range=2, operation="[CUDA memcpy Host-to-Device]", device=0,
                time=times(50, 150), size=times(4096, 8192),
            ),
        ),
        api=(ApiDelta(process=1, range=2, name="cudaLaunchKernel", time=times(5, 7, 9, 11)),),
        devices=(
            DeviceDelta(
                process=1, device=0, busy_ns=900, operations=6, first_start_ns=at(2),
                last_end_ns=at(3),
            ),
        ),
        range_leaves=(
            RangeLeaf(0, 2, Leaf.MATMUL, 550),
            RangeLeaf(0, 2, Leaf.SOFTMAX, 200),
            RangeLeaf(0, 2, Leaf.COPY_PINNED, 150),
        ),
        records=1600,
        dropped=3,
        unattributed=2,
        callback_ns=40,
        reader_cpu_ns=50,
        traced_ns=75,
        paused_ns=25,
    ),
    RunMetrics(time_ns=at(5), run=1, metrics={"tokens_per_s": 9.0, "memory_allocated_bytes": 5}),
    RunResult(time_ns=at(6), run=1, complete=True, parameters={"size": "tiny"}, results={"x": 1.5}),
    ProcessDetached(time_ns=at(8), process=1, clean=True),
    run_ended(),
)  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Session:
    return Session.from_events(EVENTS)


@pytest.fixture(scope="module")
def document(session: Session) -> dict[str, Any]:
    assert session.run is not None
    return summary_document(session, session.run)


def test_what_ran_where_and_how_it_ended(document: dict[str, Any]) -> None:
    run = document["run"]
    assert {name: run[name] for name in ("number", "kind", "name", "pid", "complete")} == {
        "number": 1, "kind": "workload", "name": "inference", "pid": 100, "complete": True,
    }  # fmt: skip
    assert run["duration_ns"] == 8_000_000_000
    assert run["parameters"] == {"size": "tiny"}
    assert run["started"] == "2023-11-14T22:13:21.000+00:00"
    assert (run["exit_code"], run["signal"], run["reason"]) == (0, None, "ended with status 0")
    assert (run["hostname"], run["system"]) == ("testhost", "TestOS 1")
    assert (run["driver_version"], run["cuda_driver_version"]) == ("580.1", "13.0")
    assert run["gputui_version"] == "0.0.0"
    assert run["gpu_unavailable_reason"] is None
    first, second = run["processes"]
    assert (first["pid"], first["rank"], first["ended_cleanly"]) == (101, None, True)
    assert (second["pid"], second["rank"], second["ended_cleanly"]) == (102, 1, None)


def test_phases_tell_cpu_and_gpu(document: dict[str, Any]) -> None:
    decode, step = document["phases"]
    assert (decode["path"], decode["instances"], decode["cpu_total_ns"]) == ("decode", 1, 4000)
    assert decode["cpu_exclusive_ns"] == 1000
    assert decode["gpu_projected_ns"] is None  # no work was its own
    expected = {
        "path": "decode/step", "depth": 1, "instances": 2, "cpu_total_ns": 3000,
        "cpu_avg_ns": 1500, "cpu_med_ns": 1500, "cpu_min_ns": 1000, "cpu_max_ns": 2000,
        "cpu_per_step_ns": 1500, "gpu_busy_ns": 900, "gpu_idle_ns": 100, "gpu_total_ns": 950,
        "gpu_projected_ns": 1000, "kernels": 4, "kernel_total_ns": 800, "launches": 4,
        "memcpy_bytes": 12288, "share_percent": 100, "gpu_busy_percent": 100,
    }  # fmt: skip
    assert {name: step[name] for name in expected} == expected
    assert step["cpu_stddev_ns"] == pytest.approx(707.1, rel=1e-3)


def test_without_a_gpu_its_figures_are_missing_not_zero() -> None:
    session = Session.from_events([header(), run_started(), attached(), defined(1, "decode"),
                   CaptureDelta(time_ns=at(3), process=1,
                                ranges=(RangeDelta(range=1, cpu=times(5)),))])  # fmt: skip
    assert session.run is not None
    document = summary_document(session, session.run)
    (phase,) = document["phases"]
    gpu_fields = ("gpu_busy_ns", "gpu_total_ns", "gpu_projected_ns", "kernels", "kernel_total_ns",
                  "launches", "memcpy_bytes")  # fmt: skip
    assert {phase[name] for name in gpu_fields} == {None}
    assert phase["gpu_busy_percent"] is None
    assert document["run"]["reason"] == "the recording ends before the run does"
    assert document["devices"] == []
    assert document["overhead"]["kernels_traced_percent"] == 100.0


def test_statistics_of_every_table(document: dict[str, Any]) -> None:
    gemm, softmax = document["kernels"]
    expected = {
        "name": GEMM, "short_name": "gemm_kernel", "category": "matmul", "instances": 3,
        "total_ns": 600, "time_percent": 75.0, "avg_ns": 200, "med_ns": 200, "min_ns": 100,
        "max_ns": 300, "stddev_ns": 100.0, "median_exact": True, "p99_ns": 298,
    }  # fmt: skip
    assert expected.items() <= gemm.items()
    assert (softmax["category"], softmax["time_percent"]) == ("softmax", 25.0)
    (call,) = document["api"]
    assert (call["name"], call["num_calls"], call["total_ns"]) == ("cudaLaunchKernel", 4, 32)
    (copy,) = document["memops_time"]
    assert (copy["operation"], copy["count"], copy["total_ns"]) == (
        "[CUDA memcpy Host-to-Device]", 2, 200,
    )  # fmt: skip
    (size,) = document["memops_size"]
    assert (size["total_bytes"], size["avg_bytes"], size["min_bytes"], size["max_bytes"]) == (
        12288, 6144, 4096, 8192,
    )  # fmt: skip
    everything = [(row["category"], row["operation"], row["total_ns"]) for row in document["all"]]
    assert everything == [
        ("CUDA_KERNEL", GEMM, 600),
        ("MEMORY_OPER", "[CUDA memcpy Host-to-Device]", 200),  # as long as the next: by name
        ("CUDA_KERNEL", SOFTMAX, 200),
        ("CUDA_API", "cudaLaunchKernel", 32),
    ]
    assert sum(row["time_percent"] for row in document["all"]) == pytest.approx(100)


def test_memory_devices_and_what_watching_cost(document: dict[str, Any]) -> None:
    assert document["memory"] == {
        "peak_used_bytes": {"gpu0": 30, "gpu1": 20}, "memory_allocated_bytes": 5,
    }  # fmt: skip
    assert document["metrics"] == {"tokens_per_s": 9.0, "memory_allocated_bytes": 5, "x": 1.5}
    zero, one = document["devices"]
    assert (zero["index"], zero["uuid"], zero["gpu_busy_ns"], zero["operations"]) == (
        0, "GPU-0", 900, 6,
    )  # fmt: skip
    assert (one["index"], one["gpu_busy_ns"], one["operations"]) == (1, None, None)
    assert one["figures"]["power_watts"] == {
        "mean": 275.0, "min": 100.0, "max": 300.0, "samples": 2, "mean_in_use": None,
    }  # fmt: skip
    assert "power_watts" not in zero["figures"]
    assert (zero["throttle_samples"], one["throttle_samples"]) == ({"power cap": 1}, {})
    assert document["dropped_events"] == 3
    assert document["overhead"] == {
        "records": 1600, "dropped": 3, "unattributed": 2, "callback_ns": 40, "reader_cpu_ns": 50,
        "monitor_cpu_percent": 2.5, "records_per_s": 200.0, "kernels_traced_percent": 75.0,
        "library_percent": 5e-7, "reader_percent": 6.25e-7,  # of the run's 8 s
        "slowdown_least_percent": pytest.approx(6.04e-4, rel=1e-3),
        "slowdown_most_percent": pytest.approx(1.804e-3, rel=1e-3),
        "recorded_bytes": None, "traced_bytes": None, "shares_error_points": None,
        "tracing": {
            "max_percent": None, "windows": 0, "percent": None, "error_percent": None,
            "floor_percent": None,
        },
    }  # fmt: skip


def test_kernels_by_category_longest_first(session: Session) -> None:
    assert session.run is not None
    assert category_rows(session, session.run) == [
        ("matmul", 3, 600, 75.0), ("softmax", 1, 200, 25.0),
    ]  # fmt: skip
    assert [row.instances for row in kernel_rows(session, session.run, [1])] == []
    names = [row.name for row in kernel_rows(session, session.run, [2], "base")]
    assert names == ["gemm_kernel", "softmax_kernel"]
    assert [row.name for row in gpu_rows(session, session.run, "mangled")] == [
        "_Z4gemm", "[CUDA memcpy Host-to-Device]", "_Z7softmax",
    ]  # fmt: skip
    assert len(all_rows(session, session.run)) == 4


def test_operations_that_took_no_time_have_shares_of_nothing() -> None:
    session = Session()
    delta = KernelDelta(process=1, range=0, kernel=9, device=0, time=times(0, 0))
    session.apply([header(), run_started(), attached(),
                   CaptureDelta(time_ns=at(3), process=1, kernels=(delta,))])  # fmt: skip
    assert session.run is not None
    (row,) = kernel_rows(session, session.run)
    assert (row.name, row.instances, row.percent, row.average, row.minimum, row.maximum) == (
        "(kernel 9)", 2, 0.0, 0.0, 0, 0,
    )  # fmt: skip
    assert (row.median, row.deviation) == (0.0, 0.0)
    assert category_rows(session, session.run) == [("other", 2, 0, 0.0)]


def test_the_machine_as_a_document(session: Session) -> None:
    document = machine_document(session)
    assert document["time"] == "2023-11-14T22:13:29.000+00:00"
    host = document["host"]
    assert (host["hostname"], host["cpu_percent"], host["driver_version"]) == (
        "testhost", 25.0, "580.1",
    )  # fmt: skip
    assert host["unavailable"] == {}
    zero, one = document["gpus"]
    assert (zero["index"], zero["uuid"], zero["memory_used_bytes"]) == (0, "GPU-0", 25)
    assert (one["power_watts"], one["status_time"], one["fan_percent"]) == (300.0, None, None)
    assert one["facts"]["memory_total_bytes"] == 80 << 30
    assert [(p["pid"], p["gpu"], p["user"]) for p in document["processes"]] == [(7, 1, "ada")]


def test_the_machine_before_anything_was_read() -> None:
    document = machine_document(Session())
    assert (document["gpus"], document["processes"]) == ([], [])
    assert document["host"]["driver_version"] is None
    assert document["host"]["cpu_percent"] is None
    assert machine_lines(Session()) == []


def test_the_machine_in_lines(session: Session) -> None:
    back = MachineSample(time_ns=at(1), host=HostSample(), gpus=())
    again = Session.from_events([*EVENTS, back])
    assert machine_document(again)["time"] == "2023-11-14T22:13:21.000+00:00"  # set back
    first, second = machine_lines(session)
    assert first == "2023-11-14 22:13:29  testhost  TestOS 1  driver 580.1  CUDA 13.0"
    assert second.startswith("CPU 25 % of 4 cores, load 1.50, memory 2.00")
    assert second.endswith(", swap 1.00 MiB")
    bare = Session.from_events(
        [
            header(reason="no NVIDIA driver"),
            MachineSample(time_ns=at(1), host=HostSample(), gpus=()),
        ]
    )
    first, second, third = machine_lines(bare)
    assert first.endswith("  no driver")
    assert "CPU n/a of 4 cores, load n/a" in second
    assert "swap" not in second
    assert third == "no GPU: no NVIDIA driver"


def test_reasons_name_the_gpus_and_fields_they_hold_for() -> None:
    session = Session()
    old = {"tensor_active_percent": "needs Hopper", "sm_active_percent": "needs Hopper"}
    session.apply(
        [
            header(gpu(0), gpu(1), gpu(2)),
            GpuUnavailable(time_ns=at(1), gpu=2, reasons=old),
            GpuUnavailable(time_ns=at(1), gpu=0, reasons=old | {"fan_percent": "no fan"}),
            GpuUnavailable(time_ns=at(1), gpu=1, reasons={"device": "lost", "power_watts": "lost"}),
            HostUnavailable(time_ns=at(1), reasons={"load_1m": "not told"}),
        ]
    )
    assert reason_lines(session) == [
        "n/a  GPU 0, 2: sm_active_percent, tensor_active_percent: needs Hopper",
        "n/a  GPU 0: fan_percent: no fan",
        "n/a  GPU 1: everything: lost",
        "n/a  load_1m: not told",
    ]
    narrow = reason_lines(session, 40)
    assert all(len(line) <= 40 for line in narrow)
    assert narrow[1].startswith("     ")
    session.apply([GpuUnavailable(time_ns=at(2), gpu=g, reasons={"x": "y"}) for g in (0, 1, 2)])
    assert reason_lines(session)[0] == "n/a  x: y"
