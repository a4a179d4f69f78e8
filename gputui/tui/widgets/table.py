"""Tables as rows: columns with priorities, figures that are never cut, a cursor by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Literal, TypeVar

import msgspec
from rich.cells import cell_len

from gputui.report.schema import Column, TableSpec, columns_that_fit
from gputui.tui.widgets.canvas import Row, Span, chosen_row, cut_middle, fit

T = TypeVar("T")
Move = Literal["up", "down", "page_up", "page_down", "home", "end", "left", "right"]

GAP = 2

_SENTENCES = ("result", "command")
"""Headings of columns whose texts are cut at their ends: names are cut in the middle."""


def column(
    title: str,
    cell: Callable[[T], str],
    priority: int = 0,
    *,
    flexible: bool = False,
    right: bool = True,
    width: int = 0,
    role: Callable[[T], str] | str = "text",
) -> Column[T]:
    """A column that no declared table has."""
    return Column(
        title, words=cell, priority=priority, flexible=flexible, right=right, width=width, role=role
    )


def declared(
    table: TableSpec[T], *keys: str, blank: Collection[str] = (), **headings: str
) -> list[Column[T]]:
    """The columns of a declared table with these keys, in this order.

    Those in `blank` show nothing where they are missing or 0; `headings` are others than declared.
    """
    found = []
    for key in keys:
        one = table.column(key)
        if key in blank:
            one = msgspec.structs.replace(one, words=_unless_nothing(one))
        if key in headings:
            one = msgspec.structs.replace(one, label=headings[key])
        found.append(one)
    return found


def _unless_nothing(one: Column[T]) -> Callable[[T], str]:
    return lambda row: one.text(row) if one.cell(row) else ""


def fit_columns(
    columns: Sequence[Column[T]], items: Sequence[T], width: int
) -> list[tuple[Column[T], int, list[str]]]:
    """The columns that fit `width`, each with its width and the text of its cells."""
    texts = [[column.text(item) for item in items] for column in columns]
    widths = [
        column.width
        if column.flexible
        else max(cell_len(column.heading), column.width, *map(cell_len, cells), 0)
        for column, cells in zip(columns, texts, strict=True)
    ]
    kept = columns_that_fit(columns, widths, width, GAP)
    spare = width - sum(widths[i] for i in kept) - GAP * (len(kept) - 1)
    result = []
    for i in kept:
        size = widths[i]
        if columns[i].flexible:
            # No wider than its content: figures far from their name are hard to read.
            content = max(map(cell_len, [columns[i].heading, *texts[i]]))
            grown = max(size, min(size + spare, content)) if spare >= 0 else max(0, size + spare)
            spare -= grown - size
            size = grown
        result.append((columns[i], min(size, width), texts[i]))
    return result


def table_rows(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    width: int,
    *,
    selected: int | None = None,
    sorted_by: str | None = None,
    ascending: bool = False,
    beyond: str = "",
) -> list[Row]:
    """A header and one row per item. The selected row is one span in the role "cursor".

    `beyond` says how many rows are out of sight: it stands in the header's first gap with room.
    """
    mark = "▲" if ascending else "▼"
    fitted = fit_columns(columns, items, width)
    header = []
    for column, size, _ in fitted:
        title = column.heading
        if title == sorted_by and cell_len(title) < size:
            title = f"{mark}{title}" if column.is_right else f"{title}{mark}"
        header.append(fit(title, size, right=column.is_right))
    titles = fit((" " * GAP).join(header), width)
    free = rf"(?<=\S{' ' * GAP}) {{{len(beyond)}}}(?={' ' * GAP}|$)"
    if gap := beyond and re.search(free, titles):
        titles = f"{titles[: gap.start()]}{beyond}{titles[gap.end() :]}"
    rows: list[Row] = [((titles, "head"),)]
    for number, item in enumerate(items):
        spans: list[Span] = []
        for position, (column, size, cells) in enumerate(fitted):
            role = column.role if isinstance(column.role, str) else column.role(item)
            cell = cells[number]
            if column.flexible and not column.is_right and column.heading not in _SENTENCES:
                cell = cut_middle(cell, size)
            text = fit(cell, size, right=column.is_right)
            if position:
                spans.append((" " * GAP, "text"))
            spans.append((text, role))
        if number == selected:
            rows.append(chosen_row(tuple(spans), width))
        else:
            rows.append(_merged(spans))
    return rows


def column_at(columns: Sequence[Column[T]], items: Sequence[T], width: int, x: int) -> str | None:
    """The title of the column at `x`, None between two."""
    start = 0
    for column, size, _ in fit_columns(columns, items, width):
        if start <= x < start + size:
            return column.heading
        start += size + GAP
    return None


def _merged(spans: Sequence[Span]) -> Row:
    """Neighbours of one role as one span; blanks join the preceding one."""
    result: list[Span] = []
    for text, role in spans:
        if result and (role == result[-1][1] or not text.strip()):
            result[-1] = (result[-1][0] + text, result[-1][1])
        else:
            result.append((text, role))
    return tuple(result)


def moved(at: int, move: Move, page: int, last: int = 10**9) -> int:
    """Where a movement leads from line `at`, of lines 0 to `last`."""
    steps = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "home": -at, "end": last}
    return min(last, max(0, at + steps.get(move, 0)))


class Cursor(msgspec.Struct):
    """Which row is chosen, by its key, and which rows are in sight."""

    key: Hashable = None
    index: int = 0
    offset: int = 0
    page: int = 10
    keys: Sequence[Hashable] = ()
    shown: range = range(0)
    """The indices of the rows in sight."""

    def window(self, keys: Sequence[Hashable], height: int, last: int | None = None) -> slice:
        """The rows to show of `keys` in `height`, with the chosen one among them.

        If the chosen key is gone, the row in its place is chosen. `last` is a row to keep in sight
        too, if both fit.
        """
        self.keys = keys
        self.page = max(1, height - 1)
        if not keys:
            self.offset = self.index = 0
            self.shown = range(0)
            return slice(0, 0)
        if self.key is None or not (self.index < len(keys) and keys[self.index] == self.key):
            try:
                self.index = keys.index(self.key)
            except ValueError:
                self.index = min(self.index, len(keys) - 1)
        self.key = keys[self.index]
        height = max(1, height)
        lowest = self.index if last is None else max(self.index, last)
        self.offset = min(max(self.offset, lowest - height + 1), self.index)
        self.offset = max(0, min(self.offset, len(keys) - height))
        # A click below the table chose a row that is not drawn.
        self.shown = range(self.offset, min(self.offset + height, len(keys)))
        return slice(self.offset, self.offset + height)

    @property
    def beyond(self) -> str:
        """How many rows are out of sight: "2 more ↑ 3 more ↓"."""
        above, below = self.shown.start, len(self.keys) - self.shown.stop
        return " ".join([f"{above} more ↑"] * (above > 0) + [f"{below} more ↓"] * (below > 0))

    def move(self, move: Move) -> bool:
        """Choose another row; whether it changed."""
        if not self.keys:
            return False
        target = moved(self.index, move, self.page, len(self.keys) - 1)
        if target == self.index:
            return False
        self.index = target
        self.key = self.keys[target]
        return True

    def take(self, keys: Sequence[Hashable], index: int) -> None:
        """Choose the row at `index` of what will be shown next."""
        self.keys = keys
        self.choose(index)

    def choose(self, index: int) -> None:
        """Choose the row at `index` of all keys, if there is one."""
        if 0 <= index < len(self.keys):
            self.index = index
            self.key = self.keys[index]
