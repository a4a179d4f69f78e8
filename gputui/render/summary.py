"""The parts of a summary, for every format.

If `run` is None, no run was recorded, and it is the summary of the machine.
"""

from __future__ import annotations

from gputui.render.errors import NoRunError, UnknownNameError
from gputui.report.explain import Insight, insights, machine_insights
from gputui.report.explain.verdict import verdict
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


def answer(run: Run | None) -> list[str]:
    """Why the run is slow, as the head of a summary; nothing where nobody knows."""
    found = verdict(run) if run is not None else None
    if found is None:
        return []
    lines = [f"{found.word}  {found.headline}"]
    for finding in found.findings:
        if finding is not found.findings[0]:
            lines.append(f"also  {finding.sentence}")
        lines += [f"      {line}." for line in finding.evidence]
        gain = f" At most {finding.gain:.1f}× faster." if finding.gain >= 1.05 else ""
        lines.append(f"  try {finding.advice}.{gain}")
    return ["\n".join(lines) + "\n"]


def found_insights(
    session: Session, run: Run | None, *, beside_verdict: bool = False
) -> list[Insight]:
    """What stands out; `beside_verdict` without what `answer` says."""
    if run is None:
        return machine_insights(session, session.readings)
    return insights(session, run, beside_verdict=beside_verdict)
