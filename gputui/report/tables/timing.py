"""How work followed its launches, in figures: latency, queues, idle time, overlap of streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gputui.model.events import OTHER_STREAMS, DeviceDelta
from gputui.model.statistics import Statistics
from gputui.report.phase_tree import phase_path
from gputui.report.schema import (
    RANK,
    REASON,
    AnyColumn,
    Cell,
    Column,
    TableSpec,
    count,
    empty_of_kernels,
    has_idle_ranges,
    has_idle_times,
    has_streams,
    if_any,
    no_rows_unless,
    number,
    percent,
    text,
    time,
)
from gputui.state import Run


class Spread(msgspec.Struct, frozen=True):
    """How the times of one kind are spread, in ns."""

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
    """The work of one stream; `stream` is None for all streams over the limit together."""

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
    """How one thread's launches followed one another."""

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


def _spread(times: Statistics | None) -> Spread | None:
    if times is None or not times.count:
        return None
    return Spread(times.count, times.total, times.average, times.median, times.minimum,
                  times.maximum, times.deviation)  # fmt: skip


def device_timings(run: Run) -> list[DeviceTiming]:
    """How busy each device was, by process and device."""
    ranges = has_idle_ranges(run)
    return [_device(run, use, ranges) for _, use in sorted(run.timing.devices.items())]


