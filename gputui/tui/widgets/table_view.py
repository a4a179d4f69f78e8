"""Shared by views of tables: the order of the rows, tabs, the rows around the cursor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TypeVar

from textual.app import ComposeResult

from gputui.report.schema import Column
from gputui.report.statistics import TableRow
from gputui.report.tables.nsys import API, KERNELS, MEMORY_TIME
from gputui.report.tables.time import TIME
from gputui.state import Run, Session
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, heading
from gputui.tui.widgets.table import Move, Records, RecordTable, declared, table_rows
from gputui.tui.widgets.view import Place, View

# Kernels, calls, memory operations and the time tree: what the screen has of their tables.


_SPREAD = ("avg_ns", "med_ns", "p99_ns", "max_ns", "min_ns", "stddev_ns")


def kernel_columns() -> list[Column[TableRow]]:
    """Kernels with their categories."""
    names = ("short_name", "category")
    return declared(KERNELS, *names, "time_percent", "total_ns", "instances", *_SPREAD)


def call_columns(name: str = "name") -> list[Column[TableRow]]:
    """CUDA calls."""
    keys = ("name", "time_percent", "total_ns", "num_calls", *_SPREAD)
    return declared(API, *keys, name=name)


def operation_columns() -> list[Column[TableRow]]:
    """Copies and memsets by time."""
    return declared(MEMORY_TIME, "operation", "time_percent", "total_ns", "count", *_SPREAD)


def time_rows(session: Session, run: Run, width: int) -> list[Row]:
    """Where each step goes: nothing where no operation was accounted for."""
    table = TIME.table(session, run)
    if not table.rows:
        return []
    columns = declared(TIME, "state", "cause", "share_percent", "step_ns", "total_ns")
    return [heading(table.title, width, table.note), *table_rows(columns, table.rows, width)]


T = TypeVar("T")

NO_MATCH = "nothing matches the filter (Esc clears it)"


class TableView(View):
    """A view of a table, or of one for each of several tabs."""

    SORTS = True
    FILTERS = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.tab = 0
        self.sorting = 0
        """Which of the orders."""
        self.other_way = False
        """Whether it is the reverse of the usual one."""
        self.records = RecordTable()
        self._has_table = False
        self._table_place = (0, 0, 0)

    @property
    def tabs(self) -> Sequence[str]:
        """Titles of the tabs."""
        return ()

    @property
    def orders(self) -> Sequence[str]:
        """The titles of the columns that rows are sorted by."""
        return ()

    @property
    def filter_note(self) -> str:
        """What the rows are filtered by."""
        return f"filter: {self.needle}" if self.needle else ""

    def move(self, move: Move) -> None:
        """Left and right change the tab, if there are any."""
        if move in ("left", "right") and self.tabs:
            self.put_tab(self.tab + (1 if move == "right" else -1))
        else:
            super().move(move)

    def put_tab(self, number: int) -> None:
        """Show a tab; after the last one comes the first."""
        self.tab = number % len(self.tabs)
        self.draw()

    def sort(self) -> None:
        self.sorting = (self.sorting + 1) % len(self.orders)
        self.draw()

    def sort_by(self, title: str) -> None:
        if title in self.orders:
            self.other_way = title == self.orders[self.sorting] and not self.other_way
            self.sorting = self.orders.index(title)
            self.draw()
        else:
            super().sort_by(title)

    def reverse(self) -> None:
        self.other_way = not self.other_way
        self.draw()

    def table(
        self, columns: Sequence[Column[T]], items: Sequence[T], keys: Sequence[Hashable],
        width: int, height: int, top: int, *, sorted_by: str | None = None, ascending: bool = False,
    ) -> list[Row]:  # fmt: skip
        """A table of the items: Textual's, which stands from line `top` of the view on, and leaves
        these rows to it. For who has the screen read out they are rows as others."""
        if self.is_read:
            window = self.cursor.window(keys, height - 1)
            selected = self.cursor.index - self.cursor.offset if self.is_choosing else None
            return table_rows(
                columns, items[window], width, selected=selected, sorted_by=sorted_by,
                ascending=ascending, beyond=self.cursor.beyond,
            )  # fmt: skip
        self.cursor.locate(keys, height - 1)
        lines = max(1, min(height, len(items) + 1))
        place = (top, width, lines)
        self._has_table = True
        if place != self._table_place:
            self._table_place = place
            styles = self.records.styles
            styles.offset, styles.width, styles.height = (0, top), width, lines
        shown = Records(columns, items, sorted_by, ascending)
        self.records.fill(shown, self.cursor.index if self.is_choosing else None, lines)
        return [()] * lines

    def compose(self) -> ComposeResult:
        """The table, which stands where `table` was called for."""
        self.records.display = False
        yield self.records

    def draw(self) -> None:
        self._has_table = False
        super().draw()
        if self.records.display != self._has_table:
            self.records.display = self._has_table

    @property
    def painted(self) -> list[Row]:
        rows = super().painted
        if self._has_table:
            top, _, lines = self._table_place
            rows[top : top + lines] = self.records.painted
        return rows

    @property
    def drawn(self) -> list[str]:
        return ["".join(text for text, _ in row) for row in self.painted]

    def on_record_table_chosen(self, message: RecordTable.Chosen) -> None:
        """A line was clicked: choose it; if it is chosen already, as Enter."""
        if message.line == self.cursor.index and self.is_choosing:
            self.ask("activate")
        self.cursor.choose(message.line)
        self.chosen_by_hand()
        self.draw()

    def on_record_table_title_clicked(self, message: RecordTable.TitleClicked) -> None:
        self.sort_by(message.title)

    def tab_row(self, y: int, width: int, *notes: str) -> Row:
        """Titles of tabs, each of which a click chooses, then as many notes as fit."""
        spans: list[Span] = []
        x = 0
        for number, title in enumerate(self.tabs):
            text = f" {title} "
            spans += [(text, "tab-active" if number == self.tab else "tab"), (" ", "text")]
            act = partial(self.put_tab, number)
            self.places.append(Place(y, x, x + len(text), act))
            x += len(text) + 1
        for note in notes:
            if note and x + len(note) + 2 <= width:
                spans.append((f" {note} ", "dim"))
                x += len(note) + 2
        return tuple(spans)
