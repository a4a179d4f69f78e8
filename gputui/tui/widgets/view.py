"""What every view shares: what keys ask of it, and what a click does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.message import Message

from gputui.model.leaves import leaf_of_kernel
from gputui.model.units import percent
from gputui.report.schema import Column, sorted_rows
from gputui.report.statistics import TableRow
from gputui.report.tables.nsys import API, KERNELS, MEMORY_TIME
from gputui.report.tables.time import TIME
from gputui.state import Run, Session
from gputui.tui.model import Model
from gputui.tui.shell.keys import is_key, named
from gputui.tui.widgets.canvas import Row, Span, bar, heading
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.line_view import ACT, WIDTH, LineView, look_of
from gputui.tui.widgets.table import (
    Cursor,
    Move,
    Records,
    RecordTable,
    column,
    declared,
    table_rows,
)

SCROLL_LINES = 3
LEAST_WIDTH, LEAST_HEIGHT = 60, 16
"""A smaller terminal is asked to grow."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Where Enter leads: another view, and what to choose there."""

    view: str
    key: Hashable = None


@dataclass(frozen=True, slots=True)
class Details:
    """What Enter shows about the chosen thing."""

    title: str
    rows: tuple[Row, ...]
    more: Callable[[], tuple[Row, ...]] | None = None
    """Rows that take a while to compute: called in a thread."""


@dataclass
class Led(Message):
    """A view leads to another one."""

    to: Lead


@dataclass
class Notice(Message):
    """A line for the bottom of the screen."""

    text: str


