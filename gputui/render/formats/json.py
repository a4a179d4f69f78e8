"""One document with every figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyTable
    from gputui.state import Run, Session


def _summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.report.summary_document import summary_document

    return _text(summary_document(session, run))


def _table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_json

    return to_json(table)


def _comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import comparison_document

    return _text(comparison_document(compared))


def _text(document: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


FORMAT = Format(
    key="json",
    title="everything, as one document",
    order=10,
    text=_summary,
    table=_table,
    comparison=_comparison,
)
