"""A run's summary as named tables: what `summary`, the exports and the screen's end page print.

Tables that nsys has too carry its report names, column headers, order and rounding (percent,
averages, medians and deviations to one decimal; MB are 10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap

from gputui.analysis import formats
from gputui.analysis.phases import PhaseRow, phase_rows
from gputui.analysis.tables import (
    TableRow,
    all_rows,
    api_rows,
    category_rows,
    kernel_rows,
    memory_size_rows,
    memory_time_rows,
)
from gputui.distributions import Accumulator
from gputui.session import Run, Session

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, and how a person reads its figures."""

    header: str
    show: Callable[[float | None], str] | None = None
    """None shows text as it is, left-aligned."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: raw cells for programs, column formats for people."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def _text(header: str) -> Column:
    return Column(header)


def _time(header: str) -> Column:
    return Column(header, formats.duration)


def _bytes(header: str) -> Column:
    return Column(header, formats.size)


def _count(header: str) -> Column:
    return Column(header, formats.quantity)


def _percent(header: str) -> Column:
    return Column(header, formats.percent)


_TIMES = tuple(
    _time(f"{name} (ns)") for name in ("Total Time", "Avg", "Med", "Min", "Max", "StdDev")
)


def _statistics_columns(counted: str, *names: str) -> tuple[Column, ...]:
    """nsys's order: Time (%), Total Time, what is counted, Avg … StdDev, then names."""
    return (
        _percent("Time (%)"),
        _TIMES[0],
        _count(counted),
        *_TIMES[1:],
        *(_text(name) for name in names),
    )


def _statistics_cells(row: TableRow) -> tuple[Cell, ...]:
    return (
        round(row.percent, 1),
        row.total,
        row.instances,
        round(row.average, 1),
        round(row.median, 1),
        row.minimum,
        row.maximum,
        round(row.deviation, 1),
    )


def _note(rows: Sequence[TableRow]) -> str:
    return "" if all(row.exact for row in rows) else "medians within 1 %"


def phases_table(_session: Session, run: Run) -> Table:
    """The range tree with its three clocks."""
    rows = phase_rows(run)
    ranks = any(row.rank is not None for row in rows)
    processes = len({row.pid for row in rows}) > 1
    who = (*((_text("Rank"),) if ranks else ()), *((_text("PID"),) if processes else ()))

    def cells(row: PhaseRow) -> tuple[Cell, ...]:
        return (
            "  " * row.depth + row.name,
            *((row.rank,) if ranks else ()),
            *((row.pid,) if processes else ()),
            None if row.share_percent is None else round(row.share_percent, 3),
            row.instances,
            row.cpu_total_ns,
            row.cpu_exclusive_ns,
            None if row.per_step_ns is None else round(row.per_step_ns, 1),
            row.gpu_busy_ns if run.devices else None,
            row.projected.total if row.projected.count else None,
            row.kernels if run.devices else None,
            row.launches if run.devices else None,
            row.memcpy_bytes if run.devices else None,
        )

    basis = "of GPU busy time" if run.devices else "of the time in outermost ranges"
    columns = (
        _text("Phase"),
        *who,
        _percent("Share (%)"),
        _count("Instances"),
        _time("CPU Total (ns)"),
        _time("CPU Exclusive (ns)"),
        _time("CPU / Step (ns)"),
        _time("GPU Busy (ns)"),
        _time("GPU Projected (ns)"),
        _count("Kernels"),
        _count("Launches"),
        _bytes("Memcpy (bytes)"),
    )
    return Table(
        "phases", "Phases (NVTX ranges)", columns, tuple(map(cells, rows)), f"share {basis}"
    )


def kernels_table(session: Session, run: Run) -> Table:
    """nsys's cuda_gpu_kern_sum."""
    rows = kernel_rows(session, run)
    return Table(
        "cuda_gpu_kern_sum",
        "CUDA GPU Kernel Summary",
        _statistics_columns("Instances", "Name"),
        tuple((*_statistics_cells(row), row.name) for row in rows),
        _note(rows),
    )


def categories_table(session: Session, run: Run) -> Table:
    """GPU kernel time by what kind of work it is."""
    rows = category_rows(kernel_rows(session, run))
    return Table(
        "kernel_categories",
        "GPU Kernel Time by Category",
        (_percent("Time (%)"), _time("Total Time (ns)"), _count("Instances"), _text("Category")),
        tuple((round(share, 1), total, count, name) for name, count, total, share in rows),
    )


def api_table(_session: Session, run: Run) -> Table:
    """nsys's cuda_api_sum."""
    rows = api_rows(run)
    return Table(
        "cuda_api_sum",
        "CUDA API Summary",
        _statistics_columns("Num Calls", "Name"),
        tuple((*_statistics_cells(row), row.name) for row in rows),
        _note(rows),
    )


