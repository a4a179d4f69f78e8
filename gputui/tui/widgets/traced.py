"""Traced processes as a table of the screen."""

from __future__ import annotations

from gputui.model.units import duration, quantity
from gputui.report.tables.processes import TracedRow, thread_words
from gputui.tui.widgets.table import Column


def process_columns() -> list[Column[TracedRow]]:
    """The columns of a table of traced processes."""

    def words(number: int | None) -> str:
        return "" if number is None else str(number)

    return [
        Column("pid", lambda r: str(r.process.attached.pid), 0, width=7),
        Column("parent", lambda r: str(r.process.attached.parent_pid), 6, width=7),
        Column("rank", lambda r: words(r.process.attached.rank), 2, width=4),
        Column("local", lambda r: words(r.process.attached.local_rank), 5, width=5),
        Column("came", lambda r: duration(r.start_ns), 1, width=8),
        Column("went", lambda r: duration(r.end_ns) if r.end_ns is not None else "", 1, width=8),
        Column("state", lambda r: r.how_ended, 0, right=False, width=15),
        Column("records", lambda r: quantity(r.process.records), 3, width=7),
        Column("dropped", lambda r: quantity(r.process.dropped), 4, width=7),
        Column("GPUs", lambda r: " ".join(map(str, r.gpus)), 2, width=4),
        Column("CUDA", lambda r: r.process.attached.cuda_status, 6, right=False, width=8),
        Column("threads", thread_words, 7, right=False, width=20),
        Column(
            "command",
            lambda r: r.process.attached.command, 0, flexible=True, right=False, width=16,
        ),
    ]  # fmt: skip
