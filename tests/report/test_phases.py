"""Phases: the range tree as rows, by hand and on a run recorded on an H200."""

from __future__ import annotations

import msgspec
import pytest

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    HostSample,
    KernelDelta,
    MachineSample,
    MemoryOperationDelta,
    OpenRange,
    RangeDelta,
)
from gputui.model.kernel_categories import category
from gputui.render.prometheus import prometheus_text
from gputui.report.comparable import Subject
from gputui.report.compare import compare
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.statistics import kernel_rows
from gputui.state import MAX_LEVELS, Session
from tests.events_for_tests import at, attached, defined, header, run_started, times


def session_of(*events: AnyEvent, step_range: str | None = "step") -> Session:
    return Session.from_events([header(), run_started(step_range=step_range), attached(), *events])


def rows_of(*events: AnyEvent, step_range: str | None = "step", **options: bool) -> list[PhaseRow]:
    run = session_of(*events, step_range=step_range).run
    assert run is not None
    return phase_rows(run, **options)


def cpu(*ranges: tuple[int, list[int]]) -> CaptureDelta:
    return CaptureDelta(
        time_ns=at(3),
        process=1,
        ranges=tuple(RangeDelta(range=number, cpu=times(*values)) for number, values in ranges),
    )


DEVICE = DeviceDelta(
    process=1, device=0, busy_ns=100, operations=3, first_start_ns=at(2), last_end_ns=at(3)
)


def test_time_is_inclusive_exclusive_and_a_step() -> None:
    decode, step, mlp = rows_of(
        defined(1, "decode"),
        defined(2, "step", parent=1),
        defined(3, "mlp", parent=2),
        cpu((1, [100]), (2, [40, 40]), (3, [10, 10, 10, 10])),
    )
    assert (decode.path, step.path, mlp.path) == ("decode", "decode/step", "decode/step/mlp")
    assert (decode.depth, step.depth, mlp.depth) == (0, 1, 2)
    assert (decode.cpu_exclusive_ns, step.cpu_exclusive_ns, mlp.cpu_exclusive_ns) == (20, 40, 40)
    assert (decode.per_step_ns, step.per_step_ns, mlp.per_step_ns) == (None, 40.0, 20.0)
    assert (decode.share_percent, step.share_percent, mlp.share_percent) == (None, 100.0, 50.0)


def test_a_step_is_recognised_by_name_where_nobody_declared_one() -> None:
    rows = rows_of(
        defined(1, "train"),
        defined(2, "iteration 7", parent=1),
        cpu((1, [100]), (2, [40, 40])),
        step_range=None,
    )
    assert [row.per_step_ns for row in rows] == [None, 40.0]


def test_parents_count_what_their_children_launched() -> None:
    decode, step = rows_of(
        defined(1, "decode"),
        defined(2, "step", parent=1),
        CaptureDelta(
            time_ns=at(3),
            process=1,
            kernels=(
                KernelDelta(process=1, range=2, kernel=1, device=0, time=times(5, 6)),
                KernelDelta(process=1, range=0, kernel=1, device=0, time=times(9)),
            ),
            api=(
                ApiDelta(process=1, range=2, name="cudaLaunchKernel", time=times(1, 1)),
                ApiDelta(process=1, range=2, name="cudaLaunchHostFunc", time=times(1)),
                ApiDelta(process=1, range=1, name="cudaGraphLaunch_v10000", time=times(1)),
                ApiDelta(process=1, range=2, name="cudaMemcpyAsync", time=times(1)),
            ),
            memory_operations=(
                MemoryOperationDelta(
                    process=1,
                    range=2,
                    operation="[CUDA memcpy Device-to-Host]",
                    device=0,
                    time=times(3),
                    size=times(4096),
                ),
                MemoryOperationDelta(
                    process=1,
                    range=2,
                    operation="[CUDA memset]",
                    device=0,
                    time=times(3),
                    size=times(77),
                ),
            ),
            devices=(DEVICE,),
        ),
    )
    assert (step.kernels, step.kernel_ns, step.launches, step.memcpy_bytes) == (2, 11, 2, 4096)
    assert (decode.kernels, decode.launches) == (2, 3)


