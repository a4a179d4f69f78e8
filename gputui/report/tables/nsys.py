"""The tables of `nsys stats`, by its names: same columns, order, rounding and names of ranges.

A suffix chooses how kernels are called: none is the whole demangled name, `:base` the function's
own name, `:mangled` the symbol. Percent is of the table's own total; in CSV averages, medians and
deviations have one decimal; MB are 10^6 bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gputui.model import units
from gputui.model.events import LAUNCH_UNKNOWN, KernelDelta, LaunchDelta
from gputui.model.events.distributions import Accumulator, Statistics, Totals
from gputui.model.merge import merged_by
from gputui.report.schema import (
    REASON,
    Column,
    TableSpec,
    count,
    empty_of_kernels,
    number,
    text,
    time,
)
from gputui.report.statistics import (
    NameStyle,
    TableRow,
    all_rows,
    api_rows,
    gpu_rows,
    kernel_name,
    kernel_rows,
    medians_note,
    memory_size_rows,
    memory_time_rows,
    spread_columns,
    statistics_columns,
    statistics_rows,
)
from gputui.state import Range, Run, Session

STYLES: tuple[NameStyle, ...] = ("full", "base", "mangled")


def styled(report: str, style: NameStyle) -> str:
    """A report's name where kernels are called that way."""
    return report if style == "full" else f"{report}:{style}"


def by_rank(report: str) -> str:
    """A report's name where there is a row for each rank."""
    return f"{report}:rank"


def _note(_run: Any, rows: Sequence[TableRow]) -> str:
    return medians_note(row.exact for row in rows)


def _note_of_ranks(report: str) -> Callable[[Run, Sequence[TableRow]], str]:
    def note(run: Run, rows: Sequence[TableRow]) -> str:
        ranks = len({process.attached.rank for process in run.processes.values()} - {None})
        more = f"{ranks} ranks added up: each is in --table {by_rank(report)}" if ranks > 1 else ""
        return "; ".join(filter(None, (_note(run, rows), more)))

    return note


def _name(title: str, key: str, meaning: str) -> Column[TableRow]:
    return text(title, key, lambda row: row.name, meaning, label="name", width=30)


KERNEL_NAME = _name("Name", "name", "The kernel's demangled name")
SHORT_NAME: Column[TableRow] = text(
    "Short Name", "short_name", lambda row: row.short_name, "The function's own name",
    in_table=False, label="name", width=30,
)  # fmt: skip
CATEGORY: Column[TableRow] = text(
    "Category", "category", lambda row: row.category, "The kind of work, by rules on the name",
    in_table=False, flexible=False, priority=3, width=13,
)  # fmt: skip


def _kernel_sums(style: NameStyle) -> TableSpec[TableRow]:
    return TableSpec(
        key=styled("cuda_gpu_kern_sum", style),
        title="CUDA GPU Kernel Summary",
        meaning="GPU time by kernel.",
        columns=(*statistics_columns("Instances"), KERNEL_NAME, SHORT_NAME, CATEGORY),
        rows=lambda session, run: kernel_rows(session, run, names=style),
        order=400 + STYLES.index(style),
        in_summary=style == "full",
        document="kernels" if style == "full" else "",
        note=_note_of_ranks("cuda_gpu_kern_sum") if style == "full" else _note,
        is_traced=True,
    )


KERNELS = _kernel_sums("full")

API: TableSpec[TableRow] = TableSpec(
    key="cuda_api_sum",
    title="CUDA API Summary",
    meaning="Time in CUDA calls, by function.",
    columns=(
        *statistics_columns("Num Calls"), _name("Name", "name", "The function"),
    ),
    rows=lambda _session, run: api_rows(run),
    order=410,
    in_summary=True,
    document="api",
    note=_note_of_ranks("cuda_api_sum"),
    is_traced=True,
)  # fmt: skip

_OPERATION = _name("Operation", "operation", "The copy's or memset's kind, as nsys calls it")

