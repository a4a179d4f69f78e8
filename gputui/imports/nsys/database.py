"""An untrusted SQLite file, read defensively: nothing in it runs, nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar
from urllib.parse import quote

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.base import JournalError
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.table_pages import (
    EVERY_ROW,
    NEVER,
    RowChoice,
    Rows,
    TablePages,
    UnusualTable,
)
from gputui.store import open_regular

ROWS_AT_ONCE = 1 << 15

READ_AHEAD = ROWS_AT_ONCE
"""Rows of a table that are read so that a tick's come together: two pieces cost more than one."""

FETCHED_ROWS = 1024
"""Rows fetched before they become columns: while they are in the processor's cache, this adds a
twentieth to the time of fetching; of 65,536 rows it adds a third."""

MOST_HELD = 32
"""Blocks of a table of which rows may wait for their turn."""

VALUE_LIMIT = 4 << 20
"""Longest text or blob read: names come nowhere near it."""

TimedBlock = tuple[Int64s, int | None]
"""Rows, the first column of which is their time, and the time up to which all have been read with
them; None with the last."""

_Block = TypeVar("_Block")

AsArray = Callable[[list[tuple[Any, ...]]], Int64s]
"""Rows of a query as (rows, columns)."""

# What reading a damaged file raises: SQLite's own messages quote its bytes, which may not be text.
_DAMAGE = (sqlite3.Error, OverflowError, UnicodeError)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of a table's rows: from its pages or, where these are unusual, by SQLite."""

    table: str
    columns: tuple[str, ...]
    """Those that `decode` reads as integers; the first is the time."""
    decode: Callable[[Rows], Int64s]
    sql: Sequence[str]
    """The same in SQL, the time first."""
    as_array: AsArray
    choice: RowChoice = EVERY_ROW
    is_strict: bool = True
    """Whether only SQLite makes an integer of anything else in these columns."""


@dataclass(frozen=True, slots=True)
class _Times:
    """When a table's chosen rows begin and end."""

    blocks: Int64s
    """Of each block, as three rows: the lowest start, the highest one, the highest end."""
    count: int
    are_integers: bool
    """Whether every chosen row has a start, and nothing else stands for one or for an end."""


