"""The events of a Chrome trace as columns: records of the capture library, ranges with both ends,
and what was allocated. For `kineto`, which makes a session of them.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import IO, Any

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, opaque, pick, stack
from gputui.base.sanitize import sanitize
from gputui.imports import THREAD, LaunchShapes, RangeRows, Texts
from gputui.imports.kineto_events import AnyTraceEvent, TraceEvent
from gputui.model.events import NO_PAYLOAD, PayloadType, ResultColumn, ResultTable
from gputui.model.naming import OPERATOR_CATEGORY, PROFILER_STEP
from gputui.ring import SLOT, RecordKind

MAX_EVENTS = 50_000_000
"""Events kept of one trace; any further ones are skipped."""

MAX_THREAD_NAMES = 100_000

ANNOTATIONS = {"user_annotation"}

OPERATORS = {"cpu_op", "operator"}

# Category → record, in lower case: torch 1.8 wrote Kernel and Runtime.
_KINDS = {
    "kernel": RecordKind.KERNEL, "gpu_memcpy": RecordKind.MEMCPY, "memcpy": RecordKind.MEMCPY,
    "gpu_memset": RecordKind.MEMSET, "memset": RecordKind.MEMSET, "cuda_runtime": RecordKind.API,
    "runtime": RecordKind.API, "cuda_driver": RecordKind.API,
}  # fmt: skip

_DRIVER = "cuda_driver"

_MEMORY = "[memory]"

MOST_BYTES = 1 << 40
"""Of one allocation: a file may name any number, and these are added up."""

# c10's DeviceType.
_CUDA_DEVICE = 1

_STEP = re.compile(rf"{PROFILER_STEP}#(\d{{1,18}})")

_COPY = re.compile(r"Memcpy (\w)to(\w)(?: \(([\w ]+) -> ([\w ]+)\))?")

_SET = re.compile(r"Memset \(([\w ]+)\)")

_THREAD = re.compile(r"thread \d+ \((.*)\)")

_DIGITS = re.compile(r"\d{1,9}")

# CUpti_ActivityMemcpyKind, by the letters of its ends.
_DIRECTIONS = {
    "HD": 1, "DH": 2, "HA": 3, "AH": 4, "AA": 5, "AD": 6, "DA": 7, "DD": 8, "HH": 9, "PP": 10,
}  # fmt: skip

# CUpti_ActivityMemoryKind, as Kineto spells it.
_MEMORY_KINDS = {
    "Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5, "Device Static": 6,
    "Managed Static": 7,
}  # fmt: skip

# The year 2100, as of all moments (model/events/base.py).
_LATEST_US = 4_102_444_800_000_000

_LONGEST_US = 1 << 50

_NO_CALL = 0xFFFF_FFFF

# Records have columns of 32 bits.
_U32 = 0xFFFF_FFFF


class OperationTable:
    """Collects events by use. Times are in ns on the trace's clock."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._operator = self.texts.of_text(OPERATOR_CATEGORY)
        self.shapes = LaunchShapes()
        self.skipped = 0
        self.thread_names: dict[int, str] = {}
        self.commands: dict[int, str] = {}
        self.pids: Counter[int] = Counter()
        """How many events of the host each process has."""
        self.memory = AllocationEvents()
        self.of_operators = OperatorMemory()
        self.records = TimedRows(SLOT, lambda records: records["kind"] != RecordKind.API)
        """Calls and operations, calls before what begins at once."""
        self.ranges = TimedRows(RANGE)
        """Annotations of the user and operators of the framework, each on its thread."""
        self.devices: set[int] = set()
        """Those that something ran on."""
        self.also: Callable[[Slots], None] | None = None
        """Also gets the rows of each portion, ranges or records of a kind, as they are read."""
        self._kept = 0
        self._numbers = _Kept(id_number)
        self._texts = _Kept(self.texts.of_text)

    def add(self, events: Sequence[AnyTraceEvent]) -> None:
        """Add a portion of the events."""
        by_category: dict[str, list[AnyTraceEvent]] = {}
        for event in events:
            if event.ph == "X":
                of_category = by_category.get(event.cat)
                if of_category is None:
                    by_category[event.cat] = [event]
                else:
                    of_category.append(event)
            elif event.ph == "i":
                if event.name == _MEMORY:
                    self._add_memory(event)
            elif event.ph == "M":
                self._describe(event)
        for name, of_category in by_category.items():
            category = name.lower()
            kind = _KINDS.get(category)
            if kind is None and category not in OPERATORS and category not in ANNOTATIONS:
                continue
            room = max(0, MAX_EVENTS - self._kept)
            self.skipped += max(0, len(of_category) - room)
            if not (of_category := of_category[:room]):
                continue
            self._kept += len(of_category)
            if kind is None:
                rows = self._as_ranges(of_category, self._operator if category in OPERATORS else 0)
                self.ranges.add(rows)
            else:
                rows = self._as_records(kind, category == _DRIVER, of_category)
                self.records.add(rows)
            if self.also is not None:
                self.also(rows)

    # --- events

    def _as_ranges(self, events: list[AnyTraceEvent], category: int) -> Slots:
        starts, durations = _times_ns(events)
        count = len(events)
        names = [event.name for event in events]
        payloads, kinds = np.zeros(count, np.int64), np.full(count, int(NO_PAYLOAD))
        for row, name in enumerate(names):
            if name.startswith(PROFILER_STEP) and (step := _STEP.fullmatch(name)):
                # One phase of all steps, with its number as the payload.
                names[row], payloads[row] = PROFILER_STEP, int(step[1])
                kinds[row] = PayloadType.INT64
        self._count_pids(events)
        ranges = np.empty(count, RANGE)
        ranges["start"], ranges["end"] = starts, starts + durations
        ranges["thread"] = _column([event.tid for event in events], self._numbers) & THREAD
        ranges["name"] = _column(names, self._texts)
        ranges["payload"], ranges["payload_type"] = payloads, kinds
        ranges["category"] = category
        return ranges

    def _count_pids(self, events: list[AnyTraceEvent]) -> None:
        for pid, count in Counter([event.pid for event in events]).items():
            self.pids[id_number(pid)] += count

    def _add_memory(self, event: AnyTraceEvent) -> None:
        arguments = event.args
        if arguments.memory_bytes is not None and self._kept < MAX_EVENTS:
            self._kept += 1
            size = max(-MOST_BYTES, min(MOST_BYTES, arguments.memory_bytes))
            self.of_operators.add(
                ns(event.ts), id_number(event.tid) & THREAD, id_number(arguments.memory_type), size
            )
        if arguments.memory_type != _CUDA_DEVICE or arguments.allocated is None:
            return
        self.memory.add(
            ns(event.ts), arguments.memory_device or 0, arguments.allocated, arguments.reserved
        )

    def _describe(self, event: AnyTraceEvent) -> None:
        name = event.args.name
        if name is None or len(self.thread_names) + len(self.commands) >= MAX_THREAD_NAMES:
            return
        if event.name == "thread_name" and id_number(event.pid) != 0:
            named = _THREAD.fullmatch(name)
            self.thread_names[id_number(event.tid) & THREAD] = sanitize(named[1] if named else name)
        elif event.name == "process_name":
            self.commands[id_number(event.pid)] = sanitize(name, 500)

    # --- records

    def _as_records(self, kind: RecordKind, is_driver: bool, events: list[AnyTraceEvent]) -> Slots:
        records = np.zeros(len(events), SLOT)
        records["kind"] = kind
        starts, durations = _times_ns(events)
        records["start"] = starts
        records["end"] = starts + durations
        is_call = kind == RecordKind.API
        records["b"] = is_call  # what a call returned is not in such a trace
        missing = 0 if is_call else _NO_CALL
        correlations = [event.args.correlation for event in events]
        records["correlation"] = [missing if n is None else n & _U32 for n in correlations]
        if is_call:
            records["thread"] = _column([event.tid for event in events], self._numbers) & THREAD
            records["name"] = _column([event.name for event in events], self._texts)
            records["sub"] = is_driver
            self._count_pids(events)
            return records
        devices = [_or(event.args.device, event.pid) for event in events]
        streams = [_or(event.args.stream, event.tid) for event in events]
        records["a"] = np.clip(_column(devices, self._numbers), 0, 255)
        self.devices |= {*np.unique(records["a"]).tolist()}
        records["b"] = _column(streams, self._numbers)
        records["c"] = _column([event.args.context for event in events], self._numbers)
        if kind == RecordKind.KERNEL:
            records["name"] = _column([event.name for event in events], self._texts)
            launched = [
                (args.grid, args.block, args.registers, args.shared_bytes)
                for args in [event.args for event in events]
            ]
            rows = {shape: row for row, shape in enumerate(dict.fromkeys(launched))}
            shapes = np.array([_shape(*shape) for shape in rows], np.int64)
            of_kernel = np.fromiter(map(rows.__getitem__, launched), np.int64, len(launched))
            records["d"] = self.shapes.number_shapes(records["name"], shapes[of_kernel])
            return records
        records["value"] = [byte_count(event.args.bytes) for event in events]
        kinds = np.array([_memory_kinds(event.name) for event in events], np.int64)
        records["sub"], records["source_kind"] = kinds[:, 0], kinds[:, 1]
        records["destination_kind"] = kinds[:, 2]
        return records


