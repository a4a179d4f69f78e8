"""Rows decoded from the pages of an SQLite file are those that SQLite reads from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.attribute.arrays import LATEST_NS
from gputui.base import JournalError
from gputui.imports.nsys import table_pages
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.table_pages import EVERY_ROW, RowChoice, RowTimes, TablePages, UnusualTable

COLUMNS = ("start", "a", "b", "text", "real", "payload")
DECLARED = "start INTEGER, a INTEGER, b, text TEXT, real REAL, payload"

INTEGERS = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
NUMBERS = st.none() | INTEGERS | st.floats(allow_nan=False)
TEXTS = st.none() | st.builds(str.__mul__, st.text(max_size=5), st.sampled_from((1, 7, 99)))
ROWS = st.lists(
    st.tuples(INTEGERS, st.none() | INTEGERS, INTEGERS, TEXTS, NUMBERS, NUMBERS),
    min_size=1, max_size=12,
)  # fmt: skip


def _write(path: Path, rows: Sequence[tuple[object, ...]], page_size: int, encoding: str) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute(f'PRAGMA encoding = "{encoding}"')
        connection.execute(f"CREATE TABLE t ({DECLARED})")
        marks = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        connection.execute("DELETE FROM t WHERE rowid % 5 = 4")
        connection.commit()


class _Numbers(dict[bytes | None, int]):
    """Texts by the order in which they are asked for."""

    def __missing__(self, text: bytes | None) -> int:
        self[text] = len(self)
        return self[text]


def _bits(value: object) -> int:
    kind = np.float64 if isinstance(value, float) else np.int64
    return int(np.array([0 if value is None else value], kind).view(np.int64)[0])


@given(ROWS, st.sampled_from((512, 4096)), st.sampled_from(("UTF-8", "UTF-16le")))
@settings(max_examples=14)
def test_every_column_is_as_sqlite_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[object, ...]],
    page_size: int,
    encoding: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.sqlite"
    _write(path, rows, page_size, encoding)
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT rowid, start, a, b, CAST(text AS BLOB), real, payload FROM t ORDER BY rowid"
        expected = connection.execute(sql).fetchall()
    database = Database(path)
    read: list[tuple[object, ...]] = []
    try:
        pages = database.pages("t", ("start", "a", "b"))
        for block in pages.blocks():
            numbers = _Numbers({None: -1})
            texts = block.texts("text", numbers).tolist()
            words = {number: text for text, number in numbers.items()}
            kinds, bits = block.payloads({"real": 1, "payload": 2}, 0)
            columns = [block.numbers, block.integers("start"), block.integers("a", 5),
                       block.integers("b"), block.integers("absent", 7), kinds, bits]  # fmt: skip
            values = [column.tolist() for column in columns]
            read += zip(*values, [words[number] for number in texts], strict=True)
        assert pages.have_only_integers(("start", "a", "b"))
        assert not pages.have_only_integers(("text",)) or all(row[4] is None for row in expected)
    except UnusualTable:
        assert page_size == 512  # a row that needs more than a page
        return
    finally:
        database.close()
    assert read == [
        (number, start, 5 if a is None else a, b, 7,
         1 if real is not None else 2 if payload is not None else 0,
         _bits(payload if real is None else real), text)
        for number, start, a, b, text, real, payload in expected
    ]  # fmt: skip


CHOICES = (EVERY_ROW, RowChoice(("start", "a"), "b", (0, 1, 2, 3)))


def _times(pages: TablePages, choice: RowChoice) -> list[RowTimes] | None:
    """What the library in C finds, which is what columns of NumPy come to."""
    with suppress(UnusualTable):
        times = list(pages.times(choice))
        assert times == [choice.pick(rows).times() for rows in pages.blocks()]
        return times
    with pytest.raises(UnusualTable):
        list(pages.blocks())
    return None


@given(ROWS, st.sampled_from(CHOICES))
@settings(max_examples=10)
def test_rows_begin_and_end_when_sqlite_says(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], choice: RowChoice
) -> None:
    assert table_pages.pages_library() is not None
    path = tmp_path_factory.getbasetemp() / "times.sqlite"
    _write(path, rows, 4096, "UTF-8")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('ALTER TABLE t RENAME COLUMN payload TO "end"')
        connection.commit()
        chosen = connection.execute(
            f"SELECT start, CASE typeof(\"end\") WHEN 'null' THEN start WHEN 'integer' "
            f'THEN "end" ELSE {table_pages.NEVER} END FROM t WHERE {choice.sql}'
        ).fetchall()
        kinds = {kind for (kind,) in connection.execute("SELECT typeof(text) FROM t")}
    with closing(Database(path)) as database:
        pages = database.pages("t", ("start",))
        (times,) = pages.times(choice)
        assert pages.have_only_integers(("text",)) == ("text" not in kinds)
        assert _times(pages, choice) == [times]
    assert (times.chosen, times.without_start) == (len(chosen), 0)
    if chosen:
        starts, ends = zip(*chosen, strict=True)
        # Later than any recording is no beginning.
        assert times[:3] == (min(*starts, LATEST_NS), max(starts), max(ends))


@pytest.mark.parametrize(
    "sql",
    ["CREATE TABLE t (start INTEGER PRIMARY KEY, a)", "CREATE TABLE t (start REAL, a)",
     "CREATE TABLE t (start, a, c AS (a + 1))",
     "CREATE TABLE t (start, a, PRIMARY KEY (start, a)) WITHOUT ROWID"],
)  # fmt: skip
def test_what_is_kept_in_another_way_is_left_to_sqlite(tmp_path: Path, sql: str) -> None:
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as connection:
        connection.execute(sql)
        connection.execute("INSERT INTO t VALUES (1, 2)")
        connection.commit()
    database = Database(tmp_path / "r.sqlite")
    with pytest.raises(UnusualTable):
        list(database.pages("t", ("start", "a")).blocks())
    assert database.stream("t", ("start", "a")).rows_until(10).tolist() == [[1, 2]]
    database.close()


def test_a_column_that_was_added_later_is_left_to_sqlite(tmp_path: Path) -> None:
    _write(tmp_path / "r.sqlite", [(3, 1, 2, "x", None, None)], 4096, "UTF-8")
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN later DEFAULT 9")
        connection.commit()
    database = Database(tmp_path / "r.sqlite")
    assert database.stream("t", ("start", "later")).rows_until(10).tolist() == [[3, 9]]
    database.close()


@given(st.data())
@settings(max_examples=25)
def test_no_damage_is_read_beyond_the_pages(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.sqlite"
    rows = [(i, i % 7, -i, "text " * (i % 9), i / 3, None) for i in range(200)]
    _write(path, rows, 512, "UTF-8")
    pages = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        pages[data.draw(st.integers(512, len(pages) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(pages[: data.draw(st.sampled_from((len(pages), len(pages) // 2)))])
    with suppress(UnusualTable, JournalError), closing(Database(path)) as database:
        _times(database.pages("t", ("start",)), data.draw(st.sampled_from(CHOICES)))
        for block in database.pages("t", ("start",)).blocks():
            block.integers("a")
            block.payloads({"real": 1, "payload": 2}, 0)
            block.texts("text", _Numbers({None: -1}))
    # However damaged, it is read, or one line says why not.
    with suppress(JournalError), closing(Database(path)) as database:
        database.stream("t", ("start", "a")).rows_until(1 << 62)


def test_a_header_that_is_damaged_stays_so_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    rows = [(i, i % 7, -i, "text " * (i % 9), i / 3, None) for i in range(200)]
    _write(path, rows, 512, "UTF-8")
    pages = bytearray(path.read_bytes())
    pages[1570] = 128
    path.write_bytes(pages)
    with closing(Database(path)) as database:
        for _ in range(2):
            with pytest.raises(UnusualTable):
                list(database.pages("t", ("start",)).blocks())


def test_two_headers_of_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_pages, "_SPREAD", np.uint64(0))
    _write(tmp_path / "r.sqlite", [(1, 1 << 40, 7, None, None, None)], 4096, "UTF-8")
    database = Database(tmp_path / "r.sqlite")
    assert database.stream("t", ("start", "a")).rows_until(10).tolist() == [[1, 1 << 40]]
    database.close()
