"""An untrusted SQLite file, read defensively: nothing in it runs, nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.base.sanitize import sanitize
from gputui.store.journal import JournalError

ROWS_AT_ONCE = 1 << 15

FETCHED_ROWS = 1024
"""Rows fetched before they become columns: while they are in the processor's cache, this adds a
twentieth to the time of fetching; of 65,536 rows it adds a third."""

MOST_PORTIONS = 1 << 14
MOST_HELD = 16
"""Portions of ROWS_AT_ONCE that a table is read in, and of which rows may wait for their turn."""

VALUE_LIMIT = 4 << 20
"""Longest text or blob read: names come nowhere near it."""

TimedBlock = tuple[Int64s, int | None]
"""Rows, the first column of which is their time, and the time up to which all have been read with
them; None with the last."""

AsArray = Callable[[list[tuple[Any, ...]]], Int64s]
"""Rows of a query as (rows, columns)."""

_NEVER = -(1 << 63)

# What reading a damaged file raises: SQLite's own messages quote its bytes, which may not be text.
_DAMAGE = (sqlite3.Error, OverflowError, UnicodeError)


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
            # A file that SQLite cannot open at all has no connection to close.
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

    @property
    def encoding(self) -> str:
        """In which the bytes of its texts are written."""
        ((name,),) = self._run("PRAGMA encoding")
        return str(name)

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
        if columns[0] not in self.columns(table):
            return Stream(iter(()), len(columns))
        selected = self._as_integers(table, columns)
        return Stream(self.in_order(table, selected, "1", _as_array), len(columns))

    def arrays(self, table: str, columns: Sequence[str]) -> Iterator[Int64s]:
        """The named columns as integers, ROWS_AT_ONCE at a time, as they stand in the file; none
        where the first is missing."""
        if columns[0] in self.columns(table):
            selected = ", ".join(self._as_integers(table, columns))
            yield from self._arrays(f'SELECT {selected} FROM "{table}"', _as_array)

    def has_rows(self, table: str, condition: str) -> bool:
        """Whether any row of a table, which may be absent, meets a condition."""
        if not self.columns(table):
            return False
        return any(True for _ in self._run(f'SELECT 1 FROM "{table}" WHERE {condition} LIMIT 1'))

    def in_order(
        self, table: str, selected: Sequence[str], condition: str, as_array: AsArray
    ) -> Iterator[TimedBlock]:
        """Rows that meet a condition, in blocks as a Stream wants them. The first of `selected`,
        in SQL, is the time."""
        columns = ", ".join(selected)
        portions = self._portions(table, selected[0], condition)
        if portions is None:
            sql = f'SELECT {columns} FROM "{table}" WHERE {condition} ORDER BY 1'
            for rows in self._arrays(sql, as_array):
                yield rows, int(rows[-1, 0]) - 1  # more may begin at the same moment
            return
        sql = f'SELECT {columns} FROM "{table}" NOT INDEXED WHERE {condition}'
        for portion, until in portions:
            yield np.concatenate([*self._arrays(f"{sql} AND {portion}", as_array)]), until

    def _portions(
        self, table: str, time: str, condition: str
    ) -> list[tuple[str, int | None]] | None:
        """Portions of a table, as conditions, as they lie in the file, and up to which time all
        rows have been read with each. None where many would have to be held until their turn, or
        where rows have no numbers: the whole table is sorted then.

        Sorting took a tenth of the time of reading, and came before the first row.
        """
        unused = {"rowid", "oid", "_rowid_"} - {name.lower() for name in self.columns(table)}
        number = min(unused, default="")
        ends = ", ".join(f'(SELECT {end}({number}) FROM "{table}")' for end in ("MIN", "MAX"))
        try:
            first, last = self._connection.execute(f"SELECT {ends}").fetchone()
        except _DAMAGE:
            return None  # rows have no numbers, or cannot be read: the next query says it
        if first is None or (last - first) // ROWS_AT_ONCE >= MOST_PORTIONS:
            return None
        portions: list[str] = []
        spans: list[tuple[int, int]] = []
        for start in range(first, last + 1, ROWS_AT_ONCE):
            portion = f"{number} BETWEEN {start} AND {min(last, start + ROWS_AT_ONCE - 1)}"
            span = f'SELECT MIN({time}), MAX({time}) FROM "{table}" NOT INDEXED'
            least, most = next(self._run(f"{span} WHERE {condition} AND {portion}"))
            if isinstance(least, int):
                portions.append(portion)
                spans.append((least, most))
        leasts, mosts = np.array(spans, np.int64).reshape(-1, 2).T
        # Of those that follow each.
        later = np.minimum.accumulate(leasts[::-1])[::-1][1:]
        for place, least in enumerate(later):
            if np.count_nonzero(mosts[: place + 1] >= least) > MOST_HELD:
                return None
        return list(zip(portions, [*(later - 1).tolist(), None], strict=True)) if portions else []

    def _as_integers(self, table: str, columns: Sequence[str]) -> list[str]:
        """These columns in SQL, 0 for what is missing or null."""
        present = self.columns(table)
        return [
            f'CAST(COALESCE("{name}", 0) AS INTEGER)' if name in present else "0"
            for name in columns
        ]

    def _arrays(self, sql: str, as_array: AsArray) -> Iterator[Int64s]:
        """What a query gives, ROWS_AT_ONCE at a time."""
        fetched = min(FETCHED_ROWS, ROWS_AT_ONCE)
        arrays = map(as_array, self.blocks(sql, at_once=fetched))
        while blocks := list(islice(arrays, -(-ROWS_AT_ONCE // fetched))):
            yield np.concatenate(blocks)

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


def _as_array(rows: list[tuple[Any, ...]]) -> Int64s:
    """Rows of integers as (rows, columns)."""
    values = chain.from_iterable(rows)
    width = len(rows[0])
    return np.fromiter(values, np.int64, len(rows) * width).reshape(-1, width)


class Stream:
    """Rows in order of time, read as they are needed."""

    def __init__(self, blocks: Iterator[TimedBlock], width: int) -> None:
        """`blocks` have `width` columns."""
        self._blocks = blocks
        self._rows = np.empty((0, width), np.int64)
        self._is_complete = False
        self._horizon = _NEVER
        self._fill(_NEVER)

    @property
    def horizon(self) -> int | None:
        """All rows up to this start have been read; None if these are all."""
        return None if self._is_complete else self._horizon

    def rows_until(self, until: int) -> Int64s:
        """The rows that start no later than `until`, as (rows, columns)."""
        count = int(np.searchsorted(self._rows[:, 0], until, side="right"))
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._fill(until)
        return rows

    def _fill(self, until: int) -> None:
        """Read until it is known what starts after `until`."""
        while not self._is_complete and self._horizon <= until:
            rows, horizon = next(self._blocks, (self._rows[:0], None))
            if len(self._rows):
                rows = np.concatenate((self._rows, rows))
            times = rows[:, 0]
            if (times[1:] < times[:-1]).any():
                rows = rows[np.argsort(times, kind="stable")]
            self._rows = rows
            self._is_complete = horizon is None
            self._horizon = max(self._horizon, horizon) if horizon is not None else self._horizon
