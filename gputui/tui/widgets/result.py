"""A workload's own tables as rows: columns without room go on below, no figure is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from gputui.model.units import MISSING
from gputui.report.schema import AnyColumn, AnyTable, Cell, Column
from gputui.tui.widgets.canvas import Row, fit
from gputui.tui.widgets.table import GAP, column, table_rows

MOST_ROWS = 100
"""Rows of one table that are shown; an export has them all."""

_LEAST_TEXT = 12
_LONGEST_TITLE = 26

Cells = Sequence[str]


def result_rows(table: AnyTable, width: int) -> list[Row]:
    """A header and the rows, `width` wide.

    What does not fit beside the leading columns follows under them in another block, in which
    the names are repeated. Names may be cut, figures are not.
    """
    lines = [
        tuple(_text(column, cell) for column, cell in zip(table.columns, row, strict=True))
        for row in table.rows[:MOST_ROWS]
    ]
    columns = [_column(table, i, lines, width) for i in range(len(table.columns))]
    names = _leading_names(table)
    rows: list[Row] = []
    for block in _blocks(columns, names, width):
        if rows:
            rows.append(())
        rows += table_rows([columns[i] for i in block], lines, width)
    return rows


def _blocks(columns: Sequence[Column[Cells]], names: int, width: int) -> list[list[int]]:
    leading = list(range(names))
    taken = sum(columns[i].width + GAP for i in leading)
    blocks: list[list[int]] = [[*leading]]
    used = taken
    for i in range(names, len(columns)):
        if used + columns[i].width > width and len(blocks[-1]) > names:
            blocks.append([*leading])
            used = taken
        blocks[-1].append(i)
        used += columns[i].width + GAP
    return blocks


def _leading_names(table: AnyTable) -> int:
    """How many columns say what a row is: those of text at its beginning, two at most."""
    texts = 0
    while texts < min(2, len(table.columns)) and table.columns[texts].show is None:
        texts += 1
    return max(1, texts)


def _column(table: AnyTable, i: int, lines: Sequence[Cells], width: int) -> Column[Cells]:
    shown = table.columns[i]
    title = fit(shown.header, min(cell_len(shown.header), _LONGEST_TITLE))
    size = max(cell_len(title), *(cell_len(line[i]) for line in lines), 1)
    is_text = shown.show is None
    if is_text:
        size = min(size, max(_LEAST_TEXT, width // 3))
        title = fit(title, min(cell_len(title), size))
    return column(
        title,
        lambda line: fit(line[i], size) if is_text else line[i],
        right=not is_text,
        width=size,
    )


def _text(column: AnyColumn, cell: Cell) -> str:
    if cell is None:
        return MISSING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    if column.show is not None:
        return column.show(cell)
    return f"{cell:,.6g}" if isinstance(cell, float) else str(cell)
