"""Tables as rows: columns with priorities, figures that are never cut, a cursor by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.coordinate import Coordinate
from textual.geometry import Region, Spacing
from textual.message import Message
from textual.widgets import DataTable

from gputui.model.kernel_categories import cut_apart
from gputui.model.units import MISSING
from gputui.report.schema import Cell, Column, Show, TableSpec, columns_that_fit
from gputui.tui.widgets.canvas import Row, Span, chosen_row, fit, row_width
from gputui.tui.widgets.line_view import role_style

T = TypeVar("T")
Move = Literal["up", "down", "page_up", "page_down", "home", "end", "left", "right"]

GAP = 2

_SENTENCES = ("result", "command", "beginning with")
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
    by: Callable[[T], Cell] | None = None,
    show: Show | None = None,
) -> Column[T]:
    """A column that no declared table has. Rows are sorted `by` what has `show` for figures."""
    return Column(
        title, show, value=by, words=cell, priority=priority, flexible=flexible, right=right,
        width=width, role=role,
    )  # fmt: skip


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


def details_of(columns: Sequence[Column[T]], item: T) -> tuple[Row, ...]:
    """What the columns show of an item, those without room too, and what each is."""
    told = [(one, text) for one in columns if (text := one.text(item)) not in ("", MISSING)]
    label = max((cell_len(one.heading) for one, _ in told), default=0) + 2
    figure = max((cell_len(text) for _, text in told), default=0) + 2
    return tuple(
        ((f"{one.heading:<{label}}", "label"), (f"{text:<{figure}}", "text"), (one.meaning, "dim"))
        for one, text in told
    )


def _unless_nothing(one: Column[T]) -> Callable[[T], str]:
    return lambda row: one.text(row) if one.cell(row) else ""


def fit_columns(
    columns: Sequence[Column[T]], items: Sequence[T | str], width: int
) -> list[tuple[Column[T], int, list[str]]]:
    """The columns that fit `width`, each with its width and the text of its cells. Items that are
    a text have none."""
    rows = [item for item in items if not isinstance(item, str)]
    texts = [[column.text(item) for item in rows] for column in columns]
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
    items: Sequence[T | str],
    width: int,
    *,
    selected: int | None = None,
    sorted_by: str | None = None,
    ascending: bool = False,
    beyond: str = "",
) -> list[Row]:
    """A header and one row per item; one that is a text stands across all columns. The selected
    row is one span in the role "cursor".

    `beyond` says how many rows are out of sight: it stands in the header's first gap with room.
    """
    mark = "▲" if ascending else "▼"
    fitted = [
        (column, size, cut_apart(cells, size) if _is_of_names(column) else cells)
        for column, size, cells in fit_columns(columns, items, width)
    ]
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
    cells_of = 0
    for number, item in enumerate(items):
        spans: list[Span] = [(fit(item, width), "dim")] if isinstance(item, str) else []
        for position, (column, size, cells) in enumerate(fitted):
            if isinstance(item, str):
                break
            role = column.role if isinstance(column.role, str) else column.role(item)
            text = fit(cells[cells_of], size, right=column.is_right)
            if position:
                spans.append((" " * GAP, "text"))
            spans.append((text, role))
        cells_of += not isinstance(item, str)
        if number == selected:
            rows.append(chosen_row(tuple(spans), width))
        else:
            rows.append(_merged(spans))
    return rows


def _is_of_names(column: Column[Any]) -> bool:
    return column.flexible and not column.is_right and column.heading not in _SENTENCES


def column_at(
    columns: Sequence[Column[T]], items: Sequence[T | str], width: int, x: int
) -> str | None:
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


def _beyond(above: int, below: int) -> str:
    """Rows out of sight: "2 more ↑ 3 more ↓"."""
    return " ".join([f"{above} more ↑"] * (above > 0) + [f"{below} more ↓"] * (below > 0))


class Cursor(msgspec.Struct):
    """Which row is chosen, by its key, and which rows are in sight."""

    key: Hashable = None
    index: int = 0
    offset: int = 0
    page: int = 10
    keys: Sequence[Hashable] = ()
    shown: range = range(0)
    """The indices of the rows in sight."""

    def window(self, keys: Sequence[Hashable], height: int) -> slice:
        """The rows to show of `keys` in `height`, with the chosen one among them. If the chosen key
        is gone, the row in its place is chosen."""
        self.locate(keys, height)
        if not keys:
            self.offset = 0
            self.shown = range(0)
            return slice(0, 0)
        height = max(1, height)
        self.offset = min(max(self.offset, self.index - height + 1), self.index)
        self.offset = max(0, min(self.offset, len(keys) - height))
        # A click below the table chose a row that is not drawn.
        self.shown = range(self.offset, min(self.offset + height, len(keys)))
        return slice(self.offset, self.offset + height)

    def locate(self, keys: Sequence[Hashable], height: int) -> None:
        """Find the chosen one among `keys`, of which so many are in sight. If it is gone, the one
        in its place is chosen."""
        self.keys = keys
        self.page = max(1, height - 1)
        if not keys:
            self.index = 0
            return
        if self.key is None or not (self.index < len(keys) and keys[self.index] == self.key):
            try:
                self.index = keys.index(self.key)
            except ValueError:
                self.index = min(self.index, len(keys) - 1)
        self.key = keys[self.index]

    @property
    def beyond(self) -> str:
        """How many rows are out of sight."""
        return _beyond(self.shown.start, len(self.keys) - self.shown.stop)

    def move(self, move: Move) -> bool:
        """Choose another row; whether it changed."""
        if not self.keys:
            return False
        by = {"up": -1, "down": 1, "page_up": -self.page, "page_down": self.page,
              "home": -self.index, "end": len(self.keys)}  # fmt: skip
        target = min(len(self.keys) - 1, max(0, self.index + by.get(move, 0)))
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


class Records(msgspec.Struct, Generic[T], frozen=True):
    """What a table shows, and in which order it stands."""

    columns: Sequence[Column[T]]
    items: Sequence[T | str]
    sorted_by: str | None = None
    ascending: bool = False


_MOST_REMOVED = 20
"""Lines that are removed one by one, each of which takes longer the longer the table is."""


class RecordTable(DataTable[Text]):
    """The columns that fit, of any number of lines, in Textual's table: cursor, scrolling, mouse.

    Textual draws every cell in sight anew when one changes. Here a line is one cell, made of what
    fits when it comes in sight: where a cell in twenty of 40 lines of 12 changes that takes a fifth
    of the time (14 against 67 ms on one busy core), in a table of 10,000 lines half.
    """

    can_focus = False  # the keys are those of the screen

    class Chosen(Message):
        """A line was clicked, in this cell of it."""

        def __init__(self, line: int, x: int) -> None:
            super().__init__()
            self.line, self.x = line, x

    class TitleClicked(Message):
        """The title of a column was clicked."""

        def __init__(self, title: str) -> None:
            super().__init__()
            self.title = title

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=0, cursor_foreground_priority="css")
        self._records: Records[Any] | None = None
        self._drawn: tuple[list[Row], int, int] = ([], 0, 0)
        """The titles and the lines that are seen, which is the first of them, and their width."""
        self._first = 0
        self._room = 1
        self._kept: int | None = None
        self._cells: dict[int, Text] = {}

    def fill(self, records: Records[Any], chosen: int | None, height: int) -> None:
        """Show these, one of them chosen, in so many rows with that of the titles."""
        self._records = records
        if not self.columns:
            self.add_column("", width=1)
        many = len(records.items)
        if self.row_count - many > _MOST_REMOVED:
            self.clear()
        while self.row_count > many:
            self.remove_row(str(self.row_count - 1))
        for number in range(self.row_count, many):
            self.add_row(height=1, key=str(number))
        self.show_cursor = chosen is not None
        self._draw_lines(height)
        if chosen is not None and chosen != self.cursor_row:
            self.move_cursor(row=chosen)

    def keep_in_sight(self, line: int | None) -> None:
        """Scroll to a line too, where the chosen one leaves room for it."""
        self._kept = line
        if line is not None:
            self.call_after_refresh(self._scroll_to_kept)

    def _scroll_to_kept(self) -> None:
        if self._kept is not None:
            region, below_titles = Region(0, self._kept + 1, 1, 1), Spacing(1, 0, 0, 0)
            self.scroll_to_region(region, spacing=below_titles, animate=False, force=True)
        if self.show_cursor:
            self.move_cursor(row=self.cursor_row)

    @property
    def painted(self) -> list[Row]:
        """The titles and the lines in sight, the chosen one as that."""
        line = self.cursor_row - self._first + 1 if self.show_cursor else 0
        return [
            chosen_row(row, row_width(row)) if number == line > 0 else row
            for number, row in enumerate(self._drawn[0])
        ]

    def get_row_at(self, row_index: int) -> list[Any]:
        """The line as one cell; blank where it is out of sight."""
        return [self._cells.get(row_index, "")]

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._draw_lines(self.size.height)

    def on_resize(self) -> None:
        self._scroll_to_kept()
        self._draw_lines(self.size.height)

    def notify_style_update(self) -> None:
        self._drawn = ([], 0, 0)
        super().notify_style_update()
        if self.is_attached:
            self._draw_lines(self.size.height)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        event.prevent_default()
        records = self._records
        line = event.y - 1 + self._first
        if records is None:
            return
        if event.y == 0:
            title = column_at(records.columns, self._shown_items(), self._width, event.x)
            if title:
                self.post_message(self.TitleClicked(title))
        elif line < self.row_count:
            self.post_message(self.Chosen(line, event.x))

    @property
    def _width(self) -> int:
        return self.styles.width.cells if self.styles.width and self.styles.width.cells else 1

    def _shown_items(self) -> Sequence[Any]:
        return () if self._records is None else self._records.items[self._first :][: self._room]

    def _draw_lines(self, height: int) -> None:
        records = self._records
        if records is None or not height:
            return
        self._room = max(1, height - 1)
        self._first = min(int(self.scroll_y), max(0, len(records.items) - self._room))
        width = max(1, self._width - (len(records.items) > self._room))
        shown = self._shown_items()
        rows = table_rows(
            records.columns, shown, width, sorted_by=records.sorted_by,
            ascending=records.ascending,
            beyond=_beyond(self._first, len(records.items) - self._first - len(shown)),
        )  # fmt: skip
        if (rows, self._first, width) == self._drawn:
            return
        self._drawn = (rows, self._first, width)
        look = partial(role_style, self.app)
        titles, *lines = [
            Text.assemble(*((text, look(role)) for text, role in row)) for row in rows
        ]
        self._cells = dict(enumerate(lines, self._first))
        (column,) = self.columns.values()
        column.label, column.width = titles, width
        if self.row_count:
            self.update_cell_at(Coordinate(0, 0), Text())
        else:
            self.refresh()
