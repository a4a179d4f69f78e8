"""Every operation of a traced run, or of a kept step, in lanes: streams of the GPU, ranges nested
on their threads, CUDA calls. A window of time is drawn from sums: what it takes grows with a lane's
cells and the logarithm of its operations, not with their number.
"""

from __future__ import annotations

import enum
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.model.events import StepLanes, StepOperations, StepTimeline, ThreadLane
from gputui.model.kernel_categories import category
from gputui.model.leaves import DOING, EIGHTHS, LEAVES, ROW_PARTS, Leaf, unpack
from gputui.model.naming import COPY_KINDS, MEMORY_KINDS
from gputui.playback.opening import trace_of
from gputui.state import Run, Session
from gputui.store.trace import (
    TRACE,
    Bools,
    Int64s,
    KeptTrace,
    Slots,
    TraceKind,
    TraceReader,
)

MOST_RECORDS = 6_000_000
"""Records that are held, the newest: 60 bytes of memory each."""

MOST_LANES = 512
"""Streams, depths of threads and their calls that are held: files are untrusted."""

_LONG_NS = 1 << 60
"""Lengths of hostile files are cut to it."""

_NO_STREAM = -1
"""Of a device that had only one."""

_WORDS = {
    Leaf.LAUNCH: "launching",
    Leaf.SYNC: "waits for the GPU",
    Leaf.ALLOCATION: "allocating",
    Leaf.CUDA: "in another CUDA call",
    Leaf.HOST: "in the program's own code",
    Leaf.SCHEDULER: "wants a core",
    Leaf.INPUT: "reads input",
    Leaf.WAIT: "asleep",
}
"""What a thread is at."""

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

_MEMORY = (TraceKind.COPY, TraceKind.SET)
_IS_OPERATION = np.zeros(256, np.bool_)
_IS_OPERATION[[TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET, TraceKind.GRAPH]] = True


class LaneKind(enum.Enum):
    """What happens in a lane."""

    STREAM = "stream"
    BUSY = "busy"
    """A stream of which only is known how busy it was."""
    PROJECTED = "projected"
    """Work on the GPU by the range that launched it."""
    RANGES = "ranges"
    CALLS = "calls"
    DOING = "doing"
    """What a thread was seen at; of each row the category is the key of a leaf."""


class Cells(NamedTuple):
    """A lane in equal parts of a window: the share of each in which something went on, 0 to 1, and
    the number in `TracedLanes.categories` of what took most of it, -1 where nothing did."""

    busy: Floats
    category: Int64s


class Box(NamedTuple):
    """What is long enough to be named: one row of a lane, or `times` rows in succession that are
    called the same. Moments as in the lane."""

    row: int
    times: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Spans:
    """Spans in the order of their starts, with what all before each come to."""

    starts: Int64s
    ends: Int64s
    sums: Int64s = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.concatenate(([0], np.cumsum(self.ends - self.starts)))

    def within(self, low_ns: float, high_ns: float, count: int = 1) -> Floats:
        """The time that spans took in each of so many equal parts between two moments."""
        if not len(self.starts):
            return np.zeros(count)
        moments = np.linspace(low_ns, high_ns, count + 1)
        begun = np.searchsorted(self.starts, moments, side="right")
        last_end = np.where(begun > 0, self.ends[np.maximum(begun, 1) - 1], moments)
        until = self.sums[begun] - np.maximum(0.0, last_end - moments)
        took: Floats = np.asarray(until[1:] - until[:-1], np.float64)
        return took