def test_kernels_of_threads_without_ranges_count_in_the_main_threads() -> None:
    events = (
        defined(1, "backward"),
        CaptureDelta(
            time_ns=at(3),
            process=1,
            kernels=(
                KernelDelta(process=1, range=1, kernel=1, device=0, inherited=True, time=times(5)),
            ),
            devices=(DEVICE,),
        ),
    )
    (row,) = rows_of(*events)
    assert (row.kernels, row.inherited_kernels) == (1, 1)


def test_launches_are_not_told_of_ranges_beside_those_of_the_program() -> None:
    kernel = KernelDelta(process=1, range=1, kernel=1, device=0, time=times(5))
    launch = ApiDelta(process=1, range=1, name="cudaLaunchKernel", time=times(2))
    copy = MemoryOperationDelta(
        process=1, range=1, operation="[CUDA memcpy Host-to-Device]", device=0, time=times(5),
        size=times(64),
    )  # fmt: skip
    events = (
        defined(1, "step"),
        defined(2, "gather", domain="beside"),
        CaptureDelta(
            time_ns=at(3),
            process=1,
            kernels=(kernel,),
            secondary_domain_kernels=(msgspec.structs.replace(kernel, range=2),),
            api=(launch,),
            memory_operations=(copy,),
            devices=(DEVICE,),
        ),
    )
    step, beside = rows_of(*events)
    assert (step.kernels, step.launches, step.memcpy_bytes) == (1, 1, 64)
    assert (beside.kernels, beside.launches, beside.memcpy_bytes) == (1, None, None)
    # Nor in what is compared and served.
    session = session_of(*events)
    inside, outside = compare([Subject("a", session, session.run)] * 2).of_kind("phase")
    assert {"launches", "memcpy_bytes", "kernels"} <= inside.figures.keys()
    assert {"launches", "memcpy_bytes", "kernels"} & outside.figures.keys() == {"kernels"}
    served = [line for line in prometheus_text(session).splitlines() if 'domain="beside"' in line]
    assert any("phase_kernels" in line for line in served)
    assert not any("launches" in line or "memcpy" in line for line in served)


def test_threads_of_a_process_are_one_row_and_processes_are_two() -> None:
    rows = rows_of(
        defined(1, "work", thread=11),
        defined(2, "work", thread=12),
        attached(2, rank=1),
        defined(3, "work", process=2),
        cpu((1, [10]), (2, [20])),
    )
    assert [(row.pid, row.rank, row.instances) for row in rows] == [(101, None, 2), (102, 1, 0)]


def test_domains_of_libraries_are_off_the_tree_unless_asked_for() -> None:
    events = (defined(1, "mine"), defined(2, "AllReduce", domain="NCCL"))
    assert [row.name for row in rows_of(*events)] == ["mine"]
    assert [row.name for row in rows_of(*events, library_domains=True)] == ["mine", "AllReduce"]


def test_what_is_open_says_since_when() -> None:
    (row,) = rows_of(
        defined(1, "decode"),
        CaptureDelta(time_ns=at(3), process=1, open_ranges=(OpenRange(1, at(2.5)),)),
    )
    assert row.is_open
    assert row.phase.nodes[0].open_since_ns == at(2.5)


def test_a_range_that_is_open_counts_until_its_process_last_spoke() -> None:
    def live(sampled_s: float) -> tuple[int, int]:
        (row,) = rows_of(
            defined(1, "attention"),
            CaptureDelta(
                time_ns=at(4),
                process=1,
                ranges=(RangeDelta(range=1, cpu=times(10**6)),),
                open_ranges=(OpenRange(1, at(4) - 1000),),
            ),
            MachineSample(time_ns=at(sampled_s), host=HostSample(), gpus=()),
        )
        assert row.instances == 1
        return row.cpu_total_ns, row.cpu_exclusive_ns

    # The next delta is on its way: of 1 µs so far, not of the time that it takes.
    assert live(4.2) == (10**6 + 1000,) * 2
    # None came: the program is still in it.
    assert live(6) == (10**6 + 2 * 10**9 + 1000,) * 2


