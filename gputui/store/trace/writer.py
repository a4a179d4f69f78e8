"""Writing a trace."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from gputui.store.errors import JournalError, reason, taken
from gputui.store.trace.layout import (
    HEAD,
    MAGIC,
    NAMES_AT,
    NAMES_BYTES,
    RECORD_BYTES,
    RECORDS_AT,
    VERSION,
    Slots,
)

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
            raise JournalError(taken(path)) from None
        except OSError as error:
            raise JournalError(f"cannot write {path}: {reason(error)}") from None

    @property
    def bytes_written(self) -> int:
        """Its size on disk: names and records, overwritten or not."""
        return RECORDS_AT + min(self._written, self._capacity) * RECORD_BYTES

    @property
    def dropped(self) -> int:
        """Records that were overwritten."""
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
        """Append records (layout.TRACE)."""
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
        at = self._written % self._capacity
        first = min(len(records), self._capacity - at)
        self._pwrite(records[:first].tobytes(), RECORDS_AT + at * RECORD_BYTES)
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
