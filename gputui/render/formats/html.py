"""One self-contained page with tables and charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.state import Run, Session


def _summary(session: Session, run: Run | None, _width: int | None) -> str:
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


FORMAT = Format(key="html", title="the summary as a page with charts", order=40, text=_summary)
