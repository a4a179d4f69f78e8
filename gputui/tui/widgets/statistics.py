"""Kernels, calls and memory operations as tables of the screen."""

from __future__ import annotations

from collections.abc import Callable

from gputui.model.units import count, duration, percent, size
from gputui.report.statistics import TableRow
from gputui.tui.widgets.table import Column


def statistics_columns(
    name: str = "name",
    *,
    written: Callable[[float], str] = duration,
    extremes: tuple[str, str] = ("shortest", "longest"),
    category: bool = False,
) -> list[Column[TableRow]]:
    """Figures by `name`, as `written` writes them; `category` adds the kernels' kind of work."""
    columns: list[Column[TableRow]] = [
        Column(name, lambda r: r.short_name, 0, flexible=True, right=False, width=30),
        Column("share", lambda r: percent(r.percent), 1, width=7),
        Column("total", lambda r: written(r.total), 0, width=8),
        Column("count", lambda r: count(r.instances), 2, width=6),
        Column("average", lambda r: written(r.average), 3, width=8),
        Column("median", lambda r: written(r.median), 4, width=8),
        Column(extremes[0], lambda r: written(r.minimum), 6, width=8),
        Column(extremes[1], lambda r: written(r.maximum), 5, width=8),
        Column("deviation", lambda r: written(r.deviation), 7, width=9),
    ]
    if category:
        columns.insert(1, Column("category", lambda r: r.category, 3, right=False, width=13))
    return columns


def size_columns() -> list[Column[TableRow]]:
    """Sizes of memory operations."""
    columns = statistics_columns(
        "size by operation", written=size, extremes=("smallest", "largest")
    )
    return [column for column in columns if column.title not in ("share", "deviation")]