def memory_time_table(_session: Session, run: Run) -> Table:
    """nsys's cuda_gpu_mem_time_sum."""
    rows = memory_time_rows(run)
    return Table(
        "cuda_gpu_mem_time_sum",
        "CUDA GPU MemOps Summary (by Time)",
        _statistics_columns("Count", "Operation"),
        tuple((*_statistics_cells(row), row.name) for row in rows),
        _note(rows),
    )


def memory_size_table(_session: Session, run: Run) -> Table:
    """nsys's cuda_gpu_mem_size_sum, sizes in MB of 10^6 bytes."""

    def cells(row: TableRow) -> tuple[Cell, ...]:
        sizes = (row.average, row.median, row.minimum, row.maximum, row.deviation)
        return (
            round(row.total / 1e6, 3),
            row.instances,
            *(round(size / 1e6, 3) for size in sizes),
            row.name,
        )

    megabytes = tuple(
        Column(f"{name} (MB)", lambda value: formats.size(None if value is None else value * 1e6))
        for name in ("Total", "Avg", "Med", "Min", "Max", "StdDev")
    )
    rows = memory_size_rows(run)
    return Table(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        (megabytes[0], _count("Count"), *megabytes[1:], _text("Operation")),
        tuple(map(cells, rows)),
        _note(rows),
    )


def all_table(session: Session, run: Run) -> Table:
    """nsys's cuda_api_gpu_sum: calls, kernels and memory operations together."""
    rows = all_rows(session, run)
    return Table(
        "cuda_api_gpu_sum",
        "CUDA Summary (API/Kernels/MemOps)",
        _statistics_columns("Instances", "Category", "Operation"),
        tuple((*_statistics_cells(row), row.category, row.name) for row in rows),
        _note(rows),
    )


def pushpop_table(_session: Session, run: Run) -> Table:
    """nsys's nvtx_pushpop_sum: ranges by name, wherever they nest."""
    sums: dict[str, Accumulator] = {}
    for node in run.ranges.values():
        if node.definition.style == "PushPop" and node.cpu.count:
            name = f"{node.definition.domain}:{node.definition.name}"
            sums.setdefault(name, Accumulator()).add(node.cpu.freeze())
    whole = sum(times.total for times in sums.values())

    def cells(name: str, times: Accumulator) -> tuple[Cell, ...]:
        return (
            round(100.0 * times.total / whole, 1) if whole else 0.0,
            times.total,
            times.count,
            round(times.average or 0.0, 1),
            round(times.median or 0.0, 1),
            times.minimum,
            times.maximum,
            round(times.deviation or 0.0, 1),
            name,
        )

    ordered = sorted(sums.items(), key=lambda item: (-item[1].total, item[0]))
    exact = all(times.exact for times in sums.values())
    return Table(
        "nvtx_pushpop_sum",
        "NVTX Push/Pop Range Summary",
        _statistics_columns("Instances", "Range"),
        tuple(starmap(cells, ordered)),
        "" if exact else "medians within 1 %",
    )


def metrics_table(_session: Session, run: Run) -> Table:
    """What the workload reported of itself."""
    return Table(
        "metrics",
        "Metrics",
        (_text("Metric"), _text("Value")),
        tuple((name, value) for name, value in run.metrics.items()),
    )


def devices_table(session: Session, run: Run) -> Table:
    """What the GPUs did during the run, as sampled."""
    rows: list[tuple[Cell, ...]] = []
    for (index, name), spread in sorted(run.gpu_spreads.items()):
        gpu = session.gpus.get(index)
        rows.append(
            (
                index,
                gpu.facts.name if gpu else None,
                name,
                None if spread.average is None else round(spread.average, 1),
                spread.minimum,
                spread.maximum,
                spread.count,
            )
        )
    return Table(
        "devices",
        "GPUs During the Run",
        (
            _text("GPU"),
            _text("Name"),
            _text("Figure"),
            _text("Mean"),
            _text("Min"),
            _text("Max"),
            _count("Samples"),
        ),
        tuple(rows),
    )


TABLES: dict[str, Callable[[Session, Run], Table]] = {
    "metrics": metrics_table,
    "phases": phases_table,
    "kernel_categories": categories_table,
    "cuda_gpu_kern_sum": kernels_table,
    "cuda_api_sum": api_table,
    "cuda_gpu_mem_time_sum": memory_time_table,
    "cuda_gpu_mem_size_sum": memory_size_table,
    "cuda_api_gpu_sum": all_table,
    "nvtx_pushpop_sum": pushpop_table,
    "devices": devices_table,
}
"""Every table by name, in the order the summary prints them."""

SUMMARY = (
    "metrics",
    "phases",
    "kernel_categories",
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "devices",
)
"""The tables of the summary; the others are there for the asking."""
