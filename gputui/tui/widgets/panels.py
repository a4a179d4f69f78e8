"""Panels: headings with rows below them, some of which can be chosen, laid out side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from gputui.tui.widgets.canvas import Row, beside, heading

GAP = 2


@dataclass(slots=True)
class Panel:
    """A heading and rows. `items` are what can be chosen, by the row's number; `view` is the one
    that shows more of it."""

    title: str
    rows: list[Row]
    note: str = ""
    items: dict[int, Hashable] = field(default_factory=dict)
    view: str = ""
    of: int = 0
    """How many rows there would be: the heading says how many of them are shown. 0 says nothing."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where something stands on the screen."""

    y: int
    start: int
    end: int
    key: Hashable


@dataclass(slots=True)
class Layout:
    """Rows from the top, and what can be chosen in them, in the order in which it is read."""

    width: int
    rows: list[Row] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    titles: list[Spot] = field(default_factory=list)
    """The headings: `key` is the view they lead to."""

    def add(self, rows: Sequence[Row]) -> None:
        """Rows in which nothing can be chosen."""
        self.rows += rows

    def band(self, panels: Sequence[Panel], widths: Sequence[int], height: int) -> None:
        """Panels side by side in `height` rows, headings included."""
        top = len(self.rows)
        x = 0
        blocks: list[tuple[list[Row], int]] = []
        for panel, width in zip(panels, widths, strict=True):
            shown = panel.rows[: max(0, height - 1)]
            note = f"{len(shown)} of {panel.of}" if panel.of else panel.note
            blocks.append(([heading(panel.title, width, note), *shown], width))
            if panel.view:
                self.titles.append(Spot(top, x, x + width, panel.view))
            self.spots += [
                Spot(top + 1 + number, x, x + width, key)
                for number, key in panel.items.items()
                if number < len(shown)
            ]
            x += width + GAP
        rows = beside(blocks, GAP)
        self.rows += rows + [()] * (height - len(rows))


def columns_of(width: int, count: int) -> list[int]:
    """The widths of so many columns side by side."""
    each, rest = divmod(width - GAP * (count - 1), count)
    return [each + (number < rest) for number in range(count)]
