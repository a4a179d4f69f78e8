"""Rows on their way into the file, and what they share: strings, times, ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import numpy as np

from gputui.render.nsys.schema import create_statements
from gputui.state import Run, Session
from gputui.store.trace.layout import Int64s, Slots

_MACHINE = 1 << 48
_24_BITS = 0xFFFFFF


class Rows:
    """Takes rows of any table. Texts become numbers of StringIds, which are written last."""

    def __init__(self, connection: sqlite3.Connection, session: Session, run: Run) -> None:
        self._connection = connection
        self._strings: dict[str, int] = {}
        self.base_ns = session.header.time_ns if session.header else 0
        self._pids = {
            number: process.attached.pid & _24_BITS for number, process in run.processes.items()
        }
        # The file does not exist until it is complete, so nothing needs to be undone.
        for statement in (
            "PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", *create_statements(),
        ):  # fmt: skip
            connection.execute(statement)

    def insert(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows with these columns; the others are NULL."""
        names = columns.split()
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(map(_quoted, names))}) "
            f"VALUES ({', '.join('?' * len(names))})",
            rows,
        )

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def times(self, records: Slots) -> tuple[list[int], list[int]]:
        """Starts and ends, since the session's start."""
        starts = records["start"] - self.base_ns
        return starts.tolist(), (records["end"] - self.base_ns).tolist()

    def process(self, number: int) -> int:
        """nsys's 64-bit id of a process; of the machine where it is unknown."""
        return _MACHINE | self._pids.get(number, 0) << 24

    def task(self, number: int, thread: int) -> int:
        """nsys's 64-bit id of a thread."""
        return self.process(number) | thread & _24_BITS

    def processes(self, records: Slots) -> Int64s:
        """The ids of the processes of records."""
        most = int(records["process"].max())
        table = np.full(min(most, 1 << 20) + 1, _MACHINE)
        for number in self._pids:
            if number < len(table):
                table[number] = self.process(number)
        processes: Int64s = table[np.minimum(records["process"], len(table) - 1)]
        return processes

    def tasks(self, records: Slots) -> Int64s:
        """The ids of the threads of records."""
        tasks: Int64s = self.processes(records) | records["thread"] & _24_BITS
        return tasks

    def finish(self) -> None:
        """Write the strings, and what was written before them is whole."""
        strings = ((number, text) for text, number in self._strings.items())
        self.insert("StringIds", "id value", strings)
        self._connection.commit()


def _quoted(name: str) -> str:
    return f'"{name}"'
