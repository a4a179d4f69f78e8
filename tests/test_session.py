"""The fold: what events add up to, and that nothing unknown breaks it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputui.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    GpuUnavailable,
    HostSample,
    KernelDefined,
    KernelDelta,
    MachineSample,
    MigFacts,
    OpenRange,
    ProcessDetached,
    RangeDelta,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
)
from gputui.export.write import export_text, summary_text
from gputui.session import HISTORY_SAMPLES, LOG_LINES, MAX_LEVELS, MAX_PATH, Session
from tests.events_for_tests import (
    at,
    attached,
    defined,
    gpu,
    header,
    run_ended,
    run_started,
    times,
)


def folded(*events: AnyEvent) -> Session:
    session = Session()
    session.apply(events)
    return session


def sample(seconds: float, **fields: float) -> MachineSample:
    return MachineSample(
        time_ns=at(seconds),
        host=HostSample(cpu_percent=5.0),
        gpus=(GpuSample(index=0, **fields),),  # type: ignore[arg-type]
    )


def test_samples_are_kept_newest_and_as_a_bounded_history() -> None:
    session = folded(header(gpu()), *(sample(i, power_watts=i) for i in range(HISTORY_SAMPLES + 5)))
    assert session.gpus[0].sample is not None
    assert session.gpus[0].sample.power_watts == HISTORY_SAMPLES + 4
    assert len(session.gpus[0].history) == HISTORY_SAMPLES


def test_reasons_replace_what_was_said_before() -> None:
    session = folded(
        header(gpu()),
        GpuUnavailable(time_ns=at(1), gpu=0, reasons={"power_watts": "not supported"}),
        GpuUnavailable(time_ns=at(2), gpu=0, reasons={"sm_active_percent": "needs Hopper"}),
    )
    assert session.gpus[0].unavailable == {"sm_active_percent": "needs Hopper"}


def test_figures_of_a_gpu_are_summed_up_only_while_a_run_is_active() -> None:
    session = folded(
        header(gpu()),
        sample(0.5, power_watts=700.0),
        run_started(),
        sample(2, power_watts=100.0),
        sample(3, power_watts=300.0),
        run_ended(),
        sample(10, power_watts=700.0),
    )
    assert session.run is not None
    spread = session.run.gpu_spreads[0, "power_watts"]
    assert (spread.minimum, spread.average, spread.maximum) == (100.0, 200.0, 300.0)


def test_a_run_goes_through_its_stages() -> None:
    session = folded(
        header(),
        run_started(),
        RunProgress(time_ns=at(2), run=1, stage="decode", done=1, total=4, unit="tokens"),
        RunMetrics(time_ns=at(3), run=1, metrics={"tokens_per_s": 10.0}),
        RunMetrics(time_ns=at(4), run=1, metrics={"tokens_per_s": 20.0}),
        RunOutput(time_ns=at(5), run=1, stream="stderr", lines=("hello",), dropped_lines=3),
        RunResult(
            time_ns=at(6),
            run=1,
            complete=True,
            parameters={"size": "tiny", "batch": 1},
            results={"ttft_ms": 5.0},
        ),
        run_ended(),
    )
    run = session.run
    assert run is not None
    assert not run.is_active
    assert run.duration_ns == 8_000_000_000
    assert run.metrics == {"tokens_per_s": 20.0, "ttft_ms": 5.0}
    assert run.parameters == {"size": "tiny", "batch": 1}
    assert [line.text for line in run.log] == [
        "hello",
        "3 lines left out here",
        "ended with status 0",
    ]


def test_a_run_that_says_nothing_grows_older_with_the_samples() -> None:
    session = folded(header(gpu()), run_started(), sample(5))
    assert session.run is not None
    assert session.run.duration_ns == 4_000_000_000


def test_the_log_is_bounded_and_counts_all_it_saw() -> None:
    lines = tuple(str(i) for i in range(LOG_LINES))
    output = RunOutput(time_ns=at(2), run=1, stream="stdout", lines=lines)
    session = folded(header(), run_started(), output, output)
    assert session.run is not None
    assert len(session.run.log) == LOG_LINES
    assert session.run.log_lines == 2 * LOG_LINES


def test_captured_deltas_add_up() -> None:
    delta = CaptureDelta(
        time_ns=at(3),
        process=1,
        ranges=(RangeDelta(range=2, cpu=times(10, 20), gpu_busy_ns=7, gpu_total_ns=9),),
        kernels=(KernelDelta(process=1, range=2, kernel=1, device=0, time=times(3, 4)),),
        api=(ApiDelta(process=1, range=2, name="cudaLaunchKernel", time=times(1, 1)),),
        devices=(
            DeviceDelta(
                process=1,
                device=0,
                busy_ns=7,
                operations=2,
                first_start_ns=at(2),
                last_end_ns=at(3),
            ),
        ),
        open_ranges=(OpenRange(1, at(2)),),
        records=11,
        dropped=1,
    )
    session = folded(
        header(),
        run_started(),
        attached(),
        defined(1, "decode"),
        defined(2, "step", parent=1),
        KernelDefined(time_ns=at(2), kernel=1, name="gemm", mangled="_Z4gemm"),
        delta,
        delta,
    )
    run = session.run
    assert run is not None
    step = run.ranges[2]
    assert (step.path, step.depth, step.cpu.count, step.cpu.total) == ("decode/step", 1, 4, 60)
    assert (step.gpu_busy_ns, step.gpu_total_ns) == (14, 18)
    assert run.ranges[1].open_since_ns == at(2)
    assert [times.total for times in run.kernels.values()] == [14]
    assert [times.count for times in run.api.values()] == [4]
    assert run.devices[0].operations == 4
    assert (run.processes[1].records, run.processes[1].dropped) == (22, 2)
    assert session.unknown_references == 0


def test_nothing_is_open_once_the_run_has_ended() -> None:
    session = folded(
        header(),
        run_started(),
        attached(),
        defined(1, "decode"),
        CaptureDelta(time_ns=at(3), process=1, open_ranges=(OpenRange(1, at(2)),)),
        run_ended(),
    )
    assert session.run is not None
    assert session.run.ranges[1].open_since_ns is None


@given(
    st.lists(
        st.one_of(
            st.builds(lambda n: defined(n, "x", parent=n % 3), st.integers(1, 4)),
            st.builds(attached, st.integers(1, 3)),
            st.builds(run_started, st.integers(1, 2)),
            st.builds(run_ended, st.integers(1, 2)),
            st.builds(lambda n: ProcessDetached(time_ns=at(1), process=n, clean=True),
                      st.integers(1, 3)),
            st.builds(
                lambda n: CaptureDelta(
                    time_ns=at(3),
                    process=n,
                    ranges=(RangeDelta(range=n + 1, cpu=times(1)),),
                    kernels=(KernelDelta(process=n, range=n, kernel=n, device=9, time=times(5)),),
                ),
                st.integers(1, 5),
            ),
        )
    )
)  # fmt: skip
def test_events_in_any_order_never_break_the_fold(events: list[AnyEvent]) -> None:
    session = folded(*events)
    for run in session.runs.values():
        for node in run.ranges.values():
            assert node.definition.process in run.processes


def test_device_numbers_stand_for_what_the_process_could_see() -> None:
    ranks = [
        msgspec.structs.replace(attached(number, rank=number - 1), visible_devices=visible)
        for number, visible in ((1, "3"), (2, "GPU-2,GPU-0"), (3, None))
    ]
    session = folded(header(gpu(0), gpu(1), gpu(2), gpu(3)), run_started(), *ranks)
    for process in (1, 2, 3):
        device = DeviceDelta(
            process=process,
            device=0,
            busy_ns=process,
            operations=1,
            first_start_ns=at(2),
            last_end_ns=at(3),
        )
        kernel = KernelDelta(process=process, range=0, kernel=1, device=1, time=times(5))
        session.apply(
            [CaptureDelta(time_ns=at(4), process=process, devices=(device,), kernels=(kernel,))]
        )
    assert session.run is not None
    assert {index: d.busy_ns for index, d in session.run.devices.items()} == {3: 1, 2: 2, 0: 3}
    # The first process sees one GPU alone: its number 1 names none, and stays as it is.
    assert {key.process: key.device for key in session.run.kernels} == {1: 1, 2: 0, 3: 1}


def test_a_process_on_a_mig_instance_is_on_the_gpu_that_holds_it() -> None:
    parts = tuple(
        MigFacts(index=part, uuid=f"MIG-{part}", name="1g.18gb", gpu_instance_id=part)
        for part in (7, 8)
    )
    holder = msgspec.structs.replace(gpu(1), mig_enabled=True, mig_instances=parts)
    process = msgspec.structs.replace(attached(), visible_devices="MIG-8")
    kernel = KernelDelta(process=1, range=0, kernel=1, device=0, time=times(5))
    session = folded(
        header(gpu(0), holder),
        run_started(),
        process,
        CaptureDelta(time_ns=at(4), process=1, kernels=(kernel,)),
    )
    assert session.run is not None
    assert [key.device for key in session.run.kernels] == [1]


def test_ranges_nested_without_end_stop_at_a_level_and_the_rest_is_counted() -> None:
    deep = [defined(1 + i, f"level {i}", parent=i) for i in range(MAX_LEVELS + 100)]
    inside = CaptureDelta(
        time_ns=at(2),
        process=1,
        ranges=(RangeDelta(range=MAX_LEVELS, cpu=times(5)), RangeDelta(range=MAX_LEVELS + 1)),
    )
    session = folded(header(), run_started(), attached(), *deep, inside)
    run = session.run
    assert run is not None
    assert sorted(run.ranges) == list(range(1, MAX_LEVELS + 1))
    assert run.ranges[MAX_LEVELS].depth == MAX_LEVELS - 1
    assert run.ranges[MAX_LEVELS].children == []
    assert session.unknown_references == 100 + 1
    assert "level 511" in summary_text(session, run)
    for name in ("csv", "json", "md", "html"):
        assert export_text(session, run, name)


def test_paths_of_nested_ranges_stay_bounded() -> None:
    deep = [defined(1 + i, "n" * 4000, parent=i) for i in range(10)]
    session = folded(header(), run_started(), attached(), *deep)
    run = session.run
    assert run is not None
    assert max(len(node.path) for node in run.ranges.values()) <= MAX_PATH
    assert (len(run.ranges), session.unknown_references) == (2, 8)