# Rows of a trace, which come in any order, in that of time.

ROWS_AT_ONCE = 1 << 15
"""Rows that are read at once."""

ROWS_HELD = 1 << 18
"""Rows that are held until they are put into order: of more, sorted runs wait in a file. A trace
with 5 million events took 569 MB when all were held."""

RANGE = np.dtype([
    ("start", "i8"), ("end", "i8"), ("payload", "i8"), ("thread", "i4"), ("name", "i4"),
    ("category", "i4"), ("payload_type", "i4"),
])  # fmt: skip
"""A range of a thread; `name` and `category` are texts by number."""


class TimedRows:
    """Rows with `start` and `end`, added first and then read."""

    def __init__(
        self, dtype: np.dtype[Any], is_later: Callable[[Slots], Bools] | None = None
    ) -> None:
        """`is_later` says which rows come after others that begin at once."""
        self._dtype = dtype
        self._is_later = is_later
        self._held: Slots = np.empty(0, dtype)
        self._filled = 0
        self._runs: list[_Run] = []
        self._file: IO[bytes] | None = None
        self._closed = ExitStack()
        self._written = 0
        self.count = 0
        self.first, self.last = sys.maxsize, 0
        """The least of all starts, the most of all ends."""

    def add(self, rows: Slots) -> None:
        """Add rows, in any order."""
        if not len(rows):
            return
        self.count += len(rows)
        self.first = min(self.first, int(rows["start"].min()))
        self.last = max(self.last, int(rows["end"].max()))
        while len(rows):
            if self._filled == ROWS_HELD:
                self._end_run()
            if not len(self._held):
                self._held = np.empty(ROWS_HELD, self._dtype)
            added = rows[: ROWS_HELD - self._filled]
            opaque(self._held)[self._filled : self._filled + len(added)] = opaque(added)
            self._filled += len(added)
            rows = rows[len(added) :]

    def close(self) -> None:
        """Give the file back: nothing can be read any more."""
        self._closed.close()

    def horizon(self, tick: int) -> int:
        """Up to which moment, `tick` at the latest, about ROWS_AT_ONCE rows begin."""
        begun = [run for run in self._every_run() if run.next_start <= tick]
        each = ROWS_AT_ONCE // max(1, len(begun))
        return min([tick, *(run.later(each) for run in begun)])

    def rows_until(self, until: int) -> Slots:
        """The rows that begin up to a moment and were not read, in order; rows that begin at once
        as they came."""
        of_runs = [run.rows_until(until) for run in self._every_run() if run.next_start <= until]
        rows = stack(of_runs or [np.empty(0, self._dtype)])
        return pick(rows, self._order(rows)) if len(of_runs) > 1 else rows

    def _order(self, rows: Slots) -> Int64s:
        starts = rows["start"].astype(np.int64)
        if self._is_later is None:
            return np.argsort(starts, kind="stable")
        return np.lexsort((self._is_later(rows), starts))

    def _every_run(self) -> list[_Run]:
        if self._filled:
            self._end_run()
            self._held = np.empty(0, self._dtype)  # nothing is added any more
        return self._runs

    def _end_run(self) -> None:
        """Put away the rows that are held: in a file, if they are not all."""
        rows, self._filled = self._held[: self._filled], 0
        try:
            is_written = len(rows) < self.count and self._write_run(rows)
        except OSError:  # no room there: what was written of it is written over
            is_written = False
        if not is_written:
            self._keep_run(rows)
            self._held = np.empty(0, self._dtype)

    def _write_run(self, rows: Slots) -> bool:
        if self._file is None:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            self._file = self._closed.enter_context(file)
        number, begin, size = self._file.fileno(), self._written, self._dtype.itemsize
        order = self._order(rows)
        for first in range(0, len(order), ROWS_AT_ONCE):
            data = pick(rows, order[first : first + ROWS_AT_ONCE]).tobytes()
            if os.pwrite(number, data, begin + first * size) < len(data):
                return False
        self._written += len(rows) * size

        def read(first: int, count: int) -> Slots:
            data = os.pread(number, count * size, begin + first * size)
            return np.frombuffer(data, self._dtype)

        self._runs.append(_Run(len(rows), int(rows["start"].min()), read))
        return True

    def _keep_run(self, rows: Slots) -> None:
        order = self._order(rows)

        def read(first: int, count: int) -> Slots:
            return pick(rows, order[first : first + count])

        self._runs.append(_Run(len(rows), int(rows["start"].min()), read))


