"""One step of a device as lanes whose ink is the figure beside them, and the gap under a cursor."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.model.events import IdleLane, StepLanes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration
from gputui.tui.widgets.canvas import Row, Span
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.run_panels import Panel

LABEL, FIGURE = 14, 8
_SEEN = 0.125
"""Idle share of a column from which its cause has a texture."""

_BUSY = 0.5
"""Busy share of a column from which it is no gap."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its busy share, and the idle ones by cause, 0 to 1."""

    busy: float
    idle: dict[Leaf, float]


def columns_of(step: StepLanes, first: int, last: int, width: int) -> list[Column]:
    """Parts `first` to `last` of a step over `width` columns; each holds the mean of what it
    covers, so that the mean of all is that of the parts."""
    parts = last - first
    found = []
    for at in range(width):
        low, high = first + parts * at / width, first + parts * (at + 1) / width
        weights = {
            part: min(high, part + 1) - max(low, part)
            for part in range(int(low), min(last, int(high) + 1))
            if min(high, part + 1) > max(low, part)
        }
        whole = sum(weights.values()) * 1000 or 1.0

        def mean(values: tuple[int, ...], weights: dict[int, float] = weights,
                 whole: float = whole) -> float:  # fmt: skip
            return sum(values[part] * weight for part, weight in weights.items()) / whole

        idle = {Leaf(lane.leaf): mean(lane.parts) for lane in step.idle if _fits(lane, step)}
        found.append(Column(mean(step.busy), idle))
    return found


def _fits(lane: IdleLane, step: StepLanes) -> bool:
    """Recordings are untrusted: a lane may have other parts, and a leaf that nobody knows."""
    return lane.leaf in LEAVES and len(lane.parts) == len(step.busy)


def lane_rows(
    columns: list[Column], device: int, at: int, start_ns: float, span_ns: float
) -> list[Row]:
    """GPU busy, why it idled, the cursor; the figures at the right are the means of the ink."""
    count = max(1, len(columns))
    busy = sum(column.busy for column in columns) / count
    [line] = block_rows([column.busy for column in columns], 1.0, 1)
    because: list[Span] = []
    for column in columns:
        idle = sum(column.idle.values())
        if idle < _SEEN:
            because.append((" ", "text"))
        else:
            texture, role = look(max(column.idle, key=lambda leaf: column.idle[leaf]))
            because.append((texture, role))
    cursor = "".join("▲" if n == at else " " for n in range(len(columns)))
    return [
        _axis(len(columns), start_ns, span_ns),
        ((f" {f'GPU {device} busy':<{LABEL - 1}}", "label"), (line, "cause-matmul"),
         (f"{100 * busy:.1f} %".rjust(FIGURE), "value")),
        ((f" {'idle because':<{LABEL - 1}}", "label"), *because,
         (f"{100 * (1 - busy):.1f} %".rjust(FIGURE), "value")),
        ((" " * LABEL, "text"), (cursor, "key")),
    ]  # fmt: skip


def newest_step(step: StepLanes, width: int) -> Panel:
    """The lanes of the last step that was kept in parts, for a view that leads to them."""
    columns = columns_of(step, 0, len(step.busy), max(1, width - LABEL - FIGURE - 1))
    rows = lane_rows(columns, step.device, -1, 0.0, step.duration_ns)[:-1]
    title = f"Timeline  the last step kept, {duration(step.duration_ns)}"
    return Panel(title, rows, "lanes, threads, streams: 3", view="timeline")


def gap_words(columns: list[Column], at: int, start_ns: float, span_ns: float) -> list[str]:
    """What is under the cursor: a stretch of work, or one of idle time with one cause in front.
    `columns` begin at `start_ns` of the step and last `span_ns`."""
    if not columns:
        return []
    each = span_ns / len(columns)
    at = max(0, min(at, len(columns) - 1))
    is_gap = columns[at].busy < _BUSY
    low = high = at
    while low > 0 and _kind(columns[low - 1]) == _kind(columns[at]):
        low -= 1
    while high + 1 < len(columns) and _kind(columns[high + 1]) == _kind(columns[at]):
        high += 1
    inside = columns[low : high + 1]
    where = f"from {duration(start_ns + low * each)} to {duration(start_ns + (high + 1) * each)}"
    busy = sum(column.busy for column in inside) * each
    sums: dict[Leaf, float] = {}
    for column in inside:
        for leaf, part in column.idle.items():
            sums[leaf] = sums.get(leaf, 0.0) + part * each
    if not is_gap:
        return [f"Work {where}: busy {duration(busy)} of {duration(len(inside) * each)}."]
    ranked = sorted(sums, key=lambda leaf: -sums[leaf])
    causes = ", ".join(
        f"{LEAVES[leaf].label} {duration(sums[leaf])}" for leaf in ranked[:3] if sums[leaf] >= 1
    )
    idle, whole = duration(sum(sums.values())), duration(len(inside) * each)
    of = "" if idle == whole else f" of {whole},"
    lines = [f"Idle {idle}{of} {where}: {causes or 'cause unknown'}."]
    if ranked:
        lines.append(f"{LEAVES[ranked[0]].label}: {LEAVES[ranked[0]].meaning}.")
    return lines


def longest_gap(columns: list[Column]) -> int:
    """The middle of the longest stretch of idle time with one cause in front; 0 without one."""
    longest, at = (0, 0), 0
    while at < len(columns):
        kind, first = _kind(columns[at]), at
        while at < len(columns) and _kind(columns[at]) == kind:
            at += 1
        if kind is not None and at - first > longest[0]:
            longest = at - first, (first + at - 1) // 2
    return longest[1]


def _kind(column: Column) -> Leaf | None:
    """What leads in a column: work, or the largest cause."""
    if column.busy >= _BUSY or not column.idle:
        return None
    return max(column.idle, key=lambda leaf: column.idle[leaf])


def _axis(width: int, start_ns: float, span_ns: float) -> Row:
    line = [" "] * width
    ticks = max(1, width // 18)
    for tick in range(ticks):
        text = duration(start_ns + span_ns * tick / ticks) if tick or start_ns else "0"
        at = width * tick // ticks
        line[at : at + len(text)] = text
    return ((" " * LABEL, "text"), ("".join(line)[:width], "dim"))