@dataclass(slots=True)
class Lane:
    """One after the other on a stream or a thread. Moments are ns since `TracedLanes.begin_ns`."""

    kind: LaneKind
    process: int
    number: int
    """The stream, or the thread."""
    device: int
    """Of a stream, numbered as the process does."""
    depth: int
    """Of ranges."""
    spans: Spans
    names: Int32s
    """What each row is: numbers in `TracedLanes.names`."""
    ranges: Int32s
    """The session's number of the range that launched or holds it."""
    correlations: Ints
    """Of calls and operations: equal for a call and what it launched; 0 is unknown."""
    details: Ints
    """Bytes of a copy, the number of a kernel's launch shape."""
    runs: Int64s = field(init=False)
    """The first row of each succession of equal names."""
    by_category: dict[int, Spans] = field(default_factory=dict)

    def __post_init__(self) -> None:
        changes = np.flatnonzero(np.diff(self.names)) + 1
        self.runs = np.concatenate(([0], changes)).astype(np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def cells(self, low_ns: float, high_ns: float, count: int) -> Cells:
        """The lane between two moments in so many parts."""
        width = max(1e-9, (high_ns - low_ns) / count)
        best = np.zeros(count)
        chosen = np.full(count, -1, np.int64)
        whole = np.zeros(count)
        for number, spans in self.by_category.items():
            took = spans.within(low_ns, high_ns, count)
            whole += took
            chosen = np.where(took > best, number, chosen)
            best = np.maximum(best, took)
        return Cells(np.clip(whole / width, 0, 1), chosen)

    def rows(self, low_ns: float, high_ns: float) -> tuple[int, int]:
        """The first row that ends after a moment, and the first that begins after another."""
        first = int(np.searchsorted(self.spans.ends, low_ns, side="right"))
        last = int(np.searchsorted(self.spans.starts, high_ns, side="left"))
        return first, max(first, last)

    def boxes(self, low_ns: float, high_ns: float, least_ns: float) -> list[Box]:
        """What lasts at least so long in a window, in order: single rows, and between them
        successions of equal ones."""
        first, last = self.rows(low_ns, high_ns)
        if first >= last:
            return []
        starts, ends = self.spans.starts, self.spans.ends
        long = first + np.flatnonzero(ends[first:last] - starts[first:last] >= least_ns)
        boxes = [Box(row, 1, int(starts[row]), int(ends[row])) for row in long.tolist()]
        succession = int(np.searchsorted(self.runs, first, side="right")) - 1
        until = int(np.searchsorted(self.runs, last, side="left"))
        if succession < 0 or until <= succession:
            return boxes
        firsts = np.maximum(self.runs[succession:until], first)
        lasts = np.minimum(np.append(self.runs[succession + 1 : until], last), last) - 1
        several = (lasts > firsts) & (ends[lasts] - starts[firsts] >= least_ns)
        is_long = np.searchsorted(long, firsts) != np.searchsorted(long, lasts, side="right")
        for begin, end in zip(
            firsts[several & ~is_long].tolist(), lasts[several & ~is_long].tolist(), strict=True
        ):
            boxes.append(Box(begin, end - begin + 1, int(starts[begin]), int(ends[end])))
        return sorted(boxes, key=lambda box: box.start_ns)

    def row_at(self, moment_ns: float) -> int:
        """The row that goes on at a moment, else the nearest."""
        after = int(np.searchsorted(self.spans.ends, moment_ns, side="left"))
        candidates = [row for row in (after - 1, after) if 0 <= row < len(self)]

        def away(row: int) -> float:
            start, end = int(self.spans.starts[row]), int(self.spans.ends[row])
            return max(start - moment_ns, moment_ns - end, 0.0)

        return min(candidates, key=away, default=0)


@dataclass(slots=True)
class TracedLanes:
    """The lanes of one run."""

    begin_ns: int
    """The first moment, ns since the epoch, which moments in lanes count from."""
    end_ns: int
    """The last moment, counted so."""
    lanes: list[Lane]
    """Streams first, the busiest of each device first; then ranges, outermost first, and calls of
    each thread."""
    names: list[str]
    categories: list[str]
    """Categories of kernels, and "copy", "range" and "call"."""
    category_of: list[int]
    """By name, the number of its category."""
    busy: dict[tuple[int, int], Spans]
    """By process and device: when anything ran on it, merged."""
    left_out: int
    """Older records that are not here, there being too many."""
    kept: dict[int, tuple[int, int]]
    """Of a kept step, by process: between which moments the work of its devices was kept. Of a
    process that is not in it everything was."""

    def launch_of(self, lane: Lane, row: int) -> tuple[int, int] | None:
        """Lane and row of the call that launched an operation; of a call, of the first operation
        that it launched. None where it is not in the trace."""
        if lane.kind not in (LaneKind.STREAM, LaneKind.CALLS):
            return None
        if not (wanted := int(lane.correlations[row])):
            return None
        other = LaneKind.CALLS if lane.kind is LaneKind.STREAM else LaneKind.STREAM
        for number, each in enumerate(self.lanes):
            if each.kind is other and each.process == lane.process:
                rows = np.flatnonzero(each.correlations == wanted)
                if len(rows):
                    return number, int(rows[0])
        return None

    def starting_at(self, process: int, device: int, moment_ns: int) -> tuple[int, int] | None:
        """Lane and row of what began on a device just then, as what ends a gap does."""
        for number, lane in enumerate(self.lanes):
            if lane.kind in (LaneKind.STREAM, LaneKind.BUSY) and (lane.process, lane.device) == (
                process, device,
            ):  # fmt: skip
                row = int(np.searchsorted(lane.spans.starts, moment_ns))
                if row < len(lane) and int(lane.spans.starts[row]) == moment_ns:
                    return number, row
        return None

    def is_queued(self, process: int, device: int, gap_start_ns: int, gap_end_ns: int) -> bool:
        """Whether what ended a gap of a device was launched before the gap began, by the rule of
        the accounting; False where its launch is not here."""
        place = self.starting_at(process, device, gap_end_ns)
        call = None if place is None else self.launch_of(self.lanes[place[0]], place[1])
        return call is not None and int(self.lanes[call[0]].spans.starts[call[1]]) <= gap_start_ns

    def usual_ns(self, lane: Lane, row: int) -> tuple[float, int]:
        """The median length of all in the same kind of lane that are called as a row is, and how
        many there are."""
        name = lane.names[row]
        lengths = [
            (each.spans.ends - each.spans.starts)[each.names == name]
            for each in self.lanes
            if each.kind is lane.kind and each.process == lane.process
        ]
        every = np.concatenate(lengths)
        return float(np.median(every)), len(every)

    def gaps(self, process: int, device: int) -> Spans | None:
        """When nothing ran on a device, between the first and the last that did."""
        busy = self.busy.get((process, device))
        if busy is None or len(busy.starts) < 2:
            return None
        return Spans(busy.ends[:-1], busy.starts[1:])


def open_lanes(path: Path, session: Session, run: Run) -> TracedLanes:
    """The lanes of a run of the recording, or the other tool's file, at `path`. Raises
    JournalError, one line, where there is no trace."""
    with tempfile.TemporaryDirectory(prefix="gputui-lanes-") as folder:
        return read_lanes(trace_of(path, Path(folder, "trace")), session, run)


KeptStep = StepOperations | StepLanes | StepTimeline


def kept_steps(run: Run) -> list[KeptStep]:
    """The steps of a run that can be looked into, in order of time: those with every operation,
    else what is known of others."""
    steps: list[KeptStep] = [step for kept in run.step_operations.values() for step in kept]
    if not steps:
        steps = [*run.step_lanes, *(step for step in run.steps.values() if step.spans)]
    return sorted(steps, key=lambda step: step.start_ns)


def open_kept(session: Session, run: Run, step: KeptStep) -> TracedLanes:
    """The lanes of a kept step, and of what was kept of other processes at the same time."""

    def touches(other: KeptStep) -> bool:
        return (
            other.start_ns < step.start_ns + step.duration_ns
            and step.start_ns < other.start_ns + other.duration_ns
        )

    made = _Lanes(session, run)
    operations = [kept for steps in run.step_operations.values() for kept in steps if touches(kept)]
    made.add_records(KeptTrace(operations), 0)
    with_operations = {kept.process for kept in operations}
    for lanes in filter(touches, run.step_lanes):
        made.add_parts(lanes, with_streams=lanes.process not in with_operations)
    for timeline in filter(touches, run.steps.values()):
        if timeline.process not in with_operations:
            made.add_timeline(timeline)
    opened = made.done(sum(kept.left_out for kept in operations), step)
    without = [lanes for lanes in run.step_lanes if lanes.process not in with_operations]
    steps: list[KeptStep] = [*operations, *filter(touches, without)]
    for its in steps:
        start = its.start_ns - opened.begin_ns
        end = start + min(its.duration_ns, _LONG_NS)
        low, high = opened.kept.get(its.process, (start, end))
        opened.kept[its.process] = min(low, start), max(high, end)
    return opened


class _Columns:
    """Columns of records of one kind, collected by portion."""

    def __init__(self, *fields: str) -> None:
        self._fields = fields
        self._parts: list[list[Ints]] = [[] for _ in fields]

    def add(self, records: Slots) -> None:
        for field_name, part in zip(self._fields, self._parts, strict=True):
            part.append(records[field_name].copy())

    def joined(self) -> dict[str, Ints]:
        """In the records' own types, which take less memory; what was collected is given up."""
        joined = {}
        for name in self._fields:
            part = self._parts.pop(0)
            joined[name] = np.concatenate(part) if part else np.empty(0, TRACE[name])
        return joined


def read_lanes(trace: TraceReader, session: Session, run: Run) -> TracedLanes:
    """The lanes of what a trace holds of a run's processes."""
    left_out = max(0, len(trace) - MOST_RECORDS)
    made = _Lanes(session, run)
    made.add_records(trace, left_out)
    return made.done(left_out)


def _merged(starts: Ints, ends: Ints) -> Spans:
    """Spans in the order of their starts as such that do not touch."""
    first: Int64s = starts.astype(np.int64)
    reach = np.maximum.accumulate(ends.astype(np.int64))
    begins = np.flatnonzero(np.concatenate(([True], first[1:] > reach[:-1])))
    return Spans(first[begins], reach[np.append(begins[1:] - 1, len(starts) - 1)])


class _Lanes:
    """Makes lanes of columns of records, and of what is known of kept steps."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session = session
        self._run = run
        self._names: dict[str, int] = {}
        self._category_of: list[int] = []
        self._categories: dict[str, int] = {}
        self._lanes: list[Lane] = []
        self._busy: dict[tuple[int, int], Spans] = {}

    def add_records(self, trace: TraceReader | KeptTrace, left_out: int) -> None:
        """Lanes of the records of the run's processes, without the first ones."""
        processes = np.array(sorted(self._run.processes), np.int64)
        times = ("start", "end", "process", "range")
        operations = _Columns(
            *times, "device", "stream", "kind", "name", "sub", "destination_kind", "bytes",
            "correlation",
        )  # fmt: skip
        calls = _Columns(*times, "name", "thread", "correlation")
        ranges = _Columns(*times)
        seen = 0
        for portion in trace.portions():
            portion = portion[max(0, left_out - seen) :]
            seen += len(portion)
            is_mine = portion["start"] > 0
            if len(processes) != 1 or (portion["process"] != processes[0]).any():
                is_mine &= np.isin(portion["process"], processes)
            mine = portion if is_mine.all() else portion[is_mine]
            kinds = mine["kind"]
            operations.add(mine[_IS_OPERATION[kinds]])
            calls.add(mine[kinds == TraceKind.CALL])
            ranges.add(mine[kinds == TraceKind.RANGE])
        self.add_operations(operations.joined())
        self.add_ranges(ranges.joined())
        self.add_calls(calls.joined(), trace.call_names)

    def add_parts(self, step: StepLanes, *, with_streams: bool) -> None:
        """What each thread was at in a step; how busy its device and its streams were too, where
        single operations do not say it."""
        process, device = step.process, step.device
        rows = [(stream.stream, [max(0, EIGHTHS.find(letter)) / 8 for letter in unpack(stream.ink)])
                for stream in step.streams]  # fmt: skip
        rows = rows or [(_NO_STREAM, [part / 1000 for part in step.busy])]
        if with_streams and step.busy:
            bounds = _bounds(step, len(step.busy))
            took = np.diff(bounds) * np.array(step.busy) // 1000
            self._busy[process, device] = Spans(bounds[:-1].copy(), bounds[:-1] + took)
        for number, ink in rows if with_streams else ():
            bounds = _bounds(step, max(1, len(ink)))
            starts, took = bounds[:-1], np.diff(bounds) * np.array([*ink, 0.0][: len(bounds) - 1])
            names = np.full(len(starts), self._number("work on the GPU", "other"))
            columns = _unnumbered(starts, starts + took.astype(np.int64), names)
            lane = self._lane(LaneKind.BUSY, columns, np.flatnonzero(took > 0), process, number,
                              device=device)  # fmt: skip
            if len(lane):
                self._lanes.append(lane)
        for thread in step.threads:
            self._add_thread(step, thread)

    def _add_thread(self, step: StepLanes, thread: ThreadLane) -> None:
        place = step.process, thread.thread
        if any((lane.process, lane.number) == place for lane in self._lanes
               if lane.kind is LaneKind.DOING):  # fmt: skip
            return  # with another device of the process
        letters = unpack(thread.doing).ljust(ROW_PARTS)
        bounds = _bounds(step, len(letters))
        line = self._run.lines.get((step.process, thread.line or -1))
        seen = ""
        if line is not None:
            file = line.path.rpartition("/")[2]
            seen = f"; the step's newest sample: {file}:{line.number} {line.function}"
        starts, ends, names = [], [], []
        for letter, first, end in _same_letters(letters):
            if (leaf := DOING.get(letter)) is not None:
                starts.append(int(bounds[first]))
                ends.append(int(bounds[end]))
                words = _WORDS.get(leaf, LEAVES[leaf].label)
                names.append(self._number(words + seen, LEAVES[leaf].key))
        if starts:
            spans = _unnumbered(np.array(starts), np.array(ends), np.array(names))
            self._insert(self._lane(LaneKind.DOING, spans, np.arange(len(starts)), *place))

    def add_timeline(self, step: StepTimeline) -> None:
        """The ranges of a step, and what they launched."""
        rows = [
            (span, node)
            for span in step.spans
            if (node := self._run.ranges.get(span.range)) is not None
        ]
        starts = step.start_ns + np.array([min(span.start_ns, _LONG_NS) for span, _ in rows], int)
        columns = {
            "start": starts,
            "end": starts + np.array([min(span.duration_ns, _LONG_NS) for span, _ in rows], int),
            "process": np.full(len(rows), step.process),
            "range": np.array([span.range for span, _ in rows], np.int64),
        }
        is_gpu = np.array([span.lane == "gpu" for span, _ in rows], np.bool_)
        if is_gpu.any():
            names = [self._number(node.definition.name, "range") for _, node in rows]
            lane = self._lane(LaneKind.PROJECTED, {**columns, "name": np.array(names)},
                              np.flatnonzero(is_gpu), step.process, 0)  # fmt: skip
            self._lanes.append(lane)
        self.add_ranges({name: column[~is_gpu] for name, column in columns.items()})

    def _insert(self, lane: Lane) -> None:
        """After what else is of its thread."""
        beside = [
            place
            for place, other in enumerate(self._lanes)
            if other.kind in (LaneKind.RANGES, LaneKind.CALLS)
            and (other.process, other.number) == (lane.process, lane.number)
        ]
        self._lanes.insert(max(beside, default=len(self._lanes) - 1) + 1, lane)

    def add_operations(self, columns: Mapping[str, Ints]) -> None:
        """A lane for each stream of each device of each process."""
        if not len(columns["start"]):
            return
        columns = {**columns, "name": self._operations(columns)}
        for (process, device), rows in _groups(columns, "process", "device"):
            self._busy[process, device] = _merged(columns["start"][rows], columns["end"][rows])
        streams = [
            self._lane(LaneKind.STREAM, columns, rows, process, stream, device=device)
            for (process, device, stream), rows in _groups(columns, "process", "device", "stream")
        ]
        streams.sort(key=lambda lane: (lane.process, lane.device, -int(lane.spans.sums[-1])))
        self._lanes += streams

    def _operations(self, columns: Mapping[str, Ints]) -> Ints:
        """The number of each operation's name. What that takes in between is gone before lanes are
        made: 21 MiB of a million operations."""
        # What an operation is, in one number: its kind, then a kernel's number, or what is copied.
        what = columns["name"].astype(np.int64)
        is_memory = np.isin(columns["kind"], _MEMORY)
        copied = columns["sub"].astype(np.int64) << 8 | columns["destination_kind"]
        what[is_memory] = copied[is_memory]
        what |= columns["kind"].astype(np.int64) << 32
        unique, inverse = np.unique(what, return_inverse=True)
        names = np.array([self._operation(number) for number in unique.tolist()], np.int32)
        return names[inverse.reshape(-1)]

    def add_ranges(self, columns: Mapping[str, Ints]) -> None:
        """A lane for each depth of each thread."""
        nodes = self._run.ranges
        most = max([0, *nodes]) + 1
        threads, depths = np.zeros(most, np.int64), np.zeros(most, np.int64)
        names = np.zeros(most, np.int64)
        is_known = np.zeros(most, np.bool_)
        for number, node in nodes.items():
            if node.definition.style == "PushPop":
                threads[number], depths[number] = node.definition.thread, node.depth
                names[number] = self._number(node.definition.name, "range")
                is_known[number] = True
        rows = np.flatnonzero(
            (columns["range"] < most) & is_known[np.minimum(columns["range"], most - 1)]
        )
        columns = {key: column[rows] for key, column in columns.items()}
        columns |= {"thread": threads[columns["range"]], "depth": depths[columns["range"]],
               "name": names[columns["range"]]}  # fmt: skip
        for (process, thread, depth), rows in _groups(columns, "process", "thread", "depth"):
            lane = self._lane(LaneKind.RANGES, columns, rows, process, thread, depth=depth)
            self._lanes.append(lane)

    def add_calls(self, columns: Mapping[str, Ints], call_names: Mapping[int, str]) -> None:
        """A lane for each thread, after its ranges."""
        unique, inverse = np.unique(columns["name"], return_inverse=True)
        numbers = [self._number(call_names.get(number, "?"), "call") for number in unique.tolist()]
        columns = {**columns, "name": np.array(numbers, np.int32)[inverse.reshape(-1)]}
        for (process, thread), rows in _groups(columns, "process", "thread"):
            self._insert(self._lane(LaneKind.CALLS, columns, rows, process, thread))

    def done(self, left_out: int, step: KeptStep | None = None) -> TracedLanes:
        """All of them, on one clock that begins with the first; of a step, with the first of its
        launches: ranges around it may have begun long before."""
        del self._lanes[MOST_LANES:]
        ends = [int(lane.spans.ends.max()) for lane in self._lanes]
        begin = min((int(lane.spans.starts[0]) for lane in self._lanes), default=0)
        end = max(ends, default=0)
        if step is not None:
            its_own = [
                (int(lane.spans.starts[0]), last)
                for lane, last in zip(self._lanes, ends, strict=True)
                if lane.kind in (LaneKind.STREAM, LaneKind.CALLS)
            ]
            begin = min([step.start_ns, *(first for first, _ in its_own)])
            end = step.start_ns + min(step.duration_ns, _LONG_NS)
            end = max([end, *(last for _, last in its_own)])
        for lane in self._lanes:
            every = (lane.spans, *lane.by_category.values())
            for spans in {id(spans): spans for spans in every}.values():
                _move(spans, begin)
        for spans in self._busy.values():
            _move(spans, begin)
        return TracedLanes(begin, end - begin, self._lanes, list(self._names),
                           list(self._categories), self._category_of, self._busy,
                           left_out, {})  # fmt: skip

    def _lane(self, kind: LaneKind, columns: Mapping[str, Ints], rows: Int64s, process: int,
              number: int, *, device: int = 0, depth: int = 0) -> Lane:  # fmt: skip
        starts = columns["start"][rows].astype(np.int64)
        ends = np.maximum(starts, columns["end"][rows].astype(np.int64))
        names = columns["name"][rows].astype(np.int32)
        nothing = np.zeros(0, np.int64)
        lane = Lane(kind, process, number, device, depth, Spans(starts, ends), names,
                    columns["range"][rows].astype(np.int32),
                    columns["correlation"][rows] if "correlation" in columns else nothing,
                    columns["bytes"][rows] if "bytes" in columns else nothing)  # fmt: skip
        categories = np.array(self._category_of, np.int16)[names]
        present = np.unique(np.array(self._category_of, np.int16)[np.unique(names)])
        for present_category in present.tolist():
            if len(present) == 1:
                lane.by_category[present_category] = lane.spans
            else:
                chosen = categories == present_category
                lane.by_category[present_category] = Spans(starts[chosen], ends[chosen])
        return lane

    def _operation(self, what: int) -> int:
        kind, name = what >> 32, what & 0xFFFFFFFF
        if kind == TraceKind.COPY:
            return self._number(COPY_KINDS.get(name >> 8, "copy"), "copy")
        if kind == TraceKind.SET:
            memory = MEMORY_KINDS.get(name & 0xFF, "")
            return self._number(f"memset {memory}".strip(), "copy")
        kernel = self._session.kernel_names.get(name)
        text = kernel.name if kernel is not None else "?"
        return self._number(text, category(text) if kernel is not None else "other")

    def _number(self, name: str, its_category: str) -> int:
        """The number of a name, which is of one category."""
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = len(self._names)
            self._category_of.append(
                self._categories.setdefault(its_category, len(self._categories))
            )
        return number


def _unnumbered(starts: Int64s, ends: Int64s, names: Ints) -> dict[str, Ints]:
    return {"start": starts, "end": ends, "name": names, "range": np.zeros_like(names)}


def _bounds(step: StepLanes, count: int) -> Int64s:
    """Those of a step in equal parts; of a damaged file it may have any length."""
    each, rest = divmod(min(step.duration_ns, _LONG_NS), count)
    numbers = np.arange(count + 1, dtype=np.int64)
    bounds: Int64s = step.start_ns + each * numbers + rest * numbers // count
    return bounds


def _same_letters(letters: str) -> Iterator[tuple[str, int, int]]:
    """Each succession of equal letters: the first one's place, and that after the last."""
    first = 0
    for letter, same in itertools.groupby(letters):
        end = first + len(list(same))
        yield letter, first, end
        first = end


def _move(spans: Spans, begin_ns: int) -> None:
    spans.starts -= begin_ns
    spans.ends -= begin_ns


def _groups(columns: Mapping[str, Ints], *names: str) -> list[tuple[tuple[int, ...], Int64s]]:
    """Rows that are equal in the columns of these names, in the order of their starts."""
    if not len(columns["start"]):
        return []
    keys = [columns[name] for name in names]
    order = np.argsort(columns["start"], kind="stable")  # in order already, for the most part
    for column in reversed(keys):
        if (column != column[0]).any():
            order = order[np.argsort(column[order], kind="stable")]
    ordered = [column[order] for column in keys]
    changed: Bools = np.zeros(len(order), np.bool_)
    changed[0] = True
    for column in ordered:
        changed[1:] |= column[1:] != column[:-1]
    firsts = np.flatnonzero(changed)
    ends = np.append(firsts[1:], len(order))
    return [
        (tuple(int(column[first]) for column in ordered), order[first:end])
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
    ]
