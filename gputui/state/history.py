"""Histories that stay bounded: of a run's times, thinned as it grows, and of samples, averaged."""

from __future__ import annotations

import functools
import math
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from gputui.base.decoding import msgpack_decoder
from gputui.model.metrics import charted_fields

# The newest of what a session sees, in bounded memory; saved copies share what is older.

_Item = TypeVar("_Item")

# Entries that are worth packing together.
_PACKED = 64

# Field names make up most of an entry, and the fastest compression removes them.
_LEVEL = 1

_encoder = msgspec.msgpack.Encoder()


class History(Generic[_Item]):
    """The newest `most` entries, oldest first.

    A recording that is played has hundreds of saved states, each with mostly the same entries:
    `copy` packs those added since the last time, once, and shares what was packed.
    """

    __slots__ = ("_kind", "_most", "_newest", "_packed", "_pieces", "append")

    def __init__(self, kind: Any, most: int, items: Iterable[_Item] = ()) -> None:
        """`kind` is the entries' type."""
        self._kind = kind
        self._most = most
        self._pieces: tuple[_Piece, ...] = ()
        self._packed = 0
        """Entries in the pieces."""
        self._newest: deque[_Item] = deque(items, most)
        self.append = self._newest.append

    def copy(self) -> History[_Item]:
        """A history that later appends to this one do not change."""
        if len(self._newest) >= _PACKED:
            self._pack()
        copy: History[_Item] = History(self._kind, self._most, self._newest)
        copy._pieces, copy._packed = self._pieces, self._packed
        return copy

    def _pack(self) -> None:
        piece = _Piece(self._kind, tuple(self._newest))
        self._packed += len(piece)
        self._newest.clear()
        pieces = deque((*self._pieces, piece))
        while self._packed - len(pieces[0]) >= self._most:
            self._packed -= len(pieces.popleft())
        self._pieces = tuple(pieces)

    def __len__(self) -> int:
        return min(self._most, self._packed + len(self._newest))

    def __iter__(self) -> Iterator[_Item]:
        left_out = self._packed + len(self._newest) - len(self)
        return islice(chain(chain.from_iterable(self._pieces), self._newest), left_out, None)

    def __reversed__(self) -> Iterator[_Item]:
        older = chain.from_iterable(map(reversed, reversed(self._pieces)))
        return islice(chain(reversed(self._newest), older), len(self))

    @property
    def oldest(self) -> _Item | None:
        """The first of them, None if there is none."""
        return next(iter(self), None)

    @property
    def newest(self) -> _Item | None:
        """The last one added, None if there is none."""
        return next(reversed(self), None)


class _Piece:
    """Consecutive entries, packed: a third of their size as objects, or less."""

    __slots__ = ("_count", "_data", "_kind")

    def __init__(self, kind: Any, items: tuple[Any, ...]) -> None:
        self._kind = kind
        self._count = len(items)
        self._data: bytes | tuple[Any, ...]
        try:
            self._data = zlib.compress(_encoder.encode(items), _LEVEL)
        except OverflowError:  # of figures that no machine has
            self._data = items

    def items(self) -> tuple[Any, ...]:
        if isinstance(self._data, tuple):
            return self._data
        items: tuple[Any, ...] = _decoder(self._kind).decode(zlib.decompress(self._data))
        return items

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(_unpacked(self))

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(_unpacked(self))


@lru_cache(maxsize=64)
def _unpacked(piece: _Piece) -> tuple[Any, ...]:
    """The entries of a packed piece. Pieces that are drawn are read again and again, so that the
    newest are kept."""
    return piece.items()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: TID251 (the type alone)
    return msgpack_decoder(tuple[kind, ...])


# The samples of a day in bounded memory: the newest one by one, and least, mean and most of each
# stretch of time.

_SECOND_NS = 1_000_000_000
# Least, sum or mean, most and count of a field.
_FIGURES = 4
# 960 of these are four hours, and 300 of those twenty times as long 25 hours.
_FINE_NS = 15 * _SECOND_NS
# At 100 ms a stretch of 15 s has 150 samples; more come only where a clock stands still.
_MOST_WAITING = 256

Figures = tuple[float, float, float, int]
"""Least, sum, most and number of values."""


Stretch = tuple[int, int, bytes]
"""A stretch of time: its start, the middle of its samples, and the Figures of each field as 32-bit
floats."""


