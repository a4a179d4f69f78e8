"""Timeline: every step of the run in order, and what is under the cursor, explained."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from gputui.model.events import StepLanes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import count, duration
from gputui.report.explain.time_tree import TimeTree, device_trees
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.views.overview import unaccounted
from gputui.tui.views.time import leaf_named
from gputui.tui.widgets.canvas import Row, Span, clip, heading, wrap
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.ink import apportion, nice_top
from gputui.tui.widgets.step_columns import Column, because_of, columns_of_tree, explained
from gputui.tui.widgets.step_lanes import FIGURE, LABEL, columns_of, gap_words, lane_rows
from gputui.tui.widgets.step_rows import step_rows, thread_words
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.timeline import LEAST_HEIGHT, timeline_rows
from gputui.tui.widgets.tree import phase_colors
from gputui.tui.widgets.view import (
    Details,
    Lead,
    Place,
    View,
    no_run,
)

_LABEL, _FIGURE = LABEL, 10

_CHART = 5
_BUTTONS = "[−] [+] [fit]"


class TimelineView(View):
    """What happened when."""

    CHARTS = True
    SORTS = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.device = 0
        self.at: int | None = None
        """The column under the cursor; None for the newest."""
        self.first = 0
        self.shown: int | None = None
        """How many columns are seen, from `first` on; None for all."""
        self.step_back: int = 0
        """Which of the steps that were kept in parts: 0 is the newest."""
        self.inside: int | None = None
        """The column under the cursor in that step; None where steps are chosen."""
        self.parts: tuple[int, int] | None = None
        """The parts of that step in sight; None for all."""
        self._lane_columns = 0
        self._kept: list[StepLanes] = []
        self.leaf: Leaf | None = None
        """The leaf that another view led here with."""
        self._columns: list[Column] = []

    def rows(self, width: int, height: int) -> list[Row]:
        """The steps as a chart and lanes, what is under the cursor, the last step."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        trees = {place: tree for place, tree in device_trees(run).items() if tree.wall_ns}
        rows: list[Row] = []
        if trees:
            places = sorted(trees)
            self.device %= len(places)
            tree = trees[places[self.device]]
            rows += self._devices(run, places, width)
            self._columns = columns_of_tree(tree)
            if self._columns:
                rows += self._lanes(tree, width, len(rows), height)
            else:
                rows += wrap(_no_steps(tree), width - 2, "dim", "  ")
        else:
            self._columns = []
            rows += wrap(unaccounted(run), width - 2, "text", "  ")
        self._kept = []
        if trees:
            process, device = sorted(trees)[self.device]
            self._kept = [
                one for one in run.step_lanes if (one.process, one.device) == (process, device)
            ]
        rows += self._step(run, width, len(rows), height)
        newest = max(run.steps.values(), key=lambda step: step.start_ns, default=None)
        room = height - len(rows) - 1
        if newest is not None and room >= LEAST_HEIGHT:
            low, high = self.parts or (0, 1)
            whole = len(self._kept[-1 - self.step_back].busy) if self.parts and self._kept else 1
            window = low / max(1, whole), high / max(1, whole)
            colors = phase_colors(run)
            rows += [()]
            rows += timeline_rows(newest, run, colors, width, min(room, 9), window=window)
        return rows

    # --- keys

    def move(self, move: Move) -> None:
        """Left and right move the cursor; up and down choose a step, whose gaps they then go
        through."""
        steps = {"left": -1, "right": 1, "page_up": -10, "page_down": 10}
        if move in ("up", "down") and self._kept:
            back = self.step_back + (1 if move == "up" else -1)
            self.step_back = max(0, min(len(self._kept) - 1, back))
            self.inside = self._lane_columns // 2 if self.inside is None else self.inside
            self.parts = None
            self.draw()
            return
        if self.inside is not None:
            self._put_inside(self.inside + steps.get(move, 0))
            return
        last = len(self._columns) - 1
        at = last if self.at is None else self.at
        if move in ("up", "down"):
            return
        if move in ("home", "end"):
            at = 0 if move == "home" else last
        else:
            at += steps[move]
        self._put(max(0, min(last, at)))

    def activate(self) -> Details | Lead | None:
        """The time tree at the largest cause under the cursor."""
        column = self._column
        if column is None or not column.leaves:
            return Lead("time")
        largest = max(column.leaves, key=lambda leaf: (LEAVES[leaf].is_idle, column.leaves[leaf]))
        return Lead("time", LEAVES[largest].key)

    def sort(self) -> None:
        """Another device."""
        self.device += 1
        self.step_back, self.inside = 0, None
        self.draw()

    def zoom(self, step: int) -> str:
        """Fewer or more steps around the cursor."""
        if self.inside is not None and self._kept:
            return self._zoom_inside(step)
        whole = len(self._columns)
        if not whole:
            return ""
        shown = min(whole, self.shown or whole)
        shown = max(4, min(whole, shown // 2 if step < 0 else shown * 2))
        at = self.at if self.at is not None else whole - 1
        self.shown = None if shown >= whole else shown
        self.first = max(0, min(at - shown // 2, whole - shown))
        self.draw()
        seen = self._columns[self.first : self.first + shown]
        return f"steps {count(seen[0].first)} to {count(seen[-1].first + seen[-1].steps - 1)}"

    def step(self, columns: int) -> None:
        """The cursor a column on."""
        self.move("left" if columns < 0 else "right")

    def follow(self) -> None:
        """The newest step, and all of them in sight."""
        self.at = self.shown = self.leaf = self.inside = None
        self.first = self.step_back = 0
        self.parts = None
        self.draw()

    def show_item(self, key: Hashable) -> None:
        """The column in which a leaf took most."""
        self.leaf = leaf_named(key)

    # --- parts

    @property
    def _column(self) -> Column | None:
        if not self._columns:
            return None
        at = len(self._columns) - 1 if self.at is None else self.at
        return self._columns[min(at, len(self._columns) - 1)]

    def _put(self, at: int) -> None:
        self.at = at
        if self.shown is not None:
            self.first = max(0, min(max(self.first, at - self.shown + 1), at))
        self.draw()

    def _press(self, step: int) -> None:
        """Zoom in the step, around the cursor or its middle."""
        self.inside = self._lane_columns // 2 if self.inside is None else self.inside
        self._zoom_inside(step)

    def _zoom_inside(self, step: int) -> str:
        """Fewer or more parts of a step, around the cursor."""
        kept = self._kept[-1 - self.step_back]
        whole = len(kept.busy)
        low, high = self.parts or (0, whole)
        seen = high - low
        assert self.inside is not None
        middle = low + seen * self.inside // max(1, self._lane_columns)
        seen = max(min(8, whole), seen // 2) if step < 0 else min(whole, seen * 2)
        low = max(0, min(middle - seen // 2, whole - seen))
        self.parts = None if seen == whole else (low, low + seen)
        self.inside = self._lane_columns * (middle - low) // max(1, seen)
        self.draw()
        each = kept.duration_ns / max(1, whole)
        return f"{duration(each * low)} to {duration(each * (low + seen))} of the step"

    def _put_inside(self, at: int) -> None:
        """The cursor at a column; beyond an edge of a zoomed step the parts in sight move on."""
        if self.parts is not None and self._kept and not 0 <= at < self._lane_columns:
            low, high = self.parts
            seen, whole = high - low, len(self._kept[-1 - self.step_back].busy)
            new = max(0, min(whole - seen, low + (seen if at > 0 else -seen) // 2))
            at -= self._lane_columns * (new - low) // max(1, seen)
            self.parts = new, new + seen
        self.inside = max(0, min(self._lane_columns - 1, at))
        self.draw()

    def _step(self, run: Run, width: int, top: int, height: int) -> list[Row]:
        """A step in parts, and the gap under the cursor."""
        if not self._kept or height - top < 8:
            return []
        self.step_back = min(self.step_back, len(self._kept) - 1)
        step = self._kept[-1 - self.step_back]
        self._lane_columns = max(1, width - LABEL - FIGURE - 1)
        low, high = self.parts or (0, len(step.busy))
        high = min(high, len(step.busy))
        columns = columns_of(step, low, high, self._lane_columns)
        each = step.duration_ns / max(1, len(step.busy))
        start_ns, span_ns = low * each, (high - low) * each
        at = self.inside
        if at is None:
            longest = max(range(len(columns)), key=lambda n: -columns[n].busy)
            at = longest
        which = "newest" if not self.step_back else f"{self.step_back} before the newest"
        title = f"One step, {duration(step.duration_ns)}: {which} of {len(self._kept)} kept"
        rows: list[Row] = [(), heading(title, width, f"↑ ↓ another step  {_BUTTONS}")]
        line = "".join(text for text, _ in rows[1])
        for text, act in (("[−]", lambda: self._press(1)), ("[+]", lambda: self._press(-1)),
                          ("[fit]", self.follow)):  # fmt: skip
            if (x := line.find(text)) >= 0:
                self.places.append(Place(top + 1, x, x + len(text), act))
        *lanes, cursor = lane_rows(columns, step.device, at, start_ns, span_ns)
        lanes += step_rows(step, run, low, high, len(columns))[: max(0, height - top - 9)]
        rows += [*lanes, cursor]
        for y in range(3, 2 + len(lanes)):
            for x in range(len(columns)):
                act = partial(self._put_inside, x)
                self.places.append(Place(top + y, LABEL + x, LABEL + x + 1, act))
        place = (low + (high - low) * (at + 0.5) / len(columns)) / max(1, len(step.busy))
        lines = gap_words(columns, at, start_ns, span_ns) + thread_words(step, run, place)
        for line in lines:
            rows += wrap(line, width - 2, "text", "  ")
        return rows

    def _devices(self, run: Run, places: list[tuple[int, int]], width: int) -> list[Row]:
        if len(places) == 1:
            return []
        process, device = places[self.device]
        rank = run.processes[process].attached.rank if process in run.processes else None
        who = f"rank {rank}, " if rank is not None else ""
        text = f" {who}GPU {device}  {self.device + 1} of {len(places)}: s another one"
        return [clip(((text, "label"),), width)]

    def _lanes(self, tree: TimeTree, width: int, top: int, height: int) -> list[Row]:
        whole = self._columns
        if self.leaf is not None:
            leaf = self.leaf
            part = [each.leaves.get(leaf, 0) / (each.whole_ns or 1) for each in whole]
            self.at, self.leaf = part.index(max(part)), None
        seen = whole[self.first : self.first + (self.shown or len(whole))]
        room = width - _LABEL - _FIGURE - 1
        cells = apportion([1.0] * len(seen), room) if len(seen) <= room else [1] * room
        spread = [at for at, size in enumerate(cells) for _ in range(size)]
        if len(seen) > room:
            spread = [len(seen) * at // room for at in range(room)]
        at = (len(whole) - 1 if self.at is None else self.at) - self.first
        lengths = [each.mean_ns for each in seen]
        scale = nice_top(max(lengths))
        tall = _CHART if height >= 30 else 3
        plot = block_rows([lengths[n] for n in spread], scale, tall)
        rows: list[Row] = [heading(_title(tree), width, _slow(tree))]
        for y, line in enumerate(plot):
            label = "step time" if not y else ""
            end = f"to {duration(scale)}" if not y else ""
            rows.append(self._lane(label, [(line, "accent")], end, top + len(rows), spread))
        if any(each.busy is not None for each in seen):
            busy = [each.busy or 0.0 for each in seen]
            [line] = block_rows([busy[n] for n in spread], 1.0, 1)
            amount = sum(each.whole_ns * (each.busy or 0.0) for each in seen)
            mean = amount / max(1, sum(each.whole_ns for each in seen))
            figure = f"{100 * mean:.1f} %"
            rows.append(
                self._lane("GPU busy", [(line, "cause-matmul")], figure, top + len(rows), spread)
            )
            because = [because_of(seen[n]) for n in spread]
            figure = f"{100 * (1 - mean):.1f} %"
            rows.append(self._lane("idle because", because, figure, top + len(rows), spread))
        chosen = max((n for n in spread if n <= at), default=0)  # several may share a column
        marker = "".join("▲" if n == chosen else " " for n in spread)
        rows.append(((" " * _LABEL, "text"), (marker, "key")))
        return [*rows, *explained(self._column, tree, width)]

    def _lane(self, label: str, spans: list[Span], figure: str, y: int, spread: list[int]) -> Row:
        for x, number in enumerate(spread):
            act = partial(self._put, self.first + number)
            self.places.append(Place(y, _LABEL + x, _LABEL + x + 1, act))
        return ((f" {label:<{_LABEL - 1}}", "label"), *spans, (f" {figure:>{_FIGURE}}", "value"))


def _title(tree: TimeTree) -> str:
    return f"Steps in order  {count(tree.steps)}, mean {duration(tree.step_mean_ns)}"


def _slow(tree: TimeTree) -> str:
    if not tree.slow_steps:
        return "none slow"
    return f"{count(tree.slow_steps)} slow: {duration(tree.slow_ns)} in all"


def _no_steps(tree: TimeTree) -> str:
    del tree
    return "No loop was found so far: the steps appear here when one is."
