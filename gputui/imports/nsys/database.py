"""An untrusted SQLite file, read defensively: nothing in it runs, nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.base.sanitize import sanitize
from gputui.store.journal import JournalError

ROWS_AT_ONCE = 1 << 16

FETCHED_ROWS = 1024
"""Rows fetched before they become columns: while they are in the processor's cache, this adds a
twentieth to the time of fetching; of 65,536 rows it adds a third."""

VALUE_LIMIT = 4 << 20
"""Longest text or blob read: names come nowhere near it."""

_DAMAGE = (sqlite3.Error, OverflowError, UnicodeError)
"""What reading a damaged file raises: SQLite's own messages quote its bytes, which may not be
text.
"""


class Database:
    """Tables of a file, by the columns they have. Raises JournalError, one line, if damaged."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            # Immutable: no lock, no journal beside the file, no recovery that writes.
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1",
                uri=True,
                check_same_thread=False,
            )
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_LIMIT)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA query_only = ON")
            # Views and virtual tables have no pages of their own: their content is code.
            self._tables = frozenset(
                name
                for (name,) in self._connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
                )
                if isinstance(name, str)
            )
        except _DAMAGE as error:
            if hasattr(self, "_connection"):
                self.close()
            self.refuse(error)

    def close(self) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        """End the queries that run, from any thread: they raise JournalError."""
        with suppress(sqlite3.ProgrammingError):  # it is closed
            self._connection.interrupt()

    def refuse(self, error: Exception) -> NoReturn:
        """Raise one line saying that the file cannot be read."""
        raise JournalError(
            f"{self.name} cannot be read as an nsys SQLite export ({sanitize(str(error), 160)}); "
            "export the report again with: nsys export --type sqlite"
        ) from None

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; none if it is absent: exports leave out empty tables."""
        if table not in self._tables:
            return frozenset()
        return frozenset(str(row[1]) for row in self._run(f'PRAGMA table_info("{table}")'))

    def rows(self, table: str, *columns: str, where: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows of the named columns, None for a missing column."""
        present = self.columns(table)
        if present:
            selected = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
            yield from self._run(f'SELECT {selected} FROM "{table}" {where}')

    def text(self, table: str, key_column: str, key: int, column: str) -> str | None:
        """One text by its key, None if missing."""
        if not {key_column, column} <= self.columns(table):
            return None
        sql = f'SELECT "{column}" FROM "{table}" WHERE "{key_column}" = ? LIMIT 1'
        row = next(self._run(sql, (key,)), None)
        return row[0] if row is not None and isinstance(row[0], str) else None

    def span(self, table: str, condition: str = "1") -> tuple[int, int] | None:
        """Lowest start and highest end of a table, None if it is empty or absent."""
        present = self.columns(table)
        if "start" not in present:
            return None
        end = 'COALESCE("end", "start")' if "end" in present else '"start"'
        sql = (
            f'SELECT MIN(CAST("start" AS INTEGER)), MAX(CAST({end} AS INTEGER)) FROM "{table}" '
            f'WHERE "start" IS NOT NULL AND {condition}'
        )
        row = next(self._run(sql), None)
        return (row[0], row[1]) if row and isinstance(row[0], int) else None

    def stream(self, table: str, columns: Sequence[str]) -> Stream:
        """The named columns as integers, ordered by the first, which must be `start`."""
        present = self.columns(table)
        if columns[0] not in present:
            return Stream(iter(()), len(columns))
        return Stream(self._arrays(table, columns, "ORDER BY 1"), len(columns))

    def arrays(self, table: str, columns: Sequence[str]) -> Iterator[Int64s]:
        """The named columns as integers, ROWS_AT_ONCE at a time, as they stand in the file; none
        where the first is missing."""
        if columns[0] in self.columns(table):
            arrays = self._arrays(table, columns, "")
            while blocks := list(islice(arrays, -(-ROWS_AT_ONCE // FETCHED_ROWS))):
                yield np.concatenate(blocks)

    def has_rows(self, table: str, condition: str) -> bool:
        """Whether any row of a table, which may be absent, meets a condition."""
        if not self.columns(table):
            return False
        return any(True for _ in self._run(f'SELECT 1 FROM "{table}" WHERE {condition} LIMIT 1'))

    def _arrays(self, table: str, columns: Sequence[str], order: str) -> Iterator[Int64s]:
        present = self.columns(table)
        selected = ", ".join(
            f'CAST(COALESCE("{name}", 0) AS INTEGER)' if name in present else "0"
            for name in columns
        )

        def as_array(rows: list[tuple[Any, ...]]) -> Int64s:
            values = chain.from_iterable(rows)
            array = np.fromiter(values, np.int64, len(rows) * len(columns))
            return array.reshape(-1, len(columns))

        return map(as_array, self.blocks(f'SELECT {selected} FROM "{table}" {order}'))

    def blocks(
        self, sql: str, values: tuple[int, ...] = (), at_once: int = FETCHED_ROWS
    ) -> Iterator[list[tuple[Any, ...]]]:
        """What a query gives, so many rows at a time."""
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(at_once):
                yield rows
        except _DAMAGE as error:
            self.refuse(error)

    def _run(self, sql: str, values: tuple[int, ...] = ()) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(self.blocks(sql, values))


class Stream:
    """Rows in order of time, read as they are needed."""

    def __init__(self, blocks: Iterator[Int64s], width: int) -> None:
        """`blocks` are rows of `width` columns, the first of which is the time."""
        self._blocks = blocks
        self._block = np.empty((0, width), np.int64)
        self._exhausted = False
        self._fill()

    @property
    def horizon(self) -> int | None:
        """All rows up to this start have been read; None if these are all."""
        return None if self._exhausted else int(self._block[-1, 0])

    def rows_until(self, until: int) -> Int64s:
        """The rows that start no later than `until`, as (rows, columns)."""
        count = int(np.searchsorted(self._block[:, 0], until, side="right"))
        rows, self._block = self._block[:count], self._block[count:]
        self._fill()
        return rows

    def _fill(self) -> None:
        if self._exhausted or len(self._block):
            return
        blocks = list(islice(self._blocks, -(-ROWS_AT_ONCE // FETCHED_ROWS)))
        if blocks:
            self._block = np.concatenate(blocks)
        else:
            self._exhausted = True
