"""The phase tree as table rows: which lines are visible, and what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from gputui.model.units import count, duration, percent
from gputui.report.phase_tree import PhaseKey, phase_tree
from gputui.report.phases import PhaseRow
from gputui.report.schema import Column
from gputui.report.tables.phases import PHASES
from gputui.state import Run
from gputui.tui.widgets.canvas import PHASE_COLORS, bar
from gputui.tui.widgets.table import column, declared

R = TypeVar("R")


_NARROW_BAR, _WIDE_BAR = 8, 20


def indent(depth: int) -> int:
    """The cells before a phase: two a level, and one from where two leave no room for its name."""
    return depth + min(depth, 6)


def visible_rows(
    rows: Sequence[PhaseRow], collapsed: Collection[PhaseKey], needle: str = ""
) -> list[PhaseRow]:
    """Rows whose ancestors are all expanded.

    With a `needle`: those whose name contains it (ignoring case), with their ancestors, collapsed
    or not.
    """
    if needle:
        wanted: set[PhaseKey] = set()
        low = needle.lower()
        for row in rows:
            if low in row.name.lower():
                process, domain, names = row.key
                wanted.update(
                    (process, domain, names[:length]) for length in range(1, len(names) + 1)
                )
        return [row for row in rows if row.key in wanted]
    result = []
    hidden_below: int | None = None
    for row in rows:
        if hidden_below is not None and row.depth > hidden_below:
            continue
        hidden_below = row.depth if row.key in collapsed else None
        result.append(row)
    return result


SORT_OF_TITLE = {"phase": 1, "share": 0, "CPU time": 0, "count": 2, "per step": 3, "average": 4,
                 "GPU time": 5, "kernels": 6, "launches": 6}  # fmt: skip
"""What a click on a column's title sorts by."""


def running(rows: Sequence[PhaseRow], room: int) -> range | None:
    """The rows to keep in sight: an open phase with all inside it; None if there is none.

    The outermost, because it lasts; if it has more lines than `room`, the open one inside it that
    has phases of its own, and so on.
    """
    start = next((n for n, row in enumerate(rows) if row.depth == 0 and row.is_open), None)
    if start is None:
        return None
    found = _subtree(rows, start)
    while len(found) > room:
        inner = next((n for n in found[1:] if rows[n].is_open and rows[n].has_children), None)
        if inner is None:
            break
        found = _subtree(rows, inner)
    return found


def _subtree(rows: Sequence[PhaseRow], start: int) -> range:
    end = start + 1
    while end < len(rows) and rows[end].depth > rows[start].depth:
        end += 1
    return range(start, end)


def phase_colors(run: Run) -> dict[str, int]:
    """A colour from 1 for each name of a phase, and the same for the names of its ranges: another
    one than those around, beside and in it have, as far as there are others."""
    colors: dict[str, int] = {}
    used = Counter(range(1, PHASE_COLORS + 1))
    for phase in phase_tree(run, library_domains=True).phases:
        if phase.name not in colors:
            beside = phase.parent.children if phase.parent is not None else ()
            others = (*phase.key[2], *(one.name for one in (*beside, *phase.children)))
            near = {colors.get(name) for name in others}
            color = min(used, key=lambda each: (each in near, used[each], each))
            colors[phase.name] = color
            used[color] += 1
        for node in phase.nodes:
            colors.setdefault(node.definition.name, colors[phase.name])
    return colors


def share_column(colors: Mapping[str, int], meter: int) -> Column[PhaseRow]:
    """Shares of the wall time of the scope, with a bar of `meter` cells for all of it."""

    def share(row: PhaseRow) -> str:
        part = row.share_percent
        return "" if part is None else f"{bar(part / 100, meter)} {percent(part):>7}"

    return column(
        "share",
        share,
        1,
        right=False,
        width=meter + 8,
        role=lambda row: f"phase-{colors.get(row.name, 1)}",
    )


def process_columns(
    rows: Sequence[PhaseRow], phase_of: Callable[[R], PhaseRow | None]
) -> list[Column[R]]:
    """Whose phase it is, where `rows` are of several processes: the rank, or the process where
    there are no ranks."""
    if len({row.pid for row in rows}) < 2:
        return []
    has_ranks = any(row.rank is not None for row in rows)

    def whose(row: R) -> str:
        phase = phase_of(row)
        number = None if phase is None else phase.rank if has_ranks else phase.pid
        return "" if number is None else str(number)

    return [column("rank" if has_ranks else "pid", whose, 1)]


def tree_columns(
    collapsed: Collection[PhaseKey],
    colors: dict[str, int],
    *,
    on_gpu: bool,
    processes: Sequence[PhaseRow],
    wide: bool,
) -> list[Column[PhaseRow]]:
    """The columns of the tree, with the process of each phase where `processes` are several."""

    def name(row: PhaseRow) -> str:
        marker = ("▸ " if row.key in collapsed else "▾ ") if row.has_children else "  "
        where = f" [{row.domain}]" if row.depth == 0 and row.domain else ""
        if row.depth == 0 and row.threads:
            where += f" · {row.threads[0]}" + ("…" if len(row.threads) > 1 else "")
        where += "  ● now" * row.is_open
        return f"{' ' * indent(row.depth)}{marker}{row.name}{where}"

    def kernels(row: PhaseRow) -> str:
        return f"{count(row.kernels)}{'*' if row.inherited_kernels else ''}"

    per_step = ["cpu_per_step_ns"] if any(row.per_step_ns for row in processes) else []
    columns: list[Column[PhaseRow]] = [
        column(
            "phase",
            name,
            0,
            flexible=True,
            right=False,
            width=24,
            role=lambda row: "accent" if row.is_open else "text",
        ),
        share_column(colors, _WIDE_BAR if wide else _NARROW_BAR),
        *declared(PHASES, *per_step, "instances", blank=per_step),
        column("average", lambda r: duration(r.cpu.average) if r.instances else "", 5, width=7),
        *declared(PHASES, "cpu_total_ns"),
    ]
    if on_gpu:
        columns += [
            *declared(PHASES, "gpu_busy_ns", gpu_busy_ns="GPU time"),
            column("kernels", kernels, 4, width=7),
            *declared(PHASES, "launches"),
        ]
    columns[1:1] = process_columns(processes, lambda row: row)
    return columns
