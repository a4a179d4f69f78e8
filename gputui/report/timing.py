"""How work followed its launches, in figures: latency, queues, idle time, overlap of streams."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputui.model.events import OTHER_STREAMS
from gputui.model.sketch import Accumulator
from gputui.report.availability import REASON, has_idle_ranges, has_idle_times, has_streams
from gputui.report.phase_tree import phase_path
from gputui.state import Run
from gputui.state.keys import DeviceKey
from gputui.state.timing import DeviceUse


class Spread(msgspec.Struct, frozen=True):
    """Times of one kind."""

    count: int
    total_ns: int
    avg_ns: float | None
    med_ns: float | None
    min_ns: int | None
    max_ns: int | None
    stddev_ns: float | None


class IdleRange(msgspec.Struct, frozen=True):
    """How long a GPU idled while the launching thread was in a range; `path` is None outside
    every range."""

    path: str | None
    idle_ns: int


class DeviceTiming(msgspec.Struct, frozen=True):
    """One process's work on one GPU. `unavailable` has the reason for each that is None."""

    rank: int | None
    pid: int
    gpu: int
    span_ns: int
    busy_ns: int
    operations: int
    overlap_ns: int | None
    idle: Spread | None
    idle_ranges: list[IdleRange] | None
    unavailable: dict[str, str]


class StreamTiming(msgspec.Struct, frozen=True):
    """One stream's work; `stream` is None for those over the limit."""

    rank: int | None
    pid: int
    gpu: int
    stream: int | None
    name: str | None
    operations: int
    busy_ns: int
    busy_percent: float | None
    latency: Spread | None
    queue: Spread | None
    idle: Spread | None


class ThreadTiming(msgspec.Struct, frozen=True):
    """One thread's launches."""

    rank: int | None
    pid: int
    tid: int
    launches: int
    interval: Spread | None


class Timing(msgspec.Struct, frozen=True):
    """How work followed its launches. `unavailable` has the reason for each that is None."""

    devices: list[DeviceTiming]
    streams: list[StreamTiming] | None
    threads: list[ThreadTiming] | None
    unavailable: dict[str, str]


def timing_of(run: Run) -> Timing:
    """The `timing` of `summary --format json`."""
    there = has_streams(run)
    return Timing(
        device_timings(run),
        stream_timings(run) if there else None,
        thread_timings(run) if there else None,
        {} if there else dict.fromkeys(("streams", "threads"), REASON),
    )


def _whose(run: Run, process: int) -> tuple[int | None, int]:
    attached = run.processes[process].attached
    return attached.rank, attached.pid


def _spread(times: Accumulator) -> Spread | None:
    if not times.count:
        return None
    return Spread(times.count, times.total, times.average, times.median, times.minimum,
                  times.maximum, times.deviation)  # fmt: skip


def device_timings(run: Run) -> list[DeviceTiming]:
    """By process and device."""
    ranges = has_idle_ranges(run)
    return [
        _device(run, process, device, use, ranges)
        for (process, device), use in sorted(run.timing.devices.items())
    ]


def _device(run: Run, process: int, device: int, use: DeviceUse, ranges: bool) -> DeviceTiming:
    measured = has_idle_times(run, process, device)
    absent = (() if measured else ("overlap_ns", "idle")) + (() if ranges else ("idle_ranges",))
    return DeviceTiming(
        *_whose(run, process),
        device,
        use.span_ns,
        use.busy_ns,
        use.operations,
        use.overlap_ns if measured else None,
        _spread(use.idle) if measured else None,
        _idle_ranges(run, run.timing.idle_by_range(process, device)) if ranges else None,
        dict.fromkeys(absent, REASON),
    )


def _idle_ranges(run: Run, idle: Mapping[int, int]) -> list[IdleRange]:
    sums: dict[str | None, int] = {}
    for place, idle_ns in idle.items():
        path = phase_path(run, place)
        sums[path] = sums.get(path, 0) + idle_ns
    return [IdleRange(*item) for item in sorted(sums.items(), key=lambda item: -item[1])]


def stream_timings(run: Run) -> list[StreamTiming]:
    """In no order."""
    rows = []
    for key, times in run.timing.streams.items():
        process = run.processes.get(key.process)
        span_ns = run.timing.devices.get(DeviceKey(key.process, key.device), DeviceUse()).span_ns
        rows.append(
            StreamTiming(
                *_whose(run, key.process),
                key.device,
                None if key.stream == OTHER_STREAMS else key.stream,
                process.stream_name(key.device, key.stream) if process else None,
                times.operations,
                times.busy_ns,
                100.0 * times.busy_ns / span_ns if span_ns else None,
                _spread(times.latency),
                _spread(times.queue),
                _spread(times.idle),
            )
        )
    return rows


def thread_timings(run: Run) -> list[ThreadTiming]:
    """In no order."""
    return [
        ThreadTiming(*_whose(run, process), tid, times.launches, _spread(times.interval))
        for (process, tid), times in run.timing.threads.items()
    ]
