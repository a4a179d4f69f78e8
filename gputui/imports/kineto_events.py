"""The events of a Chrome trace, a portion of the file at a time.

The file is either an object with an array `traceEvents` or that array; it can be larger than
memory. Where events begin and end is found by counting quotes and brackets, many bytes at once. For
`kineto_columns`, which makes columns of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from gputui.attribute.arrays import Bools, Int64s
from gputui.base import JournalError
from gputui.base.decoding import json_decoder

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
    PRECISE_US, where a float does not hold their last digit, they are Decimals."""

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


PRECISE_US = float(1 << 33)
"""2.4 hours: up to here the last digit of a time, a ns, is well above what a float rounds."""

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise. A text that is no UTF-8 is no DecodeError."""

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
        self.before = TraceFacts()
        """What of that stands before the events."""
        self.skipped = 0
        self.damage: str | None = None
        self._stream = stream
        self._is_late = False
        """Whether times are too large for floats."""

    def __iter__(self) -> Iterator[Sequence[AnyTraceEvent]]:
        """Raises JournalError if there are no events."""
        before, held = self._find_events()
        if (facts := _facts(before + b"]}")) is not None:
            self.before, _ = facts
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
            after = held[max(0, held.find(b"]")) :]  # the array may end in another bracket
            self._keep(before + after + self._stream.read(BESIDE_BYTES))

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
            except _UNDECODABLE:
                self.skipped += 1
        return events

    def _decoded_whole(self, data: bytes) -> Sequence[AnyTraceEvent] | None:
        """Events between commas; None if one of them is none."""
        data = data.lstrip(_SPACES + b",")
        try:
            if not self._is_late:
                quick = _quick_list.decode(b"[" + data + b"]")
                self._is_late = any((event.ts or 0) > PRECISE_US for event in quick)
                if not self._is_late:
                    return quick
            return _event_list.decode(b"[" + data + b"]")
        except _UNDECODABLE:
            return None

    def _keep(self, document: bytes) -> None:
        facts = _facts(document)
        if facts is None:
            self.damage = "what follows the events is not JSON"
            return
        self.beside, skipped = facts
        self.skipped += skipped


def _facts(document: bytes) -> tuple[TraceFacts, int] | None:
    """What stands beside the events, each part for itself, and how many are of another form; None
    if it is no JSON."""
    try:
        fields = json_decoder(dict[str, msgspec.Raw]).decode(document)
    except _UNDECODABLE:
        return None
    facts, skipped = TraceFacts(), 0
    for field in msgspec.structs.fields(TraceFacts):
        raw = fields.get(field.encode_name)
        if raw is not None:
            try:
                value = json_decoder(field.type).decode(raw)
            except _UNDECODABLE:
                skipped += 1
            else:
                setattr(facts, field.name, value)
    return facts, skipped


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
