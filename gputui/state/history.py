"""A day of readings in bounded memory: least, mean and most of each stretch of time."""

from __future__ import annotations

import functools
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

_SECOND_NS = 1_000_000_000
_FIGURES = 4
_FINE_NS = 15 * _SECOND_NS
_MOST_WAITING = 256

Figures = tuple[float, float, float, int]
"""Least, sum, most and number of values."""


class Stretches:
    """Some numeric fields of samples over stretches of `stretch_ns`, the newest `most` of them.

    A stretch is complete once a sample of a later one arrives. Fields without a value in a stretch
    have none there.
    """

    def __init__(self, fields: tuple[str, ...], stretch_ns: int, most: int) -> None:
        self.stretch_ns = stretch_ns
        self._places = {name: _FIGURES * number for number, name in enumerate(fields)}
        self._known: deque[tuple[int, int, array[float]]] = deque(maxlen=most)
        self._start_ns = -1
        self._first_ns = 0
        self._last_ns = 0
        self._open: dict[str, list[float]] = {}

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
        known = self._open
        for name, (low, total, high, count) in figures.items():
            if name not in known:
                known[name] = [low, total, high, count]
                continue
            sums = known[name]
            sums[0] = min(sums[0], low)
            sums[1] += total
            sums[2] = max(sums[2], high)
            sums[3] += count

    @property
    def end_ns(self) -> int:
        """Where the newest stretch ends, 0 if there is none."""
        return self._known[-1][0] + self.stretch_ns if self._known else 0

    def means(self, field: str) -> Iterator[tuple[int, float | None]]:
        """(middle of a stretch's samples, mean), newest first."""
        place = self._places[field] + 1
        for _, middle_ns, figures in reversed(self._known):
            value = figures[place]
            yield middle_ns, None if math.isnan(value) else value

    def figures(
        self, field: str, start_ns: int, end_ns: int
    ) -> Iterator[tuple[int, float, float, float, float]]:
        """(start, least, mean, most, samples) of stretches between two moments, newest first."""
        place = self._places[field]
        for begun_ns, _, figures in reversed(self._known):
            if begun_ns < start_ns:
                return
            if begun_ns + self.stretch_ns <= end_ns and not math.isnan(figures[place]):
                low, mean, high, count = figures[place : place + _FIGURES]
                yield begun_ns, low, mean, high, count

    def _close(self) -> None:
        if self._open:
            figures = array("f", [math.nan]) * (_FIGURES * len(self._places))
            for name, (low, total, high, count) in self._open.items():
                place = self._places[name]
                figures[place : place + _FIGURES] = array("f", (low, total / count, high, count))
            middle_ns = (self._first_ns + self._last_ns) // 2
            self._known.append((self._start_ns, middle_ns, figures))
            self._open = {}


class LongHistory:
    """The last 24 hours of some fields, the last four of them finer: 0.3 MB for eight fields."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._figures = _reader(fields)
        self._waiting: list[tuple[float | None, ...]] = []
        self._last_ns = 0
        self._end_ns = 0
        self.levels = [
            Stretches(fields, _FINE_NS, 4 * 240),
            Stretches(fields, 20 * _FINE_NS, 24 * 12 + 12),
        ]
        """The finer first."""

    def add(self, time_ns: int, sample: object) -> None:
        """Add a sample."""
        # This runs for every GPU in every sample: values wait until their stretch is complete.
        waiting = self._waiting
        if time_ns >= self._end_ns or len(waiting) >= _MOST_WAITING:
            self._merge()
            if time_ns >= self._end_ns:
                self._end_ns = time_ns - time_ns % _FINE_NS + _FINE_NS
                for level in self.levels:
                    level.move_to(time_ns)
        waiting.append(self._figures(sample))
        self._last_ns = time_ns

    def _merge(self) -> None:
        figures: dict[str, Figures] = {}
        for name, column in zip(self._fields, zip(*self._waiting, strict=True), strict=False):
            values = [value for value in column if value is not None]
            if values:
                figures[name] = min(values), sum(values), max(values), len(values)
        if self._waiting:
            for level in self.levels:
                level.merge(self._last_ns, figures)
        self._waiting.clear()


@functools.cache
def _reader(fields: tuple[str, ...]) -> Callable[[object], tuple[float | None, ...]]:
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda sample: tuple(getattr(sample, name) for name in fields)
