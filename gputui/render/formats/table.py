"""Aligned text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyTable
    from gputui.state import Run, Session


def _summary(session: Session, run: Run | None, width: int | None) -> str:
    from gputui.render.summary import answer_text, facts_lines, tables_with_rows

    sections = [answer_text(session, run, width), "\n".join(facts_lines(session, run)) + "\n"]
    sections += [_cut(table, width) for table in tables_with_rows(session, run)]
    return "\n".join(sections)


def _cut(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import shortened

    short, left_out = shortened(table)
    return _table(short, width) + f"{left_out}\n" * bool(left_out)


def _table(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import to_text

    return to_text(table, width)


def _comparison(compared: Comparison, width: int | None) -> str:
    from gputui.render.comparison import answer, comparison_tables

    tables = [_table(table, width) for table in comparison_tables(compared)]
    verdicts = answer(compared)
    return "\n".join([f"{verdicts}\n", *tables] if verdicts else tables)


FORMAT = Format(
    key="table",
    title="the summary, as a terminal shows it",
    suffix="txt",
    order=100,
    text=_summary,
    table=_table,
    comparison=_comparison,
)
