"""The raw trace beside a recording, `NAME.gputui-trace`: every range, call and GPU operation.

A head page, names of calls, then records of 64 bytes. Records form a ring: when the file is full
the oldest are overwritten. `reserved` is raised before records are written and `written` after, so
that a reader of a file whose writer was killed knows which records may be torn: valid are those
from `reserved - capacity` to `written`. Records come in the order in which they were attributed,
which is that of time only roughly.
"""

from __future__ import annotations

import enum
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.base import JournalError, name_taken, reason
from gputui.base.sanitize import sanitize
from gputui.model.events import ReferredTo, StepLanes, StepOperations
from gputui.store import open_regular

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.void]

MAGIC = b"GPUTRACE"
VERSION = 3
"""The file's layout; any other is refused."""

# A power of two, so that records never straddle pages of the mapping.
RECORD_BYTES = 64
NAMES_AT = 4096
NAMES_BYTES = 256 << 10
"""Room for the names of CUDA calls, one per line, numbered from 1."""

RECORDS_AT = NAMES_AT + NAMES_BYTES + (192 << 10)
"""Between names and records lies room where earlier versions had an index."""

HEAD = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("record_bytes", "<u4"), ("capacity", "<u8"),
     ("reserved", "<u8"), ("written", "<u8"), ("names_bytes", "<u8")]
)  # fmt: skip


class TraceKind(enum.IntEnum):
    """The kinds of records. The numbers of processes, ranges and kernels in them are those of the
    recording."""

    RANGE = 1
    """An instance of `range`: its time on the CPU. `thread` is set if a thread ended it that had
    not begun it; `sub` is 1 if the program never ended it. `bytes` is the payload if `source_kind`
    is its type (model.events.PayloadType); 0 is no type."""
    PROJECTION = 2
    """Where an instance of `range` lay on the GPU: from the first start to the last end of what it
    launched."""
    CALL = 3
    """A CUDA call of `thread` in `range`. `name` is the number of the call's name in this file.
    `bytes` is what the call returned if `sub` is 1; otherwise that is not known."""
    KERNEL = 4
    """A kernel. `name` is its number, `bytes` the number of its launch shape (0 unknown), `range`
    the range that launched it. For kernels, copies and memsets of a CUDA graph, `thread` is the
    number of the range that stands for where they were captured, as in KernelDelta."""
    COPY = 5
    """`bytes`, `sub` CUPTI's kind of copy, `source_kind` and `destination_kind` of memory."""
    SET = 6
    """`bytes` and `destination_kind`."""
    GRAPH = 7
    """A whole graph launch; `name` is the number of the kernel that represents it."""
    MARK = 8
    """An instant of `thread`; `name` is the number of its definition, payload as for a range."""


TRACE = np.dtype(
    [("start", "<i8"), ("end", "<i8"), ("bytes", "<u8"), ("kind", "u1"), ("inherited", "u1"),
     ("source_kind", "u1"), ("destination_kind", "u1"), ("process", "<u4"), ("range", "<u4"),
     ("name", "<u4"), ("correlation", "<u4"), ("thread", "<u4"), ("stream", "<u4"),
     ("context", "<u4"), ("device", "<u2"), ("sub", "<u2"), ("graph", "<u4")]
)  # fmt: skip
"""One record. `inherited` as in KernelDelta; `correlation` links a call to its operations."""

assert TRACE.itemsize == RECORD_BYTES

# 4 MiB at a time, which is all that a reader of a trace of 4 GiB holds.
PORTION = 1 << 16


