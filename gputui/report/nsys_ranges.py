"""nsys's tables of NVTX ranges: by name, projected on the GPU, and with the kernels inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gputui.model.sketch import Accumulator
from gputui.report.availability import without
from gputui.report.columns import (
    Cell,
    Table,
    count,
    rounded,
    spread_cells,
    statistics_cells,
    statistics_columns,
    text,
    time,
)
from gputui.report.columns import note as note_of
from gputui.report.columns import number as number_of
from gputui.report.statistics import NameStyle, kernel_name, statistics_rows
from gputui.state import KernelKey, Range, Run, Session

_STYLES = {"nvtx_sum": None, "nvtx_pushpop_sum": "PushPop", "nvtx_startend_sum": "StartEnd"}
_TITLES = {
    "nvtx_sum": "NVTX Range Summary",
    "nvtx_pushpop_sum": "NVTX Push/Pop Range Summary",
    "nvtx_startend_sum": "NVTX Start/End Range Summary",
}


def range_name(node: Range) -> str:
    """As nsys prints it: the domain, a colon, the range's own name."""
    return f"{node.definition.domain}:{node.definition.name}"


def range_table(report: str, _session: Session, run: Run) -> Table:
    """Ranges by name, wherever they nest: nvtx_sum, nvtx_pushpop_sum or nvtx_startend_sum."""
    wanted = _STYLES[report]
    sums: dict[tuple[str, str, str], Accumulator] = defaultdict(Accumulator)
    for node in run.ranges.values():
        if node.cpu.count and wanted in {None, node.definition.style}:
            sums[range_name(node), "", node.definition.style].add(node.cpu.freeze())
    rows = statistics_rows(sums)
    names = ("Range",) if wanted else ("Style", "Range")
    return Table(
        report,
        _TITLES[report],
        statistics_columns("Instances", *names),
        tuple(
            (*statistics_cells(row), *(() if wanted else (row.category,)), row.name) for row in rows
        ),
        note_of(rows),
    )


@dataclass(slots=True)
class _Projection:
    projected: Accumulator = field(default_factory=Accumulator)
    range_ns: int = 0
    operations: int = 0
    levels: int = 0
    children: int = 0


def projection_table(_session: Session, run: Run) -> Table:
    """nvtx_gpu_proj_sum: ranges from the first to the last operation that they launched."""
    sums: dict[tuple[str, str], _Projection] = defaultdict(_Projection)
    for node in run.ranges.values():
        if node.projected.count:
            entry = sums[range_name(node), node.definition.style]
            entry.projected.add(node.projected.freeze())
            entry.range_ns += node.projected_range_ns
            entry.operations += node.gpu_operations
            entry.levels += node.levels
            entry.children += node.children_with_work

    def cells(name: str, style: str, entry: _Projection) -> tuple[Cell, ...]:
        times = entry.projected
        inside: tuple[Cell, ...] = (
            entry.operations,
            *(
                rounded(figure / times.count, 1)
                for figure in (entry.operations, entry.levels, entry.children)
            ),
        )
        measured = entry.operations > 0  # what is projected had an operation
        return (
            name,
            style,
            times.total,
            entry.range_ns if measured else None,
            times.count,
            *spread_cells(times),
            *(inside if measured else (None,) * len(inside)),
        )

    ordered = sorted(sums.items(), key=lambda item: (-item[1].projected.total, item[0]))
    times = ("Proj Avg", "Proj Med", "Proj Min", "Proj Max", "Proj StdDev")
    inside = ("Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child")
    measured = all(entry.operations for _, entry in ordered)
    table = Table(
        "nvtx_gpu_proj_sum",
        "NVTX GPU Projection Summary",
        (
            text("Range"),
            text("Style"),
            time("Total Proj Time (ns)"),
            time("Total Range Time (ns)"),
            count("Range Instances"),
            *(time(f"{name} (ns)") for name in times),
            *(count(name) for name in inside),
        ),
        tuple(cells(*key, entry) for key, entry in ordered),
        _inexact(entry.projected for _, entry in ordered),
    )
    return without(table, () if measured else ("Total Range Time (ns)", *inside), "the rest")


@dataclass(slots=True)
class _Kernels:
    time: Accumulator = field(default_factory=Accumulator)
    """A kernel inside several ranges of one name counts in it as often, as in nsys."""
    kernels: int = 0
    instances: int = 0


_RowKey = tuple[str, str, int, int, str]
"""(range, style, pid, tid, kernel)."""


def kernels_by_range_table(style: NameStyle, session: Session, run: Run) -> Table:
    """nvtx_kern_sum: each kernel in every range around its launch, on the launching thread."""
    sums: dict[_RowKey, _Kernels] = defaultdict(_Kernels)
    for kernels in (run.kernels, run.kernels_beside):
        for key, times in kernels.items():
            label = kernel_name(session, key.kernel, style)
            part = times.freeze()
            different = part.count - run.kernel_repeats.get(key, 0)
            places = list(_ranges_of(run, key))
            for where in places:
                sums[*where, label].time.add(part)
            for where in set(places):
                sums[*where, label].kernels += different
    for (number, kernel), instances in run.kernel_instances.items():
        node = run.ranges.get(number)
        if node is None:
            continue
        entry = sums[*_place(run, node), kernel_name(session, kernel, style)]
        entry.instances += instances
        if style == "base":
            entry.instances -= run.base_repeats.get((number, kernel), 0)
    ordered = sorted(
        ((key, entry) for key, entry in sums.items() if entry.time.count),
        key=lambda item: (item[0][0], item[0][2:4], -item[1].time.total, item[0][4]),
    )
    # A kernel in a range was launched in an instance of it at least, outside every range in none.
    measured = bool(run.kernel_instances) or not any(key[0] for key, _ in ordered)
    table = Table(
        "nvtx_kern_sum" if style == "full" else f"nvtx_kern_sum:{style}",
        "NVTX Range Kernel Summary",
        (
            text("NVTX Range"),
            text("Style"),
            number_of("PID"),
            number_of("TID"),
            count("NVTX Inst"),
            count("Kern Inst"),
            *(time(f"{name} (ns)") for name in ("Total Time", "Avg", "Med", "Min", "Max")),
            time("StdDev (ns)"),
            text("Kernel Name"),
        ),
        tuple(
            (
                *key[:4],
                entry.instances if measured else None,
                entry.kernels,
                entry.time.total,
                *spread_cells(entry.time),
                key[4],
            )
            for key, entry in ordered
        ),
        _inexact(entry.time for _, entry in ordered),
    )
    return without(table, () if measured else ("NVTX Inst",), "NVTX Inst")


def _ranges_of(run: Run, key: KernelKey) -> Iterator[tuple[str, str, int, int]]:
    if key.thread:
        yield "", "", run.processes[key.process].attached.pid, key.thread
    number = 0 if key.inherited else key.range
    while node := run.ranges.get(number):
        yield _place(run, node)
        number = node.definition.parent


def _place(run: Run, node: Range) -> tuple[str, str, int, int]:
    process = run.processes[node.definition.process]
    return (
        range_name(node),
        node.definition.style,
        process.attached.pid,
        node.definition.thread,
    )


def _inexact(parts: Iterator[Accumulator]) -> str:
    return "" if all(part.exact for part in parts) else "medians within 1 %"