class View(LineView):
    """A whole view as rows. Subclasses give the rows; keys arrive as method calls. What only some
    views do they have a method for that the main screen looks for by its name: what it returns, if
    that is text, is said."""

    offers: frozenset[str] = frozenset({"activate"})
    """The actions of the keys that it answers, for the key bar and for who says why not."""
    FILTER_PROMPT = "filter by text: Enter keeps it, Esc clears it"
    MOVES: ClassVar[Mapping[str, str]] = {}
    """What actions do here, in the list of keys, where that is something else than elsewhere."""
    HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """Keys of its own for the key bar: key, what it does, action."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.cursor = Cursor()
        self.needle = ""
        self._acts: list[Callable[[int], object]] = []
        """What clicks do, by the numbers in the roles of what is shown."""

    @property
    def has_lines(self) -> bool:
        """Whether there is anything to open, to sort and to filter."""
        return True

    def rows(self, width: int, height: int) -> list[Row]:
        """The rows for this much room."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show the current state."""
        width, height = self.size
        if not (width and height):
            return
        self._acts = []
        if is_too_small(self.app.size):
            need = f"needs {LEAST_WIDTH}×{LEAST_HEIGHT}, has {self.app.size.width}×"
            need += str(self.app.size.height)
            self.show([(("terminal too small:", "warn"),), ((need, "warn"),)])
        else:
            self.show(self.rows(min(width, WIDTH) if self.is_read else width, height))

    def move(self, move: Move) -> None:
        """Choose another row, or do what left and right mean here."""
        if self.cursor.move(move):
            self.draw()
        elif not self.cursor.keys:
            self.nothing_chosen("nothing is listed here")
        elif move in ("left", "right"):
            self.nothing_chosen("nothing is to the side here: ↑ ↓ choose")

    def activate(self) -> Details | Lead | None:
        """Enter: details of the chosen thing, where it leads, or None if Enter acted itself."""
        return None

    def nothing_chosen(self, why: str = "nothing is chosen: ↑ ↓ choose what Enter opens") -> None:
        """Say so: a key never does nothing without a word."""
        self.post_message(Notice(why))

    def search(self, text: str, *, is_last: bool) -> None:
        """What is typed after /, at each letter; the last time where the field is left."""
        del is_last
        self.needle = text

    def show_item(self, key: Hashable) -> None:
        """Choose what another view led to, whatever was filtered."""
        self.needle = ""
        self.cursor.key = key
        self.chosen_by_hand()

    @property
    def painted(self) -> list[Row]:
        """What is shown, with its looks: the same rows are the same picture."""
        return [tuple((text, look_of(role)) for text, role in row) for row in self._rows]

    @property
    def copied(self) -> str:
        """The full text of what is chosen; the whole view where nothing is."""
        return "\n".join(line.rstrip() for line in self.drawn).strip("\n")

    def follow(self) -> None:
        """Return to what runs now."""

    def chosen_by_hand(self) -> None:
        """The person chose a row: it stays chosen."""

    def on_resize(self) -> None:
        self.draw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._roll("down", event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._roll("up", event)

    def on_click(self, event: events.Click) -> None:
        """What stands under the pointer: what does something, or a key."""
        left, act = event.x, ""
        for text, role in self._rows[event.y] if event.y < len(self._rows) else ():
            left -= cell_len(text)
            if left < 0:
                act = role.partition(ACT)[2]
                break
        if act:
            self._acts[int(act)](event.x)
        elif is_key([key := named(self.find_key_at(event.x, event.y))], replays=True):
            self.app.simulate_key(key)

    def doing(self, row: Row, act: Callable[[], object]) -> Row:
        """A row, a click on which does something."""
        return self.doing_at(row, lambda _: act())

    def doing_at(self, row: Sequence[Span], act: Callable[[int], object]) -> Row:
        """The same, which is given the column of the view that was clicked."""
        self._acts.append(act)
        return tuple((text, f"{role}{ACT}{len(self._acts) - 1}") for text, role in row)

    def leading(self, rows: Sequence[Row], leads: Mapping[Row, Lead]) -> list[Row]:
        """Rows, with clicks on those that lead somewhere."""
        return [
            row if (to := leads.get(row)) is None else self.doing(row, partial(self.lead, to))
            for row in rows
        ]

    def hinting(self, row: Row, text: str, action: str) -> Row:
        """A row in which a click on a text does what a key does."""
        spans: list[Span] = []
        for part, role in row:
            before, hint, after = part.partition(text)
            act = partial(self.ask, action)
            spans += [(before, role), *self.doing(((hint, role),), act), (after, role)]
        return tuple(span for span in spans if span[0])

    def ask(self, action: str) -> None:
        """Have a key's action done."""
        self.screen.call_later(self.screen.run_action, action)

    def lead(self, to: Lead) -> None:
        """Show another view, from which Escape leads back here."""
        self.post_message(Led(to))

    def _roll(self, move: Move, event: events.MouseEvent) -> None:
        """The wheel was turned over `event`'s place."""
        del event
        for _ in range(SCROLL_LINES):
            self.cursor.move(move)
        self.chosen_by_hand()
        self.draw()


def is_too_small(size: Size) -> bool:
    """Whether a terminal of that size is too small for any view."""
    return size.width < LEAST_WIDTH or size.height < LEAST_HEIGHT


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


_BAR = 8


def with_bars(
    columns: list[Column[TableRow]], rows: Sequence[TableRow], *, are_kernels: bool
) -> int:
    """Puts bars beside the shares, those of kernels in the colours of their causes; where that
    column is."""
    at = next(n for n, one in enumerate(columns) if one.key == "time_percent")
    largest = max((row.percent for row in rows), default=0.0) or 1.0
    columns[at] = column(
        "share",
        lambda row: f"{percent(row.percent):>7} {bar(row.percent / largest, _BAR)}",
        columns[at].priority,
        right=False,
        width=9 + _BAR,
        role=lambda row: look(leaf_of_kernel(row.name)).role if are_kernels else "text",
    )
    return at


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

    offers = View.offers | {"sort", "filter"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.tab = 0
        self.sorting = 0
        """Which of the orders."""
        self.other_way = False
        """Whether it is the reverse of the usual one."""
        self.items: Sequence[Any] = ()
        """What the table lists; nothing while there is none."""
        self.records = RecordTable()
        self._has_table = False
        self._table_place = (0, 0, 0)

    @property
    def tabs(self) -> Sequence[str]:
        """Titles of the tabs."""
        return ()

    @property
    def orders(self) -> Sequence[str]:
        """The titles of the columns that rows are sorted by; "" is their own order."""
        return ("",)

    @property
    def has_lines(self) -> bool:
        return self._has_table or self.is_read or bool(self.needle)

    @property
    def is_choosing(self) -> bool:
        """Whether the cursor's row is chosen."""
        return True

    @property
    def item(self) -> Any:
        """The chosen one of what the table lists; None of nothing."""
        listed = zip(self.items, self.cursor.keys, strict=False)
        return next((item for item, key in listed if key == self.cursor.key), None)

    def matching(self, items: Iterable[T], text: Callable[[T], str]) -> list[T]:
        """Those whose text has what is filtered by in it, in any case."""
        needle = self.needle.casefold()
        return [item for item in items if needle in text(item).casefold()]

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
        self.sorting, self.other_way = (self.sorting + 1) % len(self.orders), False
        self.draw()

    def sort_by(self, title: str) -> None:
        """Sort by a column; by the same one again, in reverse."""
        if title in self.orders:
            self.other_way = title == self.orders[self.sorting] and not self.other_way
            self.sorting = self.orders.index(title)
            self.draw()
        else:
            self.nothing_chosen(f"rows are not sorted by {title}")

    def reverse(self) -> None:
        self.other_way = not self.other_way
        self.draw()

    def _sorting_column(self, columns: Sequence[Column[T]]) -> Column[T] | None:
        by = self.orders[self.sorting]
        return next((one for one in columns if by and one.heading == by), None)

    def in_order(self, columns: Sequence[Column[T]], items: Iterable[T]) -> list[T]:
        """The items by the column that sorts, figures from the largest, texts from A, those without
        last; without such a column as they come. All but these the other way round, if asked."""
        return sorted_rows(items, self._sorting_column(columns), other_way=self.other_way)

    def table(
        self, columns: Sequence[Column[T]], items: Sequence[T | str], keys: Sequence[Hashable],
        width: int, height: int, top: int, *, is_sorted: bool = True,
    ) -> list[Row]:  # fmt: skip
        """A table of the items: Textual's, which stands from line `top` of the view on, and leaves
        these rows to it. For who has the screen read out they are rows as others. The title of the
        column that sorts is marked where it `is_sorted` by one."""
        self.items = items
        by = self._sorting_column(columns) if is_sorted else None
        sorted_by = None if by is None else by.heading
        ascending = (by is not None and by.show is None) != self.other_way
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
        self._has_table, self.items = False, ()
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
        """A line was clicked, and is there still: choose it; if it is chosen already, as Enter."""
        if message.line >= len(self.cursor.keys) or self.click_mark(message.line, message.x):
            return
        if message.line == self.cursor.index and self.is_choosing:
            self.ask("activate")
        self.cursor.choose(message.line)
        self.chosen_by_hand()
        self.draw()

    def click_mark(self, line: int, x: int) -> bool:
        """Do what a mark in this cell of a line is for; whether one stands there."""
        del line, x
        return False

    def on_record_table_title_clicked(self, message: RecordTable.TitleClicked) -> None:
        self.sort_by(message.title)

    def tab_row(self, width: int, *notes: str) -> Row:
        """Titles of tabs, each of which a click chooses, then as many notes as fit."""
        spans: list[Span] = []
        x = 0
        for number, title in enumerate(self.tabs):
            text = f" {title} "
            tab: Row = ((text, "tab-active" if number == self.tab else "tab"),)
            spans += [*self.doing(tab, partial(self.put_tab, number)), (" ", "text")]
            x += len(text) + 1
        for note in notes:
            if note and x + len(note) + 2 <= width:
                spans.append((f" {note} ", "dim"))
                x += len(note) + 2
        return tuple(spans)


# Views with lanes, a stretch of which is chosen by dragging over them.


class DraggedView(View):
    """A view with lanes whose columns can be chosen, several at once, with the mouse."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.dragged: tuple[int, int] | None = None
        """What is being chosen: the first and the last of what the columns show."""
        self._lanes_of: tuple[range, int, Sequence[int]] = (range(0), 0, ())
        """The lines of the lanes, where their columns begin, and what each of them shows."""
        self._from: int | None = None
        self._has_dragged = False

    def take_stretch(self, first: int, last: int) -> None:
        """What was chosen."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._has_dragged = False
        lines, _, shown = self._lanes_of
        if event.button == 1 and event.y in lines and shown:
            self._from = self._shown_at(event.x)
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseEvent) -> None:
        if self._from is None:
            return
        at = self._shown_at(event.x)
        if at != self._from or self.dragged is not None:
            self.dragged = min(at, self._from), max(at, self._from)
            self.draw()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._from is None:
            return
        self.on_mouse_move(event)
        self.release_mouse()
        self._from, dragged, self.dragged = None, self.dragged, None
        if dragged is not None:
            self._has_dragged = True
            self.take_stretch(*dragged)

    def on_click(self, event: events.Click) -> None:
        """The end of a drag is no click. Another one is the base class's, which hears it too."""
        if self._has_dragged:
            event.prevent_default()

    def _shown_at(self, x: int) -> int:
        _, start, shown = self._lanes_of
        return shown[max(0, min(len(shown) - 1, x - start))]