class Stretches(msgspec.Struct):
    """Some numeric fields of samples over stretches of `stretch_ns`, the newest of which are kept.

    A stretch is complete once a sample of a later one arrives. Fields without a value in a stretch
    have none there.
    """

    fields: tuple[str, ...]
    stretch_ns: int
    complete: History[Stretch]
    _start_ns: int = -1
    _first_ns: int = 0
    _last_ns: int = 0
    # msgspec copies empty containers that are defaults.
    _open: dict[str, list[float]] = {}

    @classmethod
    def newest(cls, fields: tuple[str, ...], stretch_ns: int, most: int) -> Stretches:
        """No stretches yet, and never more than `most`."""
        return cls(fields, stretch_ns, History(Stretch, most))

    def add(self, time_ns: int, values: dict[str, float]) -> None:
        """Add a sample; one that is out of order counts for the current time."""
        self.move_to(time_ns)
        self.merge(time_ns, {name: (value, value, value, 1) for name, value in values.items()})

    def move_to(self, time_ns: int) -> None:
        """Advance to a sample's time, which completes an earlier stretch."""
        start_ns = time_ns - time_ns % self.stretch_ns
        if start_ns > self._start_ns:
            self._close()
            self._start_ns = start_ns
            self._first_ns = time_ns

    def merge(self, last_ns: int, figures: dict[str, Figures]) -> None:
        """Add the combined samples of the current stretch, the last at `last_ns`."""
        self._last_ns = last_ns
        figures_so_far = self._open
        for name, (low, total, high, count) in figures.items():
            if name not in figures_so_far:
                figures_so_far[name] = [low, total, high, count]
                continue
            sums = figures_so_far[name]
            sums[0] = min(sums[0], low)
            sums[1] += total
            sums[2] = max(sums[2], high)
            sums[3] += count

    @property
    def end_ns(self) -> int:
        """Where the newest stretch ends, 0 if there is none."""
        newest = self.complete.newest
        return newest[0] + self.stretch_ns if newest else 0

    def means(self, field: str) -> Iterator[tuple[int, float | None]]:
        """(middle of a stretch's samples, mean), newest first."""
        place = _FIGURES * self.fields.index(field) + 1
        for _, middle_ns, figures in reversed(self.complete):
            value = memoryview(figures).cast("f")[place]
            # Before the first sample there is no mean: NaN stands for it in the array.
            yield middle_ns, None if math.isnan(value) else value

    def figures(
        self, field: str, start_ns: int, end_ns: int
    ) -> Iterator[tuple[int, float, float, float, float]]:
        """(start, least, mean, most, samples) of stretches between two moments, newest first."""
        place = _FIGURES * self.fields.index(field)
        for begun_ns, _, packed in reversed(self.complete):
            if begun_ns < start_ns:
                return
            figures = memoryview(packed).cast("f")[place : place + _FIGURES]
            if begun_ns + self.stretch_ns <= end_ns and not math.isnan(figures[0]):
                low, mean, high, count = figures
                yield begun_ns, low, mean, high, count

    def _close(self) -> None:
        if self._open:
            figures = array("f", [math.nan]) * (_FIGURES * len(self.fields))
            for name, (low, total, high, count) in self._open.items():
                place = _FIGURES * self.fields.index(name)
                figures[place : place + _FIGURES] = array("f", (low, total / count, high, count))
            middle_ns = (self._first_ns + self._last_ns) // 2
            self.complete.append((self._start_ns, middle_ns, figures.tobytes()))
            self._open = {}


