"""Rows of a table of an SQLite file, decoded from its pages, a column of many rows at a time.

For `database`, which asks SQLite itself where a table is unusual. Fetching made a Python object of
each value: a third of the time that a report of 0.7 million rows took.
The format: https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.1.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import LATEST_NS, Bools, Int64s, KeyTable
from gputui.base import GputuiError
from gputui.imports import number_distinct
from gputui.inject.build import PAGES

Bytes = npt.NDArray[np.uint8]

BYTES_AT_ONCE = 1 << 20
"""Pages decoded at a time: about 12,000 rows, whose columns are still in the processor's cache."""

MOST_LAYOUTS = 1 << 14
"""Different headers of a table's rows, each of which is decoded once. Those of a report are some
hundred: sizes of integers, lengths of texts."""

_LEAF, _INTERIOR = 13, 5
_DEEPEST = 20  # SQLite's own bound of a tree's depth
_PADDING = 16  # eight bytes are read from the last one of a page, too
_WORD = 8
_LONGEST_HEADER = 127  # of one byte's length
_WORDS_OF_TEXT = 32
"""Longer texts are taken one by one."""

# Serial types: a row's header has one for each value.
NULL, REAL, ZERO, ONE = 0, 7, 8, 9
NEVER = -(1 << 63)
"""Stands for the time of what has none: earlier than all times."""
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0])
_BLOB, _TEXT = 12, 13


class UnusualTable(GputuiError):
    """What SQLite reads and this does not: large rows, columns added later, damage."""


def _demand(is_so: object) -> None:
    if not is_so:
        raise UnusualTable


class RowTimes(NamedTuple):
    """When rows begin and end."""

    least: int
    """The lowest start, at most LATEST_NS."""
    most: int
    """The highest start, NEVER without one."""
    last_end: int
    """The highest end; a row without an end ends where it begins."""
    chosen: int
    without_start: int


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Which rows of a table are read: those with integers in some columns and one of some values,
    from 0 to 63, in another."""

    integers: tuple[str, ...] = ()
    column: str = ""
    values: tuple[int, ...] = ()

    @property
    def sql(self) -> str:
        """The condition that a row meets."""
        values = f'"{self.column}" IN ({", ".join(map(str, self.values))})' if self.values else "1"
        return " AND ".join(
            (values, *(f"typeof(\"{name}\") = 'integer'" for name in self.integers))
        )

    def pick(self, rows: Rows) -> Rows:
        """The rows that are chosen, of some that were read."""
        chosen = np.ones(len(rows), np.bool_)
        if self.values:
            kinds = rows.integers(self.column)
            chosen = np.logical_or.reduce([kinds == value for value in self.values])
        for name in self.integers:
            chosen &= rows.have_integers(name)
        return rows.pick(chosen)


EVERY_ROW = RowChoice()


@dataclass(slots=True)
class Layouts:
    """The headers that rows have: by header and column, the value's type, its size, and where it
    begins after the row's beginning; and of each header, how long the row is."""

    types: Int64s
    offsets: Int64s
    lengths: Int64s


