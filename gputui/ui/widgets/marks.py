"""NVTX marks as a table of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.analysis.formats import count, duration, payload
from gputui.analysis.marks import MarkRow
from gputui.ui.widgets.table import Column

TOP_MARKS = 20


def mark_columns(rows: Sequence[MarkRow]) -> list[Column[MarkRow]]:
    """The columns of a table of these marks; those in which nothing would stand are left out."""
    columns: list[Column[MarkRow]] = [
        Column("mark", lambda r: r.name, 0, flexible=True, right=False, width=24),
        Column("domain", lambda r: r.domain, 3, right=False, width=8),
        Column("category", lambda r: r.category or "", 5, right=False, width=8),
        Column("payload", lambda r: payload(r.payload) if r.payload else "", 3, width=9),
        Column("rank", lambda r: str(r.pid if r.rank is None else r.rank), 4, width=4),
        Column("count", lambda r: count(r.count), 0, width=6),
        Column("first", lambda r: duration(r.first_ns), 2, width=8),
        Column("last", lambda r: duration(r.last_ns), 1, width=8),
    ]
    empty = {
        title
        for title, is_there in (
            ("domain", any(row.domain for row in rows)),
            ("category", any(row.category for row in rows)),
            ("payload", any(row.payload for row in rows)),
        )
        if not is_there
    }
    return [column for column in columns if column.title not in empty]