MEMORY_TIME: TableSpec[TableRow] = TableSpec(
    key="cuda_gpu_mem_time_sum",
    title="CUDA GPU MemOps Summary (by Time)",
    meaning="GPU time of copies and memsets, by operation.",
    columns=(*statistics_columns("Count"), _OPERATION),
    rows=lambda _session, run: memory_time_rows(run),
    order=420,
    in_summary=True,
    document="memops_time",
    note=_note_of_ranks("cuda_gpu_mem_time_sum"),
    is_traced=True,
)


# nsys's MB are 10**6 bytes, in three decimals; ours on the screen are powers of two.
def _megabytes(title: str, key: str, get: Callable[[TableRow], float], meaning: str, kind: Any,
               priority: int, label: str) -> Column[TableRow]:  # fmt: skip
    return Column(
        title,
        lambda value: units.size(None if value is None else value * 1e6),
        f"{key}_bytes",
        lambda row: get(row) / 1e6,
        "MB",
        meaning,
        kind,
        document=get,
        decimals=3,
        priority=priority,
        label=label,
        width=8,
    )


_SIZES = (
    _megabytes("Total", "total", lambda row: row.total, "Bytes of all", int, 0, "total"),
    _megabytes("Avg", "avg", lambda row: row.average, "Mean of one", float, 3, "average"),
    _megabytes("Med", "med", lambda row: row.median, "Median of one", float, 4, "median"),
    _megabytes("Min", "min", lambda row: row.minimum, "The smallest", int, 6, "smallest"),
    _megabytes("Max", "max", lambda row: row.maximum, "The largest", int, 5, "largest"),
    _megabytes("StdDev", "stddev", lambda row: row.deviation,
               "Sample standard deviation of one", float, 7, "deviation"),
)  # fmt: skip

MEMORY_SIZE: TableSpec[TableRow] = TableSpec(
    key="cuda_gpu_mem_size_sum",
    title="CUDA GPU MemOps Summary (by Size)",
    meaning="Bytes copied and set, by operation.",
    columns=(
        _SIZES[0],
        statistics_columns("Count")[2],
        *_SIZES[1:],
        msgspec.structs.replace(_OPERATION, label="size by operation"),
    ),
    rows=lambda _session, run: memory_size_rows(run),
    order=430,
    in_summary=True,
    document="memops_size",
    note=_note,
    is_traced=True,
)


def _by_category(
    report: str,
    title: str,
    meaning: str,
    rows: Callable[[Session, Run, NameStyle], list[TableRow]],
    style: NameStyle,
    order: int,
) -> TableSpec[TableRow]:
    return TableSpec(
        key=styled(report, style),
        title=title,
        meaning=meaning,
        columns=(
            *statistics_columns("Instances"),
            text("Category", "category", lambda row: row.category,
                 "CUDA_KERNEL, MEMORY_OPER or CUDA_API"),
            _name("Operation", "operation", "The kernel's, operation's or function's name"),
        ),
        rows=lambda session, run: rows(session, run, style),
        order=order + STYLES.index(style),
        document="all" if (report, style) == ("cuda_api_gpu_sum", "full") else "",
        note=_note,
        is_traced=True,
    )  # fmt: skip


# --- nsys's cuda_kern_exec_sum: each kernel's launch call, its time in the queue and its run


