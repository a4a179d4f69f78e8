"""The panels of the overview: short forms of the views of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import itemgetter

from gputui.base.sanitize import cut_middle
from gputui.model.events.distributions import Accumulator
from gputui.model.kernel_categories import cut_apart
from gputui.model.leaves import LEAVES, Leaf, leaf_of_kernel
from gputui.model.naming import TOO_MANY, XLA_COMPILES
from gputui.model.steps import FEW
from gputui.model.units import count, duration, percent
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import LEAST_LEVEL, PhaseRow
from gputui.report.statistics import TableRow, classes_of
from gputui.report.tables.time import whole_in_words
from gputui.report.tables.timing import StepColumn, columns_of_tree
from gputui.state import Run
from gputui.tui.widgets.canvas import (
    ELLIPSIS,
    Row,
    bar,
    beside,
    chosen_row,
    fit,
    flow,
    heading,
    pad,
)
from gputui.tui.widgets.causes import cause_rows, leaf_named, look
from gputui.tui.widgets.run import log_rows, output_note
from gputui.tui.widgets.step_columns import CUT, spread, step_bars
from gputui.tui.widgets.view import Lead

# The steps of a run without work on a GPU.


def cpu_step_times(step: PhaseRow, height: int, width: int) -> Panel:
    """How long the program's steps took, by the clock of the CPU."""
    panel = distribution(step.cpu, height, width)
    median, p99 = duration(step.cpu.median), duration(step.cpu.percentile(99))
    title = f"{step.name}  median {median}, p99 {p99}"
    return replace(panel, title=title, view="phases")


# How many steps took how long.


_LABEL = 19


def distribution(lengths: Accumulator, height: int, width: int) -> Panel:
    """Classes of all but the shortest and the longest hundredth and slow steps, which are a class
    each: their tail would leave the others few."""
    found = classes_of(lengths, max(1, height - 2))
    most = max((number for _, number in found), default=1)
    room = max(4, width - _LABEL - 10)
    rows: list[Row] = [
        ((f"{label:>{_LABEL - 1}} ", "dim"), (bar(number / most, room), "accent"),
         (f" {number:>8,}", "text"))
        for label, number in found
    ]  # fmt: skip
    return Panel("Distribution", rows, f"{count(lengths.count)} steps", view="steps")


# Panels: headings with rows below them, some of which can be chosen, laid out side by side.


GAP = 2

_FOCUSED = {"rule": "accent", "title": "tab-active"}
"""Looks of the heading of the panel in which something is chosen."""


@dataclass(slots=True)
class Panel:
    """A heading and rows. `items` are where rows that can be chosen lead, by their numbers; `view`
    is the one that shows more of it."""

    title: str
    rows: list[Row]
    note: str = ""
    items: dict[int, Lead] = field(default_factory=dict)
    view: str = ""
    of: int = 0
    """How many rows there would be: the heading says how many of them are shown. 0 says nothing."""


@dataclass(slots=True)
class Layout:
    """Rows from the top, and what can be chosen in them, in the order in which it is read."""

    width: int
    link: Callable[[Row, Lead, bool], Row]
    """A row that leads somewhere when it is clicked, at once or once it is chosen."""
    rows: list[Row] = field(default_factory=list)
    keys: list[tuple[int, Lead]] = field(default_factory=list)
    """What can be chosen, with its line."""
    chosen: Lead | int = 0
    """What is chosen: where it leads, or which finding it is. The heading of its panel stands
    out."""

    def add(self, rows: Sequence[Row]) -> None:
        """Rows in which nothing can be chosen."""
        self.rows += rows

    def stacks(self, stacks: Sequence[Sequence[tuple[Panel, int]]], widths: Sequence[int]) -> None:
        """Columns side by side, of panels below one another, each in so many rows, its heading
        included."""
        top, x = len(self.rows), 0
        blocks: list[tuple[list[Row], int]] = []
        keys: list[tuple[int, int, list[tuple[int, Lead]]]] = []
        for stack, width in zip(stacks, widths, strict=True):
            rows: list[Row] = []
            for panel, height in stack:
                rows += [()] * bool(rows)
                drawn, own = self._drawn(panel, top + len(rows), width, height)
                keys.append((top + len(rows), x, own))
                rows += drawn
            blocks.append((rows, width))
            x += width + GAP
        for _, _, own in sorted(keys, key=itemgetter(0, 1)):  # as they are read
            self.keys += own
        self.rows += beside(blocks, GAP)

    def _drawn(
        self, panel: Panel, top: int, width: int, height: int
    ) -> tuple[list[Row], list[tuple[int, Lead]]]:
        shown = panel.rows[: max(0, height - 1)]
        note = f"{len(shown)} of {panel.of}" if panel.of > len(shown) else panel.note
        items = {number: to for number, to in panel.items.items() if number < len(shown)}
        shown += [()] * (height - 1 - len(shown))
        is_whole = bool(panel.view and not items)  # no row leads anywhere: all of it does
        if is_whole:
            items = dict.fromkeys(range(len(shown)), Lead(panel.view))
        rows = [
            self.link(pad(row, width), items[number], is_whole) if number in items else row
            for number, row in enumerate(shown)
        ]
        title = heading(panel.title, width, note)
        if self.chosen in items.values():
            title = tuple((text, _FOCUSED.get(role, role)) for text, role in title)
        if panel.view:
            title = self.link(title, Lead(panel.view), True)
        return [title, *rows], [(top + 1 + number, to) for number, to in items.items()]


