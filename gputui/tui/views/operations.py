"""Timeline of single operations: lanes with names, at any zoom, of a run with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from textual import events
from textual.binding import Binding, BindingType

from gputui.model.events import StepLanes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.naming import short_name
from gputui.model.steps import SLOW
from gputui.model.units import count, duration, percent, size
from gputui.playback.lanes import Lane, LaneKind, TracedLanes, open_lanes
from gputui.report.phases import main_step, phase_rows
from gputui.state import Run
from gputui.store.trace import Int64s
from gputui.tui.model import Model
from gputui.tui.source import Runner
from gputui.tui.widgets.canvas import (
    Row,
    Span,
    bar,
    clip,
    cut_middle,
    fit,
    heading,
    short_names,
    wrap,
)
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.no_run import no_run
from gputui.tui.widgets.one_step import DraggedView
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.tree import phase_colors
from gputui.tui.widgets.view import Details, Lead, Notice, Place

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp

_LABEL, _FIGURE = 14, 8
_NAMED = 4
"""Cells from which a box has its name in it."""
_HEAD, _ABOUT = 4, 4
"""Rows above the lanes, and of the words about the cursor below them."""
_LEAST_MOST = 4
"""Rows of the table below the lanes, at least."""
_LEAST_NS = 1_000
"""The shortest window."""
_GAP_CELLS = 1.0
"""A gap that is jumped to takes at least so many cells."""

_COLORS = {
    "matmul": "matmul", "attention": "attention", "normalization": "normalization",
    "elementwise": "elementwise", "copy": "copy", "communication": "communication",
}  # fmt: skip


def _role(category: str, prefix: str = "cause") -> str:
    return f"{prefix}-{_COLORS.get(category, 'other')}"


class _Place(NamedTuple):
    """What the cursor stands on."""

    lane: int
    row: int


class _Line(NamedTuple):
    """A line of the lanes; `lane` is None where it is not one of operations."""

    label: str
    spans: list[Span]
    figure: str = ""
    lane: int | None = None


class OperationsView(DraggedView):
    """Streams, ranges and calls of a window of the run, and what is under the cursor, explained."""

    CHARTS = True
    FILTERS = True
    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "gap", "next gap", show=False),
        Binding("l", "launch", "from a launch to its kernel, and back", show=False),
        Binding("left_square_bracket", "measure(0)", "measure from here", show=False),
        Binding("right_square_bracket", "measure(1)", "measure to here", show=False),
    ]
    HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("g", "next gap", "focused.gap"),
        ("l", "launch ↔ kernel", "focused.launch"),
        ("[", "] measure", "focused.measure(0)"),
    )

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._read: tuple[Path, int] | None = None
        """The file and run that lanes are of, or are being read of."""
        self._lanes: TracedLanes | None = None
        self._failure = ""
        self._low = self._high = 0.0
        """The window, ns since the first operation."""
        self._place = _Place(0, 0)
        self._partner: _Place | None = None
        self._measured: list[float | None] = [None, None]
        self._top = 0
        """The first lane in sight."""
        self._cells = 1
        self._sought = ""
        self._steps: tuple[Int64s, Int64s] | None = None

    # --- reading

    def _load(self, run: Run) -> None:
        path = self.model.traced
        key = None if path is None else (path, run.started.run)
        if key == self._read:
            return
        self._read, self._lanes, self._failure = key, None, ""
        if path is None or key is None:
            self._failure = (
                "no trace of single kernels is beside what is shown: record with --trace; "
                "3 has its steps in bars"
            )
            return
        if isinstance(self.model.source, Runner) and run.is_active:
            self._read = None
            self._failure = "single operations are shown when the run has ended"
            return

        def loaded(lanes: TracedLanes) -> None:
            if self._read == key:
                self._lanes = lanes
                self._failure = "" if lanes.lanes else "its trace holds nothing of this run"
                if lanes.lanes:
                    self._begin(run, lanes)
                self.draw()

        def failed(reason: str) -> None:
            if self._read == key:
                self._failure = reason
                self.draw()

        app: GputuiApp = self.app  # type: ignore[assignment]
        app.in_thread(partial(open_lanes, path, self.model.session, run), loaded, failed)

    def _begin(self, run: Run, lanes: TracedLanes) -> None:
        """At a usual step: one that was kept, else one of the program's, else all of it."""
        self._low, self._high = 0.0, float(lanes.end_ns)
        self._top, self._place, self._partner = 0, _Place(0, 0), None
        self._measured, self._steps = [None, None], self._instances(run, lanes)
        kept = [step for step in run.step_lanes if self._is_inside(step, lanes)]
        if kept:
            usual = sorted(kept, key=lambda step: step.duration_ns)[len(kept) // 2]
            start = usual.start_ns - lanes.begin_ns
            self._low, self._high = float(start), float(start + usual.duration_ns)
        elif self._steps is not None:
            starts, ends = self._steps
            usual_at = np.argsort(ends - starts)[len(starts) // 2]
            self._low, self._high = float(starts[usual_at]), float(ends[usual_at])
        self._put_near((self._low + self._high) / 2)

    def _instances(self, run: Run, lanes: TracedLanes) -> tuple[Int64s, Int64s] | None:
        """When the steps of the program began and ended, where it names them."""
        step = main_step(run, phase_rows(run))
        if step is None:
            return None
        numbers = [number for number, node in run.ranges.items() if node.path == step.path]
        for lane in lanes.lanes:
            if lane.kind is LaneKind.RANGES:
                rows = np.flatnonzero(np.isin(lane.ranges, numbers))
                if len(rows):
                    return lane.spans.starts[rows], lane.spans.ends[rows]
        return None

    @staticmethod
    def _is_inside(step: StepLanes, lanes: TracedLanes) -> bool:
        start = step.start_ns - lanes.begin_ns
        return start >= 0 and start + step.duration_ns <= lanes.end_ns and step.duration_ns > 0

    # --- drawing

    def rows(self, width: int, height: int) -> list[Row]:
        """Where the window is, the lanes in it, and the cursor in words."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        self._load(run)
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            text = self._failure or "reading every operation of the run…"
            return [heading("Timeline", width), *wrap(text, width - 2, "text", "  ")]
        if self.needle != self._sought:
            self._sought = self.needle
            self._find(0)
        self._cells = max(10, width - _LABEL - _FIGURE - 1)
        about = self._about(run, lanes, width)
        room = max(3, height - _HEAD - max(_ABOUT, len(about)))
        drawn = self._drawn(run, lanes, room)
        rows: list[Row] = [self._title(lanes, width), *self._strip(lanes)]
        first = len(rows)
        for y, (label, spans, figure, number) in enumerate(drawn, first):
            rows.append(self._line(label, spans, figure))
            if number is not None:
                for x in range(self._cells):
                    act = partial(self._click_at, number, x)
                    self.places.append(Place(y, _LABEL + x, _LABEL + x + 1, act))
        self._lanes_of = (range(first, len(rows)), _LABEL, range(self._cells))
        rows += self._most(lanes, width, height - len(about) - len(rows))
        rows += [()] * (height - len(about) - len(rows))
        return [*rows[: height - len(about)], *about]

    def _most(self, lanes: TracedLanes, width: int, height: int) -> list[Row]:
        """What took most of the window, where there is room below the lanes."""
        if height < _LEAST_MOST:
            return []
        took, times = np.zeros(len(lanes.names)), np.zeros(len(lanes.names), np.int64)
        for lane in lanes.lanes:
            if lane.kind is LaneKind.STREAM:
                low, high = lane.rows(self._low, self._high)
                starts = np.maximum(lane.spans.starts[low:high], self._low)
                ends = np.minimum(lane.spans.ends[low:high], self._high)
                took += np.bincount(lane.names[low:high], ends - starts, len(took))
                times += np.bincount(lane.names[low:high], minlength=len(times))
        order = np.argsort(-took)[: height - 2]
        whole = max(1.0, float(took.sum()))
        room = max(12, width - 48)
        names = short_names([lanes.names[at] for at in order.tolist()], room)
        rows: list[Row] = [(), heading("In this window  GPU time", width, duration(whole))]
        for at, name in zip(order.tolist(), names, strict=True):
            if not took[at]:
                break
            role = _role(lanes.categories[lanes.category_of[at]])
            share = percent(100 * took[at] / whole)
            figures = f" {count(int(times[at])):>6} × {duration(took[at]):>9} {share:>7}  "
            drawn = bar(took[at] / whole, 16)
            rows.append(((f" {fit(name, room)}", "text"), (figures, "value"), (drawn, role)))
        return rows

    def _title(self, lanes: TracedLanes, width: int) -> Row:
        window = self._high - self._low
        share = percent(100 * window / max(1, lanes.end_ns))
        title = (
            f"Timeline  {duration(self._low)} to {duration(self._high)}: {duration(window)}, "
            f"{share} of {duration(lanes.end_ns)}"
        )
        note = f"{count(lanes.left_out)} older records left out" if lanes.left_out else ""
        if self.needle:
            note = f"/ {self.needle}: n next"
        return heading(title, width, note)

    def _strip(self, lanes: TracedLanes) -> list[Row]:
        """All of the run, where the window is in it, and the time axis of the window."""
        values = np.zeros(self._cells)
        for spans in lanes.busy.values():
            values += spans.within(0, lanes.end_ns, self._cells)
        shares = values / max(1.0, lanes.end_ns / self._cells) / max(1, len(lanes.busy))
        [line] = block_rows(shares.clip(0, 1).tolist(), 1.0, 1)
        scale = self._cells / max(1, lanes.end_ns)
        low = min(self._cells - 1, int(self._low * scale))
        high = max(low + 1, min(self._cells, round(self._high * scale)))
        mark = " " * low + ("▲" if high - low == 1 else "▔" * (high - low))
        return [
            self._line("whole run", [(line, "cause-matmul")], ""),
            self._line("", [(fit(mark, self._cells), "key")], ""),
            self._line("", [(self._axis(), "dim")], ""),
        ]

    def _axis(self) -> str:
        line = [" "] * self._cells
        ticks = max(1, self._cells // 18)
        for tick in range(ticks):
            text = f"┊{duration(self._low + (self._high - self._low) * tick / ticks)}"
            at = self._cells * tick // ticks
            line[at : at + len(text)] = text
        for moment, mark in zip(self._measured, "[]", strict=True):
            if moment is not None and self._low <= moment < self._high:
                line[self._cell(moment)] = mark
        return "".join(line)[: self._cells]

    def _line(self, label: str, spans: Sequence[Span], figure: str) -> Row:
        cut = cut_middle(label, _LABEL - 2)
        return ((f" {cut:<{_LABEL - 1}}", "label"), *spans, (f"{figure:>{_FIGURE}} ", "value"))

    def _drawn(self, run: Run, lanes: TracedLanes, room: int) -> list[_Line]:
        """Label, cells, figure and number of each line in sight; without a number what is no lane
        of operations."""
        lines: list[_Line] = []
        colors = phase_colors(run)
        before: tuple[LaneKind, int, int] | None = None
        for number, lane in enumerate(lanes.lanes):
            group = lane.kind, lane.process, lane.device
            if lane.kind is LaneKind.STREAM and group != before:
                lines += self._device(run, lanes, lane)
            before = group
            rows = lane.rows(self._low, self._high)
            if rows[0] == rows[1] and number != self._place.lane:
                continue  # nothing in it here
            spans, figure = self._lane(lanes, number, colors)
            lines.append(_Line(self._label(run, lanes, number), spans, figure, number))
        at = next((y for y, line in enumerate(lines) if line.lane == self._place.lane), 0)
        self._top = max(0, min(self._top, at, max(0, len(lines) - room)))
        self._top = max(self._top, at - room + 1)
        seen = lines[self._top : self._top + room]
        hidden = len(lines) - len(seen)
        if hidden and seen:
            seen[-1] = seen[-1]._replace(figure=f"{hidden} more")
        return seen

    def _device(self, run: Run, lanes: TracedLanes, lane: Lane) -> list[_Line]:
        """How busy a device was, and why it idled where a step was kept with its causes."""
        busy = lanes.busy[lane.process, lane.device]
        took = busy.within(self._low, self._high, self._cells)
        shares = took * self._cells / max(1e-9, self._high - self._low)
        [line] = block_rows(shares.clip(0, 1).tolist(), 1.0, 1)
        whose = self._whose(run, lane.process)
        label = f"{whose} GPU {lane.device}" if whose else f"GPU {lane.device} busy"
        figure = f"{100 * float(shares.clip(0, 1).mean()):.1f} %"
        found = [_Line(label, [(line, "text")], figure)]
        kept = [
            step for step in run.step_lanes
            if step.process == lane.process and self._is_inside(step, lanes)
            and step.start_ns - lanes.begin_ns < self._high
            and step.start_ns - lanes.begin_ns + step.duration_ns > self._low
        ]  # fmt: skip
        if kept:
            cells = [self._because(kept, lanes, x, float(shares[x])) for x in range(self._cells)]
            found.append(_Line("idle because", _joined(cells)))
        return found

    def _because(self, kept: Sequence[StepLanes], lanes: TracedLanes, x: int, busy: float) -> Span:
        moment = self._low + (self._high - self._low) * (x + 0.5) / self._cells + lanes.begin_ns
        for step in kept:
            parts = len(step.busy)
            at = int((moment - step.start_ns) * parts / step.duration_ns)
            if not 0 <= at < parts or busy > 0.875:
                continue
            causes = {
                Leaf(lane.leaf): lane.parts[at]
                for lane in step.idle
                if lane.leaf in LEAVES and len(lane.parts) == parts
            }
            best = max(causes, key=lambda leaf: causes[leaf], default=None)
            if best is not None and causes[best] > 0:
                texture, role = look(best)
                return texture, role
        return " ", "text"

    def _label(self, run: Run, lanes: TracedLanes, number: int) -> str:
        lane = lanes.lanes[number]
        whose = self._whose(run, lane.process)
        if lane.kind is LaneKind.STREAM:
            return f"{whose} stream {lane.number}".strip()
        thread = self._thread(run, lane.process, lane.number)
        if lane.kind is LaneKind.CALLS:
            before = lanes.lanes[number - 1] if number else lane
            is_below = before.kind is LaneKind.RANGES and before.number == lane.number
            return "  calls" if is_below else f"{thread} calls"
        return f"{whose} {thread}".strip() if not lane.depth else ""

    @staticmethod
    def _whose(run: Run, process: int) -> str:
        if len(run.processes) < 2 or process not in run.processes:
            return ""
        attached = run.processes[process].attached
        return f"pid {attached.pid}" if attached.rank is None else f"rank {attached.rank}"

    @staticmethod
    def _thread(run: Run, process: int, thread: int) -> str:
        of = run.processes.get(process)
        if of is not None and thread == of.attached.pid:
            return "main"
        named = of.threads.get(thread) if of is not None else None
        return named.name if named is not None else f"thread {thread}"

    def _cell(self, moment_ns: float) -> int:
        """The cell of a moment in the window."""
        each = (self._high - self._low) / self._cells
        return max(0, min(self._cells - 1, int((moment_ns - self._low) / each)))

    def _lane(
        self, lanes: TracedLanes, number: int, colors: dict[str, int]
    ) -> tuple[list[Span], str]:
        """A lane's cells: how busy each was in the colour of what took most of it, and over them
        boxes with names where these have room."""
        lane = lanes.lanes[number]
        seen = lane.cells(self._low, self._high, self._cells)
        [bars] = block_rows(seen.busy.tolist(), 1.0, 1)
        is_stream = lane.kind is LaneKind.STREAM
        cells: list[Span] = [
            (bar, _role(lanes.categories[int(kind)]) if is_stream and kind >= 0 else "dim")
            for bar, kind in zip(bars, seen.category, strict=True)
        ]
        each = (self._high - self._low) / self._cells
        for box in lane.boxes(self._low, self._high, _NAMED * each):
            name = lanes.names[int(lane.names[box.row])]
            first, last = self._cell(box.start_ns), self._cell(max(box.start_ns, box.end_ns - each))
            if last - first + 1 < _NAMED:
                continue
            shown = short_name(name) if is_stream else name
            text = f"{box.times} × {shown}" if box.times > 1 else shown
            if is_stream:
                kind = lanes.category_of[int(lane.names[box.row])]
                role = _role(lanes.categories[kind], "fill")
            elif lane.kind is LaneKind.CALLS:
                role = "input"
            else:
                role = f"block-{colors.get(name, 1)}"
            if self._matches(name):
                role = "tab-active"
            drawn = "▏" + fit(cut_middle(text, last - first), last - first)
            cells[first : last + 1] = [(character, role) for character in drawn]
        for place, role in ((self._partner, "tab-active"), (self._place, "cursor")):
            if place is not None and place.lane == number and place.row < len(lane):
                start, end = int(lane.spans.starts[place.row]), int(lane.spans.ends[place.row])
                if end >= self._low and start <= self._high:
                    first, last = self._cell(start), self._cell(max(start, end - each))
                    for x in range(first, last + 1):
                        cells[x] = (cells[x][0] if cells[x][0] != " " else "▁", role)
        share = 100 * float(seen.busy.mean())
        return _joined(cells), f"{share:.1f} %" if is_stream else ""

    def _matches(self, name: str) -> bool:
        return bool(self.needle) and self.needle.lower() in name.lower()

    # --- the cursor in words

    def _about(self, run: Run, lanes: TracedLanes, width: int) -> list[Row]:
        lane, row = lanes.lanes[self._place.lane], self._place.row
        start, end = int(lane.spans.starts[row]), int(lane.spans.ends[row])
        name = lanes.names[int(lane.names[row])]
        usual, times = lanes.usual_ns(lane, row)
        facts = [f"{duration(end - start)}, from {duration(start)} on"]
        facts.append(f"one of {count(times)}, usually {duration(usual)}" if times > 1 else "once")
        node = run.ranges.get(int(lane.ranges[row]))
        if node is not None and lane.kind is not LaneKind.RANGES:
            facts.append(f"in {node.path}")
        rows: list[Row] = [heading(cut_middle(name, max(10, width - 10)), width)]
        rows += wrap(" · ".join(facts), width - 2, "text", " ")[:2]
        more = [*self._launch(run, lanes, lane, row), *self._before(lanes, lane, start)]
        if lane.kind is LaneKind.STREAM and lane.details[row]:
            shape = self.model.session.launch_shapes.get(int(lane.details[row]))
            if name.startswith(("Host", "Device", "Peer", "Unified", "memset")):
                amount = int(lane.details[row])
                rate = f", {size(amount * 1e9 / (end - start))}/s" if end > start else ""
                more.append(f"{size(amount)}{rate}")
            elif shape is not None:
                grid, block = ("×".join(map(str, one)) for one in (shape.grid, shape.block))
                more.append(f"grid {grid}, block {block}")
        rows += wrap(" · ".join(more), width - 2, "dim", " ")[:2]
        if None not in self._measured:
            rows.append(clip(((f" {self._between(lanes)}", "accent"),), width))
        return rows

    def _launch(self, run: Run, lanes: TracedLanes, lane: Lane, row: int) -> list[str]:
        found = lanes.launch_of(lane, row)
        if found is None:
            return []
        other = lanes.lanes[found[0]]
        start, there = int(lane.spans.starts[row]), int(other.spans.starts[found[1]])
        called = lanes.names[int(other.names[found[1]])]
        if lane.kind is LaneKind.STREAM:
            thread = self._thread(run, other.process, other.number)
            return [f"launched {duration(start - there)} before by {called} on {thread}"]
        return [f"its work {short_name(called)} began {duration(there - start)} later"]

    @staticmethod
    def _before(lanes: TracedLanes, lane: Lane, start: int) -> list[str]:
        """How long its device had idled before it."""
        gaps = lanes.gaps(lane.process, lane.device)
        if lane.kind is not LaneKind.STREAM or gaps is None:
            return []
        at = int(np.searchsorted(gaps.ends, start, side="left"))
        if at < len(gaps.ends) and int(gaps.ends[at]) == start:
            return [f"before it the GPU idled {duration(start - int(gaps.starts[at]))}"]
        return []

    def _between(self, lanes: TracedLanes) -> str:
        first, last = sorted(moment for moment in self._measured if moment is not None)
        parts = [f"between [ and ]: {duration(last - first)}"]
        for (_, device), spans in lanes.busy.items():
            busy = float(spans.within(first, last)[0])
            share = percent(100 * busy / max(1.0, last - first))
            parts.append(f"GPU {device} busy {duration(busy)} ({share})")
        work = 0
        for lane in lanes.lanes:
            if lane.kind is LaneKind.STREAM:
                low, high = lane.rows(first, last)
                work += high - low
        return "   ".join([*parts, f"{count(work)} operations"])

    @property
    def copied(self) -> str:
        """The full name of what is under the cursor."""
        if self._lanes is None or not self._lanes.lanes:
            return super().copied
        lane = self._lanes.lanes[self._place.lane]
        return self._lanes.names[int(lane.names[self._place.row])]

    # --- keys

    def move(self, move: Move) -> None:
        """Left and right to the next operation of the lane, up and down to another lane, a page is
        half a window."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            self.nothing_chosen("no operation is shown here")
            return
        lane, row = lanes.lanes[self._place.lane], self._place.row
        middle = float(lane.spans.starts[row] + lane.spans.ends[row]) / 2
        if move in ("left", "right"):
            row = max(0, min(len(lane) - 1, row + (1 if move == "right" else -1)))
            self._choose(_Place(self._place.lane, row))
        elif move in ("home", "end"):
            self._choose(_Place(self._place.lane, 0 if move == "home" else len(lane) - 1))
        elif move in ("page_up", "page_down"):
            self._pan((self._high - self._low) / (2 if move == "page_down" else -2))
        else:
            step = 1 if move == "down" else -1
            number = self._place.lane + step
            middle = max(self._low, min(self._high, middle))
            while 0 <= number < len(lanes.lanes):
                low, high = lanes.lanes[number].rows(self._low, self._high)
                if high > low:
                    self._choose(_Place(number, lanes.lanes[number].row_at(middle)))
                    return
                number += step
            self.nothing_chosen("no further lane has anything in this window")

    def _choose(self, place: _Place, *, partner: _Place | None = None) -> None:
        """The cursor there, and the window so that it is in sight."""
        assert self._lanes is not None
        spans = self._lanes.lanes[place.lane].spans
        start, end = float(spans.starts[place.row]), float(spans.ends[place.row])
        self._place, self._partner = place, partner
        window = self._high - self._low
        if end <= self._low or start >= self._high:
            self._show((start + end) / 2 - window / 2, window)
        elif start < self._low and end < self._high:
            self._show(start - window / 10, window)
        elif end > self._high and start > self._low:
            self._show(min(start, end - window) + window / 10, window)
        self.draw()

    def _show(self, low: float, window: float) -> None:
        whole = float(self._lanes.end_ns) if self._lanes is not None else 1.0
        window = max(min(_LEAST_NS, whole), min(window, whole))
        self._low = max(0.0, min(low, whole - window))
        self._high = self._low + window

    def _pan(self, by: float) -> None:
        self._show(self._low + by, self._high - self._low)
        self._put_near((self._low + self._high) / 2)
        self.draw()

    def _put_near(self, moment: float) -> None:
        """The cursor on what is in sight, in its lane where that has something there."""
        assert self._lanes is not None
        numbers = [self._place.lane, *range(len(self._lanes.lanes))]
        for number in numbers:
            lane = self._lanes.lanes[number]
            low, high = lane.rows(self._low, self._high)
            if high > low:
                self._place = _Place(number, max(low, min(high - 1, lane.row_at(moment))))
                self._partner = None
                return

    def zoom(self, step: int) -> str:
        """A window twice as long, or half."""
        if self._lanes is None or not self._lanes.lanes:
            return ""
        spans = self._lanes.lanes[self._place.lane].spans
        at = float(spans.starts[self._place.row] + spans.ends[self._place.row]) / 2
        self._zoom_at(step, at)
        return ""  # the title has the window

    def _zoom_at(self, step: int, moment: float) -> None:
        window = self._high - self._low
        if not self._low <= moment <= self._high:
            moment = (self._low + self._high) / 2
        part = (moment - self._low) / max(1.0, window)
        new = window * 2 if step > 0 else window / 2
        self._show(moment - part * new, new)
        self.draw()

    def step(self, columns: int) -> None:
        """A tenth of the window on."""
        if self._lanes is not None and self._lanes.lanes:
            self._pan((self._high - self._low) / 10 * columns)

    def follow(self) -> None:
        """All of the run."""
        if self._lanes is not None and self._lanes.lanes:
            self._show(0.0, float(self._lanes.end_ns))
            self._measured = [None, None]
            self.draw()

    def action_gap(self) -> None:
        """To the end of the next gap that can be seen at this zoom."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            self.nothing_chosen("no operation is shown here")
            return
        lane = lanes.lanes[self._place.lane]
        now = float(lane.spans.ends[self._place.row])
        process = lane.process
        device = lane.device if lane.kind is LaneKind.STREAM else next(
            (d for p, d in lanes.busy if p == process), 0)  # fmt: skip
        gaps = lanes.gaps(process, device)
        least = _GAP_CELLS * (self._high - self._low) / self._cells
        is_next = None
        if gaps is not None:
            is_next = np.flatnonzero((gaps.starts >= now) & (gaps.ends - gaps.starts >= least))
        if gaps is None or is_next is None or not len(is_next):
            self.nothing_chosen("no further gap of a cell's length: − zooms out, Home begins anew")
            return
        end = int(gaps.ends[is_next[0]])
        for number, one in enumerate(lanes.lanes):
            if one.kind is LaneKind.STREAM and (one.process, one.device) == (process, device):
                row = int(np.searchsorted(one.spans.starts, end, side="left"))
                if row < len(one) and int(one.spans.starts[row]) == end:
                    self._choose(_Place(number, row))
                    return

    def action_launch(self) -> None:
        """From an operation to the call that launched it, and from a call to its operation."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            self.nothing_chosen("no operation is shown here")
            return
        found = lanes.launch_of(lanes.lanes[self._place.lane], self._place.row)
        if found is None:
            self.nothing_chosen("nothing in the trace launched this, or was launched by it")
            return
        self._choose(_Place(*found), partner=self._place)

    def action_measure(self, end: int) -> None:
        """Measure from the beginning of what is chosen, or to its end."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            return
        spans = lanes.lanes[self._place.lane].spans
        moments = spans.ends if end else spans.starts
        self._measured[end] = float(moments[self._place.row])
        if self._measured[1 - end] is None:
            self.post_message(Notice(f"{'[' if end else ']'} at the other end measures"))
        self.draw()

    def next_note(self, step: int) -> str | None:
        """To the next hit of what is sought; else to the next slow step."""
        if self._lanes is None or not self._lanes.lanes:
            return self._failure or "the operations are being read"
        if self.needle:
            return "" if self._find(step) else f"nothing else is called {self.needle}"
        if self._steps is None:
            return "the program names no steps: g goes from gap to gap"
        starts, ends = self._steps
        lengths = ends - starts
        slow = np.flatnonzero(lengths > SLOW * np.median(lengths))
        now = (self._low + self._high) / 2
        later = [at for at in slow.tolist() if (starts[at] > now) == (step > 0)
                 and not starts[at] <= now <= ends[at]]  # fmt: skip
        if not later:
            return "no slow step that way"
        at = later[0] if step > 0 else later[-1]
        self._show(float(starts[at]), float(lengths[at]))
        self._put_near(now)
        self.draw()
        return ""

    def _find(self, step: int) -> bool:
        """The next operation, range or call of a name in the lane, else in another."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes or not self.needle:
            return False
        wanted = [at for at, name in enumerate(lanes.names) if self._matches(name)]
        here = lanes.lanes[self._place.lane]
        now = int(here.spans.starts[self._place.row])
        best: tuple[int, _Place] | None = None
        for number, lane in enumerate(lanes.lanes):
            rows = np.flatnonzero(np.isin(lane.names, wanted))
            starts = lane.spans.starts[rows]
            chosen = starts < now if step < 0 else starts > now if step > 0 else starts >= now
            rows, starts = rows[chosen], starts[chosen]
            if len(rows):
                at = -1 if step < 0 else 0
                away = abs(int(starts[at]) - now)
                if best is None or away < best[0]:
                    best = away, _Place(number, int(rows[at]))
        if best is not None:
            self._choose(best[1])
        return best is not None

    def activate(self) -> Details | Lead | None:
        """The kernel among all kernels."""
        lanes = self._lanes
        if lanes is None or not lanes.lanes:
            self.nothing_chosen("no operation is shown here")
            return None
        lane = lanes.lanes[self._place.lane]
        name = lanes.names[int(lane.names[self._place.row])]
        if lane.kind is LaneKind.STREAM:
            return Lead("kernels", name)
        run = self.model.run
        node = None if run is None else run.ranges.get(int(lane.ranges[self._place.row]))
        for row in phase_rows(run) if run is not None and node is not None else ():
            if node is not None and row.path == node.path:
                return Lead("phases", row.key)
        self.nothing_chosen("a call outside every range: l leads to what it launched")
        return None

    # --- mouse

    def _click_at(self, number: int, x: int) -> None:
        if self._lanes is None:
            return
        each = (self._high - self._low) / self._cells
        row = self._lanes.lanes[number].row_at(self._low + each * (x + 0.5))
        self._choose(_Place(number, row))

    def take_stretch(self, first: int, last: int) -> None:
        """The window that was dragged over."""
        each = (self._high - self._low) / self._cells
        self._show(self._low + each * first, each * (last + 1 - first))
        self._put_near((self._low + self._high) / 2)
        self.draw()

    def _roll(self, move: Move, event: events.MouseEvent) -> None:
        """The wheel zooms where it is."""
        if self._lanes is not None and self._lanes.lanes:
            each = (self._high - self._low) / self._cells
            moment = self._low + each * max(0, min(self._cells, event.x - _LABEL))
            self._zoom_at(-1 if move == "up" else 1, moment)


def _joined(cells: Sequence[Span]) -> list[Span]:
    """Cells of one look as one span."""
    return [
        ("".join(text for text, _ in part), role)
        for role, part in groupby(cells, key=lambda cell: cell[1])
    ]
