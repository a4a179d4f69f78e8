"""The events of a Chrome trace as columns, read a portion of the file at a time, and the records of
the capture library that they stand for. For `kineto`, which makes a session of them.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, join
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
    """An event without its arguments, which may not be those of Kineto. Times are in µs, exact to
    their last digit."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: _Number = None
    tid: _Number = None
    ts: Decimal | None = None
    dur: Decimal | None = None


class TraceEvent(_Bare, gc=False):
    args: Arguments = NO_ARGUMENTS


_event_list = json_decoder(list[TraceEvent])

_single_event = json_decoder(TraceEvent)

_bare = json_decoder(_Bare)


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

    def __iter__(self) -> Iterator[list[TraceEvent]]:
        """Raises JournalError if there are no events."""
        before, held = self._find_events()
        ended = False
        while not ended:
            more = self._stream.read(PORTION_BYTES)
            held += more
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

    def _decoded(self, held: bytes, structure: _Structure) -> list[TraceEvent]:
        data = held[: structure.events_end].lstrip(_SPACES + b",")
        try:
            return _event_list.decode(b"[" + data + b"]")
        except (msgspec.DecodeError, RecursionError):
            pass
        events: list[TraceEvent] = []
        for start, end in structure.events:
            try:
                events.append(_decoded_alone(held[start:end]))
            except (msgspec.DecodeError, RecursionError):
                self.skipped += 1
        return events

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

_LATEST_US = Decimal(4_102_444_800_000_000)

_LONGEST_US = Decimal(1 << 50)

_NO_CALL = 0xFFFF_FFFF

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

    def add(self, events: list[TraceEvent]) -> None:
        """Add a portion of the events."""
        by_kind: dict[tuple[RecordKind, bool], list[TraceEvent]] = {}
        for event in events:
            if event.ph == "X":
                category = event.cat.lower()
                kind = _KINDS.get(category)
                if kind is not None:
                    by_kind.setdefault((kind, category == _DRIVER), []).append(event)
                elif category in OPERATORS or category in ANNOTATIONS:
                    self._add_range(event)
            elif event.ph == "i":
                if event.name == _MEMORY:
                    self._add_memory(event)
            elif event.ph == "M":
                self._describe(event)
        for (kind, is_driver), of_kind in by_kind.items():
            room = max(0, MAX_EVENTS - self._kept)
            self.skipped += max(0, len(of_kind) - room)
            if of_kind := of_kind[:room]:
                self._kept += len(of_kind)
                self._records.append(self._as_records(kind, is_driver, of_kind))

    @property
    def records(self) -> Slots:
        """Calls and operations, in order of time; calls before what begins at once."""
        records = join(self._records, SLOT)
        self._records = []
        order = np.lexsort((records["kind"] != RecordKind.API, records["start"]))
        ordered: Slots = records[order]
        return ordered

    @property
    def ranges(self) -> RangeEvents:
        """The ranges of annotations and operators."""
        return self._ranges

    # --- events

    def _add_range(self, event: TraceEvent) -> None:
        if self._kept >= MAX_EVENTS:
            self.skipped += 1
            return
        self._kept += 1
        start = ns(event.ts)
        name, payload = event.name, None
        if name.startswith(PROFILER_STEP) and (step := _STEP.fullmatch(name)):
            # One phase of all steps, with its number as the payload.
            name, payload = PROFILER_STEP, int(step[1])
        self.pids[number(event.pid)] += 1
        self._ranges.add(
            start,
            start + duration_ns(event.dur),
            number(event.tid) & THREAD,
            self.texts.of_text(name),
            payload,
            self._operator if event.cat.lower() in OPERATORS else 0,
        )

    def _add_memory(self, event: TraceEvent) -> None:
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

    def _describe(self, event: TraceEvent) -> None:
        name = event.args.name
        if name is None or len(self.thread_names) + len(self.commands) >= MAX_THREAD_NAMES:
            return
        if event.name == "thread_name" and number(event.pid) != 0:
            named = _THREAD.fullmatch(name)
            self.thread_names[number(event.tid) & THREAD] = sanitize(named[1] if named else name)
        elif event.name == "process_name":
            self.commands[number(event.pid)] = sanitize(name, 500)

    # --- records

    def _as_records(self, kind: RecordKind, is_driver: bool, events: list[TraceEvent]) -> Slots:
        records = np.zeros(len(events), SLOT)
        records["kind"] = kind
        starts = _column(events, lambda event: ns(event.ts))
        records["start"] = starts
        records["end"] = starts + _column(events, lambda event: duration_ns(event.dur))
        is_call = kind == RecordKind.API
        records["b"] = is_call  # what a call returned is not in such a trace
        missing = 0 if is_call else _NO_CALL
        records["correlation"] = _column(
            events,
            lambda event: missing
            if event.args.correlation is None
            else event.args.correlation & _U32,
        )
        if is_call:
            records["thread"] = _column(events, lambda event: number(event.tid) & THREAD)
            records["name"] = _column(events, lambda event: self.texts.of_text(event.name))
            records["sub"] = is_driver
            self.pids.update(number(event.pid) for event in events)
            return records
        records["a"] = np.clip(_column(events, _device), 0, 255)
        records["b"] = _column(events, lambda event: number(_or(event.args.stream, event.tid)))
        records["c"] = _column(events, lambda event: number(event.args.context))
        if kind == RecordKind.KERNEL:
            records["name"] = _column(events, lambda event: self.texts.of_text(event.name))
            shapes = np.array([_shape(event.args) for event in events], np.int64)
            records["d"] = self.shapes.number_shapes(records["name"], shapes)
            return records
        records["value"] = _column(events, lambda event: amount(event.args.bytes))
        kinds = np.array([_memory_kinds(event.name) for event in events], np.int64)
        records["sub"], records["source_kind"] = kinds[:, 0], kinds[:, 1]
        records["destination_kind"] = kinds[:, 2]
        return records