def columns_of(width: int, count: int) -> list[int]:
    """The widths of so many columns side by side."""
    each, rest = divmod(width - GAP * (count - 1), count)
    return [each + (number < rest) for number in range(count)]


"""Blocks of steps that make a trend; of fewer the newest single steps are shown."""

_AXIS = 9


def causes(tree: TimeTree, height: int, chosen: Lead | int, lead: Leaf | None, width: int) -> Panel:
    """Where each step goes, the leaf that the verdict is about among what is shown."""
    key = chosen.key if isinstance(chosen, Lead) and chosen.view == "time" else None
    rows, shown = cause_rows(tree, width, height, leaf_named(key), lead)
    is_of_steps = tree.has_steps and not tree.with_pauses
    title = "Where each step goes" if is_of_steps else "Where the time goes"
    items = {n: Lead("time", LEAVES[leaf].key) for n, leaf in enumerate(shown)}
    return Panel(title, rows, whole_in_words(tree), items, "time")


def step_points(tree: TimeTree) -> tuple[list[StepColumn], str]:
    """The steps in order, and what each column is: parts of the whole run, or the newest ones."""
    blocks = tree.blocks[0] if tree.blocks else ()
    if len(blocks) >= max(2, min(FEW, len(tree.newest) + 1)):
        columns = columns_of_tree(tree)
        inside = sum(block.steps for each in tree.blocks for block in each)
        # Of all turns of the loop blocks hold the steady ones.
        of = "all" if inside >= tree.steps else f"{count(inside)} of"
        each = f", means of {inside / len(columns):,.0f} each"
        each = "" if all(column.own[1] == 1 for column in columns) else each
        return columns, f"{of} {count(tree.steps)} steps{each}"
    columns = [StepColumn(at, 1, length, {}) for at, length in enumerate(tree.newest)]
    return columns, f"the newest {len(tree.newest)} of {count(tree.steps)} steps"


def steps(tree: TimeTree, height: int, width: int, *, grow: bool = False) -> Panel:
    """How long steps took: one after another, and how they are spread; of those that `grow` how
    much work they give the GPU, which pauses do not hide."""
    lengths = tree.step_ns
    points, what = step_points(tree)
    work = [
        replace(each, ns=round(each.ns * each.busy), longest_ns=None, part=None)
        for each in points if grow and each.busy is not None
    ]  # fmt: skip
    title = f"Step time  median {duration(lengths.median)}, p99 {duration(lengths.percentile(99))}"
    each = f"{count(tree.steps)} steps" + (f" of {tree.devices} GPUs" if tree.devices > 1 else "")
    slow = f"{count(tree.slow_steps)} slow of {each}" if tree.slow_steps else f"none slow of {each}"
    if tree.benchmark_rows:  # rows of different work are not slow beside one another
        slow = f"{each} of {tree.benchmark_rows} rows"
    elif len(title) + len(slow) + 8 > width:
        slow = f"{count(tree.slow_steps)} slow" if tree.slow_steps else "none slow"
    if not lengths.values:  # of some steps only the mean is known
        title = f"Step time  mean {duration(lengths.average)}"
        slow = f"{count(tree.steps)} steps"
    if not points:
        return Panel(title, [], slow, view="steps")
    if work and len(work) == len(points):
        points = work
        ends = duration(points[0].mean_ns), duration(points[-1].mean_ns)
        title, slow = f"GPU work a step  {ends[0]} to {ends[1]}", f"{count(tree.steps)} steps"
    room = width - _AXIS
    usual_ns = lengths.median or 0.0
    if height < 4:
        [line], top = step_bars(spread(points, width - 14), usual_ns, 1)
        rows: list[Row] = [((f" {line}", "accent"), (f" to {duration(top)}", "dim"))]
        return Panel(title, rows, slow, view="steps")
    plot, top = step_bars(spread(points, room), usual_ns, height - 1)
    rows = [
        ((f"{duration(top) if not y else '':>{_AXIS - 2}} ┤", "dim"), (text, "accent"))
        for y, text in enumerate(plot)
    ]
    longest = max(point.drawn_ns for point in points)
    if longest > top:
        what += f", {CUT} to {duration(longest)}"
    elif any(each.drawn_ns > each.level_ns for each in points) or len(points) > room:
        what += ", │ the longest"
    while len(what) > room:  # whole words or none
        what = what.rpartition(", ")[0]
    rows.append(((f"{'0':>{_AXIS - 2}} └{what.center(room, '─')}", "dim"),))
    return Panel(title, rows, slow, view="steps")


_LEAST_PHASE = 0.01
"""Of the longest phase: shorter ones say less than what stands below. XLA's tuning has hundreds."""


