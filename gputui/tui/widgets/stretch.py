"""The steps of a run in columns, with a cursor; dragging over them makes them the scope."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from gputui.tui.model import Model
from gputui.tui.widgets.one_step import OneStepView
from gputui.tui.widgets.step_columns import Column
from gputui.tui.widgets.view import Notice

if TYPE_CHECKING:
    from gputui.report.scope import RunScope


FEWEST = 4
"""Columns in sight at least."""


def _same(was: list[Column], now: list[Column], at: int) -> int:
    """Which column of `now` has the first step of column `at` of `was`."""
    if at >= len(was):
        return max(0, min(at, len(now) - 1))
    first = was[at].own[0]
    return max(0, bisect_right([column.own[0] for column in now], first) - 1)


class StretchView(OneStepView):
    """A view of such columns."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.at: int | None = None
        """The column under the cursor; None for the newest."""
        self.first = 0
        self.shown: int | None = None
        """How many columns are seen, from `first` on; None for all."""
        self._columns: list[Column] = []

    def _take(self, columns: list[Column]) -> None:
        """The columns at this moment: the cursor and the window stay at their steps, and without a
        cursor the newest in sight. Under a drag they stay as they are."""
        if self._from is not None and columns:
            return
        was, self._columns = self._columns, columns
        first, whole = self.first, len(columns)
        if self.shown is not None and self.at is None:
            self.first = max(0, whole - self.shown)
        elif self.shown is not None:
            last = _same(was, columns, first + self.shown - 1)
            self.first = _same(was, columns, first)
            self.shown = max(FEWEST, last + 1 - self.first)
            self.first = max(0, min(self.first, whole - self.shown))
        if self.at is not None:
            self.at = _same(was, columns, self.at)

    @property
    def _column(self) -> Column | None:
        if not self._columns:
            return None
        at = len(self._columns) - 1 if self.at is None else self.at
        return self._columns[min(at, len(self._columns) - 1)]

    def _put(self, at: int) -> None:
        self.at = at
        if self.shown is not None:
            self.first = max(0, min(max(self.first, at - self.shown + 1), at))
        self.draw()

    def take_stretch(self, first: int, last: int) -> None:
        """Shares are of these columns' steps."""
        from gputui.report.scope import why_no_stretch

        run = self.model.run
        last = min(last, len(self._columns) - 1)  # there may be fewer than when the drag began
        if not 0 <= first <= last:
            self.draw()
            return
        why_not = why_no_stretch(run) if run is not None else None
        if not self._columns[first].leaves:
            why_not = "where single steps spent their time was not kept"
        if why_not is not None:
            self.post_message(Notice(why_not))
            self.draw()
            return
        self.model.stretch = self._steps_of(self._columns[first], self._columns[last])
        self.model.choose_scope(self.model.stretch)
        self.draw()

    @property
    def stretch(self) -> RunScope | None:
        """The steps under the cursor."""
        column = self._column
        if column is None or not column.leaves or self.model.stretch is not None:
            return None
        return self._steps_of(column, column)

    def _steps_of(self, first: Column, last: Column) -> RunScope:
        from gputui.report.scope import RunScope, ScopeKind

        return RunScope(ScopeKind.STEPS, first.first, last.first + last.steps - 1)

    def inside_scope(self, seen: list[Column]) -> list[bool]:
        """Which columns are in the stretch that is chosen, or being chosen."""
        if self.dragged is not None:
            first, last = self.dragged
            return [first <= self.first + n <= last for n in range(len(seen))]
        scope = self.model.scope
        if scope is None or not scope.last:
            return [True] * len(seen)
        ends = [each.first + each.steps - 1 for each in seen]
        return [scope.first <= end and each.first <= scope.last
                for each, end in zip(seen, ends, strict=True)]  # fmt: skip