@dataclass(slots=True)
class Rows:
    """Rows of some pages; what is read of them are columns."""

    table: TablePages
    bytes_: Bytes
    numbers: Int64s
    """SQLite's number of each row (rowid), by which rows are in order."""
    starts: Int64s
    layout: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def pick(self, rows: Bools) -> Rows:
        """The rows that are chosen, in their order."""
        if rows.all():
            return self
        return Rows(
            self.table, self.bytes_, self.numbers[rows], self.starts[rows], self.layout[rows]
        )

    def types(self, column: str) -> Int64s:
        """The serial type of each row's value; NULL where the table has no such column."""
        place = self.table.columns.get(column)
        if place is None:
            return np.zeros(len(self), np.int64)
        return self.table.layouts.types[:, place].take(self.layout)

    def have_integers(self, column: str) -> Bools:
        """Which rows have an integer in a column."""
        place = self.table.columns.get(column)
        if place is None:
            return np.zeros(len(self), np.bool_)
        types = self.table.layouts.types[:, place]
        have: Bools = ((types > NULL) & (types <= ONE) & (types != REAL)).take(self.layout)
        return have

    def integers(self, column: str, default: int = 0) -> Int64s:
        """A column, in which anything but an integer counts as the default."""
        place = self.table.columns.get(column)
        if place is None or not len(self):
            return np.full(len(self), default)
        types = self.table.layouts.types[:, place]
        used = np.bincount(self.layout, minlength=len(types)) > 0
        sizes = np.where(types < REAL, _SIZES[np.minimum(types, ONE)], 0)
        largest = int(sizes[used].max())
        without = np.where(types == ZERO, 0, np.where(types == ONE, 1, default))
        if not largest:
            return without.take(self.layout)
        offsets = self.starts + self.table.layouts.offsets[:, place].take(self.layout)
        if largest == 1:
            values = self.bytes_.view(np.int8).take(offsets).astype(np.int64)
        else:
            values = _words(self.bytes_, offsets) >> (64 - 8 * sizes).take(self.layout)
        if not sizes[used].all():
            values = np.where((sizes > 0).take(self.layout), values, without.take(self.layout))
        return values

    def payloads(self, columns: dict[str, int], none: int) -> tuple[Int64s, Int64s]:
        """Of each row the first of `columns` that holds a number: the kind beside it (`none` where
        there is none), and the bits of the integer or of the double."""
        kinds, bits = np.full(len(self), none), np.zeros(len(self), np.int64)
        for column, kind in columns.items():
            types = self.types(column)
            of_type = (types > NULL) & (types <= ONE) & (kinds == none)
            if not of_type.any():
                continue
            some = self.pick(of_type)
            is_real = some.types(column) == REAL
            values = some.integers(column)
            if column in self.table.reals:  # whole numbers are kept as integers
                values = np.where(is_real, 0, values.astype(np.float64).view(np.int64))
            if is_real.any():
                offsets = some.starts + some._offsets(column)
                values = np.where(is_real, _words(self.bytes_, offsets), values)
            kinds[of_type], bits[of_type] = kind, values
        return kinds, bits

    def texts(self, column: str, numbers: dict[bytes | None, int]) -> Int64s:
        """The number of each row's text in `numbers`, which knows what is none."""
        types = self.types(column)
        result = np.full(len(self), numbers[None])
        is_text = (types >= _TEXT) & (types % 2 == 1)
        if not is_text.any():
            return result
        sizes = (types[is_text] - _TEXT) >> 1
        offsets = (self.starts + self._offsets(column))[is_text]
        result[is_text] = _numbers_of_texts(self.bytes_, offsets, sizes, numbers)
        return result

    def times(self) -> RowTimes:
        """When these rows, which may be none, begin and end."""
        starts = self.integers("start")
        ends = np.where(self.types("end") == NULL, starts, self.integers("end", NEVER))
        return RowTimes(
            int(starts.min(initial=LATEST_NS)),
            int(starts.max(initial=NEVER)),
            int(ends.max(initial=NEVER)),
            len(self),
            int(np.count_nonzero(self.types("start") == NULL)),
        )

    def _offsets(self, column: str) -> Int64s:
        return self.table.layouts.offsets[:, self.table.columns[column]].take(self.layout)


