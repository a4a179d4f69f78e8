"""The tables of `nsys stats`, by its names: same columns, order, rounding and names of ranges.

A suffix chooses how kernels are called: none is the whole demangled name, `:base` the function's
own name, `:mangled` the symbol. Percent is of the table's own total; in CSV averages, medians and
deviations have one decimal; MB are 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gputui.model import units
from gputui.report.schema import Column, TableSpec, text
from gputui.report.statistics import (
    NameStyle,
    TableRow,
    all_rows,
    api_rows,
    gpu_rows,
    kernel_rows,
    medians_note,
    memory_size_rows,
    memory_time_rows,
    statistics_columns,
)
from gputui.state import Run, Session

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
        ranks = len({one.attached.rank for one in run.processes.values()} - {None})
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


def _kernels(style: NameStyle) -> TableSpec[TableRow]:
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


KERNELS = _kernels("full")

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


TABLES = (
    KERNELS,
    *map(_kernels, STYLES[1:]),
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
)
