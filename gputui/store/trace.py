"""The raw trace beside a recording, `NAME.gputui-trace`: every range, call and GPU operation.

A head page, names of calls, then records of 64 bytes. Records form a ring: when the file is full
the oldest are overwritten. `reserved` is raised before records are written and `written` after, so
that a reader of a file whose writer was killed knows which records may be torn: valid are those
from `reserved - capacity` to `written`.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gputui.base.sanitize import sanitize
from gputui.store.errors import JournalError, name_taken, reason
from gputui.store.places import open_regular

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.void]

MAGIC = b"GPUTRACE"
VERSION = 2
MARKS_SINCE = 2
"""The first version with marks, and with payloads."""

RECORD_BYTES = 64
NAMES_AT = 4096
NAMES_BYTES = 256 << 10
"""Room for the names of CUDA calls, one per line, numbered from 1."""

RECORDS_AT = NAMES_AT + NAMES_BYTES

HEAD = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("record_bytes", "<u4"), ("capacity", "<u8"),
     ("reserved", "<u8"), ("written", "<u8"), ("names_bytes", "<u8")]
)  # fmt: skip


class TraceKind(enum.IntEnum):
    """What a record is. Numbers of processes, ranges and kernels are those of the recording."""

    RANGE = 1
    """An instance of `range`: its time on the CPU. `thread` is set if another thread than the one
    that began it ended it; `sub` is 1 if the program never did. `bytes` is the payload if
    `source_kind` is its type (ring.layout.PayloadType); 0 is no type.
    """
    PROJECTION = 2
    """An instance of `range`: first start to last end of what it launched on the GPU."""
    CALL = 3
    """A CUDA call of `thread` in `range`; `name` numbers its name in this file."""
    KERNEL = 4
    """`name` is the kernel's number, `bytes` that of its launch shape (0 unknown); launched in
    `range`. Of a CUDA graph's kernels, copies and memsets `thread` is the number of the range that
    stands for where it was captured, as in KernelDelta.
    """
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


PORTION = 1 << 16


class TraceReader:
    """The records of one trace. `dropped` counts overwritten ones; `has_marks` means that marks are
    included, as they are except in older traces.

    Raises JournalError, one line, if the file is not a trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                start = file.read(RECORDS_AT)
                size = file.seek(0, 2)
        except OSError as error:
            raise JournalError(f"cannot read {path}: {reason(error)}") from None
        head = np.frombuffer(start[: HEAD.itemsize].ljust(HEAD.itemsize, b"\0"), HEAD)[0]
        if head["magic"] != MAGIC or len(start) < HEAD.itemsize:
            raise JournalError(f"{path} is not a gputui trace")
        if head["version"] > VERSION or head["record_bytes"] != RECORD_BYTES:
            raise JournalError(f"{path} was traced by another version of gputui; upgrade gputui")
        self.has_marks = head["version"] >= MARKS_SINCE
        there = max(0, size - RECORDS_AT) // RECORD_BYTES
        self._there = there
        self._capacity = max(1, int(head["capacity"]))
        written, reserved = int(head["written"]), int(head["reserved"])
        self.dropped = max(0, reserved - self._capacity)
        self._first = self.dropped
        self._last = written if written > there else min(written, there)
        if self._last - self._first > there:
            self._last = self._first + there
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
        ring = np.memmap(self.path, TRACE, "r", RECORDS_AT, (capacity,))
        row = self._first
        while row < self._last:
            place = row % self._capacity
            if place >= capacity:
                return
            count = min(PORTION, self._last - row, capacity - place)
            yield ring[place : place + count]
            row += count


LEAST_LIMIT = 1 << 20
"""A smaller trace could hardly hold a step; a tiny one has no room for a record."""


class TraceWriter:
    """Appends records; beyond its limit the oldest are overwritten. Any thread may write.

    If writing fails, `failure` says so and writing ends.
    """

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
        """Its size on disk: names and records, overwritten or not."""
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
