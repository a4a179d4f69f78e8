"""Steps of a run in columns: how long they took, where their time went, what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.model.events import StepBlock
from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.model.units import duration
from gputui.report.explain.time_tree import TimeTree
from gputui.tui.widgets.canvas import Row, Span, clip, heading, wrap
from gputui.tui.widgets.causes import look

_IDLE_SEEN = 0.125
"""Share of a column from which its idle time has a texture."""


@dataclass(frozen=True, slots=True)
class Column:
    """Steps that stand in one column: consecutive ones, `first` counted from 1."""

    first: int
    steps: int
    ns: int
    leaves: dict[Leaf, int]

    @property
    def mean_ns(self) -> float:
        """Of a step."""
        return self.ns / self.steps if self.steps else 0.0

    @property
    def whole_ns(self) -> int:
        """What shares of this column are of."""
        return sum(self.leaves.values())

    @property
    def busy(self) -> float | None:
        """Share of the time in which something ran; None where only the length is known."""
        if not self.whole_ns:
            return None
        idle = idle_sum(self.leaves)
        return 1 - idle / self.whole_ns


def together(columns: Sequence[Column]) -> Column:
    """Columns in a row as one."""
    leaves: dict[Leaf, int] = {}
    for column in columns:
        for leaf, ns in column.leaves.items():
            leaves[leaf] = leaves.get(leaf, 0) + ns
    steps = sum(column.steps for column in columns)
    return Column(columns[0].first, steps, sum(column.ns for column in columns), leaves)


def columns_of_tree(tree: TimeTree) -> list[Column]:
    """The steps of a device in order: blocks of the whole run, or, where there are few of them,
    the newest steps one by one."""
    blocks = tree.blocks[0] if tree.blocks else ()
    if len(blocks) > 1:
        return _of_blocks(blocks)
    first = tree.steps - len(tree.newest) + 1
    return [Column(first + at, 1, length, {}) for at, length in enumerate(tree.newest)]


def _of_blocks(blocks: tuple[StepBlock, ...]) -> list[Column]:
    found, first = [], 1
    for block in blocks:
        leaves = {Leaf(leaf): ns for leaf, ns in block.leaves if ns and leaf in LEAVES}
        found.append(Column(first, block.steps, block.ns, leaves))
        first += block.steps
    return found


SLOW, UNEVEN = 1.5, 1.1
"""Times the usual length from which a step is slow; of columns of many steps, whose slow ones are
lost in their mean."""


def next_slow(columns: list[Column], at: int, step: int, usual_ns: float) -> int | None:
    """The next slow column from `at` on, or back; None where there is none."""
    least = SLOW if any(each.mean_ns >= SLOW * usual_ns for each in columns) else UNEVEN
    places = range(at + 1, len(columns)) if step > 0 else range(at - 1, -1, -1)
    return next((n for n in places if columns[n].mean_ns >= least * usual_ns), None)


def numbers_row(columns: list[Column], width: int) -> str:
    """The numbers of the first and the last step in sight, at the ends of the axis."""
    first, end = f"{columns[0].first:,}", f"{columns[-1].first + columns[-1].steps - 1:,}"
    middle = f" {'each column one step' if columns[0].steps == 1 else 'means of some steps each'} "
    row = f"{first} {middle.center(max(0, width - len(first) - len(end) - 2), '─')} {end}"
    return row if len(row) <= width else ""


def explained(column: Column | None, tree: TimeTree, width: int) -> list[Row]:
    """Steps in words: how long they took against the others, and where their time went."""
    if column is None:
        return []
    last = column.first + column.steps - 1
    name = f"Step {column.first:,}" if column.steps == 1 else (
        f"Steps {column.first:,} to {last:,}")  # fmt: skip
    against = column.mean_ns / tree.step_mean_ns - 1 if tree.step_mean_ns else 0.0
    word = (
        "as usual"
        if abs(against) < 0.05
        else (f"{100 * abs(against):.0f} % {'longer' if against > 0 else 'shorter'} than the mean")
    )
    each = "" if column.steps == 1 else " each"
    rows = [heading(f"{name}  {duration(column.mean_ns)}{each}, {word}", width,
                    "v: shares of these steps" if column.leaves else "")]  # fmt: skip
    if not column.leaves:
        text = "Only the lengths of single steps were kept; Time (2) has the causes of all steps."
        return [*rows, *wrap(text, width - 2, "dim", "  ")]
    per_step = column.whole_ns / column.steps
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


def because_of(column: Column) -> Span:
    """The texture of the largest idle leaf, where there is enough idle time to see."""
    idle = {leaf: ns for leaf, ns in column.leaves.items() if LEAVES[leaf].is_idle}
    if not idle or sum(idle.values()) < _IDLE_SEEN * column.whole_ns:
        return (" ", "text")
    texture, role = look(max(idle, key=lambda leaf: idle[leaf]))
    return (texture, role)