class Database:
    """Tables of a file, by the columns they have. Raises JournalError, one line, if damaged."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._file: BinaryIO | None = None
        self._pages: dict[str, TablePages] = {}
        self._times: dict[str, _Times] = {}
        self._is_interrupted = False
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
        if self._file is not None:
            self._file.close()

    def interrupt(self) -> None:
        """End the queries that run, from any thread: they raise JournalError."""
        self._is_interrupted = True
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

    def span(self, table: str, choice: RowChoice = EVERY_ROW) -> tuple[int, int] | None:
        """Lowest start and highest end of a table's chosen rows; None if it has none."""
        present = self.columns(table)
        if "start" not in present:
            return None
        with suppress(UnusualTable):
            pages = self.pages(table, ("start",))
            times = self._times_of(table, pages, choice)
            if times.are_integers:
                leasts, _, ends = times.blocks
                return (int(leasts.min()), int(ends.max())) if times.count else None
        end = 'COALESCE("end", "start")' if "end" in present else '"start"'
        sql = (
            f'SELECT MIN(CAST("start" AS INTEGER)), MAX(CAST({end} AS INTEGER)) FROM "{table}" '
            f'WHERE "start" IS NOT NULL AND {choice.sql}'
        )
        row = next(self._run(sql), None)
        return (row[0], row[1]) if row and isinstance(row[0], int) else None

    def _times_of(self, table: str, pages: TablePages, choice: RowChoice) -> _Times:
        """When the chosen rows of each block begin and end: found once, to say what time a file
        covers and how far each block has to be read ahead. Raises UnusualTable."""
        times = self._times.get(table)
        if times is None:
            of_blocks = [*self._until_interrupted(pages.times(choice))]
            times = self._times[table] = _Times(
                np.array([block[:3] for block in of_blocks], np.int64).reshape(-1, 3).T,
                sum(block.chosen for block in of_blocks),
                not any(block.without_start for block in of_blocks)
                and pages.have_only_integers(("start", "end")),
            )
        return times

    def stream(self, table: str, columns: Sequence[str]) -> Stream:
        """The named columns as integers, ordered by the first, which must be `start`."""
        present = self.columns(table)
        if columns[0] not in present:
            return Stream(iter(()), len(columns))
        selection = Selection(
            table=table,
            columns=tuple(columns),
            decode=partial(_decoded, columns=columns),
            sql=[f'CAST(COALESCE("{name}", 0) AS INTEGER)' if name in present else "0"
                 for name in columns],
            as_array=_as_array,
        )  # fmt: skip
        return Stream(self.in_order(selection), len(columns))

    def arrays(self, table: str, columns: Sequence[str]) -> Iterator[Int64s]:
        """The named columns as integers, a block at a time, as they stand in the file; none where
        the first is missing. Raises UnusualTable where only SQLite can read them."""
        if columns[0] in self.columns(table):
            pages = self.pages(table, columns)
            for rows in self._until_interrupted(pages.blocks()):
                if not pages.have_only_integers(columns):
                    raise UnusualTable
                yield _decoded(rows, columns)

    def decoded(self, selection: Selection) -> Iterator[Int64s]:
        """The chosen rows of a table, a block at a time, as they stand in the file. Raises
        UnusualTable where only SQLite can read them."""
        pages = self.pages(selection.table, selection.columns)
        for rows in self._until_interrupted(pages.blocks()):
            yield selection.decode(selection.choice.pick(rows))

    def pages(self, table: str, columns: Sequence[str]) -> TablePages:
        """The pages of a table of which these columns are wanted as integers. Raises
        UnusualTable."""
        described = [*self._run(f'PRAGMA table_xinfo("{table}")')]
        kinds = [str(kind).upper() for _, _, kind, *_ in described]
        reals = frozenset(
            str(row[1])
            for row, kind in zip(described, kinds, strict=True)
            if any(word in kind for word in ("REAL", "FLOA", "DOUB")) and "INT" not in kind
        )
        # A row's number stands for a column that is the key; generated ones may not be kept.
        if any(row[5] or row[6] for row in described) or not reals.isdisjoint(columns):
            raise UnusualTable
        roots = [*self._run("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))]
        if len(roots) != 1 or not isinstance(roots[0][0], int):
            raise UnusualTable
        if self._file is None:
            self._file = open_regular(self._path)
        if table not in self._pages:
            places = {str(row[1]): place for place, row in enumerate(described)}
            self._pages[table] = TablePages(self._file, roots[0][0], places, reals)
        return self._pages[table]

    def _until_interrupted(self, blocks: Iterator[_Block]) -> Iterator[_Block]:
        for block in blocks:
            if self._is_interrupted:
                self.refuse(InterruptedError("interrupted"))
            yield block

    def most_rows(self, table: str) -> int:
        """No fewer than the rows of a table, which may be absent: its highest rowid. Raises
        UnusualTable."""
        if not self.columns(table):
            return 0
        self.pages(table, ())  # with rowids
        highest = next(self._run(f'SELECT MAX(rowid) FROM "{table}"'), (None,))[0]
        return max(0, highest) if isinstance(highest, int) else 0

    def has_rows(self, table: str, condition: str) -> bool:
        """Whether any row of a table, which may be absent, meets a condition."""
        if not self.columns(table):
            return False
        return any(True for _ in self._run(f'SELECT 1 FROM "{table}" WHERE {condition} LIMIT 1'))

    def in_order(self, selection: Selection) -> Iterator[TimedBlock]:
        """The chosen rows of a table, in blocks as a Stream wants them."""
        table = selection.table
        horizons = None
        with suppress(UnusualTable):
            pages = self.pages(table, selection.columns)
            horizons = self._horizons(pages, selection)
        if horizons is not None:
            try:
                blocks = self._until_interrupted(pages.blocks())
                for rows, until in zip(blocks, horizons, strict=True):
                    yield selection.decode(selection.choice.pick(rows)), until
            except UnusualTable:
                self.refuse(ValueError("it changed while it was read"))
            return
        columns = ", ".join(selection.sql)
        sql = f'SELECT {columns} FROM "{table}" WHERE {selection.choice.sql} ORDER BY 1'
        for block in self._arrays(sql, selection.as_array):
            yield block, int(block[-1, 0]) - 1  # more may begin at the same moment

    def _horizons(self, pages: TablePages, selection: Selection) -> list[int | None] | None:
        """Up to which time all rows have been read with each block. None where many would have to
        be held until their turn, or where only SQLite reads them: the whole table is sorted then.

        Sorting took a tenth of the time of reading, and came before the first row.
        """
        leasts, mosts, _ = self._times_of(selection.table, pages, selection.choice).blocks
        if selection.is_strict and not pages.have_only_integers(selection.columns):
            return None
        # Of those that follow each.
        later = np.minimum.accumulate(leasts[::-1])[::-1][1:]
        for place, least in enumerate(later):
            if np.count_nonzero(mosts[: place + 1] >= least) > MOST_HELD:
                return None
        return [*(later - 1).tolist(), None] if len(leasts) else []

    def _arrays(self, sql: str, as_array: AsArray) -> Iterator[Int64s]:
        """What a query gives, ROWS_AT_ONCE at a time."""
        fetched = min(FETCHED_ROWS, ROWS_AT_ONCE)
        arrays = map(as_array, self.blocks(sql, at_once=fetched))
        while blocks := list(islice(arrays, -(-ROWS_AT_ONCE // fetched))):
            yield np.concatenate(blocks)

    def blocks(
        self, sql: str, values: tuple[int | str, ...] = (), at_once: int = FETCHED_ROWS
    ) -> Iterator[list[tuple[Any, ...]]]:
        """What a query gives, so many rows at a time."""
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(at_once):
                yield rows
        except _DAMAGE as error:
            self.refuse(error)

    def _run(self, sql: str, values: tuple[int | str, ...] = ()) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(self.blocks(sql, values))


def _decoded(rows: Rows, columns: Sequence[str]) -> Int64s:
    """These columns as (rows, columns)."""
    return np.column_stack([rows.integers(name) for name in columns])


def _as_array(rows: list[tuple[Any, ...]]) -> Int64s:
    """Rows of integers as (rows, columns)."""
    values = chain.from_iterable(rows)
    width = len(rows[0])
    return np.fromiter(values, np.int64, len(rows) * width).reshape(-1, width)


class Stream:
    """Rows in order of time, read as they are needed."""

    def __init__(self, blocks: Iterator[TimedBlock], width: int) -> None:
        """`blocks` come in order of time, and have `width` columns each."""
        self._blocks = blocks
        self._rows = np.empty((0, width), np.int64)
        self._is_complete = False
        self._horizon = NEVER
        self._fill(NEVER)

    @property
    def horizon(self) -> int | None:
        """All rows up to this start have been read; None if these are all."""
        return None if self._is_complete else self._horizon

    def read_ahead(self, until: int) -> int | None:
        """Read up to this start, or until READ_AHEAD rows wait: the horizon from there on."""
        while len(self._rows) < READ_AHEAD and not self._is_complete and self._horizon < until:
            self._fill(self._horizon)
        return self.horizon

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
