"""nsys's tables of NVTX ranges: by name, projected on the GPU, and with the kernels inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gputui.model.events import LAUNCH_UNKNOWN
from gputui.model.sketch import Accumulator, Totals
from gputui.report.availability import REASON
from gputui.report.schema import Column, TableSpec, count, number, text, time
from gputui.report.statistics import (
    NameStyle,
    TableRow,
    kernel_name,
    medians_note,
    spread_columns,
    statistics_columns,
    statistics_rows,
)
from gputui.report.tables.nsys import STYLES, styled
from gputui.state import KernelKey, Range, Run, Session


def range_name(node: Range) -> str:
    """As nsys prints it: the domain, a colon, the range's own name."""
    return f"{node.definition.domain}:{node.definition.name}"


def _range_rows(run: Run, style: str | None) -> list[TableRow]:
    """Ranges by name, wherever they nest; with `style` those of that style only."""
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
          "The same, in an instance", kind=float | None, decimals=1),
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
             "The same instances on the CPU", kind=int | None),
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


_Place = tuple[str, str, int | None, int | None]
"""Range, style, process and thread."""


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

    def of(place: _Place, label: str) -> _Kernels:
        return sums.setdefault((*place, label), _Kernels(*place, label))

    for kernels in (run.kernels, run.secondary_domain_kernels):
        for key, counted in kernels.items():
            label = kernel_name(session, key.kernel, style)
            part = counted.time
            different = part.count - counted.repeats
            places = list(_ranges_of(run, key))
            for where in places:
                of(where, label).time.add(part)
            for where in set(places):
                of(where, label).kernels += different
    instances_of: dict[tuple[str, str, int | None, int | None, str], int] = defaultdict(int)
    for (node_number, kernel), counts in run.range_kernels.items():
        node = run.ranges.get(node_number)
        if node is not None:
            label = kernel_name(session, kernel, style)
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


def _ranges_of(run: Run, key: KernelKey) -> Iterator[_Place]:
    if key.thread == LAUNCH_UNKNOWN:
        yield "", "", None, None
    elif key.thread:
        yield "", "", run.processes[key.process].attached.pid, key.thread
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
    _ranges("nvtx_sum", "NVTX Range Summary", None, 460),
    _ranges("nvtx_pushpop_sum", "NVTX Push/Pop Range Summary", "PushPop", 461),
    _ranges("nvtx_startend_sum", "NVTX Start/End Range Summary", "StartEnd", 462),
    PROJECTION,
    *map(_kernels_by_range, STYLES),
)