class RangeEvents:
    """Ranges with both ends, as columns that grow."""

    def __init__(self) -> None:
        self._columns = [array("q") for _ in range(7)]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(
        self,
        start: int,
        end: int,
        thread: int,
        name: int,
        payload: int | None,
        category: int,
    ) -> None:
        """Add one; `payload` is None if it has none, `category` the number of its text or 0."""
        values = (start, end, thread, name, 0 if payload is None else payload,
                  NO_PAYLOAD if payload is None else PayloadType.INT64, category)  # fmt: skip
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def columns(self) -> tuple[Int64s, ...]:
        """Start, end, thread, name, payload and its type, category."""
        return tuple(np.frombuffer(column, np.int64) if column else np.empty(0, np.int64)
                     for column in self._columns)  # fmt: skip


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


def ns(time_us: Decimal | None, most_us: Decimal = _LATEST_US) -> int:
    """A time of the trace in ns; whatever is no time becomes 0."""
    return int(time_us * 1000) if time_us is not None and 0 <= time_us <= most_us else 0


def duration_ns(time_us: Decimal | None) -> int:
    return ns(time_us, _LONGEST_US)


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


def _column(events: list[TraceEvent], value: Callable[[TraceEvent], int]) -> Int64s:
    return np.fromiter(map(value, events), np.int64, len(events))


def _or(value: float | str | None, other: float | str | None) -> float | str | None:
    return other if value is None else value


def _device(event: TraceEvent) -> int:
    return number(_or(event.args.device, event.pid))


def _shape(arguments: Arguments) -> tuple[int, ...]:
    grid, block = arguments.grid, arguments.block
    if grid is None or block is None:
        return (0,) * 9
    shared_bytes = amount(arguments.shared_bytes)
    values = (*grid, *block, amount(arguments.registers), shared_bytes, 0)
    return tuple(min(max(0, value), _U32) for value in values)


def _memory_kinds(name: str) -> tuple[int, int, int]:
    """Copy kind, source and destination; of a memset only the destination."""
    if copy := _COPY.fullmatch(name):
        source, destination = (_MEMORY_KINDS.get(end or "", 0) for end in (copy[3], copy[4]))
        return _DIRECTIONS.get(copy[1] + copy[2], 0), source, destination
    if memset := _SET.fullmatch(name):
        return 0, 0, _MEMORY_KINDS.get(memset[1], 0)
    return 0, 0, 0
