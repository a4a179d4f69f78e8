"""Lanes of single operations as rows: cells in the colour of what took most of each, names where
they have room, and why a device idled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from gputui.base.sanitize import cut_middle
from gputui.model.events import StepLanes, StepOperations, StepTimeline
from gputui.model.kernel_categories import short_names
from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.model.naming import short_name, xla_range
from gputui.model.units import count, duration, percent
from gputui.playback.lanes import (
    Floats,
    KeptStep,
    Lane,
    LaneKind,
    TracedLanes,
    kept_steps,
    open_kept,
)
from gputui.report.explain.lines import launched_at
from gputui.state import Run, Session, gpu_of
from gputui.store.trace import Bools, Int64s
from gputui.tui.widgets.canvas import Row, Span, bar, fit, flow, heading, joined
from gputui.tui.widgets.causes import look
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.run_panels import Panel
from gputui.tui.widgets.tree import phase_colors

LABEL, FIGURE = 14, 8
NOT_KEPT = "not kept"
"""What a device did before and after a step of which alone it was kept."""
_IDLE = "idle because"
_NAMED, _TOLD_APART = 4, 16
"""Cells from which a box has its name in it, and from which also what tells it apart."""

_BUSY_CELL = 0.875
"""Share of a cell from which it is no idle time."""

_LONGEST = 200
"""Operations of a lane, or gaps of a device, that are gone through by length."""

_LEAST_TABLE = 4
"""Rows of the table of a window, at least."""
_TABLE_NAMES = 70
"""Cells of its names at most: the bars take the rest."""

_COLORS = {
    "matmul": "matmul", "attention": "attention", "normalization": "normalization",
    "elementwise": "elementwise", "copy": "copy", "communication": "communication",
}  # fmt: skip


def category_role(category: str, prefix: str = "cause") -> str:
    """The look of a category of kernels: of its ink, or as a ground for names (`fill`)."""
    return f"{prefix}-{_COLORS.get(category, 'other')}"


class Operation(NamedTuple):
    """What a cursor stands on: a lane's number, and a row of it."""

    lane: int
    row: int


class Hits(NamedTuple):
    """Rows of lanes in the order of their starts, in ns as `TracedLanes` counts them."""

    starts: Int64s
    lanes: Int64s
    rows: Int64s

    def number_of(self, place: Operation) -> int | None:
        """Which of them a place is, from 0; None where it is none of them."""
        there = np.flatnonzero((self.lanes == place.lane) & (self.rows == place.row))
        return int(there[0]) if len(there) else None

    def place(self, number: int) -> Operation:
        """The one of a number."""
        return Operation(int(self.lanes[number]), int(self.rows[number]))


NO_HITS = Hits(*[np.zeros(0, np.int64)] * 3)


class Gap(NamedTuple):
    """When nothing ran on a device of a process, on the clock of the lanes."""

    length_ns: int
    end_ns: int
    process: int
    device: int


class LaneLine(NamedTuple):
    """A line of the lanes; `lane` is None where it is not one of operations."""

    label: str
    spans: list[Span]
    figure: str = ""
    lane: int | None = None

    @property
    def drawn(self) -> Row:
        """The line with its label and its figure."""
        cut = cut_middle(self.label, LABEL - 1)
        return (
            (f" {cut:<{LABEL - 1}}", "label"), *self.spans, (f"{self.figure:>{FIGURE}} ", "value")
        )  # fmt: skip


_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_MINUTES_NS = 60e9


def moment_text(ns: float, step_ns: float) -> str:
    """A moment, to an eighth of `step_ns`: moments that far apart read otherwise, and evenly so."""
    if ns <= -1:
        return f"−{moment_text(-ns, step_ns)}"
    if step_ns >= _MINUTES_NS or ns < 1:
        return duration(ns)
    unit_ns, name = next(unit for unit in _UNITS if ns >= unit[0])
    digits = max(0, math.ceil(math.log10(4 * unit_ns / max(1.0, step_ns))))
    return f"{ns / unit_ns:.{digits}f} {name}"