class _Run:
    """Sorted rows, of which a few are at hand."""

    def __init__(self, count: int, first: int, read: Callable[[int, int], Slots]) -> None:
        """`read` gives so many rows from one on, `first` is the start of the first."""
        self._count = count
        self._read = read
        self._loaded = 0
        self._at_hand: Slots | None = None
        self.next_start = first
        """When the next row begins; after the last one, never."""

    def later(self, rows: int) -> int:
        """When the row begins before which there are so many; never, where there are fewer."""
        at_hand = self._load(rows + 1)
        return int(at_hand["start"][rows]) if len(at_hand) > rows else sys.maxsize

    def rows_until(self, until: int) -> Slots:
        """The next rows, those that begin up to a moment."""
        batches = []
        while True:
            at_hand = self._load(1)
            end = int(np.searchsorted(at_hand["start"].astype(np.int64), until, side="right"))
            batches.append(at_hand[:end])
            # Not a view of the rows that were read: one for each run of 10 million were 60 MB.
            self._at_hand = at_hand[end:] if end < len(at_hand) else np.empty(0, at_hand.dtype)
            if end < len(at_hand) or self._loaded == self._count:
                break
        left = self._at_hand
        self.next_start = int(left["start"][0]) if len(left) else sys.maxsize
        return stack(batches)

    def _load(self, least: int) -> Slots:
        at_hand = self._at_hand
        missing = least - (0 if at_hand is None else len(at_hand))
        count = min(max(missing, ROWS_AT_ONCE), self._count - self._loaded)
        if at_hand is None or (missing > 0 and count):
            more = self._read(self._loaded, count)
            self._loaded += count
            at_hand = more if at_hand is None else stack((at_hand, more))
            self._at_hand = at_hand
        return at_hand


