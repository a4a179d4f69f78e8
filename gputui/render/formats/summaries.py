"""The summary and its tables as text: for people (table, md, html) and for programs (json, csv)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gputui.render.formats import ExportSource, Format, Written

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyColumn, AnyTable, Cell
    from gputui.state import Run, Session


def _json_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.report.summary_document import summary_document

    return _document_text(summary_document(session, run))


def _json_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_json

    return to_json(table)


def _json_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import comparison_document

    return _document_text(comparison_document(compared))


def _document_text(document: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


_JSON = Format(
    key="json",
    title="everything, as one document",
    order=10,
    text=_json_summary,
    table=_json_table,
    comparison=_json_comparison,
)


def _csv_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import tables_with_rows
    from gputui.render.text_tables import csv_line, to_csv

    def section(table: AnyTable) -> str:
        note = f" ({table.note})" if table.note else ""
        return csv_line(f"# {table.name}: {table.title}{note}") + to_csv(table)

    return "\n".join(map(section, tables_with_rows(session, run)))


def _csv_folder(source: ExportSource, path: Path) -> Written:
    from gputui.render import atomic_folder, file_names
    from gputui.render.summary import tables_with_rows
    from gputui.render.text_tables import to_csv

    loaded = source.load()
    tables = tables_with_rows(loaded.session, loaded.run)
    names = file_names([table.name for table in tables], ".csv")
    with atomic_folder(path, may_exist=True) as place:
        for table, name in zip(tables, names, strict=True):
            (place / name).write_text(to_csv(table), encoding="utf-8")
    return Written((path,), loaded.remarks)


def _csv_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_csv

    return to_csv(table)


def _csv_rows(columns: Sequence[AnyColumn], rows: Iterable[Sequence[Cell]], out: TextIO) -> None:
    from gputui.render.text_tables import write_csv

    write_csv(columns, rows, out)


def _csv_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import flat_table
    from gputui.render.text_tables import to_csv

    return to_csv(flat_table(compared))


_CSV = Format(
    key="csv",
    title="every table; in FOLDER/ a file each",
    order=20,
    text=_csv_summary,
    folder=_csv_folder,
    table=_csv_table,
    rows=_csv_rows,
    comparison=_csv_comparison,
)


def _md_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import facts_lines, tables_with_rows, title_of
    from gputui.render.text_tables import markdown_text, shortened, to_markdown
    from gputui.report.answer import answer

    # At a thousand rows, as the terminal's and the page's tables are: the rest is named.
    cut = map(shortened, tables_with_rows(session, run))
    sections = [to_markdown(table) + f"\n{left_out}\n" * bool(left_out) for table, left_out in cut]
    facts = "".join(f"- {markdown_text(line)}\n" for line in facts_lines(session, run))
    # The title stands above.
    for group in reversed(answer(session, run)[1:]):
        lines = [
            f"- **{markdown_text(line.label)}** {markdown_text(line.text)}\n"
            if line.label
            else f"  {markdown_text(line.text)}\n"
            for line in group
        ]
        sections.insert(0, "".join(lines))
    name = markdown_text(title_of(run))
    return f"## gputui summary: {name}\n\n{facts}\n" + "\n".join(sections)


def _md_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_markdown

    return to_markdown(table)


def _md_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import answer, comparison_tables
    from gputui.render.text_tables import markdown_text, to_markdown

    lines = [f"{markdown_text(line)}\n" for line in answer(compared).splitlines()]
    return "\n".join([*lines, *map(to_markdown, comparison_tables(compared))])


_MD = Format(
    key="md",
    title="the summary, for notes and issues",
    order=30,
    text=_md_summary,
    table=_md_table,
    comparison=_md_comparison,
)


def _html_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.html import page
    from gputui.render.summary import facts_lines, tables_with_rows
    from gputui.report.answer import answer

    return page(
        session,
        run,
        facts_lines(session, run),
        answer(session, run)[1:],
        tables_with_rows(session, run),
    )


_HTML = Format(key="html", title="the summary as a page with charts", order=40, text=_html_summary)


def _table_summary(session: Session, run: Run | None, width: int | None) -> str:
    from gputui.render.summary import answer_text, facts_lines, tables_with_rows

    sections = [answer_text(session, run, width), "\n".join(facts_lines(session, run)) + "\n"]
    sections += [_shortened_text(table, width) for table in tables_with_rows(session, run)]
    return "\n".join(sections)


def _shortened_text(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import shortened

    short, left_out = shortened(table)
    return _table_table(short, width) + f"{left_out}\n" * bool(left_out)


def _table_table(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import to_text

    return to_text(table, width)


def _table_comparison(compared: Comparison, width: int | None) -> str:
    from gputui.render.comparison import answer, comparison_tables

    tables = [_table_table(table, width) for table in comparison_tables(compared)]
    verdicts = answer(compared)
    return "\n".join([f"{verdicts}\n", *tables] if verdicts else tables)


_TABLE = Format(
    key="table",
    title="the summary, as a terminal shows it",
    suffix="txt",
    order=100,
    text=_table_summary,
    table=_table_table,
    comparison=_table_comparison,
)


FORMATS = (_JSON, _CSV, _MD, _HTML, _TABLE)