# (pid, tid, device, call, kernel).
_Key = tuple[int, int, int, str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    key: _Key
    times: LaunchDelta

    @property
    def exact(self) -> bool:
        """Whether the medians of all its times are exact."""
        times = self.times
        spreads = (times.total, times.call, times.queue, times.kernel_time)
        return all(spread is None or spread.exact for spread in spreads)


def _rows(style: NameStyle, session: Session, run: Run) -> list[_Row]:
    def key_of(times: LaunchDelta) -> _Key:
        pid = run.processes[times.process].attached.pid
        label = kernel_name(session, times.kernel, style)
        return pid, times.thread, times.device, times.name, label

    sums = merged_by(run.launches.values(), key_of, LaunchDelta)
    rows = [_Row(*item) for item in sums.items()]
    return sorted(rows, key=lambda row: (-(row.times.total.average or 0.0), row.key))


def _spread(
    get: Callable[[_Row], Statistics], letter: str, key: str, meaning: str, priority: int
) -> tuple[Column[_Row], ...]:
    *columns, deviation = spread_columns(get, letter, key, meaning, priority=priority)
    # Of no launch it is 0, as nsys prints it.
    return *columns, msgspec.structs.replace(deviation, value=lambda row: get(row).deviation or 0.0)


def _queue(row: _Row) -> Statistics:
    return row.times.queue or Accumulator()


def _spec(style: NameStyle) -> TableSpec[_Row]:
    return TableSpec(
        key=styled("cuda_kern_exec_sum", style),
        title="CUDA Kernel Launch & Exec Time Summary",
        meaning="Each kernel from its launch call to its end: T in all, A in the call, Q in the "
        "queue (where there was one), K running.",
        columns=(
            number("PID", "pid", lambda row: row.key[0], "The launching process"),
            number("TID", "tid", lambda row: row.key[1], "The launching thread"),
            number("DevId", "gpu", lambda row: row.key[2], "The GPU's index"),
            count("Count", "count", lambda row: row.times.total.count, "Launches"),
            count("QCount", "queued", lambda row: _queue(row).count,
                  "Launches that waited in the queue"),
            *_spread(lambda row: row.times.total, "T", "total", "Call's start to kernel's end", 1),
            *_spread(lambda row: row.times.call, "A", "call", "In the launch call", 3),
            *_spread(_queue, "Q", "queue", "Call's end to kernel's start", 5),
            *_spread(lambda row: row.times.kernel_time, "K", "kernel", "Running", 1),
            text("API Name", "call", lambda row: row.key[3], "The launching function"),
            text("Kernel Name", "name", lambda row: row.key[4], "The kernel"),
        ),
        rows=lambda session, run: _rows(style, session, run),
        order=490 + STYLES.index(style),
        note=lambda _run, rows: medians_note(row.exact for row in rows),
        unavailable=empty_of_kernels,
        is_traced=True,
    )  # fmt: skip


# --- nsys's tables of NVTX ranges: by name, projected on the GPU, and with the kernels inside


def range_name(node: Range) -> str:
    """As nsys prints it: the domain, a colon, the range's own name."""
    return f"{node.definition.domain}:{node.definition.name}"


def _range_rows(run: Run, style: str | None) -> list[TableRow]:
    """The ranges by name, wherever they are nested; with `style`, only those of that style."""
    sums: Totals[tuple[str, str]] = Totals()
    for node in run.ranges.values():
        if node.cpu.count and style in {None, node.definition.style}:
            sums.add((range_name(node), node.definition.style), node.cpu)
    return statistics_rows(sums)


_RANGE: Column[TableRow] = text("Range", "range", lambda row: row.name, "Domain, colon, name")
_STYLE: Column[TableRow] = text(
    "Style", "style", lambda row: row.label, "PushPop or StartEnd", flexible=False, priority=1
)


def _ranges(report: str, title: str, style: str | None, order: int) -> TableSpec[TableRow]:
    columns = statistics_columns("Instances")
    return TableSpec(
        key=report,
        title=title,
        meaning=f"NVTX ranges{f' of the {style} style' if style else ''} by name, wherever they "
        "nest: time on the CPU.",
        columns=(*columns, _RANGE) if style else (*columns, _STYLE, _RANGE),
        rows=lambda _session, run: _range_rows(run, style),
        order=order,
        note=lambda _run, rows: medians_note(row.exact for row in rows),
    )


@dataclass(slots=True)
class _Projection:
    name: str
    style: str
    projected: Accumulator = field(default_factory=Accumulator)
    range_ns: int = 0
    operations: int = 0
    levels: int = 0
    children: int = 0

    def mean(self, sum_of: int) -> float | None:
        """An instance's; None where operations were not counted: each has one at least."""
        return sum_of / self.projected.count if self.operations else None


def _projections(_session: Session, run: Run) -> list[_Projection]:
    sums: dict[tuple[str, str], _Projection] = {}
    for node in run.ranges.values():
        if node.projected.count:
            key = range_name(node), node.definition.style
            entry = sums.setdefault(key, _Projection(*key))
            entry.projected.add(node.projected)
            entry.range_ns += node.projected_range_ns
            entry.operations += node.gpu_operations
            entry.levels += node.levels
            entry.children += node.children_with_work
    return sorted(sums.values(), key=lambda row: (-row.projected.total, row.name, row.style))


def _projection_note(_run: Run, rows: Sequence[_Projection]) -> str:
    partly = "" if all(row.operations for row in rows) else f"the rest {REASON}"
    return "; ".join(filter(None, (medians_note(row.projected.exact for row in rows), partly)))


_COUNTED: tuple[Column[_Projection], ...] = (
    count("Total GPU Ops", "gpu_operations", lambda row: row.operations or None,
          "Kernels, copies and memsets launched in it", kind=int | None),
    count("Avg GPU Ops", "avg_gpu_operations", lambda row: row.mean(row.operations),
          "Kernels, copies and memsets launched in an instance", kind=float | None, decimals=1),
    count("Avg Range Lvl", "avg_range_level", lambda row: row.mean(row.levels),
          "Ranges around an instance", kind=float | None, decimals=1),
    count("Avg Num Child", "avg_children", lambda row: row.mean(row.children),
          "Ranges with GPU work in an instance", kind=float | None, decimals=1),
)  # fmt: skip

PROJECTION: TableSpec[_Projection] = TableSpec(
    key="nvtx_gpu_proj_sum",
    title="NVTX GPU Projection Summary",
    meaning="NVTX ranges on the GPU: from the first to the last operation that they launched.",
    columns=(
        text("Range", "range", lambda row: row.name, "Domain, colon, name"),
        text("Style", "style", lambda row: row.style, "PushPop or StartEnd"),
        time("Total Proj Time", "total_proj_ns", lambda row: row.projected.total,
             "All instances on the GPU"),
        time("Total Range Time", "total_range_ns",
             lambda row: row.range_ns if row.operations else None,
             "All instances on the CPU, from push to pop", kind=int | None),
        count("Range Instances", "instances", lambda row: row.projected.count, "How many"),
        *spread_columns(lambda row: row.projected, "Proj ", "proj", "An instance on the GPU"),
        *_COUNTED,
    ),
    rows=_projections,
    order=470,
    note=_projection_note,
    unavailable=lambda _run, rows: {}
    if all(row.operations for row in rows)
    else dict.fromkeys(("total_range_ns", *(column.key for column in _COUNTED)), REASON),
    is_traced=True,
)  # fmt: skip


# Range, style, process and thread.
_Place = tuple[str, str, int | None, int | None]


@dataclass(slots=True)
class _Kernels:
    range: str
    style: str
    pid: int | None
    tid: int | None
    """Both None for kernels whose launch is not known."""
    kernel: str
    time: Accumulator = field(default_factory=Accumulator)
    """A kernel inside several ranges of one name counts in it as often, as in nsys."""
    kernels: int = 0
    instances: int | None = 0
    """None where they were not measured."""


def _kernels(style: NameStyle, session: Session, run: Run) -> list[_Kernels]:
    """Each kernel in every range around its launch, on the launching thread."""
    sums: dict[tuple[str, str, int | None, int | None, str], _Kernels] = {}

    def kernels_of(place: _Place, label: str) -> _Kernels:
        return sums.setdefault((*place, label), _Kernels(*place, label))

    for kernels in (run.kernels, run.secondary_domain_kernels):
        for counted in kernels.values():
            label = kernel_name(session, counted.kernel, style)
            part = counted.time
            different = part.count - counted.repeats
            places = list(_ranges_of(run, counted))
            for where in places:
                kernels_of(where, label).time.add(part)
            for where in set(places):
                kernels_of(where, label).kernels += different
    instances_of: dict[tuple[str, str, int | None, int | None, str], int] = defaultdict(int)
    for counts in run.range_kernels.values():
        node = run.ranges.get(counts.range)
        if node is not None:
            label = kernel_name(session, counts.kernel, style)
            repeats = counts.base_repeats if style == "base" else 0
            instances_of[*_place(run, node), label] += counts.instances - repeats
    rows = {key: row for key, row in sums.items() if row.time.count}
    # A kernel in a range was launched in an instance of it at least, outside every range in none.
    measured = bool(run.range_kernels) or not any(row.range for row in rows.values())
    for place, row in rows.items():
        row.instances = instances_of.get(place, 0) if measured else None
    return sorted(
        rows.values(),
        key=lambda row: (row.range, row.pid or 0, row.tid or 0, -row.time.total, row.kernel),
    )


def _unmeasured(_run: Run, rows: Sequence[_Kernels]) -> Mapping[str, str]:
    missing = {"instances": REASON} if any(row.instances is None for row in rows) else {}
    if any(row.pid is None for row in rows):
        missing |= dict.fromkeys(("pid", "tid"), "the launch of these kernels is not known")
    return missing


def _kernels_note(_run: Run, rows: Sequence[_Kernels]) -> str:
    partly = f"NVTX Inst {REASON}" if any(row.instances is None for row in rows) else ""
    return "; ".join(filter(None, (medians_note(row.time.exact for row in rows), partly)))


def _kernels_by_range(style: NameStyle) -> TableSpec[_Kernels]:
    columns: tuple[Column[Any], ...] = (
        text("NVTX Range", "range", lambda row: row.range,
             "Domain, colon, name; empty outside every range"),
        text("Style", "style", lambda row: row.style, "PushPop or StartEnd"),
        number("PID", "pid", lambda row: row.pid, "The launching process", kind=int | None),
        number("TID", "tid", lambda row: row.tid, "The launching thread", kind=int | None),
        count("NVTX Inst", "instances", lambda row: row.instances,
              "Instances of the range that launched the kernel", kind=int | None),
        count("Kern Inst", "kernels", lambda row: row.kernels, "Kernels launched"),
        time("Total Time", "total_ns", lambda row: row.time.total, "All of them together"),
        *spread_columns(lambda row: row.time, "", "kernel", "A kernel's time"),
        text("Kernel Name", "name", lambda row: row.kernel, "The kernel"),
    )  # fmt: skip
    return TableSpec(
        key=styled("nvtx_kern_sum", style),
        title="NVTX Range Kernel Summary",
        meaning="Each kernel in every range around its launch.",
        columns=columns,
        rows=lambda session, run: _kernels(style, session, run),
        order=480 + STYLES.index(style),
        note=_kernels_note,
        unavailable=_unmeasured,
        is_traced=True,
    )


def _ranges_of(run: Run, key: KernelDelta) -> Iterator[_Place]:
    if key.is_outside:
        yield "", "", run.processes[key.process].attached.pid, key.thread
    elif key.thread == LAUNCH_UNKNOWN:
        yield "", "", None, None
    number = 0 if key.inherited else key.range
    while node := run.ranges.get(number):
        yield _place(run, node)
        number = node.definition.parent


def _place(run: Run, node: Range) -> _Place:
    process = run.processes[node.definition.process]
    return (
        range_name(node),
        node.definition.style,
        process.attached.pid,
        node.definition.thread,
    )


TABLES = (
    KERNELS,
    *map(_kernel_sums, STYLES[1:]),
    API,
    MEMORY_TIME,
    MEMORY_SIZE,
    *(
        _by_category(
            "cuda_gpu_sum",
            "CUDA GPU Summary (Kernels/MemOps)",
            "GPU time of kernels, copies and memsets in one table.",
            gpu_rows,
            style,
            440,
        )
        for style in STYLES
    ),
    *(
        _by_category(
            "cuda_api_gpu_sum",
            "CUDA Summary (API/Kernels/MemOps)",
            "CUDA calls, kernels, copies and memsets in one table.",
            all_rows,
            style,
            450,
        )
        for style in STYLES
    ),
    *map(_spec, STYLES),
    _ranges("nvtx_sum", "NVTX Range Summary", None, 460),
    _ranges("nvtx_pushpop_sum", "NVTX Push/Pop Range Summary", "PushPop", 461),
    _ranges("nvtx_startend_sum", "NVTX Start/End Range Summary", "StartEnd", 462),
    PROJECTION,
    *map(_kernels_by_range, STYLES),
)