class TraceReader:
    """The records of one trace. `dropped` counts overwritten ones. A trace that is being written
    is read as it was when it was opened here.

    Raises JournalError, one line, if the file is not a trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                start = file.read(NAMES_AT + NAMES_BYTES)
                size = file.seek(0, 2)
        except OSError as error:
            raise JournalError(f"cannot read {path}: {reason(error)}") from None
        head = np.frombuffer(start[: HEAD.itemsize].ljust(HEAD.itemsize, b"\0"), HEAD)[0]
        # A trace that nothing was written to has a whole head, and is an empty one.
        if head["magic"] != MAGIC or len(start) < HEAD.itemsize:
            raise JournalError(f"{path} is not a gputui trace")
        if head["version"] != VERSION or head["record_bytes"] != RECORD_BYTES:
            raise JournalError(
                f"{path} was traced by another version of gputui (layout {head['version']}, this "
                f"one reads {VERSION}); record it again"
            )
        there = max(0, size - RECORDS_AT) // RECORD_BYTES
        self._there = there
        self._capacity = max(1, int(head["capacity"]))
        written, reserved = int(head["written"]), int(head["reserved"])
        self.dropped = max(0, reserved - self._capacity)
        self._first = self.dropped
        # A forged head may claim more than the file holds.
        self._last = min(written, self._first + there)
        names = start[NAMES_AT : NAMES_AT + min(int(head["names_bytes"]), NAMES_BYTES)]
        self.call_names = {
            number: sanitize(line.decode("utf-8", "replace"), 500)
            for number, line in enumerate(names.split(b"\n")[:-1], 1)
        }
        self.call_names[0] = "(other calls)"

    def __len__(self) -> int:
        return max(0, self._last - self._first)

    def portions(self) -> Iterator[Slots]:
        """The records (layout.TRACE), oldest first, as read-only arrays of at most PORTION rows."""
        if not len(self):
            return
        capacity = min(self._capacity, self._there)
        row = self._first
        while row < self._last:
            place = row % self._capacity
            if place >= capacity:
                return
            count = min(PORTION, self._last - row, capacity - place)
            # Read, not mapped: a trace that is cut meanwhile ended gputui with SIGBUS.
            records = self._read(place, count)
            yield records
            if len(records) < count:
                return
            row += count

    def _read(self, place: int, count: int) -> Slots:
        """Reads this many records from a place in the ring on; fewer if the file has become
        shorter. The file is read and not mapped: if a mapped file is cut meanwhile, SIGBUS ends the
        program."""
        try:
            with self.path.open("rb") as file:
                file.seek(RECORDS_AT + place * RECORD_BYTES)
                data = file.read(count * RECORD_BYTES)
        except OSError:  # gone meanwhile
            data = b""
        return np.frombuffer(data[: len(data) // RECORD_BYTES * RECORD_BYTES], TRACE)


LEAST_LIMIT = 1 << 20
"""A smaller trace could hardly hold a step; a tiny one has no room for a record."""


class TraceWriter:
    """Appends records; beyond its limit the oldest are overwritten. Any thread may write.

    If writing fails, `failure` says so and writing ends.
    """

    is_open = True
    """Records are always wanted."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Open `path`, which must not exist. The file takes at most `limit_bytes`, at least
        LEAST_LIMIT. Raises JournalError.
        """
        self.path = path
        self.limit_bytes = limit_bytes
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._names_end = 0
        self._reserved = 0
        self._written = 0
        # The head counts too: a file of 1 MiB was once larger than its limit by its head.
        self._capacity = (limit_bytes - RECORDS_AT) // RECORD_BYTES
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file: int | None = os.open(path, flags, 0o600)
            self._head()
        except FileExistsError:
            raise JournalError(name_taken(path)) from None
        except OSError as error:
            raise JournalError(f"cannot write {path}: {reason(error)}") from None

    @property
    def bytes_written(self) -> int:
        """The trace's size on disk: names and records, overwritten or not."""
        return RECORDS_AT + min(self._written, self._capacity) * RECORD_BYTES

    @property
    def dropped(self) -> int:
        """How many records were overwritten, the ring being full."""
        return max(0, self._written - self._capacity)

    def name(self, text: str) -> int:
        """The number of a call's name; 0 if there is no more room for names."""
        with self._lock:
            number = self._names.get(text)
            if number is None:
                line = text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n"
                if self._names_end + len(line) > NAMES_BYTES:
                    return 0
                self._pwrite(line, NAMES_AT + self._names_end)
                self._names_end += len(line)
                number = self._names[text] = len(self._names) + 1
                self._head()
            return number

    def append(self, records: Slots) -> None:
        """Append `records` (layout.TRACE); the oldest give way when the file is full."""
        with self._lock:
            for start in range(0, len(records), self._capacity):
                self._append(records[start : start + self._capacity])

    def close(self) -> None:
        """Close the file; may be called more than once."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def discard(self) -> None:
        """Close and remove the file, because its recording did not begin."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _append(self, records: Slots) -> None:
        # Before the records: whoever opens the file meanwhile knows which old ones may be half
        # overwritten.
        self._reserved += len(records)
        self._head()
        row = self._written % self._capacity
        first = min(len(records), self._capacity - row)
        self._pwrite(records[:first].tobytes(), RECORDS_AT + row * RECORD_BYTES)
        if first < len(records):
            self._pwrite(records[first:].tobytes(), RECORDS_AT)
        self._written = self._reserved
        self._head()

    def _head(self) -> None:
        head = np.array(
            (MAGIC, VERSION, RECORD_BYTES, self._capacity, self._reserved, self._written,
             self._names_end), HEAD,
        )  # fmt: skip
        self._pwrite(head.tobytes(), 0)

    def _pwrite(self, data: bytes, offset: int) -> None:
        if self._file is None:
            return
        try:
            while data:
                count = os.pwrite(self._file, data, offset)
                data, offset = data[count:], offset + count
        except OSError as error:
            os.close(self._file)
            self._file = None
            self.failure = f"the trace {self.path} stopped: {reason(error)}"


