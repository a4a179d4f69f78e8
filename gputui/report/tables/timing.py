"""How work followed its launches, in figures: latency, queues, idle time, overlap of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from gputui.model import units
from gputui.model.events import OTHER_STREAMS, DeviceDelta, StepBlock
from gputui.model.events.distributions import Statistics
from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.model.steps import SLOW
from gputui.report.explain.time_tree import TimeTree
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


# Steps of a run in columns: how long they took, where their time went, what they say in words.


@dataclass(frozen=True, slots=True)
class StepColumn:
    """Steps that stand in one column: a part of a block of consecutive ones, `first` counted from
    1. Where their time went is known of the block; `pauses` of the loop have no steps."""

    first: int
    steps: int
    ns: int
    leaves: dict[Leaf, int]
    part: tuple[int, int] | None = None
    """The first step and the number of those in this column; None for all of the block."""
    longest_ns: int | None = None
    pauses: int = 0

    @property
    def mean_ns(self) -> float:
        """Mean length of its steps, or of its pauses where it is of these."""
        return self.ns / (self.steps or self.pauses or 1)

    @property
    def drawn_ns(self) -> float:
        """The longest step, or what all have in common where single ones are not known."""
        return self.mean_ns if self.longest_ns is None else self.longest_ns

    @property
    def level_ns(self) -> float:
        """What steps took here for the most part: one its own length, several the mean."""
        is_one = self.own[1] == 1 and self.longest_ns is not None
        return self.drawn_ns if is_one else self.mean_ns

    @property
    def own(self) -> tuple[int, int]:
        """The first step in this column, and how many there are."""
        return self.part or (self.first, self.steps)

    @property
    def whole_ns(self) -> int:
        """What shares of this column are of."""
        return sum(self.leaves.values())

    @property
    def busy(self) -> float | None:
        """Share of the time in which something ran; None where only the length is known."""
        if not self.whole_ns:
            return None
        idle = idle_sum(self.leaves)
        return 1 - idle / self.whole_ns


def in_blocks(columns: Iterable[StepColumn]) -> list[StepColumn]:
    """One column of each block: its sums are the same in all of them."""
    return [next(own) for _, own in groupby(columns, lambda column: (column.first, column.steps))]


def merged_columns(columns: Sequence[StepColumn]) -> StepColumn:
    """Columns in a row as one."""
    leaves: dict[Leaf, int] = {}
    blocks = in_blocks(columns)
    for column in blocks:
        for leaf, ns in column.leaves.items():
            leaves[leaf] = leaves.get(leaf, 0) + ns
    steps = sum(column.steps for column in blocks)
    return StepColumn(columns[0].first, steps, sum(column.ns for column in blocks), leaves)


def columns_of_tree(tree: TimeTree, *, with_pauses: bool = False) -> list[StepColumn]:
    """The steps of a device in order: blocks of the whole run, or, where there are few of them,
    the newest steps one by one. Pauses of the loop stand among them where they are wanted."""
    blocks = tree.blocks[0] if tree.blocks else ()
    if len(blocks) > 1:
        return _of_blocks(blocks, with_pauses=with_pauses)
    first = tree.steps - len(tree.newest) + 1
    return [StepColumn(first + number, 1, length, {}) for number, length in enumerate(tree.newest)]


def _of_blocks(blocks: tuple[StepBlock, ...], *, with_pauses: bool) -> list[StepColumn]:
    columns, first = [], 1
    for block in blocks:
        leaves = _leaves(block.leaves)
        lengths = block.longest
        # Recordings are untrusted: the parts may not be those of the block.
        if min((steps for steps, _ in lengths), default=0) < 1 or (
            sum(steps for steps, _ in lengths) != block.steps
        ):
            columns.append(StepColumn(first, block.steps, block.ns, leaves))
        else:
            number = first
            for steps, longest_ns in lengths:
                columns.append(
                    StepColumn(first, block.steps, block.ns, leaves, (number, steps), longest_ns)
                )
                number += steps
        first += block.steps
        if block.pauses and with_pauses:
            leaves = _leaves(block.paused)
            columns.append(StepColumn(first, 0, sum(leaves.values()), leaves, pauses=block.pauses))
    return columns


def _leaves(times: Iterable[tuple[int, int]]) -> dict[Leaf, int]:
    return {Leaf(leaf): ns for leaf, ns in times if ns and leaf in LEAVES}


UNEVEN = 1.1
"""Times the usual length from which a column of many steps holds slow ones, which are lost in
their mean."""


def next_slow(columns: list[StepColumn], place: int, step: int, usual_ns: float) -> int | None:
    """The next slow step or pause from column `place` on, or back; beyond the last one the first
    one again. None where there is none."""
    mean_ns = merged_columns(columns).mean_ns if columns else 0.0
    slow = [
        n
        for n, column in enumerate(columns)
        if column.pauses
        or column.drawn_ns >= SLOW * usual_ns
        or (column.longest_ns is None and column.steps > 1
            and column.mean_ns >= max(UNEVEN * usual_ns, mean_ns))
    ]  # fmt: skip
    ahead = [n for n in slow if (n > place if step > 0 else n < place)] or slow
    return (ahead[0] if step > 0 else ahead[-1]) if slow else None


def numbers_row(columns: list[StepColumn], width: int) -> str:
    """The numbers of the first and the last step in sight, at the ends of the axis, and what a
    column shows."""
    (low, _), (high, steps) = columns[0].own, columns[-1].own
    first, end = f"{low:,}", f"{high + max(1, steps) - 1:,}"
    if all(column.own[1] <= 1 for column in columns) and len(columns) <= width:
        what = "each column one step"
    else:
        is_known = any(column.drawn_ns > column.level_ns for column in columns)
        some = round(sum(column.own[1] for column in columns) / len(columns))
        what = f"means of {some:,} each{', │ the longest' if is_known else ''}"
    row = f"{first} {f' {what} '.center(max(0, width - len(first) - len(end) - 2), '─')} {end}"
    return row if len(row) <= width else ""


def step_words(column: StepColumn, tree: TimeTree) -> str:
    """Which steps these are, and how long they took against the others."""
    usual_ns = tree.step_ns.median or 0.0
    if column.pauses:
        name = "Pause" if column.pauses == 1 else f"{column.pauses} pauses"
        each = "" if column.pauses == 1 else " each"
        return f"{name} after step {column.first - 1:,}  {units.duration(column.mean_ns)}{each}"
    if column.longest_ns is None:
        against = column.mean_ns / tree.step_mean_ns - 1 if tree.step_mean_ns else 0.0
        word = f"{100 * abs(against):.0f} % {'longer' if against > 0 else 'shorter'} than the mean"
        each = "" if column.steps == 1 else " each"
        word = "as usual" if abs(against) < 0.05 else word
        return f"{_steps(*column.own)}  {units.duration(column.mean_ns)}{each}, {word}"
    times = column.longest_ns / usual_ns if usual_ns else 1.0
    word = f"{times:,.1f}× a usual one" if times >= SLOW else "as usual"
    longest = "" if column.own[1] == 1 else "the longest "
    text = f"{_steps(*column.own)}  {longest}{units.duration(column.longest_ns)}, {word}"
    if column.steps == 1:
        return text
    mean = units.duration(column.mean_ns)
    if column.own == (column.first, column.steps):
        return f"{text}; {mean} each"
    return f"{text}; causes of {_steps(column.first, column.steps).lower()}: {mean} each"


def _steps(first: int, steps: int) -> str:
    return f"Step {first:,}" if steps == 1 else f"Steps {first:,} to {first + steps - 1:,}"


NEXT_SLOW = "n the next one"


def steps_title(tree: TimeTree, seen: list[StepColumn]) -> str:
    """Which steps are in sight, and their mean."""
    shown = sum(each.own[1] + each.pauses for each in seen)
    which = units.count(tree.steps)
    if units.count(shown) != which:
        which = f"{units.count(shown)} of {which}"
    if pauses := sum(each.pauses for each in seen):
        which += f", {units.count(pauses)} pause{'s' * (pauses > 1)} among them"
    return f"Steps in order  {which}, mean {units.duration(tree.step_mean_ns)}"


def slow_words(tree: TimeTree) -> str:
    """How many steps were slow, and what that cost."""
    if not tree.slow_steps:
        return "none slow"
    slow = f"{units.count(tree.slow_steps)} slow, together {units.duration(tree.slowed_ns)} longer"
    return f"{slow} · {NEXT_SLOW}"


def no_steps(tree: TimeTree) -> str:
    """Why there are no steps in order."""
    if tree.steps:
        newest = f"the newest {len(tree.newest)} of {units.count(tree.steps)} steps"
        return f"Only the lengths of {newest} were kept one by one."
    return "No loop was found so far: the steps appear here when one is."
