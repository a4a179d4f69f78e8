"""Arrays of integers and records, and intervals of time: what every part of attribution computes
with. Nothing here knows of records, ranges or steps."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.integer[Any]]
Slots = npt.NDArray[np.void]
"""Rows of `ring.SLOT` or of another structured type."""

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


def are_among(members: Int64s, rows: Int64s) -> Bools:
    """Which of `rows` occur in `members`, which is sorted. (`np.isin` would sort or hash both.)"""
    if not len(members):
        return np.zeros(len(rows), np.bool_)
    among: Bools = members[np.minimum(np.searchsorted(members, rows), len(members) - 1)] == rows
    return among


def median(values: Int64s) -> float:
    """The median of a few values: np.median takes ten times as long."""
    ranked = np.sort(values)
    return float(ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


def codes_present(codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8], limit: int) -> list[int]:
    """Which codes below `limit` (at most 128) occur, in order. Counting the codes would take four
    times as long."""
    occur = codes.tobytes()
    return [code for code in range(limit) if code in occur]


def take_rows(column: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The column at these rows, which are distinct and in order. If they are all of its rows, the
    column itself and no copy."""
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
    return opaque(rows).take(where).view(rows.dtype)


def stack(pieces: Sequence[Slots]) -> Slots:
    """Structured rows end to end, copied in one block as in `pick`; one part is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([opaque(part) for part in pieces]).view(pieces[0].dtype)


def opaque(rows: Slots) -> Slots:
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


# --- Intervals in order of their starts: what each covers alone, and what lies before a moment.


def exclusive(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The part of each interval that no earlier interval covers: row numbers, starts and ends.
    `starts` are in order; intervals that others cover whole are left out."""
    reach = np.maximum.accumulate(ends)
    begins = starts.copy()
    begins[1:] = np.maximum(starts[1:], reach[:-1])
    rows = np.flatnonzero(ends > begins)
    return rows, begins[rows], ends[rows]


