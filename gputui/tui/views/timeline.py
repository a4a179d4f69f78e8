"""Timeline: operations, ranges and calls in lanes with names, at any zoom, and what is under the
cursor, explained: of the whole run where there is a trace, else of the steps that were kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from textual import events
from textual.binding import Binding, BindingType

from gputui.base.sanitize import cut_middle
from gputui.model.events import StepOperations
from gputui.model.kernel_categories import short_names
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.naming import short_name
from gputui.model.steps import SLOW
from gputui.model.units import count, duration, percent, size
from gputui.playback.lanes import KeptStep, LaneKind, TracedLanes, kept_steps, open_kept, open_lanes
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import main_step, phase_rows
from gputui.report.scope import step_in_words
from gputui.state import Run
from gputui.store.trace import Int64s
from gputui.tui.model import Model
from gputui.tui.source import Runner
from gputui.tui.widgets.canvas import Row, at_most, clip, fit, heading, wrap
from gputui.tui.widgets.causes import leaf_named
from gputui.tui.widgets.lanes import (
    FIGURE,
    LABEL,
    NO_HITS,
    NOT_KEPT,
    LaneLine,
    LaneWindow,
    Operation,
    idle_legend,
    moment_text,
)
from gputui.tui.widgets.run import no_run
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import Details, DraggedView, Lead, Notice

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp

_WIDE = 112
"""Columns from which the title says what a step is among the others, and when it was."""
_HIGH = 32
"""Lines from which the full name of a kernel stands below its short one."""
_HEAD, _ABOUT = 5, 4
"""Rows above the lanes, and of the words about the cursor below them."""
_SHORT = 60
"""Cells of the names of kernels in boxes, which have at most so much of them."""
_MOST_NAMES = 1_000
"""Names of kernels that are distinguished."""
_LEAST_NS = 1_000
"""The shortest window."""

_RECORD_CELLS = 8
"""Cells for each record of a step, call and range, in the window that is shown first."""
_NAME_CELLS = 10
"""A kernel that is led to takes at least one in so many cells."""
_GAP_CELLS = 1.0
"""A gap that is jumped to takes at least so many cells."""
LEAST_KEPT = 0.5
"""Part of a step's operations of which fewer are not what a step does."""
_AT_ONCE = 5_000
"""Records of a step that are laid out before the next paint: 10 ms. Of more, in a thread."""


T = TypeVar("T")


def _short_kernels(lanes: TracedLanes) -> dict[str, str]:
    """The names of kernels in short, distinguished."""
    of_gpu = [lane.names for lane in lanes.lanes if lane.kind is LaneKind.STREAM]
    used = np.unique(np.concatenate(of_gpu)).tolist() if of_gpu else []
    names = [lanes.names[number] for number in used[:_MOST_NAMES]]
    shorts = dict(zip(names, short_names(names, _SHORT), strict=True))
    return shorts | {name: name for name in names if name.startswith("memset")}