def test_an_open_range_has_lasted_as_long_as_what_ended_inside_it() -> None:
    decode, step = rows_of(
        defined(1, "decode"),
        defined(2, "step", parent=1),
        CaptureDelta(
            time_ns=at(4),
            process=1,
            ranges=(RangeDelta(range=2, cpu=times(2 * 10**9 + 1000)),),
            open_ranges=(OpenRange(1, at(2)),),
        ),
    )
    assert decode.cpu_total_ns == step.cpu_total_ns == 2 * 10**9 + 1000


def test_shares_of_a_running_program_count_what_is_open() -> None:
    decode, step = rows_of(
        defined(1, "decode"),
        defined(2, "step", parent=1),
        CaptureDelta(
            time_ns=at(4),
            process=1,
            ranges=(RangeDelta(range=2, cpu=times(10**9)),),
            open_ranges=(OpenRange(1, at(2)),),
        ),
    )
    assert (decode.share_percent, step.share_percent) == (None, 100.0)
    assert decode.cpu_exclusive_ns == 10**9
    assert decode.cpu_total_ns == 2 * 10**9


def test_nesting_as_deep_as_is_kept_has_a_row_a_level() -> None:
    rows = rows_of(*(defined(i, "r", parent=i - 1) for i in range(1, MAX_LEVELS + 1)))
    assert [row.depth for row in rows] == list(range(MAX_LEVELS))


@pytest.mark.parametrize(("phase", "steps"), [("warmup", 6), ("prefill", 1), ("decode", 63)])
def test_launches_on_an_h200_are_what_the_layers_imply(
    h200: Session, phase: str, steps: int
) -> None:
    layers = 12
    assert h200.run is not None
    rows = {row.path: row for row in phase_rows(h200.run)}
    assert rows[f"{phase}/step"].instances == steps
    gemms = {
        name: sum(
            row.instances
            for row in kernel_rows(h200, h200.run, _below(h200, f"{phase}/step/{name}"))
            # cuBLAS may split a product's inner dimension: its sum is the same product's.
            if category(row.name) == "matmul" and "splitKreduce" not in row.short_name
        )
        for name in ("qkv_proj", "out_proj", "mlp", "lm_head")
    }
    assert gemms == {
        "qkv_proj": layers * steps,
        "out_proj": layers * steps,
        "mlp": 2 * layers * steps,
        "lm_head": steps,
    }
    assert sum(gemms.values()) == (4 * layers + 1) * steps


def _below(session: Session, path: str) -> list[int]:
    assert session.run is not None
    return [number for number, node in session.run.ranges.items() if node.path == path]


def test_every_kernel_on_an_h200_lies_inside_a_range(h200: Session) -> None:
    assert h200.run is not None
    assert all(row.range for row in h200.run.kernels.values())
    roots = sum(row.kernels for row in phase_rows(h200.run) if row.depth == 0)
    assert roots == sum(kernels.time.count for kernels in h200.run.kernels.values()) == 10578


def test_a_launch_bound_decode_leaves_the_gpu_idle(h200: Session) -> None:
    assert h200.run is not None
    step = next(row for row in phase_rows(h200.run) if row.path == "decode/step")
    assert step.gpu_idle_ns is not None
    assert step.gpu_idle_ns + step.gpu_busy_ns == step.projected.total
    assert step.gpu_idle_ns > 2 * step.gpu_busy_ns


def test_gpu_busy_never_exceeds_the_sum_of_durations(h200: Session) -> None:
    assert h200.run is not None
    for row in phase_rows(h200.run):
        assert 0 <= row.gpu_busy_ns <= row.gpu_total_ns


def test_shares_are_of_the_steps_and_what_is_in_another_domain_has_none() -> None:
    rows = rows_of(
        defined(1, "step"),
        defined(2, "mlp", parent=1),
        defined(3, "step", domain="beside"),
        cpu((1, [100]), (2, [25]), (3, [90])),
    )
    assert {(row.domain, row.path): row.share_percent for row in rows} == {
        ("", "step"): 100,
        ("", "step/mlp"): 25,
        ("beside", "step"): None,
    }


def test_a_file_may_nest_a_domain_in_another_ones_step() -> None:
    rows = rows_of(
        defined(1, "step"),
        defined(2, "inside", parent=1, domain="beside"),
        cpu((1, [100, 100]), (2, [50])),
    )
    assert [row.per_step_ns for row in rows] == [100, 25]
