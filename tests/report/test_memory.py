"""Memory of a run: copies, allocations, phases, and what devices held."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineSample,
    MemoryOperationDelta,
    OpenRange,
    ProcessDetached,
)
from gputui.report.machine_now import throttled_in
from gputui.report.tables import is_memory_metric, metric_text, run_tables
from gputui.report.tables.memory import (
    Held,
    held_by_phase,
    is_allocation,
    is_release,
    memory_held,
    phase_memory,
    transfers,
)
from gputui.state import Run, Session
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times
from tests.sessions_for_tests import folded

GIB = 1 << 30


def copied(
    range_: int, way: str, source: str, destination: str, *sizes: int
) -> MemoryOperationDelta:
    return MemoryOperationDelta(
        process=1,
        range=range_,
        operation=f"[CUDA memcpy {way}]",
        device=0,
        source_kind=source,
        destination_kind=destination,
        time=times(*[1000] * len(sizes)),
        size=times(*sizes),
    )


def called(range_: int, name: str, *durations: int) -> ApiDelta:
    return ApiDelta(process=1, range=range_, name=name, time=times(*durations))


def sample(second: float, used: int) -> MachineSample:
    return MachineSample(
        time_ns=at(second),
        host=HostSample(),
        gpus=(GpuSample(index=0, memory_used_bytes=used),),
    )


def session_of(*events: object) -> Session:
    return Session.from_events([header(gpu()), run_started(), attached(), *events])  # type: ignore[list-item]


def run_of(session: Session) -> Run:
    assert session.run is not None
    return session.run


@pytest.fixture
def copying() -> Run:
    """load copies to the device, decode/step back; one memset outside."""
    return run_of(
        session_of(
            defined(1, "load"),
            defined(2, "decode"),
            defined(3, "step", parent=2),
            CaptureDelta(
                time_ns=at(3),
                process=1,
                memory_operations=(
                    copied(1, "Host-to-Device", "pageable", "device", 4000, 6000),
                    copied(1, "Host-to-Device", "pinned", "device", 500),
                    copied(3, "Device-to-Host", "device", "pinned", 8, 8),
                    MemoryOperationDelta(
                        process=1,
                        range=0,
                        operation="[CUDA memset]",
                        device=0,
                        time=times(10),
                        size=times(64),
                    ),
                ),
                api=(
                    called(1, "cudaMalloc", 100, 200),
                    called(3, "cudaMallocAsync_v11020", 5),
                    called(3, "cudaFree", 7),
                    called(3, "cudaMemcpyAsync", 9),
                ),
            ),
        )
    )


def test_copies_are_told_apart_by_the_memory_at_both_ends(copying: Run) -> None:
    rows = transfers(copying)
    assert [(r.source, r.destination, r.count, r.total_bytes) for r in rows] == [
        ("pageable", "device", 2, 10_000),
        ("pinned", "device", 1, 500),
        (None, None, 1, 64),
        ("device", "pinned", 2, 16),
    ]
    first = rows[0]
    assert first.is_pageable
    assert not rows[1].is_pageable
    assert first.average_bytes == 5000
    assert first.largest_bytes == 6000
    assert first.bytes_per_s == pytest.approx(10_000 / 2e-6)


def test_phases_hold_what_phases_inside_them_did(copying: Run) -> None:
    rows = {row.path: row.traffic for row in phase_memory(copying)}
    assert list(rows) == ["load", "decode", "decode/step", "(outside every phase)"]
    assert rows["load"].bytes_of("to device") == 10_500
    assert rows["load"].pageable_bytes == 10_000
    assert (rows["load"].allocations, rows["load"].releases) == (2, 0)
    assert rows["load"].allocating_ns == 300
    assert rows["decode"] == rows["decode/step"]
    assert rows["decode"].bytes_of("to host") == 16
    assert (rows["decode"].allocations, rows["decode"].releases) == (1, 1)
    assert rows["(outside every phase)"].bytes_of("set") == 64


def test_both_are_tables_to_be_asked_for(copying: Run) -> None:
    copies = run_tables()["memory_copies"].table(Session(), copying)
    assert copies.cells[0] == (
        *("[CUDA memcpy Host-to-Device]", "pageable", "device"),
        *(2, 10_000, 5000.0, 6000, 2000, 5_000_000_000),
    )
    assert len(copies.rows) == 4
    phases = run_tables()["memory_phases"].table(Session(), copying)
    headers = [column.header for column in phases.columns]
    load, decode, step, outside = (dict(zip(headers, row, strict=True)) for row in phases.cells)
    assert (load["To Device (bytes)"], load["Pageable (bytes)"]) == (10_500, 10_000)
    assert (decode["Phase"], step["Phase"], step["Path"]) == ("decode", "  step", "decode/step")
    assert (outside["Set (bytes)"], outside["PID"]) == (64, None)


def test_calls_that_get_memory_or_give_it_back() -> None:
    for name in (
        "cudaMalloc",
        "cudaMallocAsync_v11020",
        "cudaMallocHost",
        "cudaHostAlloc",
        "cudaMallocManaged",
        "cuMemAlloc_v2",
    ):
        assert is_allocation(name)
        assert not is_release(name)
    for name in ("cudaFree", "cudaFreeAsync_v11020", "cudaFreeHost", "cuMemFree_v2"):
        assert is_release(name)
    assert not is_allocation("cudaMemcpyAsync")


def test_a_run_without_memory_operations_has_no_rows() -> None:
    run = run_of(session_of(defined(1, "load")))
    assert phase_memory(run) == []
    assert transfers(run) == []


def test_what_a_device_held_is_of_the_run_alone() -> None:
    session = session_of(sample(2, GIB), sample(3, 3 * GIB), sample(4, 2 * GIB), run_ended())
    session.apply([sample(20, 50 * GIB)])
    found = memory_held(session.gpus[0], run_of(session))
    assert found is not None
    assert (found.first, found.most) == (GIB, 3 * GIB)
    assert memory_held(session_of().gpus[0], run_of(session)) is None


def test_what_a_device_held_counts_for_the_phase_that_began_last() -> None:
    def opened(second: float, number: int) -> CaptureDelta:
        return CaptureDelta(
            time_ns=at(second + 0.1), process=1, open_ranges=(OpenRange(number, at(second)),)
        )

    session = session_of(
        defined(1, "load"),
        defined(2, "decode"),
        sample(1.8, 9 * GIB),
        opened(2, 1),
        sample(2.5, GIB),
        opened(3, 2),
        sample(3.5, 4 * GIB),
        sample(4.5, 3 * GIB),
        run_ended(),
        sample(30, 70 * GIB),
    )
    found = held_by_phase(session.gpus[0], run_of(session))
    assert found == {"load": GIB, "decode": 4 * GIB}


def test_every_copy_of_a_recorded_inference_is_in_a_phase(h200: Session) -> None:
    run = run_of(h200)
    rows = {row.path: row.traffic for row in phase_memory(run)}
    assert rows["decode/step/copy_back"].bytes_of("to host") == 63 * 8
    roots = [row for row in phase_memory(run) if row.depth == 0]
    moved = sum(sum(row.traffic.moved_bytes.values()) for row in roots)
    assert moved == sum(row.total_bytes for row in transfers(run))
    assert sum(row.traffic.allocations for row in roots) == 22  # 21 cudaMalloc, 1 cudaHostAlloc


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("weight_bytes", 709_742_592, ("weight", "677 MiB")),
        ("kv_cache_bytes", 251_658_240, ("KV cache", "240 MiB")),
        ("model_bandwidth_bytes_per_s", 2e11, ("model bandwidth", "200 GB/s")),
        ("model_bytes_per_step", 1 << 20, ("model bytes per step", "1.00 MiB")),
        ("ttft_ms", 4.5, ("TTFT", "4.50 ms")),
        ("tokens_per_s", 917.0, ("tokens/s", "917")),
        ("mbu_percent", 4.25, ("mbu", "4.2 %")),
        ("compiled", True, ("compiled", "yes")),
        ("device_name", "NVIDIA H200", ("device name", "NVIDIA H200")),
        ("final_loss", None, ("final loss", "n/a")),
    ],
)
def test_a_metric_is_told_in_the_unit_of_its_name(
    name: str, value: float | str | bool | None, shown: tuple[str, str]
) -> None:
    assert metric_text(name, value) == shown


def test_metrics_of_memory_are_amounts_not_rates() -> None:
    assert is_memory_metric("kv_cache_bytes")
    assert is_memory_metric("peak_memory_allocated_bytes")
    assert not is_memory_metric("read_bytes_per_s")
    assert not is_memory_metric("memory_bandwidth_percent")
    assert not is_memory_metric("tokens_per_s")


def test_what_ran_before_and_after_the_run_is_not_in_its_memory_or_throttling() -> None:
    """It waits until another program leaves the GPU, and a third one comes as it ends."""

    def reading(second: float, used: int, *reasons: str) -> list[AnyEvent]:
        sample = GpuSample(
            index=0, memory_used_bytes=used, power_watts=100.0, throttle_reasons=reasons
        )
        slowed = {"power cap": 2 * second}
        return [
            MachineSample(time_ns=at(second), host=HostSample(), gpus=(sample,)),
            GpuStatus(time_ns=at(second), gpu=0, throttle_seconds=slowed),
        ]

    began = replace(attached(), time_ns=at(5.2), began_ns=at(5))
    events = [header(gpu()), run_started(), *reading(2, 19 << 30, "power cap"), *reading(4, 0)]
    early = replace(began, time_ns=at(4.5), cuda_status="no CUDA", began_ns=at(1.5))
    for attaching in ([began], [early, replace(began, began_ns=at(1.5))]):
        session, run = folded(
            [
                *events, *attaching, *reading(6, 3 << 30), *reading(7, 4 << 30, "board limit"),
                ProcessDetached(time_ns=at(7.5), process=1, clean=True),
                *reading(8, 30 << 30), run_ended(),
            ]
        )  # fmt: skip
        memory, power = (
            run.readings.series(0, field) for field in ("memory_used_bytes", "power_watts")
        )
        assert memory is not None
        assert power is not None
        assert (memory.minimum, memory.maximum, memory.count) == (3 << 30, 4 << 30, 2)
        assert memory_held(session.gpus[0], run) == Held(3 << 30, 4 << 30, 2)
        assert power.count == 5
        assert run.readings.throttle_samples == {(0, "board limit"): 1}
        assert throttled_in(run, 0) == ["board limit 50 % of the run"]
        assert run.readings.throttle_seconds[0, "power cap"].amount == pytest.approx(2 * (8 - 4))
        assert [what for _, what in run.readings.troubles] == ["throttled: board limit"]
    _, unseen = folded([*events, *reading(6, 3 << 30), run_ended()])
    memory = unseen.readings.series(0, "memory_used_bytes")
    assert memory is not None
    assert memory.maximum == 19 << 30
