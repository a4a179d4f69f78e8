"""Columns of steps as bars: how long steps usually took there, and up to where the longest one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gputui.tui.widgets.canvas import nice_top
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.step_columns import Column

CUT = "▲"
"""Where a step was longer than the axis."""

_SINGLE = "│"
"""From the mean of several steps to the longest of them."""


def spread(columns: Sequence[Column], room: int) -> list[Sequence[Column]]:
    """What stands in each of `room` cells: several columns where there are more, and the other way
    round."""
    ends = [len(columns) * at // room for at in range(room + 1)]
    return [columns[low : max(high, low + 1)] for low, high in pairwise(ends)]


def step_bars(
    cells: Sequence[Sequence[Column]], usual_ns: float, tall: int
) -> tuple[list[str], float]:
    """Rows, the top one first, and where the axis ends: where usual steps would lose their ink the
    longest ones are cut."""
    longest = [max(column.drawn_ns for column in cell) for cell in cells]
    means = [
        min(top, max(column.level_ns for column in cell))
        for cell, top in zip(cells, longest, strict=True)
    ]
    most = max(longest, default=0.0)
    scale = nice_top(min(most, 2 * tall * (usual_ns or most)))
    rows = block_rows(list(means), scale, tall)
    if tall == 1:
        [line] = block_rows(list(longest), scale, 1)
        rows = [line]
    found = []
    for y, row in enumerate(rows):
        half = scale * (tall - y - 0.5) / tall
        cells_of = (
            CUT if not y and top > scale else _SINGLE if cell == " " and top >= half else cell
            for cell, top in zip(row, longest, strict=True)
        )
        found.append("".join(cells_of))
    return found, scale
