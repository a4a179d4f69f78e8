"""The time tree on the screen: what each leaf looks like, the 100 % bar, the table of causes."""

from __future__ import annotations

from typing import NamedTuple

from gputui.base.sanitize import cut_middle
from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.report.explain.finding import Gain
from gputui.report.explain.time_tree import TimeTree
from gputui.report.tables.time import leaf_shares, time_a_step
from gputui.tui.widgets.canvas import Row, Span, apportion, bar, chosen_row, clip, flow, row_width


class Look(NamedTuple):
    """The character that a leaf's bars are drawn with, and its role in the style sheet."""

    texture: str
    role: str


def look(leaf: Leaf) -> Look:
    """How a leaf is drawn, as its declaration has it."""
    meaning = LEAVES[leaf]
    return Look(meaning.texture, f"cause-{meaning.color}")


def share_bar(leaf: Leaf, fraction: float, width: int) -> Span:
    """A part of `width` cells as the leaf is drawn everywhere."""
    texture, role = look(leaf)
    if not LEAVES[leaf].is_idle:
        return bar(fraction, width), role
    return (texture * round(min(1.0, fraction) * width) or "▏").ljust(width), role


def hundred_bar(tree: TimeTree, width: int) -> tuple[Row, list[Leaf]]:
    """All of the time in `width` cells, and of which leaf each span is."""
    known = leaf_shares(tree)
    leaves = [*known.busy, *known.idle]
    cells = apportion([float(tree.leaves[leaf]) for leaf in leaves], width)
    shown = [(leaf, size) for leaf, size in zip(leaves, cells, strict=True) if size]
    spans = [(look(leaf).texture * size, look(leaf).role) for leaf, size in shown]
    return tuple(spans), [leaf for leaf, _ in shown]


def cured_bar(gain: Gain, width: int) -> Row:
    """What is left of the same time once a cause is cured, on the scale of the 100 % bar: a bar as
    long as it is at least, and a line to what it is at most."""
    least, most = (max(1, round(width / end)) for end in (gain.high, gain.low))
    if gain.is_open:
        least = 0
    line = "─" * (most - least - 1) + "┤" if most > least else ""
    return ("█" * least, "good"), (line, "good")


def legend(tree: TimeTree, width: int, lead: Leaf | None = None) -> Row:
    """What the 100 % bar shows: busy, and of it the leaf that the verdict is about, then the idle
    leaves by size; those without room are one."""
    known = leaf_shares(tree)
    role = look(known.busy[0]).role if known.busy else "dim"
    busy: Row = (("█ ", role), (f"busy {known.text(known.busy)}", "value"))
    if lead in known.busy[1:]:
        texture, role = look(lead)
        own = (f"{LEAVES[lead].label} ", "text"), (known.text([lead]), "value")
        busy = (*busy, (", of it ", "dim"), (f"{texture} ", role), *own)
    items: list[Row] = [busy]
    for leaf in known.idle:
        texture, role = look(leaf)
        name = (f"{LEAVES[leaf].label} ", "text")
        items.append(((f"{texture} ", role), name, (known.text([leaf]), "value")))
    # Cut from the end: what is larger than a shown one is never left out.
    for last in range(len(items), 0, -1):
        rest = known.idle[last - 1 :]
        more: Row = ((f"{len(rest)} more ", "dim"), (known.text(rest), "value"))
        shown = items[:last] + [more] * bool(rest)
        if sum(map(row_width, shown)) + 3 * (len(shown) - 1) <= width:
            return flow(shown, width, 1)[0]
    return clip(items[0], width)


def cause_rows(
    tree: TimeTree, width: int, height: int, chosen: Leaf | None = None, lead: Leaf | None = None
) -> tuple[list[Row], list[Leaf]]:
    """A row a leaf, the largest first, and the leaves shown, `lead` always. What has no room, or no
    tenth of a percent, is one row. All bars have one scale, on which the largest leaf is the
    longest."""
    known = leaf_shares(tree)
    shown = [leaf for leaf in known.leaves if known.tenths([leaf])]
    if len(shown) + (len(shown) < len(known.leaves)) > height:
        room = max(0, height - 1)
        cut = shown[room:]
        shown = shown[:room]
        if lead is not None and lead in cut and room:
            shown[-1] = lead
    rest = [leaf for leaf in known.leaves if leaf not in shown]
    label = min(width // 3, max((len(LEAVES[leaf].label) for leaf in shown), default=8))
    room = width - label - 28
    largest = max((tree.leaves[leaf] for leaf in shown), default=1) or 1
    rows: list[Row] = []
    for leaf in shown:
        ns = tree.leaves[leaf]
        state = "idle" if LEAVES[leaf].is_idle else "busy"
        row: Row = (
            (f" {state}  ", "dim"),
            (f"{cut_middle(LEAVES[leaf].label, label):<{label}}", "text"),
            (f" {known.text([leaf]):>8}", "value"),
            (f" {time_a_step(tree, ns):>8}  ", "text"),
        )
        if room >= 4:
            row = (*row, share_bar(leaf, ns / largest, room))
        if leaf is chosen:
            row = chosen_row(row, width)
        rows.append(row)
    if rest and height > 0:
        ns = sum(tree.leaves[leaf] for leaf in rest)
        text = f" {len(rest)} smaller".ljust(label + 7)
        rows.append(((f"{text} {known.text(rest):>8} {time_a_step(tree, ns):>8}", "dim"),))
    return rows, shown


def leaf_named(key: object) -> Leaf | None:
    """The leaf of a finding's id."""
    return LEAF_OF_KEY.get(str(key))
