"""The events of a Chrome trace as columns, read a portion of the file at a time, and the records of
the capture library that they stand for. For `kineto`, which makes a session of them.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Integers, Slots, join
from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.imports.kineto_memory import OperatorMemory
from gputui.imports.reading import THREAD, LaunchShapes, Texts
from gputui.model.naming import OPERATOR_CATEGORY, PROFILER_STEP
from gputui.model.payloads import NO_PAYLOAD, PayloadType
from gputui.ring.layout import SLOT, RecordKind
from gputui.store.journal import JournalError

# The events of a Chrome trace, a portion of the file at a time.
#
# The file is either an object with an array `traceEvents` or that array; it can be larger than
# memory. Where events begin and end is found by counting quotes and brackets, many bytes at once.

PORTION_BYTES = 1 << 20

EVENT_BYTES = 32 << 20
"""The longest event; stacks and shapes come nowhere near it."""

BESIDE_BYTES = 32 << 20
"""The most that stands beside the events."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')

_SPACES = b" \t\r\n"

_BETWEEN = re.compile(rb'(\})\s*,\s*\{\s*"ph"')
"""The end of an event that another one follows, as Kineto writes them: no text holds such quotes.
If it stands within an event after all, what is before it does not decode. Finding every bracket
took a fifth of the time of reading."""

_LAST_BYTES = 1 << 12
"""The last bytes of a portion in which that is looked for."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")

_CHANGES = np.zeros(256, np.int8)

_CHANGES[[ord("{"), ord("[")]] = 1

_CHANGES[[ord("}"), ord("]")]] = -1

_MATTERS = _CHANGES != 0

_MATTERS[_QUOTE] = True

_Number = int | float | str | None

_Triple = tuple[int, int, int]


class Arguments(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "registers": "registers per thread", "shared_bytes": "shared memory",
        "allocated": "Total Allocated", "reserved": "Total Reserved",
        "memory_device": "Device Id", "memory_type": "Device Type", "memory_bytes": "Bytes",
    },
):  # fmt: skip
    """What is read of an event's arguments."""

    device: _Number = None
    context: _Number = None
    stream: _Number = None
    correlation: int | None = None
    bytes: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    grid: _Triple | None = None
    block: _Triple | None = None
    allocated: int | None = None
    reserved: int | None = None
    memory_device: int | None = None
    memory_type: int | None = None
    memory_bytes: int | None = None
    name: str | None = None


NO_ARGUMENTS = Arguments()


class _Bare(msgspec.Struct, gc=False):
    """An event without its arguments, which may not be those of Kineto. Times are in µs; beyond
    _PRECISE_US, where a float does not hold their last digit, they are Decimals."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: _Number = None
    tid: _Number = None
    ts: Any = None
    dur: Any = None


class _Quick(_Bare, gc=False):
    ts: float | None = None
    dur: float | None = None
    args: Arguments = NO_ARGUMENTS


class TraceEvent(_Bare, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: Arguments = NO_ARGUMENTS


class _BareExact(_Bare, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


_PRECISE_US = float(1 << 33)
"""2.4 hours: up to here the last digit of a time, a ns, is well above what a float rounds."""

_quick_list = json_decoder(list[_Quick])

_event_list = json_decoder(list[TraceEvent])

_single_event = json_decoder(TraceEvent)

_bare = json_decoder(_BareExact)


AnyTraceEvent = _Quick | TraceEvent


class TraceGpu(msgspec.Struct, gc=False):
    """A device that the trace lists in `deviceProperties`, with its sizes in bytes."""

    id: int = 0
    name: str = "unknown GPU"
    memory_bytes: int | None = msgspec.field(default=None, name="totalGlobalMem")
    major: int | None = msgspec.field(default=None, name="computeMajor")
    minor: int | None = msgspec.field(default=None, name="computeMinor")
    sm_count: int | None = msgspec.field(default=None, name="numSms")


class Distributed(msgspec.Struct, gc=False):
    """The process's place among its kind."""

    rank: int | None = None