class TimelineView(DraggedView):
    """Streams, ranges and calls of a window of the run, and what is under the cursor, explained."""

    offers = DraggedView.offers | {"zoom(-1)", "filter"}
    FILTER_PROMPT = "find a name: Enter keeps it, Esc goes back"
    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "gap", "next gap", show=False),
        Binding("L", "longest", "the longest kernel in sight, then the next one", show=False),
        Binding("l", "launch", "from a launch to its kernel, and back", show=False),
        Binding("left_square_bracket", "measure(0)", "measure from here", False, "["),
        Binding("right_square_bracket", "measure(1)", "measure to here", False, "]"),
    ]
    MOVES: ClassVar[Mapping[str, str]] = {
        "move('left')": "the operation before, in its lane",
        "move('right')": "the next operation of the lane",
        "move('up')": "the lane above",
        "move('down')": "the lane below",
        "move('page_up')": "half a window back",
        "move('page_down')": "half a window on",
        "move('home')": "the first operation of the lane",
        "move('end')": "the last one",
        "activate": "the kernel among all, a range among the phases",
        **dict.fromkeys(("note(1)", "replay_phase"), "the next hit of /, else the next step kept"),
        **dict.fromkeys(("note(-1)", "replay_event"), "the hit before, else the step before"),
    }
    HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("/", "find", "filter"),
        ("g", "next gap", "here('gap')"),
        ("l", "launch ↔ kernel", "here('launch')"),
        ("L", "longest", "here('longest')"),
        ("[", "] measure", "here('measure(0)')"),
    )

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._read: Hashable = None
        """What lanes are of, or are being read of: a run with a trace, or a step."""
        self._lanes: TracedLanes | None = None
        self._failure = ""
        self._low = self._high = 0.0
        """The window, ns since the first operation."""
        self._place = Operation(0, 0)
        self._partner: Operation | None = None
        self._measured: list[float | None] = [None, None]
        self._top = 0
        """The first lane in sight."""
        self._cells = 1
        self._sought = ""
        self._hits = NO_HITS
        """What is called as is sought."""
        self._made: dict[str, tuple[Hashable, Any]] = {}
        """What is computed once of the lanes, and what of."""
        self._steps: tuple[Int64s, Int64s] | None = None
        self._kept: list[KeptStep] = []
        """Steps of which one is shown; empty where the whole run is."""
        self._step: KeptStep | None = None
        """The one that is shown."""
        self._is_followed = True
        """Whether a newer step takes its place: until a key chose something in it."""
        self._longest: tuple[Any, ...] = ([],)
        """Operations by length, which of them was last gone to, of what, and the window then."""
        self._search_origin: tuple[Any, ...] | None = None
        """Where the view was, and whether it followed, before a name was typed."""
        self._led_to: Leaf | str | None = None
        """The cause that another view led here with, or the name of a kernel."""

    # --- reading

    def _load(self, run: Run) -> None:
        path = self.model.traced
        is_live = isinstance(self.model.source, Runner) and run.is_active
        if path is not None and not is_live:
            self._kept, self._step = [], None
            reading: Callable[[], TracedLanes] = partial(open_lanes, path, self.model.session, run)
            self._open(run, (path, run.started.run), reading, at_once=False)
            return
        self._kept = kept_steps(run)
        if not self._kept:
            self._read, self._lanes = None, None
            self._failure = (
                "no step was kept so far: they appear here once the steps are known"
                if run.is_active
                else "nothing of single operations is in this recording; 3 has its steps in bars"
            )
            return
        has_gone = not is_live and self._step not in self._kept  # a replay went back
        if self._step is None or self._is_followed or has_gone:
            self._step = self._kept[-1]
        self._open_step(run, self._step)

    def _open_step(self, run: Run, step: KeptStep) -> None:
        self._step = step
        records = step.records if isinstance(step, StepOperations) else 0
        key = (run.started.run, step.process, step.start_ns, records)
        reading = partial(open_kept, self.model.session, run, step)
        self._open(run, key, reading, at_once=records <= _AT_ONCE)

    def _open(
        self, run: Run, key: Hashable, reading: Callable[[], TracedLanes], *, at_once: bool
    ) -> None:
        if key == self._read:
            return
        if self._step is None or not self._is_followed:
            self._lanes = None
        self._read, self._failure = key, ""

        def loaded(lanes: TracedLanes) -> None:
            if self._read == key:
                self._lanes = lanes if lanes.lanes else None
                self._failure = "" if lanes.lanes else "its trace holds nothing of this run"
                if lanes.lanes:
                    self._begin(run, lanes)
                if not at_once:
                    self.draw()

        def failed(reason: str) -> None:
            if self._read == key:
                self._failure = reason
                self.draw()

        if at_once:
            loaded(reading())
        else:
            app: GputuiApp = self.app  # type: ignore[assignment]
            app.in_thread(reading, loaded, failed)

    def _begin(self, run: Run, lanes: TracedLanes) -> None:
        """At a usual step: the one that is shown, one that was kept, else one of the program's,
        else all of it."""
        self._low, self._high = 0.0, float(lanes.end_ns)
        self._top, self._place, self._partner = 0, Operation(0, 0), None
        self._measured, self._steps = [None, None], self._instances(run, lanes)
        kept = [step for step in run.step_lanes if self._is_inside(step, lanes)]
        usual = self._step
        if usual is None and kept:
            usual = sorted(kept, key=lambda step: step.duration_ns)[len(kept) // 2]
        if usual is not None:
            start = usual.start_ns - lanes.begin_ns
            self._low, self._high = float(start), float(start + max(1, usual.duration_ns))
        elif self._steps is not None:
            starts, ends = self._steps
            usual_at = np.argsort(ends - starts)[len(starts) // 2]
            self._low, self._high = float(starts[usual_at]), float(ends[usual_at])
        middle = self._work_near(lanes, (self._low + self._high) / 2)
        self._put_near(middle)
        # All of a step is in the strip above: the lanes begin where boxes have room for names.
        few = 1.0
        if isinstance(self._step, StepOperations):
            few = self._cells / _RECORD_CELLS / max(1, self._step.records)
        if few < 1:
            half = (self._high - self._low) * few / 2
            self._low, self._high = middle - half, middle + half
            self._put_near(middle)

    def _work_near(self, lanes: TracedLanes, moment: float) -> float:
        """The moment nearest to another, of those in the window, at which a device begins to
        work."""
        starts = np.concatenate(
            [np.array([moment])]
            + [
                lane.spans.starts[slice(*lane.rows(self._low, self._high))]
                for lane in lanes.lanes
                if lane.kind is LaneKind.STREAM
            ]
        )[1:]
        return float(starts[np.abs(starts - moment).argmin()]) if len(starts) else moment

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
    def _is_inside(step: KeptStep, lanes: TracedLanes) -> bool:
        start = step.start_ns - lanes.begin_ns
        return start >= 0 and start + step.duration_ns <= lanes.end_ns and step.duration_ns > 0

    def _window(self, run: Run, lanes: TracedLanes) -> LaneWindow:
        marks = {} if self._partner is None else {self._partner: "tab-active"}
        marks[self._place] = "cursor"
        shorts = self._once("shorts", self._read, partial(_short_kernels, lanes))
        return LaneWindow(run, lanes, self._low, self._high, self._cells, self.needle, marks,
                          self._whole(lanes)[0], shorts, self.model.session)  # fmt: skip

    def _once(self, what: str, of: Hashable, make: Callable[[], T]) -> T:
        if what not in self._made or self._made[what][0] != of:
            self._made[what] = of, make()
        made: T = self._made[what][1]
        return made

    def _whole(self, lanes: TracedLanes) -> tuple[float, float]:
        """When what is shown began and ended: without the launches of a step, which may lie far
        before it, when the GPU was at another one's work."""
        if self._step is None:
            return 0.0, max(1.0, float(lanes.end_ns))
        begin = float(self._step.start_ns - lanes.begin_ns)
        return begin, begin + max(1, self._step.duration_ns)

    # --- drawing

    def rows(self, width: int, height: int) -> list[Row]:
        """Where the window is, the lanes in it, and the cursor in words."""
        run = self.model.run
        if run is None:
            return no_run(self.model, width, height)
        self._cells = max(10, width - LABEL - FIGURE - 1)
        self._load(run)
        lanes = self._lanes
        if lanes is None:
            text = self._failure or "reading every operation of the run…"
            return [heading("Timeline", width), *wrap(text, width - 2, "text", "  ")]
        led_to, self._led_to = self._led_to, None
        if isinstance(led_to, Leaf):
            self._to_cause(run, lanes, led_to)
        elif led_to is not None and not (led_to in lanes.names and self._to_usual(led_to)):
            self.post_message(Notice(f"no step that was kept has {short_name(led_to)} in it"))
        if self.needle != self._sought:
            self._sought = self.needle
            self._find(0)
        window = self._window(run, lanes)
        about = self._about(window, width)
        room = max(3, height - _HEAD - max(_ABOUT, len(about)))
        *strip, axis = self._strip(window)
        rows: list[Row] = [self._title(run, lanes, width)]
        rows += [*(self._clicked(row, self._go_to) for row in strip), axis]
        first = len(rows)
        lines = self._in_sight(window, room)
        for line in lines:
            at = None if line.lane is None else partial(self._click_at, line.lane)
            rows.append(line.drawn if at is None else self._clicked(line.drawn, at))
        self._lanes_of = (range(first, len(rows)), LABEL, range(self._cells))
        rows += idle_legend(lines, width) if len(lines) < room else []
        rows += self._missing(run, lanes, width)
        table = window.table(width, height - len(about) - len(rows))
        begin, end = self._whole(lanes)
        if self._step is not None and (begin, end) != (self._low, self._high):
            whole = replace(window, low_ns=begin, high_ns=end)
            room = height - len(about) - len(rows) - len(table)
            table += whole.table(width, room, "In the whole step")
        for row, name in table:
            act = partial(self._to_usual, name)
            rows.append(self.doing(row, act) if name else row)
        rows += [()] * (height - len(about) - len(rows))
        return [*rows[: height - len(about)], *about]

    def _clicked(self, row: Row, act: Callable[[int], None]) -> Row:
        """A line, a click on one of whose cells does something with the number of that."""
        label, *cells, figure = row
        return (label, *self.doing_at(cells, lambda x: act(x - LABEL)), figure)

    def _missing(self, run: Run, lanes: TracedLanes, width: int) -> list[Row]:
        """That most operations of the step that is shown are not in it, where it is so: what looks
        idle is not."""
        tree = self._tree(run)
        if not isinstance(self._step, StepOperations) or tree is None or not tree.steps:
            return []
        usual = tree.operations / tree.steps
        kept = sum(
            np.subtract(*lane.rows(*self._whole(lanes))[::-1])
            for lane in lanes.lanes
            if lane.kind is LaneKind.STREAM
        )
        if kept >= LEAST_KEPT * usual:
            return []
        text = (
            f"! {count(int(kept))} of some {usual:,.0f} operations of a step were kept of this one:"
            " the others came after it was. Its GPU looks idle where it worked."
        )
        return wrap(text, width - 2, "warn", " ")

    def _tree(self, run: Run) -> TimeTree | None:
        """The steps of the process whose step is shown."""
        trees = self.model.analysis(run).device_trees.items()
        own = self._step.process if self._step is not None else None
        return next((tree for (process, _), tree in trees if process == own), None)

    def _title(self, run: Run, lanes: TracedLanes, width: int) -> Row:
        length = duration(self._high - self._low)
        tenth_ns = (self._high - self._low) / 10
        zero = self._whole(lanes)[0]
        low, high = (moment_text(end - zero, tenth_ns) for end in (self._low, self._high))
        window = f"{low} to {high}: {length}" if width >= _WIDE else f"{length} from {low} on"
        note = f"{count(lanes.left_out)} records left out" if lanes.left_out else ""
        if self._step is None:
            share = percent(100 * (self._high - self._low) / max(1, lanes.end_ns))
            title = f"Timeline  {window}, {share} of {duration(lanes.end_ns)}"
        else:
            at = self._kept.index(self._step) + 1 if self._step in self._kept else 0
            when = duration(max(0, self._step.start_ns - run.started.time_ns))
            kind = step_in_words(self._step, self._tree(run))
            facts = [duration(self._step.duration_ns), *([kind] if kind else []), f"at {when}"]
            if width < _WIDE:
                del facts[1:]
            title = f"Timeline  step of {', '.join(facts)} · {window}"
            if width < _WIDE and self.needle:
                title = f"Timeline  {window}"
            keys = "n " * (0 < at < len(self._kept)) + "N" * (at > 1)
            kept = f"{at} of {len(self._kept)} kept{': ' * bool(keys)}{keys.strip()}"
            note = note or (kept if at else "no longer kept: 0")
        if self.needle:
            hits = self._hits
            number = hits.number_of(self._place)
            which = f"{number + 1} of " if number is not None else ""
            which += f"{len(hits.rows):,}, n next" if len(hits.rows) else "nothing is called so"
            note = f"/ {self.needle}: {which}"
        return heading(title, width, note)

    def _strip(self, window: LaneWindow) -> list[Row]:
        """All of the run or the step, where the window is in it, and the time axis."""
        lanes, cells = window.lanes, self._cells
        begin, end = self._whole(lanes)
        key = (self._read, self.model.revision, cells)
        whole = LaneWindow(window.run, lanes, begin, end, cells)
        busy, idle = self._once("outline", key, whole.outline)
        scale = cells / (end - begin)
        low = max(0, min(cells - 1, int((self._low - begin) * scale)))
        high = max(low + 1, min(cells, round((self._high - begin) * scale)))
        marks = [" "] * cells
        marks[low:high] = (
            "▔" * (high - low) if high - low > 1 else "◀" if self._high < begin else "▲"
        )
        starts = self._hits.starts if self.needle else NO_HITS.starts
        each = np.diff(np.searchsorted(starts, begin + np.arange(cells + 1) / scale))
        for x in np.flatnonzero(each).tolist():
            marks[x] = "╵"
        mark = "".join(marks)
        label = "whole run" if self._step is None else "whole step"
        is_seen = any(text.strip() for text, _ in busy.spans)
        drawn = [
            *([busy._replace(label=label)] if is_seen else []),
            *([idle] if self._step and any(text.strip() for text, _ in idle.spans) else []),
            LaneLine("" if is_seen else label, [(fit(mark, cells), "key")]),
            LaneLine("", [(window.axis(self._measured), "dim")]),
        ]
        return [each.drawn for each in drawn]

    def _in_sight(self, window: LaneWindow, room: int) -> list[LaneLine]:
        """As many lines as there is room for, the cursor's among them."""
        lines = window.lines(always=self._place.lane)
        at = next((y for y, line in enumerate(lines) if line.lane == self._place.lane), 0)
        self._top = max(0, min(self._top, at, max(0, len(lines) - room)))
        self._top = max(self._top, at - room + 1)
        seen = lines[self._top : self._top + room]
        hidden = len(lines) - len(seen)
        if hidden and seen:
            seen[-1] = seen[-1]._replace(figure=f"{hidden} more")
        return seen

    # --- the cursor in words

    def _about(self, window: LaneWindow, width: int) -> list[Row]:
        run, lanes = window.run, window.lanes
        lane, row = lanes.lanes[self._place.lane], self._place.row
        start, end = int(lane.spans.starts[row]), int(lane.spans.ends[row])
        name = lanes.names[int(lane.names[row])]
        usual, times = lanes.usual_ns(lane, row)
        since = moment_text(start - window.zero_ns, (window.high_ns - window.low_ns) / self._cells)
        facts = [f"{duration(end - start)}, from {since} on"]
        facts.append(f"one of {count(times)}, usually {duration(usual)}" if times > 1 else "once")
        node = run.ranges.get(int(lane.ranges[row]))
        if node is not None and lane.kind is not LaneKind.RANGES:
            facts.append(f"in {node.path}")
        elif lane.kind is LaneKind.STREAM:
            facts.append("in no range")
        if lane.kind is LaneKind.BUSY:
            facts.append("single operations of this step were not kept: --trace keeps all")
        if lane.kind is LaneKind.CALLS:
            facts.append(f"on {window.thread(lane.process, lane.number)}")
        kept_from, kept_until = lanes.kept.get(lane.process, (start, end))
        if end <= kept_from or start >= kept_until:
            when = "before" if end <= kept_from else "after"
            facts.append(f"{when} this step: what the GPU did then was not kept")
        short = window.shorts.get(name, name) if lane.kind is LaneKind.STREAM else name
        rows: list[Row] = [heading(cut_middle(short, max(10, width - 10)), width)]
        if short != name and self.size.height >= _HIGH:
            rows += at_most(wrap(name.removeprefix("void "), width - 2, "dim", " "), 2, width)
        rows += at_most(wrap(" · ".join(facts), width - 2, "text", " "), 2, width)
        more = [*window.launch_words(lane, row), *window.idle_words(lane, start)]
        if lane.kind is LaneKind.STREAM and lane.details[row]:
            shape = self.model.session.launch_shapes.get(int(lane.details[row]))
            if name.startswith(("Host", "Device", "Peer", "Unified", "memset")):
                amount = int(lane.details[row])
                rate = f", {size(amount * 1e9 / (end - start))}/s" if end > start else ""
                more.append(f"{size(amount)}{rate}")
            elif shape is not None:
                grid, block = ("×".join(map(str, one)) for one in (shape.grid, shape.block))
                more.append(f"grid {grid}, block {block}")
        rows += at_most(wrap(" · ".join(more), width - 2, "dim", " "), 3, width)
        if None not in self._measured:
            rows.append(clip(((f" {self._between(window)}", "accent"),), width))
        return rows

    def _between(self, window: LaneWindow) -> str:
        lanes = window.lanes
        first, last = sorted(moment for moment in self._measured if moment is not None)
        parts = [f"between [ and ]: {duration(last - first)}"]
        for (process, device), spans in lanes.busy.items():
            begin, end = lanes.kept.get(process, (first, last))
            low, high = max(first, begin), min(last, end)
            gpu, of = window.gpu(process, device), ""
            if low >= high and (begin, end) != (first, last):
                parts.append(f"{gpu} {NOT_KEPT}")
                continue
            if (low, high) != (first, last):
                of = f" of the {duration(high - low)} that were kept"
            busy = float(spans.within(low, high)[0])
            share = percent(100 * busy / max(1.0, high - low))
            parts.append(f"{gpu} busy {duration(busy)} ({share}{of})")
        work = 0
        for lane in lanes.lanes:
            if lane.kind is LaneKind.STREAM:
                low, high = lane.rows(first, last)
                work += high - low
        return "   ".join([*parts, f"{count(work)} operations"])

    @property
    def copied(self) -> str:
        """The full name of what is under the cursor."""
        if self._lanes is None:
            return super().copied
        lane = self._lanes.lanes[self._place.lane]
        return self._lanes.names[int(lane.names[self._place.row])]

    # --- keys

    def _there(self) -> TracedLanes | None:
        """What is shown; where that is nothing it is said."""
        if self._lanes is None:
            self.nothing_chosen("no operation is shown here")
        return self._lanes

    def move(self, move: Move) -> None:
        """Left and right to the next operation of the lane, up and down to another lane, a page is
        half a window."""
        if (lanes := self._there()) is None:
            return
        lane, row = lanes.lanes[self._place.lane], self._place.row
        middle = float(lane.spans.starts[row] + lane.spans.ends[row]) / 2
        if move in ("left", "right"):
            row = max(0, min(len(lane) - 1, row + (1 if move == "right" else -1)))
            self._choose(Operation(self._place.lane, row))
        elif move in ("home", "end"):
            self._choose(Operation(self._place.lane, 0 if move == "home" else len(lane) - 1))
        elif move in ("page_up", "page_down"):
            self._pan((self._high - self._low) / (2 if move == "page_down" else -2))
        else:
            step = 1 if move == "down" else -1
            number = self._place.lane + step
            middle = max(self._low, min(self._high, middle))
            while 0 <= number < len(lanes.lanes):
                low, high = lanes.lanes[number].rows(self._low, self._high)
                if high > low:
                    self._choose(Operation(number, lanes.lanes[number].row_at(middle)))
                    return
                number += step
            self.nothing_chosen("no further lane has anything in this window")

    def _choose(self, place: Operation, *, partner: Operation | None = None) -> None:
        """The cursor there, and the window so that it is in sight."""
        assert self._lanes is not None
        self._is_followed = False
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
        self._is_followed = False
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
                self._place = Operation(number, max(low, min(high - 1, lane.row_at(moment))))
                self._partner = None
                return

    def zoom(self, step: int) -> str:
        """A window twice as long, or half."""
        if self._lanes is None:
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
        if self._lanes is not None:
            self._pan((self._high - self._low) / 10 * columns)

    def follow(self) -> None:
        """All of the run, or the newest of the steps that were kept."""
        if self._lanes is not None:
            begin, end = self._whole(self._lanes)
            self._show(begin, end - begin)
            self._measured = [None, None]
            self._is_followed = True
            self.draw()

    def action_gap(self) -> None:
        """To the end of the next gap that can be seen at this zoom."""
        if (lanes := self._there()) is None:
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
            self.nothing_chosen("no later gap as long as a cell: + zooms in, to shorter ones too")
            return
        self._after_gap(lanes, process, device, int(gaps.ends[is_next[0]]))

    def action_longest(self) -> None:
        """To the longest operation in sight; pressed again, to the next longest."""
        if (lanes := self._there()) is None:
            return
        places, *there = self._longest
        is_again = there == [self._read, self._place, self._low, self._high]
        if not is_again:
            places = self._window(self.model.run, lanes).longest() if self.model.run else []
        if not places:
            self.nothing_chosen("no operation of a GPU is in sight: − zooms out")
            return
        place = places[(places.index(self._place) + 1) % len(places) if is_again else 0]
        if place == self._place:
            again = "this is the longest in sight: L again goes to the next one"
            self.nothing_chosen(again if len(places) > 1 else "nothing else is in sight")
        self._choose(place)
        self._longest = places, self._read, place, self._low, self._high

    def _to_cause(self, run: Run, lanes: TracedLanes, leaf: Leaf) -> None:
        """To the longest gap of a cause, among the longest ones of all."""
        gap = self._window(run, lanes).longest_gap(leaf)
        if gap is None:
            what = "this step" if self._step is not None else "the trace"
            self.post_message(
                Notice(f"{what} has no gap of {LEAVES[leaf].label}: 3 has every step")
            )
        else:
            self._after_gap(lanes, gap.process, gap.device, gap.end_ns)
            self._show(gap.end_ns - 2.5 * gap.length_ns, 5.0 * gap.length_ns)

    def _after_gap(self, lanes: TracedLanes, process: int, device: int, end: int) -> None:
        """The cursor on what began when a gap of a device ended."""
        if (place := lanes.starting_at(process, device, end)) is not None:
            self._choose(Operation(*place))
            return
        self.nothing_chosen("the gap goes on to the end of what is shown")

    def show_item(self, key: Hashable) -> None:
        """The longest gap of a cause, in that of the kept steps which has most of it; else the
        longest of the kernels of a name; or a kept step, by its process and start."""
        run, leaf, self.needle, self._led_to = self.model.run, leaf_named(key), "", None
        if isinstance(key, tuple):  # a step, by its process and start
            steps = kept_steps(run) if run is not None else []
            self._step = next((one for one in steps if (one.process, one.start_ns) == key), None)
            self._is_followed = self._step is None
            return
        if key is not None:
            self._led_to = leaf if leaf is not None else str(key)
        if run is None or leaf is None or self.model.traced is not None:
            return
        idle = {
            (lanes.process, lanes.start_ns): sum(
                sum(lane.parts) for lane in lanes.idle if lane.leaf == leaf
            )
            for lanes in run.step_lanes
        }
        kept = kept_steps(run)
        most = max(kept, key=lambda step: idle.get((step.process, step.start_ns), 0), default=None)
        if most is not None and idle.get((most.process, most.start_ns)):
            self._step, self._is_followed = most, False

    def _to_usual(self, name: str) -> bool:
        """To a usual one of the kernels of a name, in sight where one is; whether there is any."""
        run, lanes = self.model.run, self._lanes
        if run is None or lanes is None:
            return False
        window = self._window(run, lanes)
        whole = LaneWindow(run, lanes, *self._whole(lanes), self._cells)
        for place in (*window.usual(name), *whole.usual(name)):
            spans = lanes.lanes[place.lane].spans
            start, end = float(spans.starts[place.row]), float(spans.ends[place.row])
            is_whole = self._low <= start and end <= self._high
            if not is_whole or _NAME_CELLS * (end - start) < self._high - self._low:
                self._show(start - (end - start) * 2, (end - start) * _NAME_CELLS / 2)
            self._choose(place)
            return True
        return False

    def _go_to(self, x: int) -> None:
        """The window around a cell of the whole."""
        if self._lanes is None:
            return
        begin, end = self._whole(self._lanes)
        middle = begin + (end - begin) * (x + 0.5) / self._cells
        self._show(middle - (self._high - self._low) / 2, self._high - self._low)
        self._put_near(middle)
        self.draw()

    def action_launch(self) -> None:
        """From an operation to the call that launched it, and from a call to its operation."""
        if (lanes := self._there()) is None:
            return
        found = lanes.launch_of(lanes.lanes[self._place.lane], self._place.row)
        if found is None:
            self.nothing_chosen("nothing in the trace launched this, or was launched by it")
            return
        self._choose(Operation(*found), partner=self._place)

    def action_measure(self, end: int) -> None:
        """Measure from the beginning of what is chosen, or to its end."""
        lanes = self._lanes
        if lanes is None:
            return
        spans = lanes.lanes[self._place.lane].spans
        moments = spans.ends if end else spans.starts
        self._measured[end] = float(moments[self._place.row])
        if self._measured[1 - end] is None:
            self.post_message(Notice(f"{'[' if end else ']'} at the other end measures"))
        self.draw()

    def next_note(self, step: int) -> str | None:
        """To the next hit of what is sought; else to the next slow step."""
        if self._lanes is None:
            return self._failure or "the operations are being read"
        if self.needle:
            return "" if self._find(step) else f"nothing is called {self.needle}"
        if self._step is not None:
            return self._to_kept(step)
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

    def _to_kept(self, step: int) -> str:
        """To the next step that was kept, or the one before."""
        run = self.model.run
        others = [kept for kept in self._kept if kept != self._step]
        if run is None or self._step is None or not others:
            return "no other step was kept"
        now_ns = self._step.start_ns
        ahead = [kept for kept in others if (kept.start_ns > now_ns) == (step > 0)]
        if not ahead:
            return f"no {'later' if step > 0 else 'earlier'} step was kept"
        self._is_followed = False
        self._open_step(run, ahead[0] if step > 0 else ahead[-1])
        self.draw()
        return ""

    def search(self, text: str, *, is_last: bool) -> None:
        """The first of the name from where the view was when typing began: there it stays where
        nothing is called so, and where the name is given up."""
        if self._search_origin is None:
            self._search_origin = (self._read, self._place, self._partner, self._low, self._high,
                                   self._top, self._is_followed)  # fmt: skip
        read, *there = self._search_origin
        if text != self.needle and read == self._read:
            (self._place, self._partner, self._low, self._high, self._top,
             is_followed) = there  # fmt: skip
            # A newer step took the place of the one that was searched.
            self._is_followed = is_followed and not text
        super().search(text, is_last=is_last)
        if is_last:
            self._search_origin = None

    def _find(self, step: int) -> bool:
        """The next operation, range or call of a name, or the one before; with `step` 0 this one
        or the next. After the last one comes the first."""
        run, lanes = self.model.run, self._lanes
        if lanes is None or run is None or not self.needle:
            return False
        seek = self._window(run, lanes).hits
        hits = self._hits = self._once("hits", (self._read, self.needle), seek)
        if not len(hits.rows):
            return False
        at = hits.number_of(self._place)
        if at is None:
            now = lanes.lanes[self._place.lane].spans.starts[self._place.row]
            at = int(np.searchsorted(hits.starts, now)) - (step < 0)
        else:
            at += step
        self._choose(hits.place(at % len(hits.rows)))
        return True

    def activate(self) -> Details | Lead | None:
        """The kernel among all kernels."""
        if (lanes := self._there()) is None:
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
        what = "a call outside every range: l leads to what it launched"
        if lane.kind is LaneKind.DOING:
            what = "what the thread was at, by samples: the line is in its name"
        self.nothing_chosen(what)
        return None

    # --- mouse

    def _click_at(self, number: int, x: int) -> None:
        if self._lanes is None:
            return
        each = (self._high - self._low) / self._cells
        row = self._lanes.lanes[number].row_at(self._low + each * (x + 0.5))
        self._choose(Operation(number, row))

    def take_stretch(self, first: int, last: int) -> None:
        """The window that was dragged over."""
        each = (self._high - self._low) / self._cells
        self._show(self._low + each * first, each * (last + 1 - first))
        self._put_near((self._low + self._high) / 2)
        self.draw()

    def _roll(self, move: Move, event: events.MouseEvent) -> None:
        """The wheel zooms where it is."""
        if self._lanes is not None:
            each = (self._high - self._low) / self._cells
            moment = self._low + each * max(0, min(self._cells, event.x - LABEL))
            self._zoom_at(-1 if move == "up" else 1, moment)
