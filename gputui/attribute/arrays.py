"""Array types and the few helpers shared by every part of the reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.integer[Any]]
Slots = npt.NDArray[np.void]
"""Rows of `ring.layout.SLOT` or of another structured type."""

AnyInteger = TypeVar("AnyInteger", bound=np.integer[Any])

LATEST_NS = 1 << 62
"""Later times (after the year 2116) are clamped to this: a record can hold anything."""

LONGEST_NS = 1 << 50
"""Longer durations (13 days) are clamped to this, so that sums stay within 64 bits."""


def times_ns(values: npt.NDArray[np.uint64]) -> Int64s:
    """Timestamps of a record as signed integers."""
    return np.minimum(values, np.uint64(LATEST_NS)).astype(np.int64)


def durations_ns(starts: Int64s, ends: Int64s) -> Int64s:
    """End minus start, never negative."""
    durations: Int64s = np.clip(ends - starts, 0, LONGEST_NS)
    return durations


def run_starts(values: Integers) -> Int64s:
    """The rows at which a new value begins in a sorted array, which is not empty."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def differences(values: Int64s, before: int | np.int64 = 0) -> Int64s:
    """Each minus the one before, the first minus `before`. `np.diff` takes five times as long to
    prepend a value."""
    steps = values.copy()
    steps[1:] -= values[:-1]
    steps[:1] -= before
    return steps


def distinct(values: npt.NDArray[AnyInteger]) -> npt.NDArray[AnyInteger]:
    """The distinct values, sorted. `np.unique` hashes, which is slower on sorted input."""
    if len(values) and (values == values[0]).all():  # one device, one thread
        return values[:1]
    values = np.sort(values)
    return values[run_starts(values)] if len(values) else values


def median(values: Int64s) -> float:
    """The median of a few values: np.median takes ten times as long."""
    ranked = np.sort(values)
    return float(ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


def present(codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8], limit: int) -> list[int]:
    """Which codes below `limit`, itself at most 128, occur. Counting them takes four times as
    long."""
    occur = codes.tobytes()
    return [code for code in range(limit) if code in occur]


def take_rows(column: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The column at rows that are distinct and in order, not copied where they are all of it."""
    return column if len(rows) == len(column) else column.take(rows)


def join(arrays: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`parts` end to end; an empty array when there are none."""
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def sorted_columns(
    pieces: Sequence[tuple[npt.NDArray[Any], ...]], kinds: tuple[type, ...]
) -> list[npt.NDArray[Any]]:
    """The columns of all parts, in order of the first."""
    columns = [join([part[index] for part in pieces], kind) for index, kind in enumerate(kinds)]
    if (columns[0][1:] >= columns[0][:-1]).all():
        return columns
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def pick(rows: Slots, where: Int64s | Bools) -> Slots:
    """`rows[where]`, 20 times faster: NumPy copies structured rows field by field."""
    if where.dtype == np.bool_:
        where = np.flatnonzero(where)
    return whole(rows).take(where).view(rows.dtype)


def stack(pieces: Sequence[Slots]) -> Slots:
    """Structured rows end to end, copied in one block as in `pick`; one part is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([whole(part) for part in pieces]).view(pieces[0].dtype)


def whole(rows: Slots) -> Slots:
    """Structured rows viewed as opaque ones, which NumPy copies quickly."""
    return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize)))


def rows_of(where: Bools | Int64s) -> npt.NDArray[np.intp]:
    """The rows at which it is true, or other than 0; as a rule, all. Not to be written to."""
    return _every_row(len(where)) if where.all() else np.flatnonzero(where)


def _every_row(count: int) -> npt.NDArray[np.intp]:
    return _NUMBERS[:count] if count <= len(_NUMBERS) else np.arange(count)


_NUMBERS = np.arange(1 << 17)
_NUMBERS.flags.writeable = False


class KeyTable:
    """64-bit keys → small numbers; each new key is defined once. Keeps at most `limit` keys."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys = np.empty(0, np.int64)
        self._values = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def lookup(
        self, keys: Int64s, define: Callable[[int, int], int], overflow: Callable[[], int]
    ) -> Int64s:
        """The number of each key.

        `define(key, first)` numbers a new key; `first` is its first position in `keys`. Keys over
        the limit get the result of `overflow()`.
        """
        if not len(keys):
            return np.empty(0, np.int64)
        if not len(self._keys):
            self._define(keys, np.arange(len(keys)), define)
        has_number, places = self._find(keys)
        if not has_number.all():
            missing = np.flatnonzero(~has_number)
            self._define(keys[missing], missing, define)
            has_number, places = self._find(keys)
            if not has_number.all():
                return np.where(has_number, self._values[places], overflow())
        return self._values[places]

    def keep(self, wanted: Callable[[Int64s], Bools]) -> None:
        """Drop the keys whose numbers are not `wanted`."""
        mask = wanted(self._values)
        self._keys = self._keys[mask]
        self._values = self._values[mask]

    def _find(self, keys: Int64s) -> tuple[Bools, Int64s]:
        places = np.searchsorted(self._keys, keys)
        np.minimum(places, len(self._keys) - 1, out=places)
        return self._keys[places] == keys, places

    def _define(self, keys: Int64s, indices: Int64s, define: Callable[[int, int], int]) -> None:
        _, first = np.unique(keys, return_index=True)
        # In order of arrival, so that numbers follow the program's own order.
        room = np.sort(first)[: self._limit - len(self._keys)]
        chosen = keys[room]
        values = [
            define(int(key), int(indices[place])) for key, place in zip(chosen, room, strict=True)
        ]
        merged = np.concatenate((self._keys, chosen))
        order = np.argsort(merged)
        self._keys = merged[order]
        self._values = np.concatenate((self._values, np.array(values, np.int64)))[order]
