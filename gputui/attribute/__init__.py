"""Records of a traced process become ranges, kernels, idle time and its causes. The way in is
`reader.CaptureReader`.

This module holds what the whole package shares of records: as they come from a ring or a file,
separated by use, with their strings; and operations as columns. Arrays and intervals: `arrays`.

Nothing here remembers earlier batches: each collector joins what belongs together across batches in
its own module.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, UInt32s, pick, times_ns
from gputui.base.sanitize import sanitize
from gputui.model.naming import NO_NAME, UNIFIED_COPIES
from gputui.ring import FLAG_COLORED, RecordKind

# The records of a batch, separated by use.


class RecordsByUse(NamedTuple):
    """The records of each use, in order of arrival; beside each use, the kinds of its records."""

    ranges: Annotated[Slots, RecordKind.RANGE_PUSH, RecordKind.RANGE_POP]
    start_ends: Annotated[Slots, RecordKind.RANGE_START, RecordKind.RANGE_END]
    marks: Annotated[Slots, RecordKind.MARK]
    operations: Annotated[
        Slots, RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.GRAPH
    ]
    calls: Annotated[Slots, RecordKind.API]
    flushes: Annotated[Slots, RecordKind.FLUSH]
    shapes: Annotated[Slots, RecordKind.LAUNCH_SHAPE]
    threads: Annotated[Slots, RecordKind.THREAD_NAME]
    resources: Annotated[Slots, RecordKind.RESOURCE_NAME]
    devices: Annotated[Slots, RecordKind.DEVICE]
    refused: Annotated[Slots, RecordKind.REFUSED]
    graphs: Annotated[Slots, RecordKind.GRAPH_PART]
    windows: Annotated[Slots, RecordKind.WINDOW]
    lost: Annotated[Slots, RecordKind.LOST]
    steps: Annotated[Slots, RecordKind.STEP]
    others: Slots
    """Records unknown to this gputui, or not needed."""


# NumPy compares with an enum three times as slowly.
_KERNEL, _MEMCPY, _GRAPH = map(int, (RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.GRAPH))

_USES = np.full(256, RecordsByUse._fields.index("others"), np.uint8)
for _number, _use in enumerate(get_type_hints(RecordsByUse, include_extras=True).values()):
    _USES[list(getattr(_use, "__metadata__", ()))] = _number


def separate_by_use(records: Slots) -> RecordsByUse:
    """A batch of records of any kind, separated by what takes them in."""
    uses = _USES[records["kind"]]
    records = pick(records, np.argsort(uses, kind="stable"))
    ends = np.cumsum(np.bincount(uses, minlength=len(RecordsByUse._fields)))
    return RecordsByUse(*np.split(records, ends[:-1]))


def are_kernels(records: Slots) -> Bools:
    """Which operations are kernels or graph launches."""
    kinds = records["kind"]
    are: Bools = (kinds == _KERNEL) | (kinds == _GRAPH)
    return are


def move_by_themselves(records: Slots) -> Bools:
    """Which operations are copies of unified memory, which no call launches."""
    moves: Bools = (records["kind"] == _MEMCPY) & (records["sub"] >= UNIFIED_COPIES)
    return moves


# --- The strings a process defined, by the ids its records use.

# Strings are kept for the life of a process: a program that makes names without end must not fill
# the reader's memory.
MAX_STRINGS = 500_000
MAX_CHARACTERS = 64_000_000
"""Strings kept per process, and their total length."""

# Names of domains, categories and threads: longer ones do not fit any table.
MAX_LABEL = 256

NO_STRING = 0

LOST_NAME = "(name lost)"
"""Stands for a string that never arrived (the ring was full) or exceeded the limit."""


class Attributes(NamedTuple):
    """The attributes of a range or mark. `category_id` is the program's number of the category,
    which may have no name.
    """

    name: str
    color: int | None = None
    category: str | None = None
    category_id: int | None = None


class Strings:
    """Id → text: NO_NAME for the empty one, LOST_NAME for a lost one."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._room = MAX_CHARACTERS

    def add(self, texts: dict[int, str]) -> None:
        """Add the strings a batch defined."""
        for number, text in texts.items():
            if len(self._texts) < MAX_STRINGS and len(text) <= self._room:
                self._room -= len(text)
                self._texts[number] = text

    def raw(self, number: int) -> str:
        """The text as the process wrote it."""
        return self._texts.get(number, LOST_NAME if number != NO_STRING else NO_NAME)

    def label(self, number: int) -> str:
        """The text sanitized, and cut to what a table can show."""
        return sanitize(self.raw(number), MAX_LABEL)

    def number(self, label: str) -> int:
        """The first id of a label; NO_STRING if there is none."""
        matches = (number for number in self._texts if self.label(number) == label)
        return next(matches, NO_STRING)

    def domain(self, number: int) -> str:
        """The name of a domain; id 0 is the default domain, whose name is empty."""
        return self.label(number) if number != NO_STRING else ""

    def range_attributes(self, record: np.void) -> Attributes:
        """The attributes in the record of a range or mark."""
        colored = int(record["sub"]) & FLAG_COLORED
        category = int(record["b"])
        return Attributes(
            self.label(int(record["name"])),
            int(record["c"]) & 0xFFFFFF if colored else None,
            self.label(category) if category != NO_STRING else None,
            int(record["e"]) or None,
        )


# --- Operations with their calls as columns: records are wide, and each fact is read of them once.

NO_KERNEL = -1
"""The kernel of an operation that is none."""

MAX_DEVICE = 255
"""Higher device numbers are clamped to this."""


class TimedOperations(NamedTuple):
    """Operations as columns.

    `kernels` has the number of a kernel, or of a graph that was recorded as a whole, and NO_KERNEL
    for other operations. `first` marks the operations that were the first of their call.
    `called_ns` and `returned_ns` are when the call began and ended, `threads` its thread; these are
    NO_CALL's where the call is not known. `nodes` are the ranges in which the operations count.
    """

    starts: Int64s
    ends: Int64s
    devices: Int64s
    streams: UInt32s
    kernels: Int64s
    first: Bools
    called_ns: Int64s
    returned_ns: Int64s
    threads: UInt32s
    nodes: Int64s

    def pick(self, rows: Int64s) -> TimedOperations:
        """The operations of these row numbers."""
        return TimedOperations._make(column.take(rows) for column in self)


def timed_operations(
    records: Slots, calls: Slots, kernels: Int64s, first: Bools
) -> TimedOperations:
    """The columns of records and of their calls, in whose ranges they count."""
    starts = times_ns(records["start"])
    return TimedOperations(
        starts,
        np.maximum(starts, times_ns(records["end"])),
        np.minimum(records["a"], MAX_DEVICE).astype(np.int64),
        records["b"].copy(),
        kernels,
        first,
        calls["start"].copy(),
        calls["end"].copy(),
        calls["thread"].copy(),
        calls["node"].astype(np.int64),
    )


class LaunchedOperations(NamedTuple):
    """Operations with the range that launched each, sorted by start.

    `nodes` and `instances` are the ones an operation counts in: the main thread's where its own has
    none.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    nodes: Int64s
    instances: Int64s


ORIGIN_BITS = 16
"""Bits of an origin for its stream's number; the launching thread is above. Streams that are
counted and one for each device's others fit."""

STREAM = (1 << ORIGIN_BITS) - 1
"""The bits of an origin that number its stream, of whatever device."""


class Ran(NamedTuple):
    """Operations with where they ran, sorted by start. `origins` hold stream and launching thread,
    0 if that is unknown, for `Streams`.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    devices: Int64s
    origins: Int64s
