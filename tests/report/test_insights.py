"""What the rules say of runs made for them, each just over and just under its threshold."""

from __future__ import annotations

from gputui.model.events import (
    CaptureDelta,
    DeviceDelta,
    Distribution,
    IdleRange,
    ProcessAttached,
    RangeDefined,
    RunStarted,
    StreamDelta,
)
from gputui.model.sketch import steps
from gputui.report.explain import insights
from gputui.state import Session


def started() -> Session:
    session = Session()
    session.apply(
        [
            RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5),
            ProcessAttached(
                time_ns=0, run=1, process=1, pid=5, parent_pid=1, command="p", cuda_status="tracing"
            ),
            RangeDefined(time_ns=0, range=1, process=1, thread=5, parent=0, name="load"),
        ]
    )
    return session


def device(busy_ns: int, idle: Distribution | None = None, overlap_ns: int = 0) -> DeviceDelta:
    return DeviceDelta(
        process=1, device=0, busy_ns=busy_ns, operations=9, first_start_ns=1,
        last_end_ns=1_000_000_001, idle=idle, overlap_ns=overlap_ns,
    )  # fmt: skip


def times(value: int, count: int = 1) -> Distribution:
    return Distribution(
        count, value * count, 0.0, value, value, steps([(value, count)]), exact=False
    )


def found(session: Session, rule: str) -> list[str]:
    assert session.run is not None
    return [entry.verdict for entry in insights(session, session.run) if entry.rule == rule]


def test_an_idle_gpu_names_the_range_it_waited_for():
    session = started()
    shares = (IdleRange(0, 1, 700_000_000), IdleRange(0, 0, 50_000_000))
    delta = device(250_000_000, times(750_000_000))
    session.apply([CaptureDelta(time_ns=1, process=1, devices=(delta,), idle_ranges=shares)])
    assert found(session, "gpu_idle") == [
        "GPU 0 was busy 25 % of the time: the CPU cannot feed it; 93 % of its idle time is in load"
    ]
    assert not found(session, "launch_gaps")  # one long gap is not launching


def test_many_short_gaps_are_laid_to_launching():
    session = started()
    delta = device(600_000_000, times(20_000, 20_000))
    session.apply([CaptureDelta(time_ns=1, process=1, devices=(delta,))])
    assert found(session, "launch_gaps") == [
        "GPU 0 was idle 40 % of the time in sub-millisecond gaps between launches (process 5)"
    ]


def test_a_run_that_was_traced_part_of_the_time_is_not_called_idle():
    session = started()
    delta = device(100_000_000, times(20_000, 20_000))
    session.apply(
        [CaptureDelta(time_ns=1, process=1, devices=(delta,), traced_ns=10, paused_ns=90)]
    )
    assert not found(session, "gpu_idle")
    assert not found(session, "launch_gaps")


def test_streams_that_never_run_together():
    def verdicts(overlap_ns: int) -> list[str]:
        session = started()
        streams = (StreamDelta(0, 7, 5, 500_000_000), StreamDelta(0, 13, 5, 200_000_000))
        delta = device(700_000_000 - overlap_ns, overlap_ns=overlap_ns)
        session.apply([CaptureDelta(time_ns=1, process=1, devices=(delta,), streams=streams)])
        return found(session, "no_stream_overlap")

    assert verdicts(2_000_000) == [
        "process 5 kept 2 streams of GPU 0 busy, but only 1.0 % of the possible overlap was used"
    ]
    assert not verdicts(50_000_000)


def test_a_queue_that_grows():
    def verdicts(last_ns: int) -> list[str]:
        session = started()
        for tick in range(12):
            queue = times(1_000_000 + (last_ns - 1_000_000) * tick // 11, 10)
            stream = StreamDelta(0, 7, 10, 1, latency=queue, queue=queue)
            session.apply([CaptureDelta(time_ns=tick, process=1, streams=(stream,))])
        return found(session, "queue_growing")

    assert verdicts(12_000_000) == [
        "kernels of process 5 waited 2.50 ms in the queue at first, 10.5 ms at last: the host "
        "launches faster than the GPU works"
    ]
    assert not verdicts(1_500_000)