class LongHistory(msgspec.Struct):
    """The last 24 hours of some fields, the last four of them finer: 0.3 MB for eight fields."""

    levels: tuple[Stretches, ...]
    """The finer first."""
    _waiting: list[tuple[float | None, ...]] = []
    _last_ns: int = 0
    _end_ns: int = 0

    @classmethod
    def empty(cls, fields: tuple[str, ...]) -> LongHistory:
        """An empty one of these fields of samples."""
        return cls(
            (
                Stretches.newest(fields, _FINE_NS, 4 * 240),
                Stretches.newest(fields, 20 * _FINE_NS, 24 * 12 + 12),
            )
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of samples that are kept."""
        return self.levels[0].fields

    def add(self, time_ns: int, sample: object) -> None:
        """Count a sample into the stretches that `time_ns` lies in; times must not fall."""
        # This runs for every GPU in every sample: values wait until their stretch is complete.
        waiting = self._waiting
        if time_ns >= self._end_ns or len(waiting) >= _MOST_WAITING:
            self._merge()
            if time_ns >= self._end_ns:
                self._end_ns = time_ns - time_ns % _FINE_NS + _FINE_NS
                for level in self.levels:
                    level.move_to(time_ns)
        waiting.append(_reader(self.fields)(sample))
        self._last_ns = time_ns

    def _merge(self) -> None:
        figures: dict[str, Figures] = {}
        for name, column in zip(self.fields, zip(*self._waiting, strict=True), strict=False):
            values = [value for value in column if value is not None]
            if values:
                figures[name] = min(values), sum(values), max(values), len(values)
        if self._waiting:
            for level in self.levels:
                level.merge(self._last_ns, figures)
        self._waiting.clear()


class Track(msgspec.Struct, frozen=True):
    """One field of samples over time. `recent` has (time, sample) pairs, the oldest first."""

    recent: History[tuple[int, Any]]
    long: LongHistory
    field: str

    def samples(self, column_ns: int) -> Iterator[tuple[int, float | None]]:
        """(time, value) newest first: every sample, then means of older ones.

        If columns are as long as an averaged stretch, the means suffice, and far fewer values are
        read.
        """
        until_ns, levels = self._levels_for(column_ns)
        oldest_ns, field = self.last_ns + 1, self.field
        for time_ns, sample in reversed(self.recent):
            if time_ns < until_ns:
                break
            oldest_ns = time_ns
            yield time_ns, getattr(sample, field)
        for level in levels:
            before_ns = oldest_ns
            for time_ns, value in level.means(self.field):
                if time_ns < before_ns:
                    oldest_ns = time_ns
                    yield time_ns, value

    def extremes(self, start_ns: int, column_ns: int) -> tuple[float, float, float] | None:
        """(least, mean, most) since `start_ns`; None if nothing is known."""
        until_ns, levels = self._levels_for(column_ns)
        oldest_ns, field = self.last_ns, self.field
        since_ns = max(start_ns, until_ns)
        values: list[float] = []
        for time_ns, sample in reversed(self.recent):
            if time_ns < since_ns:
                break
            oldest_ns = time_ns
            value = getattr(sample, field)
            if value is not None:
                values.append(value)
        summaries: list[tuple[float, float, float, float]] = []
        if values:
            summaries = [(min(values), sum(values) / len(values), max(values), float(len(values)))]
        for level in levels:
            for begun_ns, *figures in level.figures(field, start_ns, oldest_ns):
                oldest_ns = begun_ns
                summaries.append((figures[0], figures[1], figures[2], figures[3]))
        if not summaries:
            return None
        total = sum(mean * count for _, mean, _, count in summaries)
        mean = total / sum(count for _, _, _, count in summaries)
        return (
            min(low for low, _, _, _ in summaries),
            mean,
            max(high for _, _, high, _ in summaries),
        )

    def _levels_for(self, column_ns: int) -> tuple[int, Sequence[Stretches]]:
        """The moment from which every sample is read, and the stretches to read for the time before
        it."""
        levels = self.long.levels
        first = sum(level.stretch_ns <= column_ns for level in levels)
        if not first:
            return 0, levels
        return levels[first - 1].end_ns, levels[first - 1 :]

    @property
    def first_ns(self) -> int:
        """When the oldest sample still kept individually was taken."""
        return self.recent.oldest[0] if self.recent.oldest else 0

    @property
    def last_ns(self) -> int:
        """When the newest sample was taken."""
        return self.recent.newest[0] if self.recent.newest else 0

    def peaks(self, first_ns: int, last_ns: int) -> list[tuple[int, float]]:
        """(time, value) between two moments: every sample as long as they are kept, before that the
        highest of each stretch, at its start.
        """
        values = [
            (time_ns, float(value))
            for time_ns, sample in self.recent
            if first_ns <= time_ns <= last_ns and (value := getattr(sample, self.field)) is not None
        ]
        begin_ns = values[0][0] if values else last_ns
        before: list[tuple[int, float]] = []
        for level in self.long.levels:
            stretches = level.figures(self.field, first_ns, begin_ns)
            before = [(start_ns, high) for start_ns, _, _, high, _ in stretches][::-1] + before
            begin_ns = before[0][0] if before else begin_ns
        return before + values


HISTORY_SAMPLES = 4096
"""Samples kept for charts: 68 minutes at one a second."""

_Sample = TypeVar("_Sample", bound=msgspec.Struct)


class Samples(msgspec.Struct, Generic[_Sample]):
    """The samples of a GPU or of the host, over all runs: the newest one, the latest ones one by
    one, and a day of them in stretches."""

    history: History[tuple[int, _Sample]]
    """(time, sample), the oldest first."""
    long_history: LongHistory
    newest: _Sample | None = None

    @classmethod
    def empty(cls, kind: type[_Sample], most: int = HISTORY_SAMPLES) -> Samples[_Sample]:
        """No samples yet. The day keeps those fields of the samples that have a chart."""
        pairs = tuple[int, kind]  # type: ignore[valid-type]
        return cls(History(pairs, most), LongHistory.empty(tuple(charted_fields(kind))))

    def add(self, time_ns: int, sample: _Sample) -> None:
        """Make `sample` the newest, and add it to both histories."""
        self.newest = sample
        self.history.append((time_ns, sample))
        self.long_history.add(time_ns, sample)

    def track(self, field: str) -> Track:
        """One of their fields over time."""
        return Track(self.history, self.long_history, field)


@functools.cache
def _reader(fields: tuple[str, ...]) -> Callable[[object], tuple[float | None, ...]]:
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda sample: tuple(getattr(sample, name) for name in fields)
