"""Steps of a run in columns: how long they took, where their time went, what they say in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from gputui.model.events import StepBlock
from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.model.steps import SLOW
from gputui.model.units import count, duration
from gputui.report.explain.time_tree import TimeTree
from gputui.tui.widgets.canvas import Row, Span, clip, heading, nice_top, wrap
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows

_IDLE_SEEN = 0.125
"""Share of a column from which its idle time has a texture."""


@dataclass(frozen=True, slots=True)
class Column:
    """Steps that stand in one column: a part of a block of consecutive ones, `first` counted from
    1. Where their time went is known of the block; `pauses` of the loop have no steps."""

    first: int
    steps: int
    ns: int
    leaves: dict[Leaf, int]
    part: tuple[int, int] | None = None
    """The first step and the number of those in this column; None for all of the block."""
    longest_ns: int | None = None
    pauses: int = 0

    @property
    def mean_ns(self) -> float:
        """Of a step, or a pause."""
        return self.ns / (self.steps or self.pauses or 1)

    @property
    def drawn_ns(self) -> float:
        """The longest step, or what all have in common where single ones are not known."""
        return self.mean_ns if self.longest_ns is None else self.longest_ns

    @property
    def level_ns(self) -> float:
        """What steps took here for the most part: one its own length, several the mean."""
        is_one = self.own[1] == 1 and self.longest_ns is not None
        return self.drawn_ns if is_one else self.mean_ns

    @property
    def own(self) -> tuple[int, int]:
        """The first step in this column, and how many there are."""
        return self.part or (self.first, self.steps)

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


def in_blocks(columns: Iterable[Column]) -> list[Column]:
    """One column of each block: its sums are the same in all of them."""
    return [next(of) for _, of in groupby(columns, lambda column: (column.first, column.steps))]


def together(columns: Sequence[Column]) -> Column:
    """Columns in a row as one."""
    leaves: dict[Leaf, int] = {}
    blocks = in_blocks(columns)
    for column in blocks:
        for leaf, ns in column.leaves.items():
            leaves[leaf] = leaves.get(leaf, 0) + ns
    steps = sum(column.steps for column in blocks)
    return Column(columns[0].first, steps, sum(column.ns for column in blocks), leaves)


def columns_of_tree(tree: TimeTree, *, with_pauses: bool = False) -> list[Column]:
    """The steps of a device in order: blocks of the whole run, or, where there are few of them,
    the newest steps one by one. Pauses of the loop stand among them where they are wanted."""
    blocks = tree.blocks[0] if tree.blocks else ()
    if len(blocks) > 1:
        return _of_blocks(blocks, with_pauses=with_pauses)
    first = tree.steps - len(tree.newest) + 1
    return [Column(first + at, 1, length, {}) for at, length in enumerate(tree.newest)]


def _of_blocks(blocks: tuple[StepBlock, ...], *, with_pauses: bool) -> list[Column]:
    found, first = [], 1
    for block in blocks:
        leaves = _leaves(block.leaves)
        parts = block.longest
        # Recordings are untrusted: the parts may not be those of the block.
        if min((steps for steps, _ in parts), default=0) < 1 or (
            sum(steps for steps, _ in parts) != block.steps
        ):
            found.append(Column(first, block.steps, block.ns, leaves))
        else:
            at = first
            for steps, longest_ns in parts:
                found.append(Column(first, block.steps, block.ns, leaves, (at, steps), longest_ns))
                at += steps
        first += block.steps
        if block.pauses and with_pauses:
            leaves = _leaves(block.paused)
            found.append(Column(first, 0, sum(leaves.values()), leaves, pauses=block.pauses))
    return found


def _leaves(parts: Iterable[tuple[int, int]]) -> dict[Leaf, int]:
    return {Leaf(leaf): ns for leaf, ns in parts if ns and leaf in LEAVES}


UNEVEN = 1.1
"""Times the usual length from which a column of many steps holds slow ones, which are lost in
their mean."""


def next_slow(columns: list[Column], at: int, step: int, usual_ns: float) -> int | None:
    """The next slow step or pause from column `at` on, or back; beyond the last one the first one
    again. None where there is none."""
    mean_ns = together(columns).mean_ns if columns else 0.0
    slow = [
        n
        for n, column in enumerate(columns)
        if column.pauses
        or column.drawn_ns >= SLOW * usual_ns
        or (column.longest_ns is None and column.steps > 1
            and column.mean_ns >= max(UNEVEN * usual_ns, mean_ns))
    ]  # fmt: skip
    ahead = [n for n in slow if (n > at if step > 0 else n < at)] or slow
    return (ahead[0] if step > 0 else ahead[-1]) if slow else None


def numbers_row(columns: list[Column], width: int) -> str:
    """The numbers of the first and the last step in sight, at the ends of the axis, and what a
    column shows."""
    (low, _), (high, steps) = columns[0].own, columns[-1].own
    first, end = f"{low:,}", f"{high + max(1, steps) - 1:,}"
    if all(column.own[1] <= 1 for column in columns) and len(columns) <= width:
        what = "each column one step"
    else:
        is_known = any(column.drawn_ns > column.level_ns for column in columns)
        what = f"means of some steps each{', │ the longest' if is_known else ''}"
    row = f"{first} {f' {what} '.center(max(0, width - len(first) - len(end) - 2), '─')} {end}"
    return row if len(row) <= width else ""


def explained(column: Column | None, tree: TimeTree, width: int) -> list[Row]:
    """Steps in words: how long they took against the others, and where their time went."""
    if column is None:
        return []
    note = "v: shares of these steps" if column.leaves and not column.pauses else ""
    rows = [heading(_words(column, tree), width, note)]
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


def _words(column: Column, tree: TimeTree) -> str:
    """Which steps these are, and how long they took against the others."""
    usual_ns = tree.step_ns.median or 0.0
    if column.pauses:
        name = "Pause" if column.pauses == 1 else f"{column.pauses} pauses"
        each = "" if column.pauses == 1 else " each"
        return f"{name} after step {column.first - 1:,}  {duration(column.mean_ns)}{each}"
    if column.longest_ns is None:
        against = column.mean_ns / tree.step_mean_ns - 1 if tree.step_mean_ns else 0.0
        word = f"{100 * abs(against):.0f} % {'longer' if against > 0 else 'shorter'} than the mean"
        each = "" if column.steps == 1 else " each"
        word = "as usual" if abs(against) < 0.05 else word
        return f"{_steps(*column.own)}  {duration(column.mean_ns)}{each}, {word}"
    times = column.longest_ns / usual_ns if usual_ns else 1.0
    word = f"{times:,.1f}× a usual one" if times >= SLOW else "as usual"
    longest = "" if column.own[1] == 1 else "the longest "
    text = f"{_steps(*column.own)}  {longest}{duration(column.longest_ns)}, {word}"
    if column.steps == 1:
        return text
    mean = duration(column.mean_ns)
    if column.own == (column.first, column.steps):
        return f"{text}; {mean} each"
    return f"{text}; causes of {_steps(column.first, column.steps).lower()}: {mean} each"


def _steps(first: int, steps: int) -> str:
    return f"Step {first:,}" if steps == 1 else f"Steps {first:,} to {first + steps - 1:,}"


def because_of(column: Column) -> Span:
    """The texture of the largest idle leaf, where there is enough idle time to see."""
    idle = {leaf: ns for leaf, ns in column.leaves.items() if LEAVES[leaf].is_idle}
    if not idle or sum(idle.values()) < _IDLE_SEEN * column.whole_ns:
        return (" ", "text")
    texture, role = look(max(idle, key=lambda leaf: idle[leaf]))
    return (texture, role)


NEXT_SLOW = "n the next one"


def title(tree: TimeTree, seen: list[Column]) -> str:
    """Which steps are in sight, and their mean."""
    shown = sum(each.own[1] + each.pauses for each in seen)
    which = count(tree.steps)
    if count(shown) != which:
        which = f"{count(shown)} of {which}"
    if pauses := sum(each.pauses for each in seen):
        which += f", {count(pauses)} pause{'s' * (pauses > 1)} among them"
    return f"Steps in order  {which}, mean {duration(tree.step_mean_ns)}"


def slow_words(tree: TimeTree) -> str:
    """How many steps were slow, and what that cost."""
    if not tree.slow_steps:
        return "none slow"
    slow = f"{count(tree.slow_steps)} slow, together {duration(tree.slowed_ns)} longer"
    return f"{slow} · {NEXT_SLOW}"


def no_steps(tree: TimeTree) -> str:
    """Why there are no steps in order."""
    if tree.steps:
        newest = f"the newest {len(tree.newest)} of {count(tree.steps)} steps"
        return f"Only the lengths of {newest} were kept one by one."
    return "No loop was found so far: the steps appear here when one is."


# Columns of steps as bars: how long steps usually took there, and up to where the longest
# one.


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
