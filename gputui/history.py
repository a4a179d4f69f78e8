"""A day of readings in bounded memory: least, mean and most of each stretch of time."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator

_SECOND_NS = 1_000_000_000
_FIGURES = 4


class Stretches:
    """Some numeric fields of samples over stretches of `stretch_ns`, the newest `most` of them.

    A stretch is known once a sample of a later one came. Fields that had no figure in a stretch
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
        """Count one more sample; those that come out of order count where time stands."""
        start_ns = time_ns - time_ns % self.stretch_ns
        if start_ns > self._start_ns:
            self._close()
            self._start_ns = start_ns
            self._first_ns = time_ns
        self._last_ns = time_ns
        known = self._open
        for name, value in values.items():
            if name not in known:
                known[name] = [value, value, value, 1]
                continue
            sums = known[name]
            # Comparisons, not min and max: this runs for every figure of every sample.
            if value < sums[0]:
                sums[0] = value
            elif value > sums[2]:
                sums[2] = value
            sums[1] += value
            sums[3] += 1

    @property
    def end_ns(self) -> int:
        """Where the newest stretch ends, 0 while there is none."""
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
        self.levels = (
            Stretches(fields, 15 * _SECOND_NS, 4 * 240),
            Stretches(fields, 300 * _SECOND_NS, 24 * 12 + 12),
        )
        """The finer first."""

    def add(self, time_ns: int, sample: object) -> None:
        """Count one more sample."""
        values = {
            name: value
            for name in self._fields
            for value in (getattr(sample, name),)
            if value is not None
        }
        for level in self.levels:
            level.add(time_ns, values)