def covered_before(moments: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """How much of disjoint intervals, in order, lies before each moment."""
    if not len(starts):
        return np.zeros(len(moments), np.int64)
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    place = np.searchsorted(starts, moments, side="right") - 1
    inside = np.maximum(place, 0)
    covered: Int64s = sums[inside] + np.clip(
        moments - starts[inside], 0, ends[inside] - starts[inside]
    )
    return np.where(place < 0, 0, covered)


MOST_INTERVALS = 1 << 18
"""The most intervals that are kept of one process on one GPU, for other processes' gaps that reach
back to them."""


class Busy(NamedTuple):
    """When something ran: disjoint intervals in order."""

    starts: Int64s
    ends: Int64s

    def after(self, moment_ns: int) -> Busy:
        """The intervals that end after a time; only the newest if they are more than
        MOST_INTERVALS."""
        first = max(int(np.searchsorted(self.ends, moment_ns)), len(self.ends) - MOST_INTERVALS)
        return Busy(self.starts[first:], self.ends[first:])

    def covered(self, starts: Int64s, ends: Int64s) -> Int64s:
        """How much of each interval it takes."""
        return covered_before(ends, *self) - covered_before(starts, *self)


NEVER = Busy(np.empty(0, np.int64), np.empty(0, np.int64))


def union(many: Iterable[Busy]) -> Busy:
    """When any of them ran something."""
    starts, ends = (np.concatenate(column) for column in zip(*many, strict=True))
    order = np.argsort(starts, kind="stable")
    _, starts, ends = exclusive(starts[order], ends[order])
    return Busy(starts, ends)


# --- Time covered by at least one of many intervals, per key, in order of arrival.

# 46 bits are 19 hours of ns: longer than any batch, and 17 bits are left for the keys beside them.
_SPAN_BITS = 46
# Intervals further than 10 hours from the middle one of a call are clamped to that distance.
_SPAN = (1 << _SPAN_BITS) - 1


@dataclass(slots=True)
class Covered:
    """For each key: the time newly covered, the sum of durations, count, first start, last end.

    `gap_rows` index the intervals that began after a time in which nothing of their key was
    covered, and `gaps_ns` give the length of that time.
    """

    keys: Int64s
    busy_ns: Int64s
    total_ns: Int64s
    counts: Int64s
    first_ns: Int64s
    last_ns: Int64s
    gap_rows: Int64s
    gaps_ns: Int64s


MOST_GAPS = 1 << 15
"""The newest gaps that late intervals may fill, of all keys: a training step of 4,000 kernels has
as many in each level of its ranges. Where half of 10,000 operations a tick come a tick late, four
levels of ranges take 6 ms of CPU in place of 1."""
FIRST_GAP_NS = 10**10
"""Time before a key's first interval that late ones may fill."""


class Unions:
    """Keeps, for each key under 65,536, the end of the covered time.

    Of later intervals that begin before that end, only the part beyond it counts: exact if
    intervals arrive in order of time. With `fills_gaps`, the newest MOST_GAPS gaps are kept, and
    what late intervals cover of them counts, too: operations of two threads come each when CUPTI
    has filled their buffers, and a step was up to 4 % shorter than its forward and backward passes.
    """

    def __init__(self, *, fills_gaps: bool = False) -> None:
        self._reach_ns = np.zeros(256, np.int64)
        self._fills_gaps = fills_gaps
        self._gaps: list[tuple[Int64s, Int64s, Int64s]] = []
        """Keys, starts and ends, in order of arrival."""

    def add(self, keys: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Covered:
        """Intervals sorted by start, at least one."""
        while int(keys.max()) >= len(self._reach_ns):
            self._reach_ns = np.concatenate((self._reach_ns, np.zeros_like(self._reach_ns)))
        base = int(starts_ns[len(starts_ns) // 2]) - (_SPAN >> 1)
        order = None
        if (keys != keys[0]).any():
            order = np.argsort(keys.astype(np.uint16), kind="stable")
            keys, starts_ns, ends_ns = keys[order], starts_ns[order], ends_ns[order]
        firsts = run_starts(keys)
        present = keys[firsts]
        counts = np.diff(np.append(firsts, len(keys)))
        # Each key's intervals are shifted to a range of numbers of its own, so that one running
        # maximum serves all.
        shift = np.repeat(np.arange(len(firsts)) << _SPAN_BITS, counts)
        starts = np.clip(starts_ns - base, 0, _SPAN) + shift
        ends = np.clip(ends_ns - base, 0, _SPAN) + shift
        reached = np.clip(self._reach_ns[present] - base, 0, _SPAN) + shift[firsts]
        candidates = ends.copy()
        candidates[firsts] = np.maximum(candidates[firsts], reached)
        reach = np.maximum.accumulate(candidates)
        before = np.empty_like(reach)
        before[1:] = reach[:-1]
        before[firsts] = reached
        busy = np.maximum(0, ends - np.maximum(starts, before))
        gap = starts > before
        gap[firsts] &= self._reach_ns[present] > 0
        gaps = np.flatnonzero(gap)
        last_ns = np.maximum.reduceat(ends_ns, firsts)
        busy_ns = np.add.reduceat(busy, firsts)
        if self._fills_gaps:
            reaches_ns = self._reach_ns[present]
            late = np.flatnonzero(starts_ns < np.repeat(reaches_ns, counts))
            if len(late):
                busy_ns += self._fill(
                    present, starts[late], np.minimum(ends, np.repeat(reached, counts))[late], base
                )
            new = firsts[reaches_ns == 0]
            self._keep(keys[new], starts_ns[new] - FIRST_GAP_NS, starts_ns[new])
            self._keep(keys[gaps], before[gaps] - shift[gaps] + base, starts_ns[gaps])
        self._reach_ns[present] = np.maximum(self._reach_ns[present], last_ns)
        return Covered(
            keys=present,
            busy_ns=busy_ns,
            total_ns=np.add.reduceat(durations_ns(starts_ns, ends_ns), firsts),
            counts=counts,
            first_ns=starts_ns[firsts],
            last_ns=last_ns,
            gap_rows=gaps if order is None else order[gaps],
            gaps_ns=starts[gaps] - before[gaps],
        )

    def _keep(self, keys: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> None:
        """Keeps gaps for late intervals, and drops the oldest."""
        if len(keys):
            self._gaps.append((keys, starts_ns, ends_ns))
        many = sum(len(part[0]) for part in self._gaps) - MOST_GAPS
        while many > 0:
            keys, starts_ns, ends_ns = self._gaps.pop(0)
            if len(keys) > many:
                self._gaps.insert(0, (keys[many:], starts_ns[many:], ends_ns[many:]))
            many -= len(keys)

    def _fill(self, present: Int64s, starts: Int64s, ends: Int64s, base_ns: int) -> Int64s:
        """By key of those present: the time of its gaps that intervals cover, which are none from
        then on. The intervals are in order, moved as `add` moves them; some may have no length."""
        filled = np.zeros(len(present), np.int64)
        rows = ends > starts
        if not self._gaps or not rows.any():
            return filled
        _, begins, stops = exclusive(starts[rows], ends[rows])
        places = np.unique(begins >> _SPAN_BITS)
        keys, opened_ns, closed_ns = (
            np.concatenate(column) for column in zip(*self._gaps, strict=True)
        )
        place = np.searchsorted(present[places], keys).clip(max=len(places) - 1)
        first_ns = int((begins & _SPAN).min()) + base_ns
        its = (present[places[place]] == keys) & (closed_ns > first_ns)
        moved = places[place[its]] << _SPAN_BITS
        opens = np.clip(opened_ns[its] - base_ns, 0, _SPAN) + moved
        order = np.argsort(opens, kind="stable")
        opens = opens[order]
        closes = (np.clip(closed_ns[its] - base_ns, 0, _SPAN) + moved)[order]
        covered_ns = Busy(opens, closes).covered(begins, stops)
        np.add.at(filled, begins >> _SPAN_BITS, covered_ns)
        # What is left of each gap lies between two of the intervals, or before or after all.
        edges = np.iinfo(np.int64)
        after, until = np.append(edges.min, stops), np.append(begins, edges.max)
        first = np.searchsorted(until, opens, side="right")
        pieces = np.searchsorted(after, closes, side="left") - first
        gap = np.repeat(np.arange(len(opens)), pieces)
        piece = np.arange(len(gap)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[gap]
        opens, closes = np.maximum(opens[gap], after[piece]), np.minimum(closes[gap], until[piece])
        stays = closes > opens
        opens, closes = opens[stays], closes[stays]
        place = opens >> _SPAN_BITS
        moved = base_ns - (place << _SPAN_BITS)
        self._gaps = [(keys[~its], opened_ns[~its], closed_ns[~its])]
        self._keep(present[place], opens + moved, closes + moved)
        return filled


# --- Where nothing is known of the GPU: between windows of tracing, and where records were lost.

MOST_HOLES = 4096
"""How many holes are remembered, the newest ones; accounting is at most seconds behind."""


class Holes:
    """Intervals of time, in the order of their ends."""

    def __init__(self) -> None:
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self._open_ns: int | None = None

    def begin(self, moment_ns: int) -> None:
        """Begins a hole: nothing is known from this time until `end`."""
        if self._open_ns is None:
            self._open_ns = moment_ns

    def end(self, moment_ns: int) -> None:
        """Ends the hole that was begun, if there is one."""
        if self._open_ns is not None:
            self.add(self._open_ns, moment_ns)
            self._open_ns = None

    def add(self, start_ns: int, end_ns: int) -> None:
        """Adds a hole. It has to end after all earlier ones."""
        if len(self._ends) and end_ns < self._ends[-1]:
            return  # a clock that was set back
        place = int(np.searchsorted(self._ends, start_ns))
        if place < len(self._starts):
            start_ns = min(start_ns, int(self._starts[place]))
        self._starts = np.append(self._starts[:place], start_ns)[-MOST_HOLES:]
        self._ends = np.append(self._ends[:place], end_ns)[-MOST_HOLES:]

    def touch(self, starts_ns: Int64s, ends_ns: Int64s) -> Bools:
        """Which of these intervals overlap a hole."""
        touched = np.zeros(len(starts_ns), np.bool_)
        if len(self._starts):
            places = np.searchsorted(self._ends, starts_ns, side="right")
            starts = self._starts[np.minimum(places, len(self._starts) - 1)]
            touched = (places < len(self._starts)) & (starts < ends_ns)
        if self._open_ns is not None:
            touched |= ends_ns > self._open_ns
        return touched


# --- Keep memory that arrays give back: without this, a third of reading is page faults.

KEPT_BYTES = 128 << 20
"""Free memory that stays with the process; glibc hands back from 128 KiB on, and every array of a
batch would be new pages."""

MAPPED_BYTES = 32 << 20
"""Larger arrays still are pages of their own, which go back at once; the most that glibc takes."""

# malloc.h of glibc
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@functools.cache
def keep_freed_memory() -> None:
    """For the rest of the process. Other C libraries than glibc are left alone."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
