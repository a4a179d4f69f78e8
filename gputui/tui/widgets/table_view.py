"""Shared by views of tables: the order of the rows, tabs, the rows around the cursor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TypeVar

from gputui.report.schema import Column
from gputui.report.statistics import TableRow
from gputui.report.tables.nsys import API, KERNELS, MEMORY_SIZE, MEMORY_TIME
from gputui.report.tables.time import TIME
from gputui.state import Run, Session
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, heading
from gputui.tui.widgets.table import Move, column_at, declared, table_rows
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


def size_columns() -> list[Column[TableRow]]:
    """Copies and memsets by size."""
    sizes = ("avg_bytes", "med_bytes", "min_bytes", "max_bytes")
    return declared(MEMORY_SIZE, "operation", "total_bytes", "count", *sizes)


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
        """A table of the items around the cursor, its header in line `top` of the view."""
        window = self.cursor.window(keys, height - 1)
        shown = items[window]
        self.first_item_line, self.table_width = top + 1, width
        self.header = (top, lambda x: column_at(columns, shown, width, x))
        selected = self.cursor.index - self.cursor.offset if self.is_choosing else None
        return table_rows(
            columns, shown, width, selected=selected, sorted_by=sorted_by, ascending=ascending,
            beyond=self.cursor.beyond,
        )  # fmt: skip

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
