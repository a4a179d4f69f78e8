"""What views share that list processes below something else: keys, order, and the table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from gputui.report.schema import Column
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.processes import Order
from gputui.tui.widgets.table import column_at, table_rows
from gputui.tui.widgets.view import View


class ProcessListView(View):
    """A view whose lower part lists processes; `ABOVE` names its upper part."""

    SORTS = True
    FILTERS = True
    ABOVE: str

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.order = Order()
        self.focus_on = self.ABOVE
        """Which part the keys go to: `ABOVE` or "processes"."""
        self.only_processes = False

    def chosen_by_hand(self) -> None:
        """A process was clicked."""
        self.focus_on = "processes"

    @property
    def is_choosing(self) -> bool:
        return self.focus_on == "processes"

    def sort(self) -> None:
        self.order = self.order.next()
        self.draw()

    def sort_by(self, title: str) -> None:
        self.order = self.order.by(title)
        self.draw()

    def reverse(self) -> None:
        self.order = self.order.reversed()
        self.draw()

    def toggle_processes(self) -> bool:
        """Give processes the whole view, or not."""
        self.only_processes = not self.only_processes
        self.focus_on = "processes" if self.only_processes else self.ABOVE
        self.draw()
        return True

    def list_rows(
        self,
        columns: Sequence[Column[Any]],
        lines: Sequence[Any],
        keys: Sequence[Hashable],
        size: tuple[int, int],
        top: int,
    ) -> list[Row]:
        """The table of those `lines` around the cursor; it follows a heading in line `top`."""
        width, height = size
        window = self.cursor.window(keys, height - 2)
        shown = lines[window]
        self.first_item_line = top + 2
        self.header = (top + 1, lambda x: column_at(columns, shown, width, x))
        return table_rows(
            columns,
            shown,
            width,
            selected=self.cursor.index - self.cursor.offset if self.is_choosing else None,
            sorted_by=self.order.title,
            ascending=not self.order.descending,
        )