class AllocationEvents:
    """What torch's allocator held of each device, change by change."""

    MAX_DEVICES = 256

    def __init__(self) -> None:
        self._columns: dict[int, tuple[array[int], array[int], array[int]]] = {}

    def add(self, time: int, device: int, allocated: int, reserved: int | None) -> None:
        """Add a change: bytes held by tensors, and by the allocator."""
        if device not in self._columns and len(self._columns) >= self.MAX_DEVICES:
            return
        columns = self._columns.setdefault(device, (array("q"), array("q"), array("q")))
        for column, value in zip(
            columns, (time, byte_count(allocated), byte_count(reserved)), strict=True
        ):
            column.append(value)

    def devices(self) -> Iterator[tuple[int, Int64s, Int64s, Int64s]]:
        """Each device with times, bytes allocated and bytes reserved, in order of time."""
        for device, columns in sorted(self._columns.items()):
            times, allocated, reserved = (np.frombuffer(column, np.int64) for column in columns)
            order = np.argsort(times, kind="stable")
            yield device, times[order], allocated[order], reserved[order]


def ns(time_us: Decimal | float | None, most_us: int = _LATEST_US) -> int:
    """A time of the trace in ns; whatever is no time becomes 0."""
    if isinstance(time_us, Decimal) and time_us.is_nan():  # one of these cannot be compared
        return 0
    if time_us is None or not 0 <= time_us <= most_us:
        return 0
    return int(time_us * 1000) if isinstance(time_us, Decimal) else int(_whole_ns(time_us))


