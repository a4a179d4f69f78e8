"""The fold: what events add up to, and that nothing unknown breaks it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    HostSample,
    HostUnavailable,
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
from gputui.render import formats
from gputui.state import HISTORY_SAMPLES, LOG_LINES, MAX_LEVELS, MAX_PATH, Session
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times


def folded(*events: AnyEvent) -> Session:
    return Session.from_events(events)


def sample(seconds: float, **fields: float | None) -> MachineSample:
    return MachineSample(
        time_ns=at(seconds),
        host=HostSample(cpu_percent=5.0),
        gpus=(GpuSample(index=0, **fields),),  # type: ignore[arg-type]
    )


def test_samples_are_kept_newest_and_as_a_bounded_history() -> None:
    session = folded(header(gpu()), *(sample(i, power_watts=i) for i in range(HISTORY_SAMPLES + 5)))
    assert session.gpus[0].sample is not None
    assert session.gpus[0].sample.power_watts == HISTORY_SAMPLES + 4
    assert len(session.gpus[0].samples.history) == HISTORY_SAMPLES


def test_a_clock_that_is_set_back_makes_no_figure_old() -> None:
    session = folded(header(gpu()), sample(7200, power_watts=1.0), sample(3600, power_watts=2.0))
    assert session.now_ns == session.gpus[0].sample_ns == at(3600)
    session.apply([run_started(), sample(3601)])
    assert session.now_ns == at(3601)
    session.apply([sample(7200), RunMetrics(time_ns=at(7201), run=1, metrics={})])
    assert session.now_ns == at(7201)


def test_what_the_machine_tells_is_found_where_views_look() -> None:
    session = folded(
        header(gpu(0), gpu(1)),
        sample(1, power_watts=1.0),
        sample(2, power_watts=3.0),
        GpuStatus(time_ns=at(2.5), gpu=1, fan_percent=40.0),
        HostUnavailable(time_ns=at(2.5), reasons={"load_1m": "not told"}),
        GpuUnavailable(time_ns=at(2.5), gpu=0, reasons={"device": "the GPU is lost"}),
        sample(30, power_watts=None),
        MachineSample(
            time_ns=at(31), host=HostSample(), gpus=(GpuSample(index=1),), own_cpu_percent=1.5
        ),
        header(gpu(1)),
    )
    assert session.host_unavailable == {"load_1m": "not told"}
    assert session.own_cpu_percent == 1.5
    assert [time_ns for time_ns, _ in session.host_samples.history] == [
        at(1),
        at(2),
        at(30),
        at(31),
    ]
    one, other = session.gpus[0], session.gpus[1]
    assert one.status is None
    assert other.status is not None
    assert other.status.fan_percent == 40.0
    # A card that is lost was last heard of before; the other one just now.
    assert (one.sample_ns, other.sample_ns) == (at(2), at(31))
    assert list(one.samples.long_history.levels[0].means("power_watts")) == [(at(1.5), 2.0)]
    assert len(list(session.host_samples.long_history.levels[0].means("cpu_percent"))) == 1
    assert session.unknown_references == 0


def test_gpus_that_no_header_told_of_are_counted_and_left_out() -> None:
    nine = (GpuSample(index=9), GpuSample(index=0, power_watts=5.0))
    session = folded(
        header(gpu(0)),
        MachineSample(time_ns=at(1), host=HostSample(), gpus=nine),
        GpuStatus(time_ns=at(2), gpu=9),
        GpuUnavailable(time_ns=at(2), gpu=9, reasons={}),
    )
    assert session.unknown_references == 3
    assert session.gpus[0].sample is not None  # after the one that was left out
    assert list(session.gpus) == [0]


def test_throttling_is_counted_a_sample_and_only_of_a_run() -> None:
    def throttled(seconds: float, *reasons: str) -> MachineSample:
        figures = GpuSample(index=0, throttle_reasons=reasons)
        return MachineSample(time_ns=at(seconds), host=HostSample(), gpus=(figures,))

    session = folded(
        header(gpu()), throttled(0.5, "heat"), run_started(), throttled(2, "heat", "power cap"),
        throttled(3, "heat"), throttled(4), run_ended(), throttled(10, "heat"),
    )  # fmt: skip
    assert session.run is not None
    assert session.run.readings.throttle_samples == {(0, "heat"): 2, (0, "power cap"): 1}


def test_deltas_add_up() -> None:
    one = CaptureDelta(
        time_ns=at(3), process=1, records=5, dropped=1, unattributed=2, callback_ns=3,
        reader_cpu_ns=7, traced_ns=30, paused_ns=10,
        ranges=(RangeDelta(range=1, cpu=times(5), gpu_busy_ns=2, gpu_total_ns=3,
                           projected=times(4), projected_range_ns=6, gpu_operations=1, levels=2,
                           children_with_work=1),),
    )  # fmt: skip
    session = folded(header(), run_started(), attached(), defined(1, "step"), one, one)
    run = session.run
    assert run is not None
    process, node = run.processes[1], run.ranges[1]
    counted = ("records", "dropped", "unattributed", "callback_ns", "reader_cpu_ns")
    assert [getattr(process, name) for name in counted] == [10, 2, 4, 6, 14]
    assert run.traced_share == 0.75
    assert (node.cpu.total, node.projected.total) == (10, 8)
    sums = ("gpu_busy_ns", "gpu_total_ns", "projected_range_ns", "gpu_operations", "levels",
            "children_with_work")  # fmt: skip
    assert [getattr(node, name) for name in sums] == [4, 6, 12, 2, 4, 2]


def test_no_range_has_the_number_that_stands_for_none() -> None:
    """It would be around itself: what goes up its ranges would never end."""
    none = defined(0, "none")
    session = folded(header(), run_started(), attached(), none)
    assert session.run is not None
    assert session.run.ranges == {}
    assert session.unknown_references == session.run.processes[1].left_out_nodes + 1 == 1


def test_what_names_a_range_that_is_not_known_is_counted_outside_every_range() -> None:
    kernel = KernelDelta(process=1, range=7, kernel=1, device=0, time=times(5))
    call = ApiDelta(process=1, range=8, name="cudaLaunchKernel", time=times(5))
    session = folded(
        header(), run_started(), attached(),
        CaptureDelta(time_ns=at(3), process=1, kernels=(kernel,), api=(call,),
                     ranges=(RangeDelta(range=9, cpu=times(1)),)),
    )  # fmt: skip
    assert session.run is not None
    kernels, calls = session.run.kernels.values(), session.run.api.values()
    assert [(row.range, row.time.count) for row in (*kernels, *calls)] == [(0, 1), (0, 1)]
    assert session.run.ranges == {}  # of the range itself nothing is said
    assert session.unknown_references == 3
    assert session.run.undefined_range_records == 2


def test_phases_are_remembered_by_when_they_began_once_each() -> None:
    def open_at(seconds: float, *ranges: OpenRange) -> CaptureDelta:
        return CaptureDelta(time_ns=at(seconds), process=1, open_ranges=ranges)

    session = folded(
        header(), run_started(), attached(), defined(1, "load"), defined(2, "decode"),
        defined(3, "step", parent=2),
        open_at(3, OpenRange(2, at(2.5)), OpenRange(3, at(2.6))),
        open_at(4, OpenRange(2, at(2.5)), OpenRange(3, at(3.6))),
        open_at(5, OpenRange(1, at(2))),
    )  # fmt: skip
    run = session.run
    assert run is not None
    assert run.phase_starts == [(at(2), "load"), (at(2.5), "decode")]
    assert [run.ranges[number].open_since_ns for number in (1, 2, 3)] == [at(2), None, None]


def test_a_run_that_ends_before_it_began_took_no_time() -> None:
    early = msgspec.structs.replace(run_ended(), time_ns=at(0.5))
    session = folded(header(), run_started(), early)
    assert session.run is not None
    assert session.run.duration_ns == 0
    assert session.run.traced_share == 1.0


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
    power = session.run.readings.series(0, "power_watts")
    assert power is not None
    assert (power.minimum, power.average, power.maximum) == (100.0, 200.0, 300.0)


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


def test_a_stage_lasts_from_the_first_word_of_it() -> None:
    def progress(seconds: float, stage: str) -> RunProgress:
        return RunProgress(time_ns=at(seconds), run=1, stage=stage, done=1, total=4, unit="")

    session = folded(header(), run_started())
    assert session.run is not None
    since = [session.run.stage_started_ns]
    for seconds, stage in ((2, "load"), (3, "load"), (4, "decode"), (5, "decode")):
        session.apply([progress(seconds, stage)])
        since.append(session.run.stage_started_ns)
    assert since == [at(1), at(2), at(2), at(4), at(4)]


def test_why_nothing_is_captured_is_said_in_the_log() -> None:
    why = "no capture library"
    started = msgspec.structs.replace(run_started(), capture_unavailable_reason=why)
    session = folded(header(), started)
    assert session.run is not None
    assert [(line.stream, line.text) for line in session.run.log] == [("gputui", why)]
    assert session.run.log_lines == 1


def test_a_process_is_said_again_once_it_has_cuda() -> None:
    first = msgspec.structs.replace(attached(), cuda_status="none")
    session = folded(header(), run_started(), first, attached())
    assert session.run is not None
    assert [process.attached.cuda_status for process in session.run.processes.values()] == [
        "tracing"
    ]


def test_events_of_runs_that_are_not_known_are_counted() -> None:
    session = folded(header(), run_ended(7), attached(run=8), ProcessDetached(
        time_ns=at(3), process=5, clean=True))  # fmt: skip
    assert session.unknown_references == 3
    assert session.run is None


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
    assert [kernels.time.total for kernels in run.kernels.values()] == [14]
    assert [calls.time.count for calls in run.api.values()] == [4]
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
    assert {row.process: row.device for row in session.run.kernels.values()} == {1: 1, 2: 0, 3: 1}


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
    assert [row.device for row in session.run.kernels.values()] == [1]


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
    assert "level 511" in formats.summary(session, run, "table")
    for name in ("csv", "json", "md", "html"):
        assert formats.summary(session, run, name)


def test_paths_of_nested_ranges_stay_bounded() -> None:
    deep = [defined(1 + i, "n" * 4000, parent=i) for i in range(10)]
    session = folded(header(), run_started(), attached(), *deep)
    run = session.run
    assert run is not None
    assert max(len(node.path) for node in run.ranges.values()) <= MAX_PATH
    assert (len(run.ranges), session.unknown_references) == (2, 8)
