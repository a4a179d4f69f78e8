"""NVTX marks as a table of the screen."""

from __future__ import annotations

from gputui.analysis.formats import count, duration
from gputui.analysis.marks import MarkRow
from gputui.ui.widgets.table import Column

TOP_MARKS = 20


def mark_columns() -> list[Column[MarkRow]]:
    """The columns of a table of marks."""
    return [
        Column("mark", lambda r: r.name, 0, flexible=True, right=False, width=24),
        Column("domain", lambda r: r.domain, 3, right=False, width=8),
        Column("rank", lambda r: str(r.pid if r.rank is None else r.rank), 4, width=4),
        Column("count", lambda r: count(r.count), 0, width=6),
        Column("first", lambda r: duration(r.first_ns), 2, width=8),
        Column("last", lambda r: duration(r.last_ns), 1, width=8),
    ]
