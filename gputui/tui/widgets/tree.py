"""The phase tree as table rows: which lines are visible, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from gputui.model.naming import is_library_domain
from gputui.model.units import count, duration, percent
from gputui.report.phase_tree import PhaseKey, phase_tree
from gputui.report.phases import PhaseRow, is_inside
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


_BESIDE_NS = 10**18
"""More than any time: 30 years."""

SORTS = ("time", "program's order", "count", "per step", "average", "GPU time", "kernels")
"""Sort orders of sibling phases; children stay inside their parent."""

SORT_OF_TITLE = {"phase": 1, "share": 0, "CPU time": 0, "count": 2, "per step": 3, "average": 4,
                 "GPU time": 5, "kernels": 6, "launches": 6}  # fmt: skip
"""What a click on a column's title sorts by."""


def ordered(
    rows: Sequence[PhaseRow], by: str, *, other_way: bool, main: PhaseRow | None = None
) -> Sequence[PhaseRow]:
    """Rows with siblings by one of SORTS, highest first, or lowest with `other_way`.

    The time is the wall time on the launching thread; what is neither in the `main` step nor around
    it, such as a warm-up, comes after what is.
    """
    if by == SORTS[1] and not other_way:
        return rows

    def figure(row: PhaseRow) -> float:
        if by == "time":
            beside = main is not None and not (is_inside(row, main) or is_inside(main, row))
            return row.cpu_total_ns - (_BESIDE_NS if beside else 0)
        figures = {
            "count": row.instances,
            "per step": row.per_step_ns,
            "average": row.cpu.average,
            "GPU time": row.gpu_busy_ns,
            "kernels": row.kernels,
        }
        return figures.get(by) or 0.0

    # A row's key is its ancestors' keys before its own: sorting by it keeps the tree.
    places: dict[int, tuple[tuple[float, int], ...]] = {}
    above: list[tuple[tuple[float, int], ...]] = []
    for number, row in enumerate(rows):
        del above[row.depth :]
        value, order = -figure(row), number
        place = (*(above[-1] if above else ()), (-value, -order) if other_way else (value, order))
        places[number] = place
        above.append(place)
    return [rows[number] for number in sorted(places, key=places.__getitem__)]


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


def library_roots(run: Run) -> list[int]:
    """The outermost ranges that libraries made for themselves."""
    return [n for n in run.roots if is_library_domain(run.ranges[n].definition.domain)]


def phase_colors(run: Run) -> dict[str, int]:
    """A colour from 1 for each name of a phase, and the same for the names of its ranges."""
    colors: dict[str, int] = {}
    number = 0
    for phase in phase_tree(run, library_domains=True).phases:
        if phase.name not in colors:
            colors[phase.name] = number % PHASE_COLORS + 1
            number += 1
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


def scope_text(run: Run, main: PhaseRow | None) -> str:
    """What shares of phases are of."""
    if main is None:
        return f"100 % = {duration(run.duration_ns)}, the run"
    return f"100 % = {duration(main.cpu.average)}, a {main.name}"


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


def waiting(run: Run) -> str:
    """Why there are no phases."""
    if run.unseen_reason:
        return f"no phase so far; {run.unseen_reason}"
    if run.is_active:
        return "waiting for the program's first NVTX range…"
    return f"the program opened no NVTX range{_annotated(run)}"


def little(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What to say where ranges cover little of the run: they are a library's."""
    covered = percent(100 * sum(row.cpu_total_ns for row in rows) / max(1, run.duration_ns))
    return f"these ranges cover {covered} of the run{_annotated(run)}"


def _annotated(run: Run) -> str:
    return "" if run.started.annotate else "; --annotate modules shows torch's modules"