class TraceFacts(msgspec.Struct, gc=False):
    """What stands beside the events."""

    gpus: list[TraceGpu] = msgspec.field(default_factory=list, name="deviceProperties")
    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    host: str | None = msgspec.field(default=None, name="host_name")
    driver: int | None = msgspec.field(default=None, name="cuda_driver_version")


class TraceEvents:
    """Yields the events. `beside` is complete after the last; `skipped` counts what is no event,
    `damage` says why reading ended early.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.beside = TraceFacts()
        self.skipped = 0
        self.damage: str | None = None
        self._stream = stream
        self._is_late = False
        """Whether times are too large for floats."""

    def __iter__(self) -> Iterator[Sequence[AnyTraceEvent]]:
        """Raises JournalError if there are no events."""
        before, held = self._find_events()
        ended = False
        while not ended:
            more = self._stream.read(PORTION_BYTES)
            held += more
            # Cut where two events are easily distinguished; brackets are counted only where that
            # fails.
            if more and (between := _BETWEEN.search(held, max(0, len(held) - _LAST_BYTES))):
                events = self._decoded_whole(held[: between.end(1)])
                if events is not None:
                    yield events
                    held = held[between.end(1) :]
                    continue
            structure = _structure(held)
            if structure.events_end:
                yield self._decoded(held, structure)
            ended = structure.array_ends
            held = held[structure.events_end :]
            if not more and not ended:
                self.damage = "it is cut off; read until there"
                return
            if len(held) > EVENT_BYTES:
                self.damage = f"an event is longer than {EVENT_BYTES >> 20} MiB; read until there"
                return
        if before.lstrip(_SPACES).startswith(b"{"):
            after = held[held.index(b"]") :] + self._stream.read(BESIDE_BYTES)
            self._keep(before + after)

    def _find_events(self) -> tuple[bytes, bytes]:
        """What stands before the events, up to the bracket that opens them, and what was read
        after that."""
        held = b""
        while True:
            more = self._stream.read(PORTION_BYTES)
            held += more
            begin = held.lstrip(_SPACES)
            if begin.startswith(b"["):
                return b"[", begin[1:]
            if match := _EVENTS.search(held):
                return held[: match.end()], held[match.end() :]
            if not more or len(held) > BESIDE_BYTES or (begin and not begin.startswith(b"{")):
                raise JournalError("it has no traceEvents")

    def _decoded(self, held: bytes, structure: _Structure) -> Sequence[AnyTraceEvent]:
        whole = self._decoded_whole(held[: structure.events_end])
        if whole is not None:
            return whole
        events: list[TraceEvent] = []
        for start, end in structure.events:
            try:
                events.append(_decoded_alone(held[start:end]))
            except (msgspec.DecodeError, RecursionError):
                self.skipped += 1
        return events

    def _decoded_whole(self, data: bytes) -> Sequence[AnyTraceEvent] | None:
        """Events between commas; None if one of them is none."""
        data = data.lstrip(_SPACES + b",")
        try:
            if not self._is_late:
                quick = _quick_list.decode(b"[" + data + b"]")
                self._is_late = any((event.ts or 0) > _PRECISE_US for event in quick)
                if not self._is_late:
                    return quick
            return _event_list.decode(b"[" + data + b"]")
        except (msgspec.DecodeError, RecursionError):
            return None

    def _keep(self, document: bytes) -> None:
        """Read what stands beside the events, each part for itself."""
        try:
            fields = json_decoder(dict[str, msgspec.Raw]).decode(document)
        except (msgspec.DecodeError, RecursionError):
            self.damage = "what follows the events is not JSON"
            return
        for field in msgspec.structs.fields(TraceFacts):
            raw = fields.get(field.encode_name)
            if raw is not None:
                try:
                    value = json_decoder(field.type).decode(raw)
                except (msgspec.DecodeError, RecursionError):
                    self.skipped += 1
                else:
                    setattr(self.beside, field.name, value)


def _decoded_alone(data: bytes) -> TraceEvent:
    try:
        return _single_event.decode(data)
    except msgspec.ValidationError:
        bare = _bare.decode(data)
        return TraceEvent(*(getattr(bare, name) for name in bare.__struct_fields__))


class _Structure(NamedTuple):
    """Where events lie in a portion that begins between two of them."""

    starts: Int64s
    ends: Int64s
    array_ends: bool

    @property
    def events_end(self) -> int:
        """The end of the last whole event."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def events(self) -> Iterator[tuple[int, int]]:
        """Start and end of each whole event."""
        return zip(self.starts.tolist(), self.ends.tolist(), strict=False)


