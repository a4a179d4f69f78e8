"""One table as CSV, JSON, Markdown, or aligned text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from gputui.analysis.formats import MISSING
from gputui.analysis.report import Cell, Column, Table
from gputui.events import SCHEMA_VERSION
from gputui.text import cell_width


def to_csv(table: Table) -> str:
    """Raw figures under headers that name their units; missing is empty, never 0."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.header for column in table.columns])
    for row in table.rows:
        writer.writerow(map(_raw, table.columns, row))
    return out.getvalue()


def _raw(column: Column, cell: Cell) -> Cell:
    if cell is None:
        return ""
    if column.decimals is not None and isinstance(cell, float):
        return f"{cell:.{column.decimals}f}"
    return _unformula(cell)


def to_json(table: Table) -> str:
    """A list of objects, a row each, keyed by column header; missing is null."""
    headers = [column.header for column in table.columns]
    document = {
        "schema": SCHEMA_VERSION,
        "table": table.name,
        "rows": [dict(zip(headers, row, strict=True)) for row in table.rows],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _unformula(cell: Cell) -> Cell:
    """Text that a spreadsheet would run as a formula is told apart by a leading quote."""
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")):
        return f"'{cell}"
    return cell


def to_markdown(table: Table) -> str:
    """A Markdown table with human units."""
    shown = _shown(table)
    lines = [f"### {_escaped(table.title)}", ""]
    if table.note:
        lines += [f"*{_escaped(table.note)}*", ""]
    headers = [_escaped(header) for header in _headers(table.columns)]
    lines.append("| " + " | ".join(headers) + " |")
    lines.append("|" + "|".join("---" if c.show is None else "--:" for c in table.columns) + "|")
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in shown]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown and HTML take literally; leading spaces keep their width."""
    plain = text.lstrip(" ")
    indent = "&nbsp;" * (len(text) - len(plain))
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return indent + plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_text(table: Table, width: int | None = None) -> str:
    """Aligned columns with human units; with `width`, the last text column is cut to fit."""
    headers = _headers(table.columns)
    rows = _shown(table)
    widths = [
        max([cell_width(header), *(cell_width(row[i]) for row in rows)])
        for i, header in enumerate(headers)
    ]
    texts = [i for i, column in enumerate(table.columns) if column.show is None]
    if width is not None and texts:
        over = sum(widths) + 2 * (len(widths) - 1) - width
        widest = max(texts, key=lambda i: widths[i])
        if over > 0:
            widths[widest] = max(12, cell_width(headers[widest]), widths[widest] - over)
    title = f"{table.title}  ({table.note})" if table.note else table.title
    lines = [title, "─" * cell_width(title), _line(table.columns, headers, widths)]
    lines += [_line(table.columns, row, widths) for row in rows]
    return "\n".join(lines) + "\n"


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        text = cell if cell_width(cell) <= width else _cut(cell, width)
        padding = " " * (width - cell_width(text))
        parts.append(text + padding if column.show is None else padding + text)
    return "  ".join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    while text and cell_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _headers(columns: Sequence[Column]) -> list[str]:
    """Without the unit where the figures carry their own."""
    return [
        column.header.rpartition(" (")[0]
        if column.show and " (" in column.header
        else column.header
        for column in columns
    ]


def _shown(table: Table) -> list[list[str]]:
    return [
        [_show(column, cell) for column, cell in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]


def _show(column: Column, cell: Cell) -> str:
    if cell is None:
        return MISSING
    if column.show is not None and isinstance(cell, int | float):
        return column.show(cell)
    if isinstance(cell, float):
        return f"{cell:,.6g}" if abs(cell) < 1e6 else f"{cell:,.0f}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if abs(cell) >= 10000 else str(cell)
    return str(cell)
