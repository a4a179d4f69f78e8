"""What threads of the program did at any moment, as far as their CUDA calls show it.

A thread's time is cut into its outermost CUDA calls and the stretches between them. A thread that
launches makes thousands of calls a second with short stretches between: that is the rule, and only
the other pieces are looked up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.absence import AWAY_LEAVES, States
from gputui.attribute.accounting.doing import SHORT_NS, Doing
from gputui.attribute.accounting.line_readings import LineReadings
from gputui.attribute.arrays import (
    Growing,
    Int64s,
    distinct,
    median,
    present,
    run_starts,
)
from gputui.model.leaves import Leaf

SHORT_MOST_NS = 1_000_000
SHORT_MEDIANS = 5
"""On a slow or crowded CPU dispatching takes longer: up to so many times the median time between
two calls counts as launching too, but never more than SHORT_MOST_NS."""

_ENOUGH = 64
_SOME = 512
"""Least, and most, stretches between calls that the median is of."""

WAITED_NS = 20_000
"""An asynchronous copy that took longer waited for the GPU: with pageable memory it blocks (CUDA
driver API, "API synchronization behavior")."""

KEPT_NS = 1_000_000_000
"""Calls that ended this long before what is accounted for are forgotten."""

MAX_THREADS = 1024


Kinds = npt.NDArray[np.int8]

# NumPy compares with an enum three times as slowly.
_LAUNCHING, _WAITING = int(Doing.LAUNCHING), int(Doing.WAITING)

_WAIT, _SCHEDULER = AWAY_LEAVES.index(Leaf.WAIT), AWAY_LEAVES.index(Leaf.SCHEDULER)

_NEVER = np.iinfo(np.int64).max

Rows = npt.NDArray[np.intp]
Pieces = dict[int, tuple[Rows, Int64s]]
"""Of intervals, by what a thread was at: the rows of those in which it was, each once and in order,
and for how long."""


class _Thread:
    """The outermost calls of one thread, in order."""

    __slots__ = ("_calls", "_pending", "ends", "kinds", "starts")

    def __init__(self) -> None:
        self._calls = Growing(np.int64, np.int64, np.int8)
        self._pending: list[tuple[Int64s, Int64s, Kinds]] = []
        self._show()

    def _show(self) -> None:
        self.starts: Int64s
        self.ends: Int64s
        self.kinds: Kinds
        self.starts, self.ends, self.kinds = self._calls

    def add(self, starts: Int64s, ends: Int64s, kinds: Kinds) -> None:
        """Calls, in any order."""
        self._pending.append((starts, ends, kinds))

    def settle(self) -> None:
        """Take in what is pending: sort, keep the outermost."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        reach_ns = max(int(self.starts[-1]), int(self.ends[-1])) if len(self.ends) else -_NEVER
        if _one_after_the_other(pending, reach_ns):
            for part in pending:
                self._calls.append(part)
        else:
            parts = [tuple(self._calls), *pending]
            starts, ends, kinds = map(np.concatenate, zip(*parts, strict=True))
            order = np.argsort(starts, kind="stable")
            starts, ends, kinds = starts[order], ends[order], kinds[order]
            inside = starts[1:] < np.maximum.accumulate(ends[:-1])
            outermost = np.flatnonzero(np.concatenate(([True], ~inside)))
            self._calls.replace((starts[outermost], ends[outermost], kinds[outermost]))
        self._show()

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before."""
        first = int(np.searchsorted(self.ends, before_ns))
        if first > 1024 and first * 2 > len(self.ends):
            self._calls.drop(first)
            self._show()

    def during(self, starts: Int64s, ends: Int64s) -> tuple[Pieces, Rows]:
        """Time of each kind but launching in intervals that are disjoint and in order, and the
        rows of those at whose start a wait was under way."""
        parts = self._parts(int(starts[0]), int(ends[-1]))
        first = np.searchsorted(ends, parts.starts, side="right")
        at, rows = spread(first, _beyond(starts, first, parts.ends))
        amounts = np.minimum(parts.ends.take(at), ends.take(rows))
        amounts -= np.maximum(parts.starts.take(at), starts.take(rows))
        kinds = parts.kinds.take(at)
        found: Pieces = {}
        for kind in present(kinds, len(Doing)):
            of = np.flatnonzero(kinds == kind)
            found[kind] = _each_once(rows.take(of), amounts.take(of))
        waits = np.flatnonzero(kinds == _WAITING)
        waiting, begins = at.take(waits), starts.take(rows.take(waits))
        begun = (parts.starts.take(waiting) <= begins) & (begins < parts.ends.take(waiting))
        return found, rows.take(waits[begun])

    def waits(self, since_ns: int, until_ns: int) -> tuple[Int64s, Int64s]:
        """The calls that wait for the GPU, as far as they lie in an interval, in order."""
        low = int(np.searchsorted(self.ends, since_ns, side="right"))
        high = int(np.searchsorted(self.starts, until_ns))
        at = low + np.flatnonzero(self.kinds[low:high] == _WAITING)
        return np.maximum(self.starts[at], since_ns), np.minimum(self.ends[at], until_ns)

    def _parts(self, since_ns: int, until_ns: int) -> _Parts:
        """What the thread did but launch, in order: other calls, and stretches outside CUDA."""
        if not len(self.starts):
            return _Parts(np.array([-_NEVER]), np.array([_NEVER]), np.array([Doing.AWAY], np.int8))
        low = max(0, int(np.searchsorted(self.ends, since_ns, side="right")) - 1)
        high = int(np.searchsorted(self.starts, until_ns)) + 1
        starts, ends, of_calls = self.starts[low:high], self.ends[low:high], self.kinds[low:high]
        calls = np.flatnonzero(of_calls != _LAUNCHING)
        between = starts[1:] - ends[:-1]
        away = np.flatnonzero(between > _short(between))
        # Before the first call that is known, and after the last, the thread was away, as far as
        # anybody knows.
        begins = [starts[calls], ends[away]]
        finishes = [ends[calls], starts[away + 1]]
        if low == 0:
            begins.append(np.array([-_NEVER]))
            finishes.append(starts[:1])
        if high > len(self.starts):
            begins.append(ends[-1:])
            finishes.append(np.array([_NEVER]))
        of = np.concatenate(begins)
        kinds = np.full(len(of), Doing.AWAY, np.int8)
        kinds[: len(calls)] = of_calls.take(calls)
        order = np.argsort(of, kind="stable")
        return _Parts(of[order], np.concatenate(finishes)[order], kinds[order])


class _Parts(NamedTuple):
    """Disjoint parts of a thread's time, in order."""

    starts: Int64s
    ends: Int64s
    kinds: Kinds