@dataclass
class LaneWindow:
    """Lanes between two moments, in ns as `TracedLanes` counts them, in so many cells."""

    run: Run
    lanes: TracedLanes
    low_ns: float
    high_ns: float
    cells: int
    needle: str = ""
    """Operations with this in their names stand out."""
    marks: Mapping[Operation, str] = field(default_factory=dict)
    """Operations with a look of their own: the one under the cursor."""
    zero_ns: float = 0.0
    """The moment that is called 0."""
    shorts: Mapping[str, str] = field(default_factory=dict)
    """Names of kernels in short, distinguished."""
    session: Session | None = None
    """The machine, whose numbers devices have; without it those of their process."""

    @property
    def cell_ns(self) -> float:
        """How long a cell is."""
        return (self.high_ns - self.low_ns) / self.cells

    def cell(self, moment_ns: float) -> int:
        """The cell of a moment; the nearest one where it is outside."""
        return max(0, min(self.cells - 1, int((moment_ns - self.low_ns) / self.cell_ns)))

    def axis(self, measured: Sequence[float | None] = (None, None)) -> str:
        """Moments, and the ends of what is measured."""
        line = [" "] * self.cells
        ticks = max(1, self.cells // 18)
        for tick in range(ticks):
            step_ns = (self.high_ns - self.low_ns) / ticks
            text = f"┊{moment_text(self.low_ns - self.zero_ns + step_ns * tick, step_ns)}"
            first = self.cells * tick // ticks
            line[first : first + len(text)] = text
        for moment, mark in zip(measured, "[]", strict=True):
            if moment is not None and self.low_ns <= moment < self.high_ns:
                line[self.cell(moment)] = mark
        return "".join(line)[: self.cells]

    def outline(self) -> list[LaneLine]:
        """Two lines of what its devices did: how busy they were, in the colour of what took most
        of it, and why they idled."""
        busy, role = np.zeros(self.cells), ["text"] * self.cells
        most = np.zeros(self.cells)
        for lane in self.lanes.lanes:
            if lane.kind in (LaneKind.STREAM, LaneKind.BUSY) and lane.number >= 0:
                seen = lane.cells(self.low_ns, self.high_ns, self.cells)
                for x in np.flatnonzero((seen.busy > most) & (seen.category >= 0)).tolist():
                    role[x] = category_role(self.lanes.categories[int(seen.category[x])])
                most = np.maximum(most, seen.busy)
        for spans in self.lanes.busy.values():
            busy += spans.within(self.low_ns, self.high_ns, self.cells)
        shares = (busy / max(1e-9, self.cell_ns) / max(1, len(self.lanes.busy))).clip(0, 1)
        [line] = block_rows(shares.tolist(), 1.0, 1)
        processes = {process for process, _ in self.lanes.busy}
        why = self._why(next(iter(processes)), shares) if len(processes) == 1 else []
        return [LaneLine("", joined(zip(line, role, strict=True))), LaneLine("  idle", joined(why))]

    def lines(self, always: int = -1) -> list[LaneLine]:
        """A line for each lane that has something in the window, and for lane number `always`; of
        each device before its streams how busy it was, and why it idled."""
        lines: list[LaneLine] = []
        colors = phase_colors(self.run)
        before: tuple[int, int] | None = None
        threads: set[tuple[int, int]] = set()
        for number, lane in enumerate(self.lanes.lanes):
            device = lane.process, lane.device
            of_device = lane.kind in (LaneKind.STREAM, LaneKind.BUSY)
            if of_device and device != before:
                lines += self._device(*device)
                before = device
            first, last = lane.rows(self.low_ns, self.high_ns)
            if first == last and number != always:
                continue
            if lane.kind is LaneKind.BUSY and lane.number < 0:
                continue  # its device has the same line
            spans, figure = self._lane(number, colors)
            lines.append(LaneLine(self._label(number, threads), spans, figure, number))
        return lines

    def thread(self, process: int, number: int) -> str:
        """What a thread is called."""
        of = self.run.processes.get(process)
        if of is not None and number == of.attached.pid:
            return "main"
        named = of.threads.get(number) if of is not None else None
        return named.name if named is not None else f"thread {number}"

    def gpu(self, process: int, device: int) -> str:
        """What a device of a process is called, as everywhere."""
        if self.session is not None:
            device = gpu_of(self.session, self.run, process, device)
        return f"GPU {device}"

    def cause(self, process: int, moment_ns: float, length_ns: float = float("inf")) -> Leaf | None:
        """Why the devices of a process idled most at a moment, where a step that was kept says so;
        None of what is so short that other gaps are most of a part of it."""
        at_ns = moment_ns + self.lanes.begin_ns
        for step in self.run.step_lanes:
            parts = len(step.busy)
            if step.process != process or step.duration_ns <= 0:
                continue
            part = int((at_ns - step.start_ns) * parts // step.duration_ns)
            if not 0 <= part < parts or 2 * length_ns * parts < step.duration_ns:
                continue
            causes = _idle(step, part)
            best = max(causes, key=lambda leaf: causes[leaf], default=None)
            if best is not None and causes[best] > 0:
                return best
        return None

    def table(
        self, width: int, height: int, title: str = "In this window"
    ) -> list[tuple[Row, str]]:
        """What took most of the window, where there is room below the lanes: rows, and the kernel
        that each is of."""
        if height < _LEAST_TABLE:
            return []
        took, times = np.zeros(len(self.lanes.names)), np.zeros(len(self.lanes.names), np.int64)
        for lane in self.lanes.lanes:
            if lane.kind is LaneKind.STREAM:
                low, high = lane.rows(self.low_ns, self.high_ns)
                starts = np.maximum(lane.spans.starts[low:high], self.low_ns)
                ends = np.minimum(lane.spans.ends[low:high], self.high_ns)
                took += np.bincount(lane.names[low:high], ends - starts, len(took))
                times += np.bincount(lane.names[low:high], minlength=len(times))
        if not took.any():
            return []
        order = np.argsort(-took)[: height - 2]
        whole = max(1.0, float(took.sum()))
        room = max(12, min(_TABLE_NAMES, width - 48))
        ranked = [self.lanes.names[at] for at in order.tolist()]
        names = short_names(ranked, room)
        names = [cut_middle(self.shorts.get(name, short), room)
                 for name, short in zip(ranked, names, strict=True)]  # fmt: skip
        title_row = heading(f"{title}  GPU time", width, duration(whole))
        rows: list[tuple[Row, str]] = [((), ""), (title_row, "")]
        for at, name in zip(order.tolist(), names, strict=True):
            if not took[at]:
                break
            role = category_role(self.lanes.categories[self.lanes.category_of[at]])
            share = percent(100 * took[at] / whole)
            figures = f" {count(int(times[at])):>6} × {duration(took[at]):>9} {share:>7}  "
            drawn = bar(took[at] / whole, width - room - 32)
            row: Row = ((f" {fit(name, room)}", "text"), (figures, "value"), (drawn, role))
            rows.append((row, self.lanes.names[at]))
        return rows

    def launch_words(self, lane: Lane, row: int) -> list[str]:
        """By what call of which thread an operation was launched, or what a call launched."""
        lanes = self.lanes
        found = lanes.launch_of(lane, row)
        if found is None:
            return []
        other = lanes.lanes[found[0]]
        start, there = int(lane.spans.starts[row]), int(other.spans.starts[found[1]])
        called = lanes.names[int(other.names[found[1]])]
        if lane.kind is LaneKind.STREAM:
            where = self.thread(other.process, other.number)
            name = lanes.names[int(lane.names[row])]
            names = self.session.kernel_names if self.session is not None else {}
            numbers = {number for number, kernel in names.items() if kernel.name == name}
            # A step keeps no line of each launch: samples of the whole run say where it is.
            line = launched_at(self.run, numbers, 1)
            line = f", seen at {line}" if line else ", at a line that no sample met"
            return [f"launched {duration(start - there)} before by {called} on {where}{line}"]
        called = self.shorts.get(called) or short_name(called)
        return [f"its work {called} began {duration(there - start)} later"]

    def idle_words(self, lane: Lane, start: int) -> list[str]:
        """How long its device had idled before it, and why."""
        gaps = self.lanes.gaps(lane.process, lane.device)
        if lane.kind is not LaneKind.STREAM or gaps is None:
            return []
        at = int(np.searchsorted(gaps.ends, start, side="left"))
        if at < len(gaps.ends) and int(gaps.ends[at]) == start:
            began = int(gaps.starts[at])
            middle, why = (began + start) / 2, ""
            if self.lanes.is_queued(lane.process, lane.device, began, start):
                why = f": {LEAVES[Leaf.DEPENDENCY].label}, this was launched before the gap began"
            elif (leaf := self.cause(lane.process, middle, start - began)) is not None:
                why = f": {LEAVES[leaf].label}, {LEAVES[leaf].meaning}"
            elif (leaf := self.cause(lane.process, middle)) is not None:
                why = f": around then mostly {LEAVES[leaf].label}"
            return [f"before it the GPU idled {duration(start - began)}{why}"]
        return []

    def usual(self, name: str) -> list[Operation]:
        """Of each stream the operation in the window that is of this name and of usual length, of
        that with most of them first."""
        of = self.lanes.names.index(name)
        found: list[tuple[int, Operation]] = []
        for number, lane in enumerate(self.lanes.lanes):
            if lane.kind is LaneKind.STREAM:
                first, last = lane.rows(self.low_ns, self.high_ns)
                rows = first + np.flatnonzero(lane.names[first:last] == of)
                if rows.size:
                    lengths = lane.spans.ends[rows] - lane.spans.starts[rows]
                    at = np.argsort(lengths, kind="stable")[rows.size // 2]
                    found.append((-rows.size, Operation(number, int(rows[at]))))
        return [place for _, place in sorted(found)]

    def longest(self) -> list[Operation]:
        """Operations of GPUs in the window, the longest ones first."""
        in_sight: list[tuple[int, Operation]] = []
        for number, lane in enumerate(self.lanes.lanes):
            if lane.kind is LaneKind.STREAM:
                first, last = lane.rows(self.low_ns, self.high_ns)
                lengths = lane.spans.ends[first:last] - lane.spans.starts[first:last]
                some = np.argsort(-lengths, kind="stable")[:_LONGEST]
                in_sight += [(-int(lengths[row]), Operation(number, first + int(row)))
                             for row in some.tolist()]  # fmt: skip
        return [place for _, place in sorted(in_sight)]

    def longest_gap(self, leaf: Leaf) -> Gap | None:
        """The longest time in which a device idled for a cause, among its longest ones."""
        gaps: list[Gap] = []
        for process, device in self.lanes.busy:
            idle = self.lanes.gaps(process, device)
            if idle is not None:
                lengths = idle.ends - idle.starts
                gaps += [Gap(int(lengths[row]), int(idle.ends[row]), process, device)
                         for row in np.argsort(-lengths)[:_LONGEST].tolist()]  # fmt: skip
        for gap in sorted(gaps, reverse=True):
            begin_ns = gap.end_ns - gap.length_ns
            cause = self.cause(gap.process, (begin_ns + gap.end_ns) / 2)
            if self.lanes.is_queued(gap.process, gap.device, begin_ns, gap.end_ns):
                cause = Leaf.DEPENDENCY
            if cause is leaf:
                return gap
        return None

    def _is_sought(self, number: int) -> bool:
        """Whether a name, or its kind (matmul), has what is sought in it."""
        category = self.lanes.categories[self.lanes.category_of[number]]
        return self.needle.lower() in f"{self.lanes.names[number]} {category}".lower()

    def hits(self) -> Hits:
        """What is called as is sought: operations, ranges and calls."""
        wanted = [number for number in range(len(self.lanes.names)) if self._is_sought(number)]
        rows = [
            np.flatnonzero(np.isin(lane.names, wanted) & (lane.kind is not LaneKind.DOING))
            for lane in self.lanes.lanes
        ]
        of = zip(self.lanes.lanes, rows, strict=True)
        starts = np.concatenate(
            [np.zeros(0, np.int64), *(lane.spans.starts[own] for lane, own in of)]
        )
        numbers = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        order = np.argsort(starts, kind="stable")
        return Hits(starts[order], numbers[order],
                    np.concatenate([np.zeros(0, np.int64), *rows])[order])  # fmt: skip

    def _device(self, process: int, device: int) -> list[LaneLine]:
        busy = self.lanes.busy.get((process, device))
        if busy is None:
            return []
        took = busy.within(self.low_ns, self.high_ns, self.cells)
        shares = (took / max(1e-9, self.cell_ns)).clip(0, 1)
        [line] = block_rows(shares.tolist(), 1.0, 1)
        whose = self._whose(process)
        label = f"{whose} {self.gpu(process, device)}".strip() + " busy" * (not whose)
        is_kept = self._is_kept(process)
        spans: list[Span] = []
        for kept, columns in groupby(range(self.cells), key=lambda x: bool(is_kept[x])):
            own = [*columns]
            text = line[own[0] : own[-1] + 1]
            is_told = not kept and not text.strip() and len(own) >= len(NOT_KEPT)
            spans.append((fit(NOT_KEPT, len(own)), "dim") if is_told else (text, "text"))
        lines = [LaneLine(label, spans, _mean(shares, is_kept))]
        cells = self._why(process, np.where(is_kept, shares, 1.0), device)
        if any(text != " " for text, _ in cells):
            figure = _mean(1 - shares, is_kept)
            lines.append(LaneLine(_IDLE, joined(cells), figure))
        return lines

    def _is_kept(self, process: int) -> Bools:
        """By cell, whether it is known what the devices of a process did in it."""
        low, high = self.lanes.kept.get(process, (-math.inf, math.inf))
        middles = self.low_ns + self.cell_ns * (np.arange(self.cells) + 0.5)
        is_kept: Bools = (middles >= low) & (middles <= high)
        return is_kept

    def _why(self, process: int, shares: Floats, device: int | None = None) -> list[Span]:
        """The cause of each cell's idle time, blank where it was busy or nothing is known: of a
        device, queued where that is so of the gap which is most of it."""
        cells: list[Span] = []
        gaps = None if device is None else self.lanes.gaps(process, device)
        queued: dict[int, bool] = {}
        for x, share in enumerate(shares.tolist()):
            low = self.low_ns + self.cell_ns * x
            leaf = self.cause(process, low + self.cell_ns / 2) if share <= _BUSY_CELL else None
            if leaf is not None and gaps is not None and device is not None:
                row = min(int(np.searchsorted(gaps.ends, low, side="right")), len(gaps.ends) - 1)
                start, end = int(gaps.starts[row]), int(gaps.ends[row])
                took = min(end, low + self.cell_ns) - max(start, low)
                if took >= (1 - share) * self.cell_ns / 2:
                    if row not in queued:
                        queued[row] = self.lanes.is_queued(process, device, start, end)
                    leaf = Leaf.DEPENDENCY if queued[row] else leaf
            cells.append((" ", "text") if leaf is None else look(leaf))
        return cells

    def _label(self, number: int, threads: set[tuple[int, int]]) -> str:
        """What a lane is called: the first one of a thread, which is noted in `threads`, by its
        name."""
        lane = self.lanes.lanes[number]
        whose = self._whose(lane.process)
        if lane.kind in (LaneKind.STREAM, LaneKind.BUSY):
            process = self.run.processes.get(lane.process)
            named = process.stream_name(lane.device, lane.number) if process is not None else None
            return f"{whose} {named or f'stream {lane.number}'}".strip()
        if lane.kind is LaneKind.PROJECTED:
            return f"{whose} GPU work".strip()
        thread = f"{whose} {self.thread(lane.process, lane.number)}".strip()
        what = {LaneKind.CALLS: "calls", LaneKind.DOING: "doing"}.get(lane.kind, "")
        if (lane.process, lane.number) in threads:
            return f"  {what}" if what else ""
        threads.add((lane.process, lane.number))
        has_room = len(thread) + len(" calls") < LABEL - 1
        return f"{thread} calls" if lane.kind is LaneKind.CALLS and has_room else thread

    def _whose(self, process: int) -> str:
        several = len({lane.process for lane in self.lanes.lanes}) > 1
        if not several or process not in self.run.processes:
            return ""
        attached = self.run.processes[process].attached
        return f"pid {attached.pid}" if attached.rank is None else f"rank {attached.rank}"

    def _lane(self, number: int, colors: dict[str, int]) -> tuple[list[Span], str]:
        """A lane's cells: how busy each was in the colour of what took most of it, and over them
        boxes with names where these have room."""
        lane = self.lanes.lanes[number]
        seen = lane.cells(self.low_ns, self.high_ns, self.cells)
        [bars] = block_rows(seen.busy.tolist(), 1.0, 1)
        of_device = lane.kind in (LaneKind.STREAM, LaneKind.BUSY)
        cells: list[Span] = [
            (bar, category_role(self.lanes.categories[int(kind)]) if of_device and kind >= 0
             else "dim")
            for bar, kind in zip(bars, seen.category, strict=True)
        ]  # fmt: skip
        boxed: set[int] = set()
        named = lane.boxes(self.low_ns, self.high_ns, _NAMED * self.cell_ns)
        for box in named if lane.kind is not LaneKind.BUSY else ():
            first = self.cell(box.start_ns)
            last = self.cell(max(box.start_ns, box.end_ns - self.cell_ns))
            if last - first + 1 < _NAMED:
                continue
            name = self.lanes.names[int(lane.names[box.row])]
            shown = short_name(name) if lane.kind is LaneKind.STREAM else xla_range(name) or name
            if last - first >= _TOLD_APART:
                shown = self.shorts.get(name) or shown
            text = f"{box.times} × {shown}" if box.times > 1 else shown
            if lane.kind is LaneKind.DOING and last - first == self.cells - 1:
                text = f"mostly {text}"  # a part of a step is longer than the window
            role = self._box_role(lane, box.row, name, colors)
            drawn = "▏" + fit(cut_middle(text, last - first), last - first)
            cells[first : last + 1] = [(part, role) for part in _by_cell(drawn)]
            boxed.update(range(first, last + 1))
        for place, role in self.marks.items():
            if place.lane == number and place.row < len(lane):
                start, end = int(lane.spans.starts[place.row]), int(lane.spans.ends[place.row])
                if end >= self.low_ns and start <= self.high_ns:
                    last = self.cell(max(start, end - self.cell_ns))
                    for x in range(self.cell(start), last + 1):
                        is_blank = cells[x][0] == " " and x not in boxed
                        cells[x] = ("▁" if is_blank else cells[x][0], role)
        return joined(cells), _mean(seen.busy, self._is_kept(lane.process)) if of_device else ""

    def _box_role(self, lane: Lane, row: int, name: str, colors: dict[str, int]) -> str:
        if self.needle and self._is_sought(int(lane.names[row])):
            return "tab-active"
        category = self.lanes.categories[self.lanes.category_of[int(lane.names[row])]]
        if lane.kind is LaneKind.STREAM:
            return category_role(category, "fill")
        if lane.kind is LaneKind.CALLS:
            return "input"
        if lane.kind is LaneKind.DOING:
            leaf = LEAF_OF_KEY.get(category)
            return look(leaf)[1] if leaf is not None else "dim"
        return f"block-{colors.get(name, 1)}"


def _mean(shares: Floats, is_kept: Bools) -> str:
    """The mean of shares in percent, of the cells of which they are known."""
    return f"{100 * float(shares[is_kept].mean()):.1f} %" if is_kept.any() else NOT_KEPT


def _by_cell(text: str) -> list[str]:
    """A text by the cells that it takes: a wide character is in the first of its own, one without
    width with that before it."""
    cells: list[str] = []
    for character in text:
        width = cell_len(character)
        if width or not cells:
            cells += [character, *[""] * (width - 1)]
        else:
            cells[-1] += character
    return cells


def _idle(step: StepLanes, part: int) -> dict[Leaf, int]:
    """Recordings are untrusted: a lane may have other parts, and a leaf that nobody knows."""
    parts = len(step.busy)
    return {
        Leaf(lane.leaf): lane.parts[part]
        for lane in step.idle
        if lane.leaf in LEAVES and len(lane.parts) == parts
    }


_NAMES = {look(leaf): meaning.label for leaf, meaning in LEAVES.items() if meaning.is_idle}


def idle_legend(lines: Sequence[LaneLine], width: int) -> list[Row]:
    """What the textures in the lines of idle time mean, the most frequent first."""
    seen: Counter[Span] = Counter()
    for line in lines:
        for text, role in line.spans if line.label == _IDLE else ():
            seen[text[0], role] += len(text)
    items: list[Row] = [
        ((f"{span[0]} ", span[1]), (_NAMES[span], "dim"))
        for span, _ in seen.most_common() if span in _NAMES
    ]  # fmt: skip
    return [((" " * LABEL, "text"), *row) for row in flow(items, width - LABEL, 1)]


def step_rows(session: Session, run: Run, step: KeptStep, width: int, height: int) -> list[Row]:
    """A step in at most `height` rows: its axis, lanes, and its marks if there are any. None of one
    that took no time."""
    lanes = open_kept(session, run, step)
    if step.duration_ns <= 0:
        return []
    first_ns = step.start_ns - lanes.begin_ns
    cells = max(10, width - LABEL - FIGURE - 1)
    window = LaneWindow(run, lanes, first_ns, first_ns + step.duration_ns, cells,
                        zero_ns=first_ns, session=session)  # fmt: skip
    lines = [LaneLine("", [(window.axis(), "dim")]), *window.lines()]
    marks = step_marks(step, run, window.cells)
    if marks:
        lines[height - 1 :] = [LaneLine("marks", [(marks, "text")])]
    return [line.drawn for line in lines[:height]]


def newest_step_panel(session: Session, run: Run, width: int, height: int) -> Panel | None:
    """The newest step that can be looked into, for a view that leads to the timeline; None where
    there is none. `height` is that of its rows."""
    steps = kept_steps(run)
    rows = step_rows(session, run, steps[-1], width, height) if steps else []
    if not rows:
        return None
    title = f"Timeline  the last step kept, {duration(steps[-1].duration_ns)}"
    return Panel(title, rows, "lanes with names: 3", view="timeline")


_LEAST_MARK = 5
"""Cells that a part of a name takes at least."""


def step_marks(step: StepTimeline | StepLanes | StepOperations, run: Run, columns: int) -> str:
    """The kept marks of the step's process between its start and its end, each in its place and
    with its name where there is room; empty where there are none."""
    places: dict[int, str] = {}
    for mark in run.newest_marks:
        offset = mark.time_ns - step.start_ns
        if mark.process == step.process and 0 <= offset <= step.duration_ns:
            places[min(columns - 1, offset * columns // step.duration_ns)] = mark.name
    line = ""
    for place, end in pairwise([*sorted(places), columns]):
        room = end - place - 1
        name = places[place]
        is_told = room >= min(cell_len(name), _LEAST_MARK)
        line = f"{fit(line, place)}▾{fit(name, min(room, cell_len(name))) if is_told else ''}"
    return line
