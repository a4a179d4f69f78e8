"""One table as CSV, JSON, Markdown, or aligned text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TextIO

import msgspec

from gputui.base.sanitize import cell_width, cut_to_width, width_up_to
from gputui.model.events import SCHEMA_VERSION
from gputui.report.schema import AnyColumn, AnyTable, Cell, columns_that_fit, rounded

LONGEST_NAME = 100
"""Columns of text in a table for people: whole names of kernels go on for thousands, and a line of
a log, or of a pager, could not be read. CSV and JSON have them whole."""


LEAST_FOLDED = 24
"""Columns of a terminal into which a text is broken at least."""

LONGEST_PATH = 4096
"""The longest path of a file (Linux's PATH_MAX)."""

DEEPEST = 40
"""Blanks before a name at most, in a table for people: twenty levels."""


MOST_ROWS = 1000
"""Rows of a table in a summary for people; a table requested by name is complete."""


def shortened(table: AnyTable) -> tuple[AnyTable, str]:
    """A table as a summary shows it, with a line for what is left out: a program with thousands of
    names must not push the rest out of sight."""
    left_out = len(table.rows) - MOST_ROWS
    if left_out <= 0:
        return table, ""
    said = f"… and {left_out} rows more: gputui summary FILE --table {table.name}"
    return msgspec.structs.replace(table, rows=table.rows[:MOST_ROWS]), said


def to_csv(table: AnyTable) -> str:
    """Raw figures under headers that name their units; missing is empty, never 0.

    Text that a spreadsheet would take for a formula gets a quote (') before it.
    """
    out = io.StringIO()
    write_csv([column for _, column in table.headed], table.cells, out)
    return out.getvalue()


def write_csv(columns: Sequence[AnyColumn], rows: Iterable[Sequence[Cell]], out: TextIO) -> None:
    """Writes rows as CSV as `to_csv` does, for rows that are too many for a table."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_unformula(column.header) for column in columns])
    # Numbers without decimals are written as they are; for each cell to be looked at took a third
    # of the time of a table of 200,000 events.
    changed = [
        (place, column) for place, column in enumerate(columns)
        if column.decimals is not None or column.kind not in (int, int | None)
    ]  # fmt: skip
    for row in rows:
        cells = list(row)
        for place, column in changed:
            cells[place] = _raw(column, cells[place])
        writer.writerow(cells)


def csv_line(text: str) -> str:
    """A line of CSV with one cell: what strangers named a table must not become several."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([text])
    return out.getvalue()


def _raw(column: AnyColumn, cell: Cell) -> Cell:
    if cell is None:
        return ""
    if column.decimals is not None and isinstance(cell, float):
        return f"{rounded(cell, column.decimals):.{column.decimals}f}"
    return _unformula(cell)


def to_json(table: AnyTable) -> str:
    """A list of objects, a row each, with the names of the summary's document; missing is null.

    `note` is what people read beside the title (medians that are not exact, kernels that were
    traced part of the time), null without one. `unavailable` has the reasons why figures were not
    measured, by name, and under "rows" why there are no rows.
    """
    document = {
        "schema": SCHEMA_VERSION,
        "table": table.name,
        "note": table.note or None,
        "rows": table.records(),
        "unavailable": table.unavailable,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


# How formulas begin, by OWASP's page on CSV injection.
_FORMULA = tuple("=+-@＝＋－＠\t\r\n")


def _unformula(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return f"'{cell}"
    return cell


def to_markdown(table: AnyTable) -> str:
    """A Markdown table with human units."""
    columns, _, shown = table.for_people()
    lines = [f"### {markdown_text(table.title)}", ""]
    if table.note:
        lines += [f"*{markdown_text(table.note)}*", ""]
    names = [markdown_text(header(column)) for column in columns]
    lines.append("| " + " | ".join(names) + " |")
    lines.append("|" + "|".join("--:" if c.is_right else "---" for c in columns) + "|")
    lines += ["| " + " | ".join(markdown_text(cell) for cell in row) + " |" for row in shown]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """Text that Markdown and HTML take literally; leading spaces keep their width."""
    plain = text.lstrip(" ")
    indent = "&nbsp;" * (len(text) - len(plain))
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return indent + plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_text(table: AnyTable, width: int | None = None, *, folds: bool = False) -> str:
    """Aligned columns with human units.

    Columns of figures without a single one are left out; names are cut to LONGEST_NAME. With
    `width`, columns are left out too until the rest fits, then the widest texts are cut; with
    `folds` what the last column would be cut by goes on below.
    """
    columns, cells, texts = table.for_people()
    kept = [
        i
        for i, column in enumerate(columns)
        if column.show is None or not cells or any(row[i] is not None for row in cells)
    ]
    columns = [columns[i] for i in kept]
    names = [header(column) for column in columns]
    rows = [[_shallow(row[i]) for i in kept] for row in texts]
    widths = [
        _width(column, [names[i], *(row[i] for row in rows)]) for i, column in enumerate(columns)
    ]
    if width is not None:
        # Texts may be cut to 24 columns before a figure has to go.
        narrow = [
            min(size, 24) if column.flexible else size
            for column, size in zip(columns, widths, strict=True)
        ]
        fitting = columns_that_fit(columns, narrow, width)
        columns, names = [columns[i] for i in fitting], [names[i] for i in fitting]
        widths = [widths[i] for i in fitting]
        rows = [[row[i] for i in fitting] for row in rows]
        paths = {i for i in range(len(columns)) if any(_is_path(row[i]) for row in rows)}
        if folds:
            # It goes on below: names beside it stay whole.
            room = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
            widths[-1] = min(widths[-1], max(LEAST_FOLDED, room))
        _narrow(columns, names, widths, width, paths)

    def line(cells: Sequence[str]) -> str:
        return "  ".join(map(_aligned, columns, cells, widths)).rstrip()

    def lines(cells: Sequence[str]) -> Iterator[str]:
        room = widths[-1]
        if not folds or cell_width(cells[-1]) <= room:
            yield line(cells)
        elif room < LEAST_FOLDED:
            yield line(cells)
            yield from (f"  {more}" for more in in_lines(cells[-1], max(room, (width or 0) - 2)))
        else:
            first, *others = in_lines(cells[-1], room)
            yield line([*cells[:-1], first])
            yield from (line([*[""] * (len(cells) - 1), more]) for more in others)

    above, head = f"{table.title}  ({table.note})" if table.note else table.title, [line(names)]
    if width is not None and cell_width(above) > width:
        above, head = table.title, [*wrap(f"({table.note})", width), *head]
    body = [each for row in rows for each in lines(row)]
    return "\n".join([above, "─" * cell_width(above), *head, *body]) + "\n"


TIED = "\N{NO-BREAK SPACE}"
"""Between words that `in_lines` leaves in one line."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[nµm]?s|[KMGT]iB|[JW])(?!\w))")


def in_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Text in lines of a width, broken between words, but not before a unit; all but the first
    begin with `indent`."""
    tied = _BEFORE_UNIT.sub(TIED, text)
    lines = wrap(tied, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(TIED, " ") for line in lines]


def _width(column: AnyColumn, texts: Sequence[str]) -> int:
    """What the column takes: as much as its figures and paths, or its names up to LONGEST_NAME."""
    if column.show is not None:
        return max(map(cell_width, texts))
    return max(
        width_up_to(text, LONGEST_PATH if _is_path(text) else LONGEST_NAME) for text in texts
    )


def _is_path(text: str) -> bool:
    """Whether a cell is a file's absolute path: one that is cut off cannot be copied."""
    return text.startswith("/") and " " not in text


def _narrow(
    columns: Sequence[AnyColumn],
    names: Sequence[str],
    widths: list[int],
    width: int,
    paths: Container[int],
) -> None:
    """Cut the widest texts until the line fits, or no text but paths can be cut further."""
    texts = [i for i, column in enumerate(columns) if column.show is None and i not in paths]
    while texts and (over := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        widest = max(texts, key=lambda i: widths[i])
        least = max(12, cell_width(names[widest]))
        if widths[widest] <= least:
            break
        second = sorted((widths[i] for i in texts), reverse=True)[1:2]
        # Down to the next longest, then both: no name loses more than it must.
        step = max(1, widths[widest] - max(second, default=0))
        widths[widest] = max(least, widths[widest] - min(over, step))


def _aligned(column: AnyColumn, cell: str, width: int) -> str:
    text = cut_to_width(cell, width)
    padding = " " * (width - cell_width(text))
    return padding + text if column.is_right else text + padding


def _shallow(text: str) -> str:
    """The same, less far to the right where it stands so deep that its name would be cut off."""
    name = text.lstrip(" ")
    return text if len(text) - len(name) <= DEEPEST else " " * (DEEPEST - 2) + "… " + name


def header(column: AnyColumn) -> str:
    """The column's header, without the unit where the figures carry their own."""
    return column.title if column.show else column.header
