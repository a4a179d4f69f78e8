"""The tables of `nsys stats`, by its names: same columns, order, rounding and names of ranges.

A suffix chooses how kernels are called: none is the whole demangled name, `:base` the function's
own name, `:mangled` the symbol. Percent is of the table's own total; averages, medians and
deviations have one decimal; MB are 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from gputui.model import units
from gputui.report.columns import (
    Cell,
    Column,
    Table,
    count,
    note,
    statistics_cells,
    statistics_columns,
    text,
)
from gputui.report.nsys_launches import kernel_execution_table
from gputui.report.nsys_ranges import kernels_by_range_table, projection_table, range_table
from gputui.report.statistics import (
    NameStyle,
    TableRow,
    all_rows,
    api_rows,
    gpu_rows,
    kernel_rows,
    memory_size_rows,
    memory_time_rows,
)
from gputui.state import Run, Session

__all__ = ["NSYS_TABLES", "marked"]

Make = Callable[[Session, Run], Table]


def _kernels(style: NameStyle, session: Session, run: Run) -> Table:
    return _statistics(
        _named("cuda_gpu_kern_sum", style),
        "CUDA GPU Kernel Summary",
        "Instances",
        kernel_rows(session, run, names=style),
    )


def _calls(_session: Session, run: Run) -> Table:
    return _statistics("cuda_api_sum", "CUDA API Summary", "Num Calls", api_rows(run))


def _memory_time(_session: Session, run: Run) -> Table:
    title = "CUDA GPU MemOps Summary (by Time)"
    rows = memory_time_rows(run)
    return _statistics("cuda_gpu_mem_time_sum", title, "Count", rows, "Operation")


def _statistics(
    name: str, title: str, counted: str, rows: list[TableRow], what: str = "Name"
) -> Table:
    return Table(
        name,
        title,
        statistics_columns(counted, what),
        tuple((*statistics_cells(row), row.name) for row in rows),
        note(rows),
    )


def _memory_size(_session: Session, run: Run) -> Table:
    def cells(row: TableRow) -> tuple[Cell, ...]:
        sizes = (row.average, row.median, row.minimum, row.maximum, row.deviation)
        return (
            row.total / 1e6,
            row.instances,
            *(size / 1e6 for size in sizes),
            row.name,
        )

    megabytes = tuple(
        Column(
            f"{name} (MB)",
            lambda value: units.size(None if value is None else value * 1e6),
            decimals=3,
        )
        for name in ("Total", "Avg", "Med", "Min", "Max", "StdDev")
    )
    rows = memory_size_rows(run)
    return Table(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        (megabytes[0], count("Count"), *megabytes[1:], text("Operation")),
        tuple(map(cells, rows)),
        note(rows),
    )


def _by_category(name: str, title: str, rows: list[TableRow]) -> Table:
    return Table(
        name,
        title,
        statistics_columns("Instances", "Category", "Operation"),
        tuple((*statistics_cells(row), row.category, row.name) for row in rows),
        note(rows),
    )


def _gpu(style: NameStyle, session: Session, run: Run) -> Table:
    rows = gpu_rows(session, run, names=style)
    return _by_category(_named("cuda_gpu_sum", style), "CUDA GPU Summary (Kernels/MemOps)", rows)


def _all(style: NameStyle, session: Session, run: Run) -> Table:
    rows = all_rows(session, run, names=style)
    return _by_category(
        _named("cuda_api_gpu_sum", style), "CUDA Summary (API/Kernels/MemOps)", rows
    )


def _named(report: str, style: NameStyle) -> str:
    return report if style == "full" else f"{report}:{style}"


def _styles(
    report: str, make: Callable[[NameStyle, Session, Run], Table]
) -> Iterable[tuple[str, Make]]:
    styles: tuple[NameStyle, ...] = ("full", "base", "mangled")
    return ((_named(report, style), partial(make, style)) for style in styles)


def marked(make: Make) -> Make:
    """The table, with a word where kernels and calls were traced part of the time only."""

    def table(session: Session, run: Run) -> Table:
        made = make(session, run)
        if run.traced_share == 1.0 or not made.rows:
            return made
        partly = f"kernels and calls traced {units.percent(100 * run.traced_share)} of the time"
        return replace(made, note="; ".join(filter(None, (partly, made.note))))

    return table


_TABLES: dict[str, Make] = {
    **dict(_styles("cuda_gpu_kern_sum", _kernels)),
    "cuda_api_sum": _calls,
    "cuda_gpu_mem_time_sum": _memory_time,
    "cuda_gpu_mem_size_sum": _memory_size,
    **dict(_styles("cuda_gpu_sum", _gpu)),
    **dict(_styles("cuda_api_gpu_sum", _all)),
    "nvtx_sum": partial(range_table, "nvtx_sum"),
    "nvtx_pushpop_sum": partial(range_table, "nvtx_pushpop_sum"),
    "nvtx_startend_sum": partial(range_table, "nvtx_startend_sum"),
    "nvtx_gpu_proj_sum": projection_table,
    **dict(_styles("nvtx_kern_sum", kernels_by_range_table)),
    **dict(_styles("cuda_kern_exec_sum", kernel_execution_table)),
}

_OF_RANGES_ALONE = {"nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum"}

NSYS_TABLES: dict[str, Make] = {
    name: make if name in _OF_RANGES_ALONE else marked(make) for name, make in _TABLES.items()
}
"""Every table by nsys's name for it."""
