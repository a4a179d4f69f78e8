"""Tables reported by a workload: untrusted lines of a pipe → bounded, sanitized records."""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.base.sanitize import sanitize
from gputui.model.events import ResultColumn, ResultTable

TABLES_LIMIT = 50
ROWS_LIMIT = 2000
"""Rows kept per table."""

COLUMNS_LIMIT = 64
CELLS_LIMIT = 40_000
"""Cells kept per run, so that its result stays one line of the journal."""

_TEXT_LIMIT = 120

Cell = str | int | float | bool | None


class _Column(msgspec.Struct):
    name: str
    unit: str | None = None
    help: str = ""


class TableReport(msgspec.Struct, tag_field="type", tag="table"):
    """Rows of one table. A second report of the same name appends rows to the first."""

    name: str
    columns: list[_Column]
    rows: list[list[Any]]
    title: str = ""


class ResultTables:
    """The tables one run has reported so far."""

    def __init__(self) -> None:
        self._heads: dict[str, ResultTable] = {}
        self._rows: dict[str, list[tuple[Cell, ...]]] = {}
        self._cells = 0

    def add(self, report: TableReport) -> bool:
        """Add what fits. False if it is not a table, or its columns differ from the first
        report.
        """
        name = sanitize(report.name, 100)
        columns = tuple(
            ResultColumn(
                name=sanitize(column.name, 100),
                unit=None if column.unit is None else sanitize(column.unit, 40),
                help=sanitize(column.help, 500),
            )
            for column in report.columns
        )
        if not 0 < len(columns) <= COLUMNS_LIMIT:
            return False
        head = self._heads.get(name)
        if head is None:
            if len(self._heads) >= TABLES_LIMIT:
                return True
            title = sanitize(report.title, 200) or name
            head = self._heads[name] = ResultTable(name=name, title=title, columns=columns)
        elif [column.name for column in head.columns] != [column.name for column in columns]:
            return False
        rows = self._rows.setdefault(name, [])
        sound = True
        for row in report.rows:
            if len(row) != len(columns):
                sound = False
            elif len(rows) < ROWS_LIMIT and self._cells + len(row) <= CELLS_LIMIT:
                self._cells += len(row)
                rows.append(tuple(map(_cell, row)))
        return sound

    def freeze(self) -> tuple[ResultTable, ...]:
        """The tables, in the order they were first reported."""
        return tuple(
            msgspec.structs.replace(head, rows=tuple(self._rows[name]))
            for name, head in self._heads.items()
        )


def _cell(value: Any) -> Cell:
    """A scalar, its text sanitized; None for anything else."""
    if isinstance(value, str):
        return sanitize(value, _TEXT_LIMIT)
    return value if isinstance(value, int | float) else None