def _structure(data: bytes) -> _Structure:
    values = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(_MATTERS[values])
    kinds = values[places]
    quotes = kinds == _QUOTE
    quotes[quotes] = ~_escaped(values, places[quotes])
    inside = np.cumsum(quotes) & 1
    changes = _CHANGES[kinds]
    structural = (changes != 0) & (inside == 0)
    places, changes, kinds = places[structural], changes[structural], kinds[structural]
    depth = np.cumsum(changes, dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    array_ends = len(closing) > 0
    if array_ends:
        places, depth = places[: closing[0]], depth[: closing[0]]
        changes, kinds = changes[: closing[0]], kinds[: closing[0]]
    starts = places[(depth == 1) & (changes > 0)]
    ends = places[(depth == 0) & (changes < 0)] + 1
    return _Structure(starts, ends, array_ends)


def _escaped(values: np.ndarray[tuple[int], np.dtype[np.uint8]], quotes: Int64s) -> Bools:
    """Which quotes stand after an odd number of backslashes."""
    escaped = np.zeros(len(quotes), np.bool_)
    after = np.flatnonzero((quotes > 0) & (values[quotes - 1] == _BACKSLASH))
    if len(after):
        others = np.flatnonzero(values != _BACKSLASH)
        before = np.searchsorted(others, quotes[after]) - 1
        last = np.where(before >= 0, others[before], -1)
        escaped[after] = (quotes[after] - 1 - last) % 2 == 1
    return escaped


# The events of a trace as columns: records of the capture library, and ranges with both ends.

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
        self._records: list[Slots] = []
        self._ranges = RangeEvents()
        self._kept = 0
        self._numbers = _Kept(number)
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
                self._add_ranges(of_category, self._operator if category in OPERATORS else 0)
            else:
                self._records.append(self._as_records(kind, category == _DRIVER, of_category))

    def take_records(self) -> tuple[Slots, Int64s]:
        """Calls and operations as they came, and their order in time; calls before what begins at
        once. They are not copied in that order: they are most of what is held of a trace."""
        parts, self._records = self._records, []
        records = np.empty(sum(map(len, parts)), SLOT)
        last = len(records)
        while parts:
            part = parts.pop()
            records[last - len(part) : last] = part
            last -= len(part)
        return records, np.lexsort((records["kind"] != RecordKind.API, records["start"]))

    @property
    def ranges(self) -> RangeEvents:
        """The ranges of annotations and operators."""
        return self._ranges

    # --- events

    def _add_ranges(self, events: list[AnyTraceEvent], category: int) -> None:
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
        self._ranges.add(
            starts,
            starts + durations,
            _column([event.tid for event in events], self._numbers) & THREAD,
            _column(names, self._texts),
            payloads,
            kinds,
            np.full(count, category),
        )

    def _count_pids(self, events: list[AnyTraceEvent]) -> None:
        for pid, count in Counter([event.pid for event in events]).items():
            self.pids[number(pid)] += count

    def _add_memory(self, event: AnyTraceEvent) -> None:
        arguments = event.args
        if arguments.memory_bytes is not None and self._kept < MAX_EVENTS:
            self._kept += 1
            size = max(-MOST_BYTES, min(MOST_BYTES, arguments.memory_bytes))
            self.of_operators.add(
                ns(event.ts), number(event.tid) & THREAD, arguments.memory_type or 0, size
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
        if event.name == "thread_name" and number(event.pid) != 0:
            named = _THREAD.fullmatch(name)
            self.thread_names[number(event.tid) & THREAD] = sanitize(named[1] if named else name)
        elif event.name == "process_name":
            self.commands[number(event.pid)] = sanitize(name, 500)

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
        records["value"] = [amount(event.args.bytes) for event in events]
        kinds = np.array([_memory_kinds(event.name) for event in events], np.int64)
        records["sub"], records["source_kind"] = kinds[:, 0], kinds[:, 1]
        records["destination_kind"] = kinds[:, 2]
        return records


class RangeEvents:
    """Ranges with both ends, as columns that grow."""

    # Start, end, thread, name, payload and its type, category: texts and threads fit into 32 bits.
    _KINDS = (np.int64, np.int64, np.int32, np.int32, np.int64, np.int8, np.int32)

    def __init__(self) -> None:
        self._columns: list[list[Integers]] = [[] for _ in self._KINDS]

    def add(self, *columns: Int64s) -> None:
        """Add more: start, end, thread, name, payload and its type, and the number of the
        category's text or 0."""
        for parts, column, kind in zip(self._columns, columns, self._KINDS, strict=True):
            parts.append(column.astype(kind))

    def columns(self) -> tuple[Int64s, ...]:
        """Start, end, thread, name, payload and its type, category; of integers that may be
        narrower."""
        for parts, kind in zip(self._columns, self._KINDS, strict=True):
            parts[:] = [join(parts, kind)]
        return cast("tuple[Int64s, ...]", tuple(parts[0] for parts in self._columns))


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
        for column, value in zip(columns, (time, amount(allocated), amount(reserved)), strict=True):
            column.append(value)

    def devices(self) -> Iterator[tuple[int, Int64s, Int64s, Int64s]]:
        """Each device with times, bytes allocated and bytes reserved, in order of time."""
        for device, columns in sorted(self._columns.items()):
            times, allocated, reserved = (np.frombuffer(column, np.int64) for column in columns)
            order = np.argsort(times, kind="stable")
            yield device, times[order], allocated[order], reserved[order]


def ns(time_us: Decimal | float | None, most_us: int = _LATEST_US) -> int:
    """A time of the trace in ns; whatever is no time becomes 0."""
    if time_us is None or not 0 <= time_us <= most_us:
        return 0
    return int(time_us * 1000) if isinstance(time_us, Decimal) else int(_whole_ns(time_us))


_ROUNDED_NS = 1 / 128
"""More than a float of up to _PRECISE_US is from the digits that were written, in ns."""


def _whole_ns(times_us: Any) -> Any:
    """Whole ns of floats up to _PRECISE_US: what was written to the ns, else what it had begun."""
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


def amount(value: int | None) -> int:
    """A count of bytes, 0 where it makes no sense."""
    return value if value is not None and 0 <= value < 1 << 62 else 0


def number(value: float | str | None) -> int:
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
    grid: _Triple | None, block: _Triple | None, registers: int | None, shared_bytes: int | None
) -> tuple[int, ...]:
    if grid is None or block is None:
        return (0,) * 9
    values = (*grid, *block, amount(registers), amount(shared_bytes), 0)
    return tuple(min(max(0, value), _U32) for value in values)


def _memory_kinds(name: str) -> tuple[int, int, int]:
    """Copy kind, source and destination; of a memset only the destination."""
    if copy := _COPY.fullmatch(name):
        source, destination = (_MEMORY_KINDS.get(end or "", 0) for end in (copy[3], copy[4]))
        return _DIRECTIONS.get(copy[1] + copy[2], 0), source, destination
    if memset := _SET.fullmatch(name):
        return 0, 0, _MEMORY_KINDS.get(memset[1], 0)
    return 0, 0, 0