_ROUNDED_NS = 1 / 128
"""More than a float of up to PRECISE_US is from the digits that were written, in ns."""


def _whole_ns(times_us: Any) -> Any:
    """Whole ns of floats up to PRECISE_US: what was written to the ns, else what it had begun."""
    times = times_us * 1000.0
    nearest = np.rint(times)
    return np.where(np.abs(times - nearest) < _ROUNDED_NS, nearest, np.floor(times))


def _times_ns(events: list[AnyTraceEvent]) -> tuple[Int64s, Int64s]:
    """When each event began and how long it took, as `ns` has it."""
    starts, durations = [event.ts for event in events], [event.dur for event in events]
    if any(isinstance(times[0], Decimal) for times in (starts, durations)) or any(
        type(event) is TraceEvent for event in events
    ):
        return (
            np.fromiter(map(ns, starts), np.int64, len(events)),
            np.fromiter((ns(time, _LONGEST_US) for time in durations), np.int64, len(events)),
        )
    columns = []
    for times in (starts, durations):
        column = np.array(times, np.float64)  # None becomes NaN
        column[~((column >= 0) & (column <= _LONGEST_US))] = 0.0
        columns.append(_whole_ns(column).astype(np.int64))
    return columns[0], columns[1]


def byte_count(value: int | None) -> int:
    """A count of bytes, 0 where it makes no sense."""
    return value if value is not None and 0 <= value < 1 << 62 else 0


def id_number(value: float | str | None) -> int:
    """A process, thread, device or stream: older traces write `stream 7`."""
    if isinstance(value, str):
        digits = _DIGITS.search(value)
        return int(digits[0]) if digits else 0
    if value is None or not 0 <= value < 1 << 62:
        return 0
    return int(value) & _U32


MOST_KEPT = 100_000