def _short(between: Int64s) -> float:
    """Up to how long a stretch between calls is launching."""
    if len(between) < _ENOUGH:
        return SHORT_NS
    usual = median(between[:: -(-len(between) // _SOME)])
    return min(max(SHORT_NS, SHORT_MEDIANS * usual), SHORT_MOST_NS)


def spread(first: Rows, beyond: Rows) -> tuple[Rows, Rows]:
    """The rows from each `first` to before its `beyond`, and to which of them each belongs."""
    count = beyond - first
    if not len(count) or count.max() <= 1:
        of = np.flatnonzero(count > 0)
        return of, first.take(of)
    count = np.maximum(0, count)
    of = np.repeat(np.arange(len(count)), count)
    return of, np.arange(len(of)) + (first - np.cumsum(count) + count).take(of)


def _beyond(starts: Int64s, first: Rows, ends: Int64s) -> Rows:
    """How many of `starts` lie before each end, at least `first`: as a rule, one more at most."""
    last = len(starts) - 1
    beyond = first + (starts.take(first, mode="clip") < ends)
    np.minimum(beyond, len(starts), out=beyond)
    more = np.flatnonzero((beyond <= last) & (starts.take(beyond, mode="clip") < ends))
    beyond[more] = np.searchsorted(starts, ends.take(more))
    return beyond


def _one_after_the_other(parts: list[tuple[Int64s, Int64s, Kinds]], reach_ns: int) -> bool:
    """Whether calls come in order, none inside another, after those that ended by `reach_ns`."""
    for starts, ends, _ in parts:
        if starts[0] < reach_ns or (starts[1:] < ends[:-1]).any() or (ends < starts).any():
            return False
        reach_ns = int(ends[-1])
    return True


def _each_once(rows: Rows, amounts: Int64s) -> tuple[Rows, Int64s]:
    """The sums of rows that are in order."""
    if (rows[1:] > rows[:-1]).all():
        return rows, amounts
    begins = run_starts(rows)
    return rows.take(begins), np.add.reduceat(amounts, begins)


class HostThreads:
    """All threads of one process."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._states: dict[int, States] = {}
        self.lines = LineReadings()
        """Where the Python ones were."""

    @property
    def launching(self) -> list[int]:
        """The threads that made CUDA calls."""
        return list(self._threads)

    def calls_in(self, thread: int, since_ns: int, until_ns: int) -> int:
        """How many outermost calls of a thread began within an interval."""
        found = self._threads[thread]
        found.settle()
        first, beyond = np.searchsorted(found.starts, (since_ns, until_ns)).tolist()
        return int(beyond - first)

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """A reading of a thread: what it ran and waited for a core so far."""
        self._states.setdefault(thread, States()).add(time_ns, run_ns, delay_ns, asleep_in)

    def away(self, thread: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """What a thread was at in each interval in which it was away: shares by AWAY_LEAVES."""
        return self._states.get(thread, States()).shares(starts, ends)

    def absence(self, thread: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """The same by what it is for the thread to blame.

        One that sleeps while another that launches is ready and has no core waits for that one, as
        for autograd's in a backward pass: the core is what is missing.
        """
        shares = self.away(thread, starts, ends)
        asleep, lacking = shares[:, _WAIT], np.zeros(len(starts))
        if asleep.any():
            for other in self._threads:
                if other != thread and other in self._states:
                    theirs = self._states[other].shares(starts, ends)[:, _SCHEDULER]
                    np.maximum(lacking, theirs, out=lacking)
            np.minimum(lacking, asleep, out=lacking)
            shares[:, _WAIT] -= lacking
            shares[:, _SCHEDULER] += lacking
        return shares

    def add(self, threads: Int64s, starts: Int64s, ends: Int64s, kinds: Kinds) -> None:
        """CUDA calls, in any order."""
        present = distinct(threads).tolist()
        for thread in present:
            if thread not in self._threads:
                if len(self._threads) >= MAX_THREADS:
                    continue
                self._threads[thread] = _Thread()
            if len(present) == 1:
                self._threads[thread].add(starts, ends, kinds)
            else:
                of = threads == thread
                self._threads[thread].add(starts[of], ends[of], kinds[of])

    def during(self, thread: int, starts: Int64s, ends: Int64s) -> tuple[Pieces, Rows]:
        """Time of each kind but launching in intervals that are disjoint and in order, and the
        rows of those at whose start a wait was under way."""
        found = self._threads.get(thread)
        if found is None:
            return {Doing.AWAY: (np.arange(len(starts)), ends - starts)}, np.empty(0, np.intp)
        found.settle()
        return found.during(starts, ends)

    def waits(self, thread: int, since_ns: int, until_ns: int) -> tuple[Int64s, Int64s]:
        """When a thread waited for the GPU, within an interval and in order."""
        found = self._threads.get(thread)
        if found is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found.settle()
        return found.waits(since_ns, until_ns)

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before."""
        for thread in self._threads.values():
            thread.settle()
            thread.forget(before_ns - KEPT_NS)
        self.lines.forget(before_ns - KEPT_NS)