def _device(run: Run, use: DeviceDelta, ranges: bool) -> DeviceTiming:
    process, device = use.process, use.device
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
    """How each stream was used, in no particular order."""
    rows = []
    for times in run.timing.streams.values():
        process = run.processes.get(times.process)
        use = run.timing.devices.get((times.process, times.device))
        span_ns = use.span_ns if use is not None else 0
        rows.append(
            StreamTiming(
                *_whose(run, times.process),
                times.device,
                None if times.stream == OTHER_STREAMS else times.stream,
                process.stream_name(times.device, times.stream) if process else None,
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
    """The launches of each thread, in no particular order."""
    return [
        ThreadTiming(
            *_whose(run, times.process), times.thread, times.launches, _spread(times.interval)
        )
        for times in run.timing.launching_threads.values()
    ]


# --- tables of how work followed its launches: latency, queues, idle time, overlap of streams


_OUTSIDE = "(outside every range)"

_OWNER: tuple[AnyColumn, ...] = (
    RANK,
    number("PID", "pid", lambda row: row.pid, "The process"),
)  # fmt: skip


def _times(get: Callable[[Any], Spread | None], title: str, meaning: str,
           priority: int) -> tuple[AnyColumn, ...]:  # fmt: skip
    """Mean, median, least and most of what `meaning` says."""

    def cell(figure: str) -> Callable[[Any], Cell]:
        return lambda row: getattr(get(row), f"{figure}_ns", None)

    return tuple(
        time(f"{title} {figure.capitalize()}", f"{title.lower()}_{figure}_ns", cell(figure),
             f"{meaning}: {what}", kind=kind | None, priority=priority + later)
        for figure, what, kind, later in (
            ("avg", "mean", float, 1),
            ("med", "median", float, 0),
            ("min", "least", int, 1),
            ("max", "most", int, 0),
        )
    )  # fmt: skip


def _coarse(_run: Run, rows: Sequence[object]) -> str:
    return "medians within 5 %" if rows else ""


def _share(part: int | None, whole: int) -> float | None:
    return 100.0 * part / whole if part is not None and whole else None


def stream_cell(row: StreamTiming) -> Cell:
    """A stream: CUPTI's number and the program's name, if it has one, or the words for all streams
    over the limit."""
    if row.stream is None:
        return "(others)"
    return f"{row.name} ({row.stream})" if row.name else row.stream


_GPU = "The GPU's index"
_STREAM: Column[StreamTiming] = text(
    "Stream", "stream", stream_cell, "CUPTI's number; null for those over the limit",
    kind=int | None, document=lambda row: row.stream,
)  # fmt: skip
_STREAM_NAME: Column[StreamTiming] = text(
    "Name", "stream_name", lambda row: row.name, "The name the program gave it",
    kind=str | None, in_table=False,
)  # fmt: skip

LATENCY: TableSpec[StreamTiming] = TableSpec(
    key="launch_latency",
    title="Launch Latency (Call to Kernel) and Queue",
    meaning="From a launch call to its first kernel's start, by stream.",
    columns=(
        *_OWNER,
        text("GPU", "gpu", lambda row: row.gpu, _GPU, kind=int),
        _STREAM,
        _STREAM_NAME,
        count("Launches", "launches", lambda row: row.latency.count if row.latency else 0,
              "Launch calls"),
        *_times(lambda row: row.latency, "Latency", "Call's start to kernel's start", 1),
        *_times(lambda row: row.queue, "Queue", "Call's end to kernel's start", 4),
    ),
    rows=lambda _session, run: sorted(
        (row for row in stream_timings(run) if row.latency),
        key=lambda row: -(row.latency.count if row.latency else 0),
    ),
    order=620,
    note=_coarse,
    unavailable=empty_of_kernels,
    is_traced=True,
)  # fmt: skip

STREAMS: TableSpec[StreamTiming] = TableSpec(
    key="gpu_streams",
    title="GPU Streams",
    meaning="How busy each stream was, of the time that its process used the GPU.",
    columns=(
        *_OWNER,
        text("GPU", "gpu", lambda row: row.gpu, _GPU, kind=int),
        _STREAM,
        _STREAM_NAME,
        count("Operations", "operations", lambda row: row.operations,
              "Kernels, copies and memsets"),
        time("Busy", "busy_ns", lambda row: row.busy_ns, "Time in which it ran something"),
        percent("Busy", "busy_percent", lambda row: row.busy_percent,
                "Of the time from the process's first operation on the GPU to its last",
                kind=float | None),
        time("Gaps Total", "gaps_total_ns", lambda row: row.idle.total_ns if row.idle else 0,
             "Time between its operations"),
        *_times(lambda row: row.idle, "Gap", "Between two operations", 1),
    ),
    rows=lambda _session, run: sorted(stream_timings(run), key=lambda row: -row.busy_ns),
    order=640,
    note=_coarse,
    unavailable=no_rows_unless(has_streams),
    is_traced=True,
)  # fmt: skip


def _idle_total(row: DeviceTiming) -> int | None:
    if "idle" in row.unavailable:
        return None
    return row.idle.total_ns if row.idle else 0


def _gaps(row: DeviceTiming) -> int | None:
    if "idle" in row.unavailable:
        return None
    return row.idle.count if row.idle else 0


_MEASURED_GAPS: tuple[Column[DeviceTiming], ...] = (
    time("Idle", "idle_ns", _idle_total, "The span's time in which it ran nothing",
         kind=int | None),
    percent("Idle", "idle_percent", lambda row: _share(_idle_total(row), row.span_ns),
            "Of the span", kind=float | None),
    count("Gaps", "gaps", _gaps, "Times it had nothing to run", kind=int | None, priority=5),
    *_times(lambda row: row.idle, "Gap", "A gap", 3),
    time("Overlap", "overlap_ns", lambda row: row.overlap_ns,
         "Time in which several of its operations ran", kind=int | None, priority=1),
    percent("Overlap", "overlap_percent",
            lambda row: _share(row.overlap_ns, row.busy_ns), "Of the busy time",
            kind=float | None, priority=2),
)  # fmt: skip


def _idle_note(_run: Run, rows: Sequence[DeviceTiming]) -> str:
    coarse = "medians within 5 %" if any(row.idle for row in rows) else ""
    partly = f"idle time and overlap {REASON}" if _without_gaps(rows) else ""
    return "; ".join(filter(None, (coarse, partly)))


def _without_gaps(rows: Sequence[DeviceTiming]) -> bool:
    return any("idle" in row.unavailable for row in rows)


def _missing_gaps(_run: Run, rows: Sequence[DeviceTiming]) -> Mapping[str, str]:
    keys = (column.key for column in _MEASURED_GAPS)
    return dict.fromkeys(keys, REASON) if _without_gaps(rows) else {}


IDLE: TableSpec[DeviceTiming] = TableSpec(
    key="gpu_idle",
    title="GPU Idle Time and Overlap of Streams",
    meaning="How long each GPU had nothing of a process to run, between its first and last "
    "operation.",
    columns=(
        *_OWNER,
        text("GPU", "gpu", lambda row: row.gpu, _GPU, kind=int),
        time("Span", "span_ns", lambda row: row.span_ns,
             "From the process's first operation's start to its last one's end"),
        time("Busy", "busy_ns", lambda row: row.busy_ns, "Time in which it ran something"),
        *_MEASURED_GAPS,
    ),
    rows=lambda _session, run: device_timings(run),
    order=600,
    in_summary=True,
    note=_idle_note,
    unavailable=_missing_gaps,
    is_traced=True,
)  # fmt: skip

Waited = tuple[DeviceTiming, IdleRange]

IDLE_RANGES: TableSpec[Waited] = TableSpec(
    key="gpu_idle_ranges",
    title="GPU Idle Time by the Range That Was Open",
    meaning="In which range the launching thread was while a GPU idled, most idle time first.",
    columns=(
        number("Rank", "rank", lambda row: row[0].rank, "The process's rank", kind=int | None,
               seen=if_any),
        number("PID", "pid", lambda row: row[0].pid, "The process"),
        text("GPU", "gpu", lambda row: row[0].gpu, _GPU, kind=int),
        percent("Idle", "idle_percent",
                lambda row: _share(row[1].idle_ns, _idle_total(row[0]) or 0),
                "Of the GPU's idle time", kind=float | None),
        time("Idle", "idle_ns", lambda row: row[1].idle_ns, "Time the GPU idled"),
        text("Range", "path", lambda row: row[1].path or _OUTSIDE,
             "Names from the outermost range on; null outside every range", kind=str | None,
             document=lambda row: row[1].path),
    ),
    rows=lambda _session, run: [
        (row, share) for row in device_timings(run) for share in row.idle_ranges or ()
    ],
    order=610,
    unavailable=no_rows_unless(has_idle_ranges),
    is_traced=True,
)  # fmt: skip

INTERVALS: TableSpec[ThreadTiming] = TableSpec(
    key="launch_intervals",
    title="Time from Launch to Launch",
    meaning="The time from one launch call to the next, by thread.",
    columns=(
        *_OWNER,
        number("TID", "tid", lambda row: row.tid, "The launching thread"),
        count("Launches", "launches", lambda row: row.launches, "Launch calls"),
        *_times(lambda row: row.interval, "Interval", "One launch call to the next", 1),
    ),
    rows=lambda _session, run: sorted(thread_timings(run), key=lambda row: -row.launches),
    order=630,
    note=_coarse,
    unavailable=empty_of_kernels,
    is_traced=True,
)  # fmt: skip


TABLES = (
    IDLE,
    IDLE_RANGES,
    LATENCY,
    INTERVALS,
    STREAMS,
)