class _Kept(dict[Any, int]):
    """The number of each value, by a function that is asked once for most."""

    def __init__(self, number_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._number_of = number_of

    def __missing__(self, value: Any) -> int:
        number = self._number_of(value)
        if len(self) < MOST_KEPT:
            self[value] = number
        return number


def _column(values: list[Any], numbers: _Kept) -> Int64s:
    return np.fromiter(map(numbers.__getitem__, values), np.int64, len(values))


def _or(value: float | str | None, other: float | str | None) -> float | str | None:
    return other if value is None else value


def _shape(
    grid: tuple[int, int, int] | None,
    block: tuple[int, int, int] | None,
    registers: int | None,
    shared_bytes: int | None,
) -> tuple[int, ...]:
    if grid is None or block is None:
        return (0,) * 9
    values = (*grid, *block, byte_count(registers), byte_count(shared_bytes), 0)
    return tuple(min(max(0, value), _U32) for value in values)


def _memory_kinds(name: str) -> tuple[int, int, int]:
    """Copy kind, source and destination; of a memset only the destination."""
    if copy := _COPY.fullmatch(name):
        source, destination = (_MEMORY_KINDS.get(end or "", 0) for end in (copy[3], copy[4]))
        return _DIRECTIONS.get(copy[1] + copy[2], 0), source, destination
    if memset := _SET.fullmatch(name):
        return 0, 0, _MEMORY_KINDS.get(memset[1], 0)
    return 0, 0, 0


# Memory by operator, from a trace with `profile_memory`: each allocation and release counts for the
# innermost operator or annotation that was open on its thread. A table of the run, as workloads
# report them: only such a trace has it.

TABLE = "memory_by_operator"

MOST_ROWS = 1000
"""Operators in the table, those that took most."""

MOST_LETTERS = 200
OUTSIDE = "(no operator)"

_CPU = 0
"""The CPU among the devices that torch numbers (DeviceType of c10/core/DeviceType.h)."""


class OperatorMemory:
    """Allocations and releases in, each with its thread; the table out."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(4))

    def __bool__(self) -> bool:
        return len(self._columns[0]) > 0

    def add(self, time_ns: int, thread: int, device_type: int, size_bytes: int) -> None:
        """Add one: `size_bytes` is negative where memory is released."""
        for column, value in zip(
            self._columns, (time_ns, thread, device_type, size_bytes), strict=True
        ):
            column.append(value)

    def table(self, rows: RangeRows, names: Mapping[int, str]) -> ResultTable | None:
        """By operator and kind of device; None if nothing was allocated. `names` are those that the
        rows' numbers stand for."""
        times, threads, devices, sizes = (
            np.frombuffer(column, np.int64) for column in self._columns
        )
        if not len(times):
            return None
        within = np.full(len(times), -1, np.int64)
        for thread in np.unique(threads).tolist():
            its = np.flatnonzero(threads == thread)
            of_thread = np.flatnonzero(rows.task == thread)
            within[its] = _innermost(rows, of_thread, times[its])
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        columns = (within.tolist(), devices.tolist(), sizes.tolist())
        for row, device, size in zip(*columns, strict=True):
            name = names.get(int(rows.name[row]), "") if row >= 0 else OUTSIDE
            name = sanitize(name, MOST_LETTERS)
            entry = sums[name, "CPU" if device == _CPU else "GPU"]
            entry[0] += size > 0
            entry[1] += max(0, size)
            entry[2] += max(0, -size)
            entry[3] += size
        ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
        return ResultTable(
            name=TABLE,
            title="Memory by operator, its own without those inside it",
            columns=_COLUMNS,
            rows=tuple((name, device, *entry) for (name, device), entry in ordered[:MOST_ROWS]),
        )


def _innermost(rows: RangeRows, numbers: Int64s, moments: Int64s) -> Int64s:
    """Of each moment the row, one of `numbers`, that was open last; -1 where none was."""
    order = numbers[np.lexsort((-rows.end[numbers], rows.start[numbers]))]
    starts, ends = rows.start[order].tolist(), rows.end[order].tolist()
    innermost = np.full(len(moments), -1, np.int64)
    open_rows: list[int] = []
    place = 0
    for index in np.argsort(moments, kind="stable").tolist():
        moment = int(moments[index])
        while place < len(starts) and starts[place] <= moment:
            while open_rows and ends[open_rows[-1]] <= starts[place]:
                open_rows.pop()
            open_rows.append(place)
            place += 1
        while open_rows and ends[open_rows[-1]] < moment:
            open_rows.pop()
        if open_rows:
            innermost[index] = order[open_rows[-1]]
    return innermost


_COLUMNS = (
    ResultColumn(name="operator", help="or annotation, by its name"),
    ResultColumn(name="memory", help="of the CPU or a GPU"),
    ResultColumn(name="allocations", help="how many"),
    ResultColumn(name="allocated_bytes", unit="bytes", help="all of them together"),
    ResultColumn(name="freed_bytes", unit="bytes", help="released in it"),
    ResultColumn(name="net_bytes", unit="bytes", help="the profiler's self memory usage"),
)