# --- Single operations of a kept step, packed small enough for a journal, and as records of a
# trace.
#
# A row is 46 bytes (`_ROW`). Those of one step are alike byte by byte rather than row by row, so
# the first bytes of all rows come first, then the second ones: zlib makes 5 to 9 bytes of a row.

_ROW = np.dtype(
    [("start", "<i8"), ("duration", "<u8"), ("bytes", "<u8"), ("correlation", "<u4"),
     ("thread", "<u4"), ("stream", "<u4"), ("range", "<u2"), ("name", "<u2"), ("device", "<u2"),
     ("sub", "<u1"), ("kind", "<u1"), ("destination_kind", "<u1"), ("source_kind", "<u1")]
)  # fmt: skip
"""A row of `StepOperations.packed`. `start` is the time since the start of the row before; for the
first row, since the step's start. `range`, `name` of calls and kernels, and `bytes` of kernels are
places in `refers`, 0 for none. `bytes` of copies and `thread` of calls are the values themselves.
Everything else is as in a trace."""

_SAME = ("correlation", "stream", "device", "sub", "kind", "destination_kind", "source_kind")
_MEMORY = (TraceKind.COPY, TraceKind.SET)

_LATEST_NS = 4_102_444_800_000_000_000
"""The latest moment in a recording; later times, as in hostile files, are set to it."""


def pack(step: StepLanes, records: Slots, call_names: Mapping[int, str],
         left_out: int) -> StepOperations:  # fmt: skip
    """A step's records (gputui.store.trace.TRACE) as an event, in the order of their starts."""
    records = records[np.argsort(records["start"], kind="stable")]
    rows = np.zeros(len(records), _ROW)
    for name in _SAME:
        rows[name] = records[name]
    starts = records["start"]
    rows["start"] = np.diff(starts, prepend=step.start_ns)
    rows["duration"] = np.maximum(0, records["end"] - starts)
    refers: list[ReferredTo] = []

    def refer(column: str, chosen: npt.NDArray[np.bool_], numbers: Any,
              made: Callable[[int], ReferredTo]) -> None:  # fmt: skip
        every, places = np.unique(numbers[chosen], return_inverse=True)
        given = np.zeros(len(every), np.uint16)
        for place, number in enumerate(every.tolist()):
            if number and len(refers) < 0xFFFF:
                refers.append(made(number))
                given[place] = len(refers)
        rows[column][chosen] = given[places.reshape(-1)]

    kinds = records["kind"]
    is_kernel = np.isin(kinds, (TraceKind.KERNEL, TraceKind.GRAPH))
    is_call, is_memory = kinds == TraceKind.CALL, np.isin(kinds, _MEMORY)
    rows["bytes"][is_memory] = records["bytes"][is_memory]
    rows["thread"][is_call] = records["thread"][is_call]
    everything = np.ones(len(records), np.bool_)
    refer("range", everything, records["range"], lambda number: ReferredTo(range=number))
    refer("name", is_kernel, records["name"], lambda number: ReferredTo(kernel=number))
    refer("bytes", is_kernel, records["bytes"], lambda number: ReferredTo(shape=number))
    refer("name", is_call, records["name"],
          lambda number: ReferredTo(call=call_names.get(number, "?")[:200]))  # fmt: skip
    by_byte = rows.view(np.uint8).reshape(len(rows), _ROW.itemsize).T
    return StepOperations(
        time_ns=step.time_ns,
        process=step.process,
        start_ns=step.start_ns,
        duration_ns=step.duration_ns,
        records=len(rows),
        left_out=left_out,
        refers=tuple(refers),
        packed=zlib.compress(by_byte.tobytes(), 6),
    )


