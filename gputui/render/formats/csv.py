"""Every table, in one file or in one file each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gputui.render.formats import ExportSource, Format, Written

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyColumn, AnyTable, Cell
    from gputui.state import Run, Session


def _summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import tables_with_rows
    from gputui.render.text_tables import csv_line, to_csv

    def section(table: AnyTable) -> str:
        note = f" ({table.note})" if table.note else ""
        return csv_line(f"# {table.name}: {table.title}{note}") + to_csv(table)

    return "\n".join(map(section, tables_with_rows(session, run)))


def _folder(source: ExportSource, path: Path) -> Written:
    from gputui.render.atomic_write import atomic_folder, file_names
    from gputui.render.summary import tables_with_rows
    from gputui.render.text_tables import to_csv

    loaded = source.load()
    tables = tables_with_rows(loaded.session, loaded.run)
    names = file_names([table.name for table in tables], ".csv")
    with atomic_folder(path, may_exist=True) as place:
        for table, name in zip(tables, names, strict=True):
            (place / name).write_text(to_csv(table), encoding="utf-8")
    return Written((path,), loaded.remarks)


def _table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_csv

    return to_csv(table)


def _rows(columns: Sequence[AnyColumn], rows: Iterable[Sequence[Cell]], out: TextIO) -> None:
    from gputui.render.text_tables import write_csv

    write_csv(columns, rows, out)


def _comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import flat_table
    from gputui.render.text_tables import to_csv

    return to_csv(flat_table(compared))


FORMAT = Format(
    key="csv",
    title="every table; in FOLDER/ a file each",
    order=20,
    text=_summary,
    folder=_folder,
    table=_table,
    rows=_rows,
    comparison=_comparison,
)
