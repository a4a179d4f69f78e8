"""At which line of the program its Python threads were, as they were read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

import numpy as np

from gputui.attribute.accounting.absence import READINGS_KEPT
from gputui.attribute.arrays import Int64s
from gputui.model.events import NO_LEAF
from gputui.model.leaves import Leaf

LINE_NS = 200_000_000
"""A line read this long before, two readings, still says where a thread is."""


class LineReading(NamedTuple):
    """When a thread was at which line; the leaf that its frames speak of, if any, whether they
    fetch the program's input, and the libraries' functions that the line is in, outermost first."""

    time_ns: int
    line: int
    leaf: Leaf | None = None
    fetches: bool = False
    inside: tuple[int, ...] = ()


class LineHit(NamedTuple):
    """A reading that counts for idle time. `leaf` is a leaf's number, NO_LEAF, or what stands for a
    thread beside the one that launches."""

    time_ns: int
    line: int
    leaf: int
    inside: tuple[int, ...]

    @staticmethod
    def of(reading: LineReading, leaf: int | None = None) -> LineHit:
        """A reading as what its frames speak of, or as `leaf`."""
        if leaf is None:
            leaf = NO_LEAF if reading.leaf is None else int(reading.leaf)
        return LineHit(reading.time_ns, reading.line, leaf, reading.inside)


MOSTLY = 0.6
"""Part of a line's readings that are inside a function from which it stands for the line."""


class Inside:
    """In which function of a library a line of the program is, most of the time."""

    def __init__(self) -> None:
        self._readings = 0
        self._counts = Counter[int]()
        self._depths = Counter[int]()

    def add(self, functions: tuple[int, ...]) -> None:
        """One reading, the outermost first; a function that calls itself counts once."""
        self._readings += 1
        for depth, function in enumerate(dict.fromkeys(functions)):
            self._counts[function] += 1
            self._depths[function] += depth

    def mostly(self) -> tuple[int, int]:
        """The innermost that most readings are in, and how many are; 0 and 0 if there is none."""
        found = [one for one, count in self._counts.items() if count >= MOSTLY * self._readings]
        if not found:
            return 0, 0
        deepest = max(found, key=lambda one: self._depths[one] / self._counts[one])
        return deepest, self._counts[deepest]


class LineReadings:
    """Those of all threads of one process, in order."""

    def __init__(self) -> None:
        self._of: dict[int, list[LineReading]] = {}

    @property
    def threads(self) -> list[int]:
        """The threads that are read."""
        return list(self._of)

    def add(self, thread: int, reading: LineReading) -> None:
        """Where a thread was."""
        self._of.setdefault(thread, []).append(reading)

    def within(self, thread: int, starts: Int64s, ends: Int64s) -> list[LineReading]:
        """Those of a thread that lie in one of the intervals, which are in order."""
        readings = self._of.get(thread)
        if not readings or not len(starts):
            return []
        first = bisect_left(readings, int(starts[0]), key=_moment)
        last = bisect_left(readings, int(ends.max()), key=_moment)
        found = readings[first:last]
        if not found:
            return []
        times = np.array([reading.time_ns for reading in found])
        at = np.searchsorted(starts, times, side="right") - 1
        inside = (at >= 0) & (times < ends[np.maximum(at, 0)])
        return [found[row] for row in np.flatnonzero(inside).tolist()]

    def beside(self, thread: int, time_ns: int) -> list[tuple[int, LineReading]]:
        """The other threads, and where they were when all were read at this moment."""
        found: list[tuple[int, LineReading]] = []
        for other, readings in self._of.items():
            at = bisect_left(readings, time_ns, key=_moment)
            if other != thread and at < len(readings) and readings[at].time_ns == time_ns:
                found.append((other, readings[at]))
        return found

    def times_and_lines(self, thread: int) -> tuple[Int64s, Int64s]:
        """When a thread's line was read, in order, and the line."""
        found = self._of.get(thread, ())
        return (
            np.array([reading.time_ns for reading in found], np.int64),
            np.array([reading.line for reading in found], np.int64),
        )

    def newest(self, thread: int, since_ns: int, until_ns: int) -> int | None:
        """The newest line of a thread within an interval, or shortly before."""
        readings = self._of.get(thread, [])
        at = bisect_left(readings, until_ns, key=_moment) - 1
        if at < 0 or readings[at].time_ns < since_ns - LINE_NS:
            return None
        return readings[at].line

    def forget(self, before_ns: int) -> None:
        """Drop those before, where many are kept."""
        for readings in self._of.values():
            if len(readings) > READINGS_KEPT:
                del readings[: bisect_left(readings, before_ns, key=_moment)]


def _moment(reading: LineReading) -> int:
    return reading.time_ns
