"""Kernels, calls and memory operations as tables of the screen."""

from __future__ import annotations

from gputui.analysis.formats import count, duration, percent, size
from gputui.analysis.tables import TableRow
from gputui.ui.widgets.table import Column


def statistics_columns(*, category: bool = False) -> list[Column[TableRow]]:
    """Times by name; `category` tells the kernels' kind of work."""
    columns: list[Column[TableRow]] = [
        Column("name", lambda r: r.short_name, 0, flexible=True, right=False, width=30),
        Column("share", lambda r: percent(r.percent), 1, width=7),
        Column("total", lambda r: duration(r.total), 0, width=8),
        Column("count", lambda r: count(r.instances), 2, width=6),
        Column("average", lambda r: duration(r.average), 3, width=8),
        Column("median", lambda r: duration(r.median), 4, width=8),
        Column("shortest", lambda r: duration(r.minimum), 6, width=8),
        Column("longest", lambda r: duration(r.maximum), 5, width=8),
        Column("deviation", lambda r: duration(r.deviation), 7, width=9),
    ]
    if category:
        columns.insert(1, Column("category", lambda r: r.category, 3, right=False, width=13))
    return columns


def size_columns() -> list[Column[TableRow]]:
    """Sizes of memory operations."""
    return [
        Column("size by operation", lambda r: r.name, 0, flexible=True, right=False, width=30),
        Column("total", lambda r: size(r.total), 0, width=8),
        Column("count", lambda r: count(r.instances), 1, width=6),
        Column("average", lambda r: size(r.average), 2, width=8),
        Column("median", lambda r: size(r.median), 3, width=8),
        Column("smallest", lambda r: size(r.minimum), 5, width=8),
        Column("largest", lambda r: size(r.maximum), 4, width=8),
    ]
