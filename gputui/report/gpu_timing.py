"""Tables of how work followed its launches: latency, queues, idle time, overlap of streams."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.model.events import OTHER_STREAMS
from gputui.model.sketch import Accumulator
from gputui.report.availability import (
    REASON,
    empty_of_kernels,
    has_idle_ranges,
    has_idle_times,
    has_streams,
    without,
    without_rows,
)
from gputui.report.columns import Cell, Column, Table, count, number, percent, spare, text, time
from gputui.state import Run, Session
from gputui.state.timing import DeviceUse, StreamKey

_COARSE = "medians within 5 %"
_OUTSIDE = "(outside every range)"


def _who(run: Run, process: int) -> tuple[Cell, Cell]:
    """Rank and pid."""
    attached = run.processes[process].attached
    return attached.rank, attached.pid


def _table(
    run: Run,
    name: str,
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[Cell, ...]],
    coarse: bool = True,
) -> Table:
    """The table, with the ranks in front where processes have ranks."""
    ranks = any(process.attached.rank is not None for process in run.processes.values())
    left_out = 0 if ranks else 1
    return Table(
        name,
        title,
        (number("Rank"), number("PID"), *columns)[left_out:],
        tuple(row[left_out:] for row in rows),
        _COARSE if coarse and rows else "",
    )


def _spread(times: Accumulator) -> tuple[Cell, ...]:
    if not times.count:
        return None, None, None, None
    return (
        round(times.average or 0.0, 1),
        round(times.median or 0.0, 1),
        times.minimum,
        times.maximum,
    )


def _times(what: str, order: int) -> tuple[Column, ...]:
    return tuple(
        spare(order if name in {"Med", "Max"} else order + 1, time(f"{what} {name} (ns)"))
        for name in ("Avg", "Med", "Min", "Max")
    )


def stream_cell(run: Run, key: StreamKey) -> Cell:
    """CUPTI's number of a stream, with its name where it has one, or what stands for those over
    the limit."""
    name = _stream_name(run, key)
    if key.stream == OTHER_STREAMS:
        return "(others)"
    return f"{name} ({key.stream})" if name else key.stream


def _stream_name(run: Run, key: StreamKey) -> str | None:
    process = run.processes.get(key.process)
    return process.stream_name(key.device, key.stream) if process else None


def latency_table(_session: Session, run: Run) -> Table:
    """From a launch call to its first kernel's start, by stream."""
    rows = [
        (
            *_who(run, key.process),
            key.device,
            stream_cell(run, key),
            times.latency.count,
            *_spread(times.latency),
            *_spread(times.queue),
        )
        for key, times in sorted(
            run.timing.streams.items(), key=lambda item: -item[1].latency.count
        )
        if times.latency.count
    ]
    table = _table(
        run,
        "launch_latency",
        "Launch Latency (Call to Kernel) and Queue",
        (
            text("GPU"), text("Stream"), count("Launches"),
            *_times("Latency", 0), *_times("Queue", 4),
        ),
        rows,
    )  # fmt: skip
    return empty_of_kernels(run, table)


def streams_table(_session: Session, run: Run) -> Table:
    """How busy each stream was, of the time that its process used the GPU."""
    rows: list[tuple[Cell, ...]] = []
    for key, times in sorted(run.timing.streams.items(), key=lambda item: -item[1].busy_ns):
        use = run.timing.devices.get((key.process, key.device), DeviceUse())
        rows.append(
            (
                *_who(run, key.process),
                key.device,
                stream_cell(run, key),
                times.operations,
                times.busy_ns,
                100.0 * times.busy_ns / use.span_ns if use.span_ns else None,
                times.idle.total,
                *_spread(times.idle),
            )
        )
    table = _table(
        run,
        "gpu_streams",
        "GPU Streams",
        (
            text("GPU"), text("Stream"), count("Operations"), time("Busy (ns)"),
            percent("Busy (%)"), time("Gaps Total (ns)"), *_times("Gap", 1),
        ),
        rows,
    )  # fmt: skip
    return table if has_streams(run) else without_rows(table)


def idle_table(_session: Session, run: Run) -> Table:
    """How long each GPU had nothing of a process to do, between its first and last operation."""
    rows: list[tuple[Cell, ...]] = []
    for (process, device), use in sorted(run.timing.devices.items()):
        measured = has_idle_times(run, process, device)
        figures: tuple[Cell, ...] = (
            use.idle.total,
            100.0 * use.idle.total / use.span_ns if use.span_ns else None,
            use.idle.count,
            *_spread(use.idle),
            use.overlap_ns,
            100.0 * use.overlap_ns / use.busy_ns if use.busy_ns else None,
        )
        rows.append(
            (
                *_who(run, process),
                device,
                use.span_ns,
                use.busy_ns,
                *(figures if measured else (None,) * len(figures)),
            )
        )
    everything = all(has_idle_times(run, *key) for key in run.timing.devices)
    table = _table(
        run,
        "gpu_idle",
        "GPU Idle Time and Overlap of Streams",
        (
            text("GPU"), time("Span (ns)"), time("Busy (ns)"), time("Idle (ns)"),
            percent("Idle (%)"), spare(5, count("Gaps")), *_times("Gap", 3),
            spare(1, time("Overlap (ns)")), spare(2, percent("Overlap (%)")),
        ),
        rows,
        coarse=any(use.idle.count for use in run.timing.devices.values()),
    )  # fmt: skip
    after_busy = [column.header for column in table.columns].index("Busy (ns)") + 1
    missing = () if everything else table.columns[after_busy:]
    return without(table, (column.header for column in missing), "idle time and overlap")


