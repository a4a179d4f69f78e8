"""Reading a trace, a portion at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gputui.base.sanitize import sanitize
from gputui.store.errors import JournalError, reason
from gputui.store.regular_file import open_regular
from gputui.store.trace.layout import (
    HEAD,
    MAGIC,
    MARKS_SINCE,
    NAMES_AT,
    NAMES_BYTES,
    RECORD_BYTES,
    RECORDS_AT,
    TRACE,
    VERSION,
    Slots,
)

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
        at = self._first
        while at < self._last:
            place = at % self._capacity
            if place >= capacity:
                return
            count = min(PORTION, self._last - at, capacity - place)
            yield ring[place : place + count]
            at += count
