"""Steps of a run in columns: how long they took, where their time went, what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gputui.model.leaves import LEAVES
from gputui.model.units import duration
from gputui.report.explain.time_tree import TimeTree
from gputui.report.tables.timing import StepColumn, step_words
from gputui.tui.widgets.canvas import Row, Span, clip, heading, nice_top, wrap
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows

_IDLE_SEEN = 0.125
"""Share of a column from which its idle time has a texture."""


def explained(column: StepColumn | None, tree: TimeTree, width: int) -> list[Row]:
    """Steps in words: how long they took against the others, and where their time went."""
    if column is None:
        return []
    note = "v: shares of these steps" if column.leaves and not column.pauses else ""
    rows = [heading(step_words(column, tree), width, note)]
    if not column.leaves:
        text = "Only the lengths of single steps were kept; Time (2) has the causes of all steps."
        return [*rows, *wrap(text, width - 2, "dim", "  ")]
    per_step = column.whole_ns / (column.steps or column.pauses or 1)
    for leaf in sorted(column.leaves, key=lambda leaf: -column.leaves[leaf])[:4]:
        share = column.leaves[leaf] / column.whole_ns
        usual = tree.share(tree.leaves.get(leaf, 0))
        state = "idle" if LEAVES[leaf].is_idle else "busy"
        grown = share - usual
        note = (
            ""
            if abs(grown) < 0.02
            else f"  {100 * grown:+.0f} points against all steps".replace("-", "−")
        )
        texture, role = look(leaf)
        rows.append(clip((
            (f"  {texture} ", role), (f"{state} {LEAVES[leaf].label}  ", "text"),
            (f"{100 * share:.1f} %  {duration(per_step * share)}", "value"), (note, "warn"),
            (f"  {LEAVES[leaf].meaning}", "dim"),
        ), width))  # fmt: skip
    return rows


def because_of(column: StepColumn) -> Span:
    """The texture of the largest idle leaf, where there is enough idle time to see."""
    idle = {leaf: ns for leaf, ns in column.leaves.items() if LEAVES[leaf].is_idle}
    if not idle or sum(idle.values()) < _IDLE_SEEN * column.whole_ns:
        return (" ", "text")
    texture, role = look(max(idle, key=lambda leaf: idle[leaf]))
    return (texture, role)


# Columns of steps as bars: how long steps usually took there, and up to where the longest
# one.


CUT = "▲"
"""Where a step was longer than the axis."""

_HIGH = 4
"""Times a usual step up to which an axis reaches for single long ones."""

_SINGLE = "│"
"""From the mean of several steps to the longest of them."""


def spread(columns: Sequence[StepColumn], room: int) -> list[Sequence[StepColumn]]:
    """What stands in each of `room` cells: several columns where there are more, and the other way
    round."""
    ends = [len(columns) * at // room for at in range(room + 1)]
    return [columns[low : max(high, low + 1)] for low, high in pairwise(ends)]


def step_bars(
    cells: Sequence[Sequence[StepColumn]], usual_ns: float, tall: int
) -> tuple[list[str], float]:
    """Rows, the top one first, and where the axis ends: the longest ones are cut where usual steps
    would lose their ink, or most of their height to few."""
    longest = [max(column.drawn_ns for column in cell) for cell in cells]
    means = [
        min(top, max(column.level_ns for column in cell))
        for cell, top in zip(cells, longest, strict=True)
    ]
    most = max(longest, default=0.0)
    usual_ns = usual_ns or most
    high = max(_HIGH * usual_ns, sorted(means)[len(means) * 9 // 10] if means else 0.0)
    scale = nice_top(min(most, 2 * tall * usual_ns, high))
    rows = block_rows(list(means), scale, tall)
    if tall == 1:
        [line] = block_rows(list(longest), scale, 1)
        rows = [line]
    # A column of several cells has one longest step.
    marked = [
        top if number == 0 or cells[number] != cells[number - 1] else 0.0
        for number, top in enumerate(longest)
    ]
    found = []
    for y, row in enumerate(rows):
        half = scale * (tall - y - 0.5) / tall
        cells_of = (
            CUT if not y and top > scale else _SINGLE if cell == " " and top >= half else cell
            for cell, top in zip(row, marked, strict=True)
        )
        found.append("".join(cells_of))
    return found, scale