def idle_ranges_table(_session: Session, run: Run) -> Table:
    """In which range the launching thread was while a GPU idled, most idle time first."""
    rows = [
        (
            *_who(run, process),
            device,
            100.0 * idle_ns / use.idle.total if use.idle.total else None,
            idle_ns,
            range_path(run, number),
        )
        for (process, device), use in sorted(run.timing.devices.items())
        for number, idle_ns in sorted(use.idle_ranges.items(), key=lambda item: -item[1])
    ]
    table = _table(
        run,
        "gpu_idle_ranges",
        "GPU Idle Time by the Range That Was Open",
        (text("GPU"), percent("Idle (%)"), time("Idle (ns)"), text("Range")),
        rows,
        coarse=False,
    )
    return table if has_idle_ranges(run) else without_rows(table)


def launches_table(_session: Session, run: Run) -> Table:
    """The time from one launch call to the next, by thread."""
    rows = [
        (
            *_who(run, process),
            tid,
            thread.launches,
            *_spread(thread.interval),
        )
        for (process, tid), thread in sorted(
            run.timing.threads.items(), key=lambda item: -item[1].launches
        )
    ]
    table = _table(
        run,
        "launch_intervals",
        "Time from Launch to Launch",
        (number("TID"), count("Launches"), *_times("Interval", 0)),
        rows,
    )
    return empty_of_kernels(run, table)


def range_path(run: Run, number: int) -> str:
    """Where a range is in the tree; 0 is outside every range."""
    node = run.ranges.get(number)
    return node.path if node else _OUTSIDE


TIMING_TABLES = {
    "gpu_idle": idle_table,
    "gpu_idle_ranges": idle_ranges_table,
    "launch_latency": latency_table,
    "launch_intervals": launches_table,
    "gpu_streams": streams_table,
}
"""Tables by name."""


def timing_document(run: Run) -> dict[str, object]:
    """The `timing` of `summary --format json`: the same figures for programs."""
    absent = () if has_streams(run) else ("streams", "threads")
    document: dict[str, object] = {
        "devices": [
            _device(run, process, device, use)
            for (process, device), use in sorted(run.timing.devices.items())
        ],
        "streams": [
            {
                **_whose(run, key.process),
                "gpu": key.device,
                "stream": None if key.stream == OTHER_STREAMS else key.stream,
                "name": _stream_name(run, key),
                "operations": times.operations,
                "busy_ns": times.busy_ns,
                "latency": _figures(times.latency),
                "queue": _figures(times.queue),
                "idle": _figures(times.idle),
            }
            for key, times in run.timing.streams.items()
        ],
        "threads": [
            {
                **_whose(run, process),
                "tid": tid,
                "launches": thread.launches,
                "interval": _figures(thread.interval),
            }
            for (process, tid), thread in run.timing.threads.items()
        ],
    }
    return _with_reasons(document, absent)


def _device(run: Run, process: int, device: int, use: DeviceUse) -> dict[str, object]:
    absent = () if has_idle_times(run, process, device) else ("overlap_ns", "idle")
    document: dict[str, object] = {
        **_whose(run, process),
        "gpu": device,
        "span_ns": use.span_ns,
        "busy_ns": use.busy_ns,
        "operations": use.operations,
        "overlap_ns": use.overlap_ns,
        "idle": _figures(use.idle),
        "idle_ranges": [
            {"path": range_path(run, number) if number else None, "idle_ns": idle_ns}
            for number, idle_ns in sorted(use.idle_ranges.items(), key=lambda item: -item[1])
        ],
    }
    return _with_reasons(document, absent if has_idle_ranges(run) else (*absent, "idle_ranges"))


def _with_reasons(document: dict[str, object], absent: tuple[str, ...]) -> dict[str, object]:
    """The document, null with its reason under each name of what is absent."""
    return {
        **document,
        **dict.fromkeys(absent),
        "unavailable": dict.fromkeys(absent, REASON),
    }


def _whose(run: Run, process: int) -> dict[str, object]:
    rank, pid = _who(run, process)
    return {"rank": rank, "pid": pid}


def _figures(times: Accumulator) -> dict[str, object] | None:
    if not times.count:
        return None
    return {
        "count": times.count,
        "total_ns": times.total,
        "avg_ns": times.average,
        "med_ns": times.median,
        "min_ns": times.minimum,
        "max_ns": times.maximum,
        "stddev_ns": times.deviation,
    }
