"""Days of readings in bounded memory: least, mean and most of each stretch of time."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator

STRETCH_NS = 15_000_000_000
"""A column of a chart over an hour is this long on a wide terminal."""

STRETCHES = 5760
"""24 hours. With ten fields that is about 1.8 MB."""

_FIGURES = 4


class LongHistory:
    """Some numeric fields of samples, a stretch of `STRETCH_NS` after another.

    A stretch is known once a sample of a later one came. Fields that had no figure in a stretch
    have none there.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._places = {name: _FIGURES * number for number, name in enumerate(fields)}
        self._stretches: deque[tuple[int, array[float]]] = deque(maxlen=STRETCHES)
        self._start_ns = 0
        self._open: dict[str, list[float]] = {}

    def add(self, time_ns: int, sample: object) -> None:
        """Count one more sample; those that come out of order count where time stands."""
        start_ns = time_ns - time_ns % STRETCH_NS
        if start_ns > self._start_ns:
            self._close()
            self._start_ns = start_ns
        for name in self._places:
            value = getattr(sample, name)
            if value is not None:
                sums = self._open.get(name)
                if sums is None:
                    self._open[name] = [value, value, value, 1]
                else:
                    sums[0] = min(sums[0], value)
                    sums[1] += value
                    sums[2] = max(sums[2], value)
                    sums[3] += 1

    def means(self, field: str) -> Iterator[tuple[int, float | None]]:
        """(middle of a stretch, mean), newest first."""
        place = self._places[field] + 1
        for start_ns, figures in reversed(self._stretches):
            value = figures[place]
            yield start_ns + STRETCH_NS // 2, None if math.isnan(value) else value

    @property
    def end_ns(self) -> int:
        """Where the newest stretch ends, 0 while there is none."""
        return self._stretches[-1][0] + STRETCH_NS if self._stretches else 0

    def stretches(
        self, field: str, start_ns: int, end_ns: int
    ) -> Iterator[tuple[float, float, float, float]]:
        """(least, mean, most, samples) of each stretch that lies between the two moments."""
        place = self._places[field]
        for begun_ns, figures in reversed(self._stretches):
            if begun_ns < start_ns:
                return
            if begun_ns + STRETCH_NS <= end_ns and not math.isnan(figures[place]):
                low, mean, high, count = figures[place : place + _FIGURES]
                yield low, mean, high, count

    def _close(self) -> None:
        if self._open:
            figures = array("f", [math.nan]) * (_FIGURES * len(self._places))
            for name, (low, total, high, count) in self._open.items():
                place = self._places[name]
                figures[place : place + _FIGURES] = array("f", (low, total / count, high, count))
            self._stretches.append((self._start_ns, figures))
            self._open = {}