def phases(
    rows: Sequence[PhaseRow], height: int, chosen: Lead | int, running: bool, width: int
) -> Panel:
    """The phases of a step, or the outermost ones, by time."""
    least = _LEAST_PHASE * max((row.per_step_ns or row.cpu_total_ns for row in rows), default=0)
    ranked = [row for row in rows if (row.per_step_ns or row.cpu_total_ns) >= least][:height]
    within = bool(ranked and ranked[0].per_step_ns)
    names = _told_apart(ranked)
    label = min(24, max(map(len, names), default=6) + 2)
    whole = max((row.per_step_ns or row.cpu_total_ns for row in ranked), default=1.0) or 1.0
    room = max(0, width - label - 24)
    found: list[Row] = []
    for row, name in zip(ranked, names, strict=True):
        ns = row.per_step_ns or row.cpu_total_ns
        now = " ●" if running and row.is_open else ""
        line: Row = (
            (f" {fit(cut_middle(name + now, label), label)}", "text"),
            (f"{duration(ns):>9}  ", "value"),
            (bar(ns / whole, room) if room >= 4 else "", "cause-other"),
            (f" {duration(_busy_a_step(row)):>9}" if row.on_gpu and room >= 4
             else "", "text"),
        )  # fmt: skip
        if chosen == Lead("phases", row.key):
            line = chosen_row(line, width)
        found.append(line)
    items = {n: Lead("phases", row.key) for n, row in enumerate(ranked)}
    title = "Phases  wall time a step" if within else "Phases  wall time"
    return Panel(title, found, "GPU busy" if ranked and ranked[0].on_gpu else "", items,
                 "phases")  # fmt: skip


def _told_apart(rows: Sequence[PhaseRow]) -> list[str]:
    """Their names, with the phase around it where several have one name."""
    often = Counter(row.name for row in rows)
    return ["/".join(row.key[2][-(1 + (often[row.name] > 1)) :]) for row in rows]


def phase_line(rows: Sequence[PhaseRow], width: int) -> Panel:
    """The same in one row, as many as fit, and a mark where there are more."""
    named = [
        (
            (f"{cut_middle(name, 24)} ", "text"),
            (duration(row.per_step_ns or row.cpu_total_ns), "value"),
        )
        for row, name in zip(rows, _told_apart(rows), strict=True)
    ]
    fitting = takewhile(lambda n: len(flow(named[:n], width - 6, 99)) <= 1, range(len(named) + 1))
    shown = max(fitting, default=0)
    more: list[Row] = [((ELLIPSIS, "dim"),)] * (shown < len(named))
    found = flow([*named[:shown], *more], width - 2, 1)
    within = bool(rows and rows[0].per_step_ns)
    title = "Phases  wall time a step" if within else "Phases  wall time"
    return Panel(title, [((" ", "text"), *row) for row in found], "", view="phases")


def _busy_a_step(row: PhaseRow) -> float:
    """GPU time as its wall time is shown: a step, or all of it outside of steps."""
    if not row.per_step_ns or not row.cpu.total:
        return float(row.gpu_busy_ns)
    return row.gpu_busy_ns * row.per_step_ns / row.cpu.total


def kernels(
    rows: Sequence[TableRow], names: Mapping[str, str], height: int, chosen: Lead | int,
    width: int,
) -> Panel:  # fmt: skip
    """The kernels that took most, by their short names."""
    ranked = list(rows[:height])
    room = max(16, width - 20)
    shown = cut_apart([names.get(row.name, row.short_name) for row in ranked], room)
    whole = sum(row.total for row in rows) or 1
    found: list[Row] = []
    for row, name in zip(ranked, shown, strict=True):
        line: Row = (
            ("▌", look(leaf_of_kernel(row.name)).role),
            (f"{fit(name, room)} ", "text"),
            (f"{percent(100 * row.total / whole):>7}", "value"),
            (f" {duration(row.total):>9}", "text"),
        )
        if chosen == Lead("kernels", row.name):
            line = chosen_row(line, width)
        found.append(line)
    items = {n: Lead("kernels", row.name) for n, row in enumerate(ranked)}
    return Panel("Kernels  GPU time", found, "", items, "kernels", len(rows))


def output(run: Run, height: int, width: int) -> Panel:
    """The last lines that the program printed."""
    note = f"{output_note(run)} · l larger"
    return Panel("Output", log_rows(run, width, height - 1), note, view="log")


def telling(run: Run, rows: list[PhaseRow]) -> tuple[PhaseRow, ...]:
    """No phases where these are some of a library, a small part of the run; nor those of
    XLA's compiler, of which a step has none: they filled the panel."""
    if any(XLA_COMPILES.match(row.name) for row in rows):  # which made them too many
        rows = [row for row in rows if not XLA_COMPILES.match(row.name) and row.name != TOO_MANY]
    seen_ns = sum(row.cpu_total_ns for row in rows)
    return tuple(rows) if 100 * seen_ns >= LEAST_LEVEL * run.duration_ns else ()