class TablePages:
    """One table of a file."""

    def __init__(
        self, file: BinaryIO, root: int, columns: dict[str, int], reals: frozenset[str]
    ) -> None:
        """`root` is its first page, `columns` the place of each in a row; `reals` are those in
        which SQLite keeps whole numbers as integers and reads them as doubles. Raises
        UnusualTable."""
        self.columns = columns
        self.reals = reals
        width = len(columns)
        nothing = np.empty((0, width), np.int64)
        self.layouts = Layouts(nothing, nothing, np.empty(0, np.int64))
        self._keys = KeyTable(MOST_LAYOUTS)
        self._headers = np.empty((0, _LONGEST_HEADER // _WORD + 1), np.int64)
        self._others = np.zeros(width, np.uint8)
        """In which columns the rows whose times were asked for have more than integers."""
        self._file = file
        head = os.pread(file.fileno(), 100, 0)
        _demand(len(head) == 100 and head.startswith(b"SQLite format 3\0"))
        self._size = int.from_bytes(head[16:18], "big")
        self._size = 1 << 16 if self._size == 1 else self._size
        _demand(self._size >= 512 and self._size & (self._size - 1) == 0)
        self._usable = self._size - head[20]
        self._count = os.fstat(self._file.fileno()).st_size // self._size
        self._leaves = self._find_leaves(root)

    def have_only_integers(self, columns: Sequence[str]) -> bool:
        """Whether the rows read until now have nothing else in these columns, or nothing."""
        places = [self.columns[name] for name in columns if name in self.columns]
        types = self.layouts.types[:, places]
        return bool(((types <= ONE) & (types != REAL)).all()) and not self._others[places].any()

    def blocks(self) -> Iterator[Rows]:
        """All rows, in order of their rowids, some pages at a time."""
        return map(self._rows, self._pages_of_blocks())

    def times(self, choice: RowChoice) -> Iterator[RowTimes]:
        """When the chosen rows of each of these blocks begin and end."""
        library = pages_library()
        if library is None:
            yield from (choice.pick(rows).times() for rows in self.blocks())
            return
        places = [self.columns.get(name, -1) for name in ("start", "end", choice.column)]
        kinds = sum(1 << value for value in choice.values)
        asked = _Question(self._size, self._usable, len(self.columns), *places, kinds)
        needed = np.array([name in choice.integers for name in self.columns], np.uint8)
        for pages in self._pages_of_blocks():
            answer = _Answer(LATEST_NS, NEVER, NEVER)
            data = self._read(pages)
            is_unusual = library.gputui_add_times(
                data.ctypes.data, len(pages), asked, needed.ctypes.data,
                self._others.ctypes.data, answer,
            )  # fmt: skip
            _demand(not is_unusual)
            yield RowTimes(
                answer.least, answer.most, answer.last_end, answer.chosen, answer.without_start
            )

    def _pages_of_blocks(self) -> Iterator[Int64s]:
        at_once = max(1, BYTES_AT_ONCE // self._size)
        for first in range(0, len(self._leaves), at_once):
            yield self._leaves[first : first + at_once]

    def _find_leaves(self, root: int) -> Int64s:
        level = np.array([root], np.int64)
        for _ in range(_DEEPEST):
            if self._read(level[:1])[0] == _LEAF:
                return level
            level = np.concatenate(
                [self._children(level[first : first + 256]) for first in range(0, len(level), 256)]
            )
            _demand(len(level) <= self._count)
        raise UnusualTable

    def _children(self, pages: Int64s) -> Int64s:
        """The pages below these, in order."""
        data = self._read(pages)
        begins = np.arange(len(pages)) * self._size
        _demand((data[begins] == _INTERIOR).all())
        counts = _halves(data, begins + 3)
        _demand((counts * 2 + 12 <= self._usable).all())
        page, place = _numbered(counts)
        cells = _halves(data, begins[page] + 12 + 2 * place)
        _demand((cells + 4 <= self._usable).all())
        children = _words(data, begins[page] + cells) >> 32
        lasts = _words(data, begins + 8) >> 32
        below = np.insert(children, np.cumsum(counts), lasts)
        return below & 0xFFFF_FFFF

    def _read(self, pages: Int64s) -> Bytes:
        """The bytes of these pages, and some more."""
        _demand(pages.min() > 1 and pages.max() <= self._count)
        data = np.empty(len(pages) * self._size + _PADDING, np.uint8)
        data[-_PADDING:] = 0
        begins = np.flatnonzero(np.append(True, np.diff(pages) != 1))
        ends = np.append(begins[1:], len(pages))
        view, size = data.data, self._size
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            place = (int(pages[begin]) - 1) * size
            try:
                count = os.preadv(self._file.fileno(), [view[begin * size : end * size]], place)
            except OSError:
                raise UnusualTable from None
            _demand(count == (end - begin) * size)
        return data

    def _rows(self, pages: Int64s) -> Rows:
        data = self._read(pages)
        begins = np.arange(len(pages)) * self._size
        _demand((data[begins] == _LEAF).all())
        counts = _halves(data, begins + 3)
        _demand((counts * 2 + 8 <= self._usable).all())
        page, place = _numbered(counts)
        cells = _halves(data, begins[page] + 8 + 2 * place)
        _demand((cells < self._usable).all())
        lengths, after = _varints(data, begins[page] + cells)
        numbers, starts = _varints(data, after)
        # Of a larger row, a part is elsewhere.
        _demand((lengths <= self._usable - 35).all())
        _demand((starts + lengths <= begins[page] + self._usable).all())
        layout = self._layouts_of(data, starts)
        _demand((self.layouts.lengths.take(layout) == lengths).all())
        return Rows(self, data, numbers, starts, layout)

    def _layouts_of(self, data: Bytes, starts: Int64s) -> Int64s:
        """Which header each row has."""
        if not len(starts):
            return starts
        sizes = data.take(starts).astype(np.int64)
        _demand(sizes.max() <= _LONGEST_HEADER)
        longest = int(sizes.max())
        if longest == sizes.min():
            sizes = sizes[:1]  # of all
        words = [
            _words(data, np.minimum(starts + first, len(data) - _WORD)) & _mask(sizes - first)
            for first in range(0, longest, _WORD)
        ]
        hashes = np.zeros(len(starts), np.uint64)
        for word in words:
            hashes = (hashes ^ (hashes >> np.uint64(29))) * _SPREAD + word.view(np.uint64)
        firsts: list[int] = []

        def define(_key: int, first: int) -> int:
            firsts.append(first)
            return len(self.layouts.lengths) + len(firsts) - 1

        layout = self._keys.lookup(hashes.view(np.int64), define, _too_many)
        if firsts:
            ends = (starts + sizes)[firsts].tolist()
            self._add(
                [bytes(data[begin:end]) for begin, end in zip(starts[firsts], ends, strict=True)]
            )
            headers = np.zeros((len(firsts), self._headers.shape[1]), np.int64)
            headers[:, : len(words)] = np.transpose([word[firsts] for word in words])
            self._headers = np.concatenate((self._headers, headers))
        # A header that could not be understood before has a number, but no layout.
        _demand(layout.max() < len(self.layouts.lengths))
        for place, word in enumerate(words):  # two headers may have one hash
            _demand((self._headers[:, place].take(layout) == word).all())
        return layout

    def _add(self, headers: list[bytes]) -> None:
        types = np.array([_types(header, len(self.columns)) for header in headers], np.int64)
        sizes = np.where(types < _BLOB, _SIZES[np.minimum(types, ONE)], (types - _BLOB) >> 1)
        ends = np.array([len(header) for header in headers])[:, None] + np.cumsum(sizes, axis=1)
        layouts = self.layouts
        self.layouts = Layouts(
            np.concatenate((layouts.types, types)),
            np.concatenate((layouts.offsets, ends - sizes)),
            np.concatenate((layouts.lengths, ends[:, -1])),
        )


# The C that finds when rows begin and end: of a report of 7 million rows in a quarter of the 0.9 s
# that NumPy takes, and without the interpreter's lock.


class _Question(ctypes.Structure):
    _fields_ = (
        ("page_bytes", ctypes.c_uint32), ("usable_bytes", ctypes.c_uint32),
        ("columns", ctypes.c_int32), ("start", ctypes.c_int32), ("end", ctypes.c_int32),
        ("kind", ctypes.c_int32), ("kinds", ctypes.c_uint64),
    )  # fmt: skip


class _Answer(ctypes.Structure):
    _fields_ = (
        ("least", ctypes.c_int64), ("most", ctypes.c_int64), ("last_end", ctypes.c_int64),
        ("chosen", ctypes.c_uint64), ("without_start", ctypes.c_uint64),
    )  # fmt: skip


@functools.cache
def pages_library() -> ctypes.CDLL | None:
    """The library in C; None where it is not built, or from other sources."""
    if not PAGES.is_current():
        return None
    library = ctypes.CDLL(str(PAGES.path))
    pointer = ctypes.c_void_p
    library.gputui_add_times.argtypes = [
        pointer, ctypes.c_uint64, ctypes.POINTER(_Question), pointer, pointer,
        ctypes.POINTER(_Answer),
    ]  # fmt: skip
    return library


_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)
_ONES = np.int64(-1)


def _too_many() -> int:
    raise UnusualTable


def _types(header: bytes, width: int) -> list[int]:
    """The serial types of a header of exactly so many."""
    types: list[int] = []
    value = 0
    for byte in header[1:]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            types.append(value)
            value = 0
    _demand(not value and len(types) == width)
    _demand(all(kind not in (10, 11) and kind < 1 << 32 for kind in types))
    return types


def _words(data: Bytes, offsets: Int64s) -> Int64s:
    """The eight bytes from each offset on, as a big-endian integer."""
    words: Int64s = np.ndarray((len(data) - 7,), np.int64, data, strides=(1,))[offsets]
    return words.byteswap(inplace=True)


def _mask(sizes: Int64s) -> Int64s:
    """What leaves so many bytes, 8 at most, of a word of _words."""
    missing = np.clip(64 - 8 * sizes, 0, 63)
    return np.where(sizes > 0, _ONES << missing, 0)


def _halves(data: Bytes, offsets: Int64s) -> Int64s:
    """The two bytes from each offset on, as a big-endian integer."""
    return data.take(offsets).astype(np.int64) << 8 | data.take(offsets + 1)


def _numbered(counts: Int64s) -> tuple[Int64s, Int64s]:
    """For so many of each page: which page it is of, and its number in it."""
    page = np.repeat(np.arange(len(counts)), counts)
    return page, np.arange(len(page)) - (np.cumsum(counts) - counts)[page]


def _varints(data: Bytes, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """The variable-length integer at each offset, and where it ends."""
    byte = data.take(offsets)
    values = (byte & 0x7F).astype(np.int64)
    ends = offsets + 1
    more = np.flatnonzero(byte & 0x80)
    for _ in range(7):
        if not len(more):
            return values, ends
        if len(more) == len(offsets):  # as a rule: all have numbers of as many bytes
            byte = data.take(ends)
            values = values << 7 | byte & 0x7F
            ends += 1
            more = np.flatnonzero(byte & 0x80)
            continue
        byte = data.take(ends[more])
        values[more] = values[more] << 7 | byte & 0x7F
        ends[more] += 1
        more = more[byte >= 0x80]
    raise UnusualTable


def _numbers_of_texts(
    data: Bytes, offsets: Int64s, sizes: Int64s, numbers: dict[bytes | None, int]
) -> Int64s:
    """The number in `numbers` of the text at each offset, of each size."""
    result = np.empty(len(offsets), np.int64)
    is_long = sizes > _WORDS_OF_TEXT * _WORD
    for row in np.flatnonzero(is_long).tolist():
        begin = int(offsets[row])
        result[row] = numbers[bytes(data[begin : begin + int(sizes[row])])]
    short = np.flatnonzero(~is_long)
    if len(short):
        offsets, sizes = offsets[short], sizes[short]
        words = [
            _words(data, np.minimum(offsets + first, len(data) - _WORD)) & _mask(sizes - first)
            for first in range(0, int(sizes.max()), _WORD)
        ]

        def number(size: int, *words: int) -> int:
            whole = b"".join(word.to_bytes(_WORD, "big", signed=True) for word in words)
            return numbers[whole[:size]]

        result[short] = number_distinct((sizes, *words), number)
    return result
