"""Markdown, for notes and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyTable
    from gputui.state import Run, Session


def _summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import facts_lines, tables_with_rows, title_of
    from gputui.render.text_tables import markdown_text, shortened, to_markdown
    from gputui.report.answer import answer

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


def _table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_markdown

    return to_markdown(table)


def _comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import answer, comparison_tables
    from gputui.render.text_tables import markdown_text, to_markdown

    lines = [f"{markdown_text(line)}\n" for line in answer(compared).splitlines()]
    return "\n".join([*lines, *map(to_markdown, comparison_tables(compared))])


FORMAT = Format(
    key="md",
    title="the summary, for notes and issues",
    order=30,
    text=_summary,
    table=_table,
    comparison=_comparison,
)
