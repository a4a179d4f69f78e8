"""Kernels, calls, memory operations and the time tree: what the screen has of their tables."""

from __future__ import annotations

from gputui.report.schema import Column
from gputui.report.statistics import TableRow
from gputui.report.tables.nsys import API, KERNELS, MEMORY_SIZE, MEMORY_TIME
from gputui.report.tables.time import TIME
from gputui.state import Run, Session
from gputui.tui.widgets.canvas import Row, heading
from gputui.tui.widgets.table import declared, table_rows

_SPREAD = ("avg_ns", "med_ns", "p99_ns", "max_ns", "min_ns", "stddev_ns")


def kernel_columns() -> list[Column[TableRow]]:
    """Kernels with their categories."""
    names = ("short_name", "category")
    return declared(KERNELS, *names, "time_percent", "total_ns", "instances", *_SPREAD)


def call_columns(name: str = "name") -> list[Column[TableRow]]:
    """CUDA calls."""
    keys = ("name", "time_percent", "total_ns", "num_calls", *_SPREAD)
    return declared(API, *keys, name=name)


def operation_columns() -> list[Column[TableRow]]:
    """Copies and memsets by time."""
    return declared(MEMORY_TIME, "operation", "time_percent", "total_ns", "count", *_SPREAD)


def size_columns() -> list[Column[TableRow]]:
    """Copies and memsets by size."""
    sizes = ("avg_bytes", "med_bytes", "min_bytes", "max_bytes")
    return declared(MEMORY_SIZE, "operation", "total_bytes", "count", *sizes)


def time_rows(session: Session, run: Run, width: int) -> list[Row]:
    """Where each step goes: nothing where no operation was accounted for."""
    table = TIME.table(session, run)
    if not table.rows:
        return []
    columns = declared(TIME, "state", "cause", "share_percent", "step_ns", "total_ns")
    return [heading(table.title, width, table.note), *table_rows(columns, table.rows, width)]
