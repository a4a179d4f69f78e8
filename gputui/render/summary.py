"""What a summary is made of, whatever format it is written in.

Where `run` is None, no run was recorded, and it is the summary of the machine.
"""

from __future__ import annotations

from gputui.render.errors import NoRunError, UnknownNameError
from gputui.report.explain import Insight, insights, machine_insights
from gputui.report.machine_summary import MACHINE_TABLES
from gputui.report.result_tables import named_tables, summary_tables
from gputui.report.summary_tables import TABLES, Table
from gputui.state import Run, Session


def one_table(session: Session, run: Run | None, name: str) -> Table:
    """A table by its name. Raises ExportError where there is none."""
    if run is None:
        if name in MACHINE_TABLES:
            return MACHINE_TABLES[name](session)
        words = f"there is no table {name!r} of a recording without a run"
        error = NoRunError if name in TABLES else UnknownNameError
        raise error(f"{words}; known: {', '.join(MACHINE_TABLES)}")
    tables = named_tables(run)
    if name not in tables:
        from gputui.render.trace_tables import EVENT_TABLES

        known = ", ".join((*tables, *EVENT_TABLES))
        raise UnknownNameError(f"there is no table {name!r}; known: {known}")
    return tables[name](session, run)


def tables_with_rows(session: Session, run: Run | None) -> list[Table]:
    """The tables of the summary that have something to say."""
    tables = (
        [make(session) for make in MACHINE_TABLES.values()]
        if run is None
        else summary_tables(session, run)
    )
    return [table for table in tables if table.rows]


def found_insights(session: Session, run: Run | None) -> list[Insight]:
    """What stands out."""
    return machine_insights(session, session.readings) if run is None else insights(session, run)
