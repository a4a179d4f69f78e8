"""Steps: every step of the run in order, and what is under the cursor, explained."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.steps import SLOW
from gputui.model.units import duration
from gputui.playback.lanes import kept_steps
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import main_step, phase_rows
from gputui.report.tables.timing import (
    NEXT_SLOW,
    StepColumn,
    columns_of_tree,
    in_blocks,
    merged_columns,
    next_slow,
    no_steps,
    numbers_row,
    slow_words,
    steps_title,
)
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, apportion, clip, heading, wrap
from gputui.tui.widgets.causes import leaf_named
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.lanes import LABEL
from gputui.tui.widgets.run import dimmed, no_run, scope_rows, unaccounted
from gputui.tui.widgets.run_panels import cpu_step_times, distribution
from gputui.tui.widgets.step_columns import CUT, because_of, explained, step_bars
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import Details, DraggedView, Lead, Notice

if TYPE_CHECKING:
    from gputui.report.scope import RunScope


def _same(was: list[StepColumn], now: list[StepColumn], at: int) -> int:
    """Which column of `now` has the first step of column `at` of `was`."""
    if at >= len(was):
        return max(0, min(at, len(now) - 1))
    first = was[at].own[0]
    # The cursor stays at its steps where columns were put together meanwhile.
    return max(0, bisect_right([column.own[0] for column in now], first) - 1)


_LABEL, _FIGURE = LABEL, 10

_ANOTHER = "s another one"
_CHART, _BELOW_CHART = 16, 26
"""Rows of the chart at most, and what stands below it."""
_SAME = 0.002
"""Parts of its length by which a slow step and the kept one that it is differ at most."""
_LEAST_CLASSES, _MOST_CLASSES = 6, 12
"""Rows of the distribution of steps."""


class StepsView(DraggedView):
    """How long steps took, and where their time went."""

    offers = DraggedView.offers | {"scope"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.at: int | None = None
        """The column under the cursor; None for the newest."""
        self._columns: list[StepColumn] = []
        self.device = 0
        self.leaf: Leaf | None = None
        """The leaf that another view led here with."""
        self._usual_ns = 0.0

    def rows(self, width: int, height: int) -> list[Row]:
        """The steps as a chart and lanes, what is under the cursor, the last step."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        part = self.model.scope.part if self.model.scope is not None else None
        turns = self.model.scoped if part is not None and part.name == "TURNS" else None
        known = self.model.analysis(turns or run).device_trees
        trees = {place: tree for place, tree in known.items() if tree.wall_ns}
        rows = scope_rows(self.model, width)
        if trees:
            places = _by_rank(run, trees)
            self.offers = StepsView.offers | ({"sort"} if len(places) > 1 else set())
            self.device %= len(places)
            tree = trees[places[self.device]]
            rows += self._devices(run, places, width)
            with_pauses = part is not None and part.name in ("TURNS", "RUN")
            self._take(columns_of_tree(tree, with_pauses=with_pauses))
            self._usual_ns = tree.step_ns.median or 0.0
            if len(self._columns) > 1:
                rows += self._lanes(tree, width, len(rows), height)
            else:
                rows += wrap(no_steps(tree), width - 2, "dim", "  ")
        else:
            self._take([])
            rows += wrap(unaccounted(run), width - 2, "text", "  ")
        room = height - len(rows) - 2
        if room >= _LEAST_CLASSES:
            spread = None
            if trees and tree.step_ns.count:
                spread = distribution(tree.step_ns, min(room, _MOST_CLASSES), width)
            elif not trees and (step := main_step(run, phase_rows(run))) is not None:
                spread = cpu_step_times(step, min(room, _MOST_CLASSES), width)
            if spread is not None:
                rows += [(), heading(spread.title, width, spread.note), *spread.rows]
        return rows

    # --- keys

    def move(self, move: Move) -> None:
        steps = {"left": -1, "right": 1, "page_up": -10, "page_down": 10}
        last = len(self._columns) - 1
        at = last if self.at is None else self.at
        if move in ("up", "down"):
            self.nothing_chosen("← → go through all steps")
            return
        if move in ("home", "end"):
            at = 0 if move == "home" else last
        else:
            at += steps[move]
        self._put(max(0, min(last, at)))

    def activate(self) -> Details | Lead | None:
        """The operations of a slow step that was kept; else the time tree at the largest cause
        under the cursor."""
        column, run = self._column, self.model.run
        if run is None:
            self.nothing_chosen("no run yet: its steps are shown here")
            return None
        if column is not None and column.drawn_ns > SLOW * self._usual_ns > 0:
            for step in kept_steps(run):
                if abs(step.duration_ns - column.drawn_ns) <= _SAME * column.drawn_ns:
                    return Lead("timeline", (step.process, step.start_ns))
        if column is None or not column.leaves:
            return Lead("time")
        largest = max(column.leaves, key=lambda leaf: (LEAVES[leaf].is_idle, column.leaves[leaf]))
        return Lead("time", LEAVES[largest].key)

    def sort(self) -> None:
        self.device += 1
        self.draw()

    def step(self, columns: int) -> None:
        """The cursor a column on."""
        self.move("left" if columns < 0 else "right")

    def next_note(self, step: int) -> str:
        """To the next slow step, or the one before."""
        at = len(self._columns) - 1 if self.at is None else self.at
        found = next_slow(self._columns, at, step, self._usual_ns)
        if found is None:
            return "no slow step"
        self._put(found)
        return ""

    def follow(self) -> None:
        """Show the newest step again, and all newer ones as they come."""
        self.at = self.leaf = None
        self.draw()

    def show_item(self, key: Hashable) -> None:
        """The column in which a leaf took most."""
        self.leaf = leaf_named(key)

    # --- columns with a cursor; dragging over them makes them the scope

    def _take(self, columns: list[StepColumn]) -> None:
        """The columns at this moment: the cursor stays at its step. Under a drag they stay as they
        are."""
        if self._from is not None and columns:
            return
        was, self._columns = self._columns, columns
        if self.at is not None:
            self.at = _same(was, columns, self.at)

    @property
    def _column(self) -> StepColumn | None:
        if not self._columns:
            return None
        at = len(self._columns) - 1 if self.at is None else self.at
        return self._columns[min(at, len(self._columns) - 1)]

    def _put(self, at: int) -> None:
        self.at = at
        self.draw()

    def take_stretch(self, first: int, last: int) -> None:
        from gputui.report.scope import why_no_stretch

        run = self.model.run
        last = min(last, len(self._columns) - 1)  # there may be fewer than when the drag began
        if not 0 <= first <= last:
            self.draw()
            return
        why_not = why_no_stretch(run) if run is not None else None
        if not self._columns[first].leaves:
            why_not = "where single steps spent their time was not kept"
        if why_not is not None:
            self.post_message(Notice(why_not))
            self.draw()
            return
        self.model.stretch = self._steps_of(self._columns[first], self._columns[last])
        self.model.choose_scope(self.model.stretch)
        self.draw()

    @property
    def stretch(self) -> RunScope | None:
        """The steps under the cursor."""
        column = self._column
        if column is None or not column.leaves or self.model.stretch is not None:
            return None
        return self._steps_of(column, column)

    def _steps_of(self, first: StepColumn, last: StepColumn) -> RunScope:
        from gputui.report.scope import RunScope, ScopeKind

        return RunScope(ScopeKind.STEPS, first.first, last.first + last.steps - 1)

    def inside_scope(self, seen: list[StepColumn]) -> list[bool]:
        """Which columns are in the stretch that is chosen, or being chosen."""
        if self.dragged is not None:
            first, last = self.dragged
            return [first <= n <= last for n in range(len(seen))]
        scope = self.model.scope
        if scope is None or not scope.last:
            return [True] * len(seen)
        ends = [each.first + each.steps - 1 for each in seen]
        return [scope.first <= end and each.first <= scope.last
                for each, end in zip(seen, ends, strict=True)]  # fmt: skip

    # --- parts

    def _devices(self, run: Run, places: list[tuple[int, int]], width: int) -> list[Row]:
        if len(places) == 1:
            return []
        process, device = places[self.device]
        rank = _rank(run, process)
        who = f"rank {rank}, " if rank is not None else ""
        text = f" {who}GPU {device}  {self.device + 1} of {len(places)}: {_ANOTHER}"
        return [self.hinting(clip(((text, "label"),), width), _ANOTHER, "sort")]

    def _lanes(self, tree: TimeTree, width: int, top: int, height: int) -> list[Row]:
        seen = self._columns
        if self.leaf is not None:
            leaf = self.leaf
            per_step = [
                (each.leaves.get(leaf, 0) / (each.steps or each.pauses or 1), each.drawn_ns)
                for each in seen
            ]
            self.at, self.leaf = per_step.index(max(per_step)), None
        room = width - _LABEL - _FIGURE - 1
        # As wide as they have steps, so that the mean of the ink is the figure beside it.
        more = apportion([float(each.own[1]) for each in seen], max(0, room - len(seen)))
        cells = [1 + size for size in more]
        spread = [range(at, at + 1) for at, size in enumerate(cells) for _ in range(size)]
        if len(seen) > room:
            ends = [len(seen) * at // room for at in range(room + 1)]
            spread = [range(*ends_of) for ends_of in pairwise(ends)]
        at = len(seen) - 1 if self.at is None else self.at
        tall = max(3, min(_CHART, height - _BELOW_CHART))
        slowest = [max(of, key=lambda n: seen[n].drawn_ns) for of in spread]
        plot, scale = step_bars([[seen[n] for n in of] for of in spread], self._usual_ns, tall)
        longest_ns = max(each.drawn_ns for each in seen)
        inside = self.inside_scope(seen)
        shown = [inside[n] for n in slowest]
        title = heading(steps_title(tree, seen), width, slow_words(tree))
        rows: list[Row] = [self.hinting(title, NEXT_SLOW, "note(1)")]
        ends_at = [f"to {duration(scale)}"]
        if longest_ns > scale:
            ends_at += [f"{CUT} {duration(longest_ns)}"]
        for y, line in enumerate(plot):
            label = "step time" if not y else ""
            end = ends_at[y] if y < len(ends_at) else ""
            drawn = dimmed([(line, "accent")], shown)
            rows.append(self._lane(label, drawn, end, slowest))
        rows.append(((" " * _LABEL, "text"), (numbers_row(seen, len(spread)), "dim")))
        chosen = [each for each, is_inside in zip(seen, inside, strict=True) if is_inside] or seen
        if any(each.busy is not None for each in seen):
            busy = [seen[n].busy or 0.0 for n in slowest]
            [line] = block_rows(list(busy), 1.0, 1)
            blocks = in_blocks(chosen)
            whole_ns = sum(each.whole_ns for each in blocks)
            mean = sum(each.whole_ns * (each.busy or 0.0) for each in blocks) / max(1, whole_ns)
            figure = f"{100 * mean:.1f} %"
            drawn = dimmed([(line, "accent")], shown)
            rows.append(self._lane("GPU busy", drawn, figure, slowest))
            because = dimmed([because_of(seen[n]) for n in slowest], shown)
            figure = f"{100 * (1 - mean):.1f} %"
            rows.append(self._lane("idle because", because, figure, slowest))
        self._lanes_of = range(top + 1, top + len(rows)), _LABEL, slowest
        marker = "".join("▲" if at in of else " " for of in spread)
        rows.append(((" " * _LABEL, "text"), (marker, "key")))
        about = self._column if len(chosen) == len(seen) else merged_columns(chosen)
        words = explained(about, tree, width)
        words[:1] = [self.hinting(row, "v: shares of these steps", "scope") for row in words[:1]]
        return [*rows, *words]

    def _lane(self, label: str, spans: list[Span], figure: str, spread: list[int]) -> Row:
        def put(x: int) -> None:
            self._put(spread[x - _LABEL])

        name, value = (f" {label:<{_LABEL - 1}}", "label"), (f" {figure:>{_FIGURE}}", "value")
        return (name, *self.doing_at(spans, put), value)


def _rank(run: Run, process: int) -> int | None:
    return run.processes[process].attached.rank if process in run.processes else None


def _by_rank(run: Run, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Processes with their devices, rank after rank."""

    def key(place: tuple[int, int]) -> tuple[int, int, int]:
        rank = _rank(run, place[0])
        return -1 if rank is None else rank, *place

    return sorted(places, key=key)