class KeptTrace:
    """Kept steps as a reader of a trace gives them. Recordings are untrusted: a step that is not as
    `pack` makes it is not read."""

    def __init__(self, steps: Sequence[StepOperations]) -> None:
        self.call_names: dict[int, str] = {}
        of_steps = [self._unpacked(step) for step in steps]
        every = np.concatenate([np.zeros(0, TRACE), *of_steps])
        # A call that launched operations of two steps was kept with both.
        self._records = np.unique(every) if len(of_steps) > 1 else every

    def __len__(self) -> int:
        return len(self._records)

    def portions(self) -> Iterator[Slots]:
        """The records of all steps together; they are few compared with a trace."""
        yield self._records

    def _unpacked(self, step: StepOperations) -> Slots:
        size = step.records * _ROW.itemsize
        try:
            unpacked = zlib.decompressobj().decompress(step.packed, size + 1)
        except zlib.error:
            return np.zeros(0, TRACE)
        if len(unpacked) != size:
            return np.zeros(0, TRACE)
        by_byte = np.frombuffer(unpacked, np.uint8).reshape(_ROW.itemsize, step.records)
        rows = np.ascontiguousarray(by_byte.T).view(_ROW).reshape(-1)
        records = np.zeros(len(rows), TRACE)
        for name in (*_SAME, "bytes", "thread"):
            records[name] = rows[name]
        steps = np.clip(rows["start"], -(_LATEST_NS >> 16), _LATEST_NS >> 16)
        starts = np.clip(step.start_ns + np.cumsum(steps), 1, _LATEST_NS)
        records["start"] = starts
        records["end"] = starts + np.minimum(rows["duration"], _LATEST_NS).astype(np.int64)
        records["process"] = step.process
        names = self._call_numbers(step)
        kinds = rows["kind"]
        is_kernel = np.isin(kinds, (TraceKind.KERNEL, TraceKind.GRAPH))
        for column, chosen, numbers in (
            ("range", np.ones(len(rows), np.bool_), [each.range for each in step.refers]),
            ("name", is_kernel, [each.kernel for each in step.refers]),
            ("bytes", is_kernel, [each.shape for each in step.refers]),
            ("name", kinds == TraceKind.CALL, names),
        ):
            # Numbers are the session's; those of a hostile file may be any.
            table = np.array([0, *((number or 0) & 0xFFFFFFFF for number in numbers)], np.int64)
            places = rows[column][chosen].astype(np.int64)
            records[column][chosen] = table[np.where(places < len(table), places, 0)]
        return records

    def _call_numbers(self, step: StepOperations) -> list[int | None]:
        """The number of each call's name in `call_names`, in the order of `refers`."""
        numbers: list[int | None] = []
        given = {name: number for number, name in self.call_names.items()}
        for each in step.refers:
            if each.call is not None and each.call not in given:
                given[each.call] = len(given) + 1
                self.call_names[len(given)] = each.call
            numbers.append(None if each.call is None else given[each.call])
        return numbers
