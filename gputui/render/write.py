"""A run's whole summary in one format, and the file it goes to.

Where `run` is None, no run was recorded, and it is the summary of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from gputui.render import html
from gputui.render.atomic_write import write_whole
from gputui.render.errors import NoRunError, UnknownNameError
from gputui.render.facts import facts_lines, title_of
from gputui.render.text_tables import csv_line, markdown_text, to_csv, to_json, to_markdown, to_text
from gputui.render.trace_tables import EVENT_TABLES
from gputui.report.explain import Insight, insights, machine_insights
from gputui.report.machine_summary import MACHINE_TABLES, machine_summary
from gputui.report.result_tables import named_tables, summary_tables
from gputui.report.summary_document import summary_document
from gputui.report.summary_tables import TABLES, Table
from gputui.state import Run, Session

_MOST_ROWS = 1000
"""Of a table in a summary for a terminal; asked for by its name it has all."""


def write(session: Session, run: Run | None, format_name: str, path: Path) -> None:
    """Write the summary of `run` to `path`, whole or not at all. Raises ExportError."""
    write_whole(path, export_text(session, run, format_name))


def export_text(session: Session, run: Run | None, format_name: str) -> str:
    """The summary of `run` as text in `format_name`, one of FORMATS. Raises ExportError."""
    if format_name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UnknownNameError(f"there is no format {format_name!r}; known: {known}")
    return FORMATS[format_name](session, run)


def table_text(
    session: Session, run: Run | None, name: str, format_name: str, width: int | None = None
) -> str:
    """One table by name in one of TABLE_FORMATS; `width` bounds the text one's lines.

    Raises ExportError.
    """
    table = one_table(session, run, name)
    if format_name not in TABLE_FORMATS:
        known = ", ".join(TABLE_FORMATS)
        raise UnknownNameError(f"there is no format {format_name!r}; known: {known}")
    return TABLE_FORMATS[format_name](table, width)


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


def _csv(session: Session, run: Run | None) -> str:
    def section(table: Table) -> str:
        note = f" ({table.note})" if table.note else ""
        return csv_line(f"# {table.name}: {table.title}{note}") + to_csv(table)

    return "\n".join(map(section, tables_with_rows(session, run)))


def _json(session: Session, run: Run | None) -> str:
    document = msgspec.json.encode(
        machine_summary(session) if run is None else summary_document(session, run)
    )
    return msgspec.json.format(document, indent=2).decode() + "\n"


def _markdown(session: Session, run: Run | None) -> str:
    sections = [to_markdown(table) for table in tables_with_rows(session, run)]
    facts = "".join(f"- {markdown_text(line)}\n" for line in facts_lines(session, run))
    found = found_insights(session, run)
    if found:
        verdicts = [markdown_text(f"{one.verdict}. Try: {one.advice}") for one in found]
        sections.insert(0, "### What stands out\n\n" + "".join(f"- {v}\n" for v in verdicts))
    name = markdown_text(title_of(run))
    return f"## gputui summary: {name}\n\n{facts}\n" + "\n".join(sections)


def _html(session: Session, run: Run | None) -> str:
    return html.page(
        session,
        run,
        facts_lines(session, run),
        found_insights(session, run),
        tables_with_rows(session, run),
    )


def summary_text(session: Session, run: Run | None, width: int | None = None) -> str:
    """The summary for a terminal of `width` columns, unlimited when None."""
    parts = ["\n".join(facts_lines(session, run)) + "\n"]
    parts += [_cut_text(table, width) for table in tables_with_rows(session, run)]
    found = found_insights(session, run)
    if found:
        lines = [f"• {insight.verdict}\n  try: {insight.advice}" for insight in found]
        parts.append("What stands out\n───────────────\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _cut_text(table: Table, width: int | None) -> str:
    """A program with thousands of range names must not push the rest off the terminal."""
    left_out = len(table.rows) - _MOST_ROWS
    if left_out <= 0:
        return to_text(table, width)
    short = to_text(replace(table, rows=table.rows[:_MOST_ROWS]), width)
    return f"{short}… and {left_out} rows more: gputui summary FILE --table {table.name}\n"


FORMATS: dict[str, Callable[[Session, Run | None], str]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "html": _html,
    "table": summary_text,
}
"""Whole summaries, by name."""

TABLE_FORMATS: dict[str, Callable[[Table, int | None], str]] = {
    "csv": lambda table, _: to_csv(table),
    "json": lambda table, _: to_json(table),
    "md": lambda table, _: to_markdown(table),
    "table": to_text,
}
"""Single tables, by name."""
