"""A run's whole summary in one format, and the file it goes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from gputui.analysis import formats
from gputui.analysis.cost import cost_of
from gputui.analysis.insights import insights
from gputui.analysis.report import Table
from gputui.analysis.result_tables import named_tables, summary_tables
from gputui.analysis.summary import moment, summary_document
from gputui.export import html
from gputui.export.errors import ExportError
from gputui.export.tables import csv_line, markdown_text, to_csv, to_json, to_markdown, to_text
from gputui.export.whole import write_whole
from gputui.session import Run, Session, remarks


def write(session: Session, run: Run, format_name: str, path: Path) -> None:
    """Write the summary of `run` to `path`, whole or not at all. Raises ExportError."""
    write_whole(path, export_text(session, run, format_name))


def export_text(session: Session, run: Run, format_name: str) -> str:
    """The summary of `run` as text in `format_name`, one of FORMATS. Raises ExportError."""
    if format_name not in FORMATS:
        known = ", ".join(FORMATS)
        raise ExportError(f"there is no format {format_name!r}; known: {known}")
    return FORMATS[format_name](session, run)


def table_text(
    session: Session, run: Run, name: str, format_name: str, width: int | None = None
) -> str:
    """One table by name in one of TABLE_FORMATS; `width` bounds the text one's lines.

    Raises ExportError.
    """
    table = one_table(session, run, name)
    if format_name not in TABLE_FORMATS:
        known = ", ".join(TABLE_FORMATS)
        raise ExportError(f"there is no format {format_name!r}; known: {known}")
    return TABLE_FORMATS[format_name](table, width)


def one_table(session: Session, run: Run, name: str) -> Table:
    """A table by its name. Raises ExportError where there is none."""
    tables = named_tables(run)
    if name not in tables:
        raise ExportError(f"there is no table {name!r}; known: {', '.join(tables)}")
    return tables[name](session, run)


def tables_with_rows(session: Session, run: Run) -> list[Table]:
    """The tables of the summary that have something to say."""
    return [table for table in summary_tables(session, run) if table.rows]


def _csv(session: Session, run: Run) -> str:
    def section(table: Table) -> str:
        note = f" ({table.note})" if table.note else ""
        return csv_line(f"# {table.name}: {table.title}{note}") + to_csv(table)

    return "\n".join(map(section, tables_with_rows(session, run)))


def _json(session: Session, run: Run) -> str:
    document = msgspec.json.encode(summary_document(session, run))
    return msgspec.json.format(document, indent=2).decode() + "\n"


def _markdown(session: Session, run: Run) -> str:
    sections = [to_markdown(table) for table in tables_with_rows(session, run)]
    facts = "".join(f"- {markdown_text(line)}\n" for line in facts_lines(session, run))
    found = insights(session, run)
    if found:
        verdicts = [markdown_text(f"{one.verdict}. Try: {one.advice}") for one in found]
        sections.insert(0, "### What stands out\n\n" + "".join(f"- {v}\n" for v in verdicts))
    name = markdown_text(run.started.name)
    return f"## gputui summary: {name}\n\n{facts}\n" + "\n".join(sections)


def _html(session: Session, run: Run) -> str:
    return html.page(session, run, facts_lines(session, run), tables_with_rows(session, run))


def summary_text(session: Session, run: Run, width: int | None = None) -> str:
    """The summary for a terminal of `width` columns, unlimited when None."""
    parts = ["\n".join(facts_lines(session, run)) + "\n"]
    parts += [to_text(table, width) for table in tables_with_rows(session, run)]
    found = insights(session, run)
    if found:
        lines = [f"• {insight.verdict}\n  try: {insight.advice}" for insight in found]
        parts.append("What stands out\n───────────────\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def facts_lines(session: Session, run: Run) -> list[str]:
    """What was run, where, how it ended, and what watching it cost, a line each."""
    started, header = run.started, session.header
    parameters = " ".join(f"{name}={value}" for name, value in run.parameters.items())
    lines = [f"{started.kind} {started.name} {parameters}".rstrip()]
    if header:
        gpus = [gpu.facts.name for gpu in session.gpus.values()]
        names = [
            f"{gpus.count(name)} × {name}" if gpus.count(name) > 1 else name
            for name in dict.fromkeys(gpus)
        ]
        where = ", ".join(names) or f"no GPU ({header.gpu_unavailable_reason or 'none found'})"
        lines.append(f"on {header.host.hostname}: {where}; {header.host.system}")
    ended = run.ended.reason if run.ended else "the recording ends before the run does"
    lines.append(f"{moment(started.time_ns)}, {formats.duration(run.duration_ns)}: {ended}")
    lines += [remark.line for remark in remarks(run)]
    lines += [
        f"pid {process.attached.pid}: kernels not seen: {process.attached.cuda_status}"
        for process in run.processes.values()
        if process.attached.cuda_status not in ("tracing", "no CUDA")
    ]
    cost = cost_of(session, run)
    seen = f"{formats.count(cost.records)} records, {cost.dropped} dropped"
    if cost.records_per_s:
        seen += f", {formats.count(round(cost.records_per_s))} a second"
    if cost.kernels_traced_percent < 100:
        seen += f"; kernels traced {formats.percent(cost.kernels_traced_percent)} of the time"
    if cost.library_percent:
        seen += f"; library {cost.library_percent:.2f} % of the run's time"
    if cost.reader_percent is not None:
        seen += f"; reader {cost.reader_percent:.1f} % of a core"
    if cost.recorded_bytes is not None:
        seen += f"; wrote {formats.size(cost.recorded_bytes)}"
    if cost.traced_bytes is not None:
        seen += f" and a trace of {formats.size(cost.traced_bytes)}"
    lines.append(f"capture: {seen}")
    return lines


FORMATS: dict[str, Callable[[Session, Run], str]] = {
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
