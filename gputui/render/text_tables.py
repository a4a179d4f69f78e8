"""One table as CSV, JSON, Markdown, or aligned text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TextIO

import msgspec

from gputui.base.sanitize import cell_width, cut_to_width
from gputui.model.events import SCHEMA_VERSION
from gputui.model.units import MISSING
from gputui.report.columns import rounded
from gputui.report.summary_tables import Cell, Column, Table

LONGEST_NAME = 100
"""Columns of text in a table for people: whole names of kernels go on for thousands, and a line of
a log, or of a pager, could not be read. CSV and JSON have them whole."""


DEEPEST = 40
"""Blanks before a name at most, in a table for people: twenty levels."""


def to_csv(table: Table) -> str:
    """Raw figures under headers that name their units; missing is empty, never 0.

    Text that a spreadsheet would take for a formula gets a quote (') before it.
    """
    out = io.StringIO()
    write_csv(table.columns, table.rows, out)
    return out.getvalue()


def write_csv(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], out: TextIO) -> None:
    """The same for rows of which there are too many for a table."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_unformula(column.header) for column in columns])
    for row in rows:
        writer.writerow(map(_raw, columns, row))


def csv_line(text: str) -> str:
    """A line of CSV with one cell: what strangers named a table must not become several."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([text])
    return out.getvalue()


def _raw(column: Column, cell: Cell) -> Cell:
    if cell is None:
        return ""
    if column.decimals is not None and isinstance(cell, float):
        return f"{rounded(cell, column.decimals):.{column.decimals}f}"
    return _unformula(cell)


def _for_programs(column: Column, cell: Cell) -> Cell:
    if column.decimals is not None and isinstance(cell, float):
        return rounded(cell, column.decimals)
    return cell


def to_json(table: Table) -> str:
    """A list of objects, a row each, keyed by column header; missing is null.

    `note` is what people read beside the title (medians that are not exact, kernels that were
    traced part of the time), null without one. `unavailable` has the reasons why figures were not
    measured, by header, and under "rows" why there are no rows.
    """
    headers = [column.header for column in table.columns]
    document = {
        "schema": SCHEMA_VERSION,
        "table": table.name,
        "note": table.note or None,
        "rows": [
            dict(zip(headers, map(_for_programs, table.columns, row), strict=True))
            for row in table.rows
        ],
        "unavailable": table.unavailable,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


_FORMULA = tuple("=+-@＝＋－＠\t\r\n")
"""How formulas begin, by OWASP's page on CSV injection."""


def _unformula(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return f"'{cell}"
    return cell


def to_markdown(table: Table) -> str:
    """A Markdown table with human units."""
    table = table.for_people()
    shown = _shown(table)
    lines = [f"### {markdown_text(table.title)}", ""]
    if table.note:
        lines += [f"*{markdown_text(table.note)}*", ""]
    names = [markdown_text(header) for header in headers(table.columns)]
    lines.append("| " + " | ".join(names) + " |")
    lines.append("|" + "|".join("---" if c.show is None else "--:" for c in table.columns) + "|")
    lines += ["| " + " | ".join(markdown_text(cell) for cell in row) + " |" for row in shown]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """Text that Markdown and HTML take literally; leading spaces keep their width."""
    plain = text.lstrip(" ")
    indent = "&nbsp;" * (len(text) - len(plain))
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return indent + plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_text(table: Table, width: int | None = None) -> str:
    """Aligned columns with human units.

    Columns of figures without a single one are left out; names are cut to LONGEST_NAME. With
    `width`, spare columns are left out too until the rest fits, then the widest text columns are
    cut.
    """
    table = table.for_people()
    names = headers(table.columns)
    rows = [[_shallow(cell) for cell in row] for row in _shown(table)]
    widths = [
        max([cell_width(name), *(cell_width(row[i]) for row in rows)])
        for i, name in enumerate(names)
    ]
    widths = [
        widest if column.show else min(widest, LONGEST_NAME)
        for column, widest in zip(table.columns, widths, strict=True)
    ]
    kept = _columns_kept(table, widths, width)
    texts = [i for i in kept if table.columns[i].show is None]
    if width is not None and texts:
        while (over := _total(kept, widths) - width) > 0:
            widest = max(texts, key=lambda i: widths[i])
            least = max(12, cell_width(names[widest]))
            if widths[widest] <= least:
                break
            second = sorted((widths[i] for i in texts), reverse=True)[1:2]
            # Down to the next longest, then both: no name loses more than it must.
            step = max(1, widths[widest] - max(second, default=0))
            widths[widest] = max(least, widths[widest] - min(over, step))

    def line(cells: Sequence[str]) -> str:
        return _line([(table.columns[i], cells[i], widths[i]) for i in kept])

    above, head = f"{table.title}  ({table.note})" if table.note else table.title, [line(names)]
    if width is not None and cell_width(above) > width:
        above, head = table.title, [*wrap(f"({table.note})", width), *head]
    return "\n".join([above, "─" * cell_width(above), *head, *map(line, rows)]) + "\n"


def _columns_kept(table: Table, widths: Sequence[int], width: int | None) -> list[int]:
    kept = [
        i
        for i, column in enumerate(table.columns)
        if column.show is None or not table.rows or any(row[i] is not None for row in table.rows)
    ]
    if width is not None:
        # Names may be cut to 24 columns before a figure has to go.
        narrow = [
            min(size, 24) if column.show is None else size
            for column, size in zip(table.columns, widths, strict=True)
        ]
        figures = [i for i in kept if table.columns[i].show is not None]
        # Spare ones by rank, then others from the right, of which the first two stay.
        may_go = [i for i in figures if i in figures[2:] or table.columns[i].spare]
        going = sorted(may_go, key=lambda i: (table.columns[i].spare, i))
        while going and _total(kept, narrow) > width:
            kept.remove(going.pop())
    return kept


def _total(kept: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + 2 * (len(kept) - 1)


def _line(cells: Sequence[tuple[Column, str, int]]) -> str:
    parts = []
    for column, cell, width in cells:
        text = cell if cell_width(cell) <= width else cut_to_width(cell, width)
        padding = " " * (width - cell_width(text))
        parts.append(text + padding if column.show is None else padding + text)
    return "  ".join(parts).rstrip()


def _shallow(text: str) -> str:
    """The same, less far to the right where it stands so deep that its name would be cut off."""
    name = text.lstrip(" ")
    return text if len(text) - len(name) <= DEEPEST else " " * (DEEPEST - 2) + "… " + name


def headers(columns: Sequence[Column]) -> list[str]:
    """Headers without the unit where the figures carry their own."""
    return [
        column.header.rpartition(" (")[0]
        if column.show and " (" in column.header
        else column.header
        for column in columns
    ]


def _shown(table: Table) -> list[list[str]]:
    return [
        [shown_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]


def shown_cell(column: Column, cell: Cell) -> str:
    """A cell as people read it, with its unit."""
    if cell is None:
        return MISSING
    if column.show is not None and isinstance(cell, int | float):
        return column.show(cell)
    if isinstance(cell, float):
        return f"{cell:,.6g}" if abs(cell) < 1e6 else f"{cell:,.0f}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if abs(cell) >= 10000 else str(cell)
    return str(cell)
