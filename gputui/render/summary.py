"""The parts of a summary, for every format.

If `run` is None, no run was recorded, and it is the summary of the machine.
"""

from __future__ import annotations

from gputui.render.errors import NoRunError, UnknownNameError
from gputui.report.registry import run_tables, summary_tables, table, table_names
from gputui.report.schema import AnyTable
from gputui.state import Run, Session


def is_event_table(name: str) -> bool:
    """Whether a table is of single events, which need the trace."""
    if name in run_tables():
        return False
    from gputui.render.trace_tables import EVENT_TABLES

    return name in EVENT_TABLES


def one_table(session: Session, run: Run | None, name: str) -> AnyTable:
    """A table by its name. Raises ExportError where there is none."""
    known = table_names(run)
    if name in known:
        return table(session, run, name)
    if run is None:
        words = f"there is no table {name!r} of a recording without a run"
        error = NoRunError if name in run_tables() else UnknownNameError
        raise error(f"{words}; known: {', '.join(known)}")
    from gputui.render.trace_tables import EVENT_TABLES

    known += EVENT_TABLES
    raise UnknownNameError(f"there is no table {name!r}; known: {', '.join(known)}")


def tables_with_rows(session: Session, run: Run | None) -> list[AnyTable]:
    """The tables of the summary that have something to say."""
    return [table for table in summary_tables(session, run) if table.rows]
