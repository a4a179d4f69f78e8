"""What views share that list processes below something else: keys, order, and the table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from gputui.report.schema import Column
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.processes import Order
from gputui.tui.widgets.table_view import TableView

T = TypeVar("T")


class ProcessListView(TableView):
    """A view whose lower part lists processes; `ABOVE` names its upper part."""

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
        before, self.order = self.order, self.order.by(title)
        if self.order is before:
            super().sort_by(title)
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
        columns: Sequence[Column[T]],
        lines: Sequence[T],
        keys: Sequence[Hashable],
        size: tuple[int, int],
        top: int,
    ) -> list[Row]:
        """The table of those `lines` around the cursor; it follows a heading in line `top`."""
        width, height = size
        return self.table(
            columns, lines, keys, width, height - 1, top + 1,
            sorted_by=self.order.title, ascending=not self.order.descending,
        )  # fmt: skip
