"""What threads of the program did at any moment, as far as their CUDA calls show it.

A thread's time is cut into its outermost CUDA calls and the stretches between them. Each piece has
a kind; the time of each kind before any moment is a running sum, so that what a thread did in any
interval is a difference of two look-ups, for all intervals at once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Int64s
from gputui.model.leaves import Leaf

SHORT_NS = 200_000
"""Time between two CUDA calls up to which the thread counts as busy launching. What a framework
does to dispatch an operation, a module or a layer lies below; a tokenizer, a data loader or a
garbage collection above."""

WAITED_NS = 20_000
"""An asynchronous copy that took longer waited for the GPU: with pageable memory it blocks (CUDA
driver API, "API synchronization behavior")."""

KEPT_NS = 1_000_000_000
"""Calls that ended this long before what is accounted for are forgotten."""

MAX_THREADS = 1024


class Doing(IntEnum):
    """What a thread is at."""

    LAUNCHING = 0
    WAITING = 1
    """In a call that waits for the GPU."""
    ALLOCATING = 2
    OTHER_CALL = 3
    BETWEEN = 4
    """Between two calls, shortly."""
    AWAY = 5
    """Outside CUDA for longer than SHORT_NS."""


KINDS = len(Doing)

_WAITS = re.compile(r"Synchronize|^cudaMemcpy(?!.*Async)|^cuMemcpy(?!.*Async)|StreamQuery")
_ALLOCATES = re.compile(
    r"cudaMalloc|cudaFree|cudaHost(Alloc|Register|Unregister)"
    r"|cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|HostAlloc)"
)
_LAUNCHES = re.compile(r"Launch|Memcpy.*Async|Memset")


def kind_of_call(name: str) -> Doing:
    """What a thread is at during a CUDA call of this name."""
    if _WAITS.search(name):
        return Doing.WAITING
    if _ALLOCATES.search(name):
        return Doing.ALLOCATING
    return Doing.LAUNCHING if _LAUNCHES.search(name) else Doing.OTHER_CALL


def is_copy(name: str) -> bool:
    """Whether a call of this name may block although it is asynchronous."""
    return "Memcpy" in name


class _Thread:
    """The outermost calls of one thread, in order, and the running sums over them."""

    __slots__ = ("_sums", "ends", "kinds", "pending", "starts")

    def __init__(self) -> None:
        self.starts = np.empty(0, np.int64)
        self.ends = np.empty(0, np.int64)
        self.kinds = np.empty(0, np.int8)
        self.pending: list[tuple[Int64s, Int64s, npt.NDArray[np.int8]]] = []
        self._sums = np.zeros((1, KINDS), np.int64)

    def add(self, starts: Int64s, ends: Int64s, kinds: npt.NDArray[np.int8]) -> None:
        self.pending.append((starts, ends, kinds))

    def settle(self) -> None:
        """Take in what is pending: sort, keep the outermost, sum up."""
        if not self.pending:
            return
        starts = np.concatenate((self.starts, *(part[0] for part in self.pending)))
        ends = np.concatenate((self.ends, *(part[1] for part in self.pending)))
        kinds = np.concatenate((self.kinds, *(part[2] for part in self.pending)))
        self.pending.clear()
        order = np.argsort(starts, kind="stable")
        starts, ends, kinds = starts[order], ends[order], kinds[order]
        before = np.empty_like(ends)
        before[0] = -1
        np.maximum.accumulate(ends[:-1], out=before[1:])
        outermost = starts >= before
        self.starts, self.ends, self.kinds = starts[outermost], ends[outermost], kinds[outermost]
        self._sum()

    def _sum(self) -> None:
        starts, ends = self.starts, self.ends
        count = len(starts)
        steps = np.zeros((count, KINDS), np.int64)
        if count:
            rows = np.arange(count)
            steps[rows, self.kinds] = ends - starts
            gaps = starts[1:] - ends[:-1]
            away = np.where(gaps > SHORT_NS, Doing.AWAY, Doing.BETWEEN)
            steps[rows[:-1], away] += gaps
        self._sums = np.concatenate((np.zeros((1, KINDS), np.int64), np.cumsum(steps, axis=0)))

    def forget(self, before_ns: int) -> None:
        first = int(np.searchsorted(self.ends, before_ns))
        if first > 1024 and first * 2 > len(self.ends):
            self.starts, self.ends = self.starts[first:].copy(), self.ends[first:].copy()
            self.kinds = self.kinds[first:].copy()
            self._sums = self._sums[first:] - self._sums[first]

    def before(self, moments: Int64s) -> npt.NDArray[np.int64]:
        """Time of each kind before each moment, counted from the first call that is kept."""
        if not len(self.starts):
            out = np.zeros((len(moments), KINDS), np.int64)
            out[:, Doing.AWAY] = moments
            return out
        at = np.searchsorted(self.starts, moments, side="right") - 1
        inside = np.maximum(at, 0)
        sums = self._sums[inside].copy()
        rows = np.arange(len(moments))
        starts, ends = self.starts[inside], self.ends[inside]
        sums[rows, self.kinds[inside]] += np.clip(moments - starts, 0, ends - starts)
        follows = np.append(self.starts[1:], np.iinfo(np.int64).max)[inside]
        away = np.where(follows - ends > SHORT_NS, Doing.AWAY, Doing.BETWEEN)
        sums[rows, away] += np.maximum(0, np.minimum(moments, follows) - ends)
        # Before the first call that is known the thread was away, as far as anybody knows.
        early = at < 0
        if early.any():
            sums[early] = 0
            sums[early, Doing.AWAY] = moments[early] - self.starts[0]
        return sums

    def waiting_at(self, moments: Int64s) -> npt.NDArray[np.bool_]:
        """Whether a call that waits for the GPU was under way at each moment."""
        if not len(self.starts):
            return np.zeros(len(moments), np.bool_)
        at = np.searchsorted(self.starts, moments, side="right") - 1
        inside = np.maximum(at, 0)
        found: npt.NDArray[np.bool_] = (
            (at >= 0) & (self.ends[inside] > moments) & (self.kinds[inside] == Doing.WAITING)
        )
        return found


AWAY_LEAVES = (Leaf.HOST, Leaf.SCHEDULER, Leaf.INPUT, Leaf.WAIT)
"""What a thread may be at while it is away from CUDA."""

_STATES_KEPT = 4096


class _States:
    """Readings of one thread: time under each of AWAY_LEAVES up to each reading."""

    __slots__ = ("_last", "sums", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sums: list[tuple[float, ...]] = []
        self._last: tuple[int, int] | None = None

    def add(self, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf) -> None:
        if self._last is None or time_ns <= self.times[-1]:
            self._last = run_ns, delay_ns
            self.times.append(time_ns)
            self.sums.append(self.sums[-1] if self.sums else (0.0,) * len(AWAY_LEAVES))
            return
        passed = time_ns - self.times[-1]
        run = min(passed, max(0, run_ns - self._last[0]))
        delay = min(passed - run, max(0, delay_ns - self._last[1]))
        parts = {Leaf.HOST: run, Leaf.SCHEDULER: delay, asleep_in: passed - run - delay}
        before = self.sums[-1]
        self.sums.append(
            tuple(
                known + parts.get(leaf, 0) for known, leaf in zip(before, AWAY_LEAVES, strict=True)
            )
        )
        self.times.append(time_ns)
        self._last = run_ns, delay_ns
        if len(self.times) > 2 * _STATES_KEPT:
            del self.times[:_STATES_KEPT], self.sums[:_STATES_KEPT]

    def shares(self, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """Of each interval, the part under each leaf; all under HOST where there is no reading."""
        out = np.zeros((len(starts), len(AWAY_LEAVES)))
        if len(self.times) < 2:
            out[:, 0] = 1.0
            return out
        times, sums = np.array(self.times), np.array(self.sums)
        for column in range(len(AWAY_LEAVES)):
            out[:, column] = np.interp(ends, times, sums[:, column]) - np.interp(
                starts, times, sums[:, column]
            )
        whole = out.sum(axis=1)
        unknown = whole <= 0
        out[unknown], whole[unknown] = (1.0, 0.0, 0.0, 0.0), 1.0
        shares: npt.NDArray[np.float64] = out / whole[:, np.newaxis]
        return shares


class HostThreads:
    """All threads of one process."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._states: dict[int, _States] = {}
        self._lines: dict[int, list[tuple[int, int, Leaf | None]]] = {}

    def add_line(self, time_ns: int, thread: int, line: int, kind: Leaf | None) -> None:
        """Where a thread was; `kind` is the leaf that its frames speak of, if any."""
        self._lines.setdefault(thread, []).append((time_ns, line, kind))

    def lines_in(
        self, thread: int, starts: Int64s, ends: Int64s
    ) -> list[tuple[int, int, Leaf | None]]:
        """The samples of a thread that lie in one of the intervals, which are in order."""
        samples = self._lines.get(thread)
        if not samples or not len(starts):
            return []
        first = bisect_left(samples, (int(starts[0]),))
        last = bisect_left(samples, (int(ends.max()),))
        found = samples[first:last]
        if not found:
            return []
        times = np.array([sample[0] for sample in found])
        at = np.searchsorted(starts, times, side="right") - 1
        inside = (at >= 0) & (times < ends[np.maximum(at, 0)])
        return [found[row] for row in np.flatnonzero(inside).tolist()]

    @property
    def launching(self) -> list[int]:
        """The threads that made CUDA calls."""
        return list(self._threads)

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """A reading of a thread: what it ran and waited for a core so far."""
        self._states.setdefault(thread, _States()).add(time_ns, run_ns, delay_ns, asleep_in)

    def away(self, thread: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """What a thread was at in each interval in which it was away: shares by AWAY_LEAVES."""
        return self._states.get(thread, _States()).shares(starts, ends)

    def add(
        self, threads: Int64s, starts: Int64s, ends: Int64s, kinds: npt.NDArray[np.int8]
    ) -> None:
        """CUDA calls, in any order."""
        for thread in np.unique(threads).tolist():
            if thread not in self._threads:
                if len(self._threads) >= MAX_THREADS:
                    continue
                self._threads[thread] = _Thread()
            of = threads == thread
            self._threads[thread].add(starts[of], ends[of], kinds[of])

    def during(
        self, thread: int, starts: Int64s, ends: Int64s
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Time of each kind in each interval (n × KINDS), and whether a wait was under way at its
        start."""
        found = self._threads.get(thread)
        if found is None:
            out = np.zeros((len(starts), KINDS), np.int64)
            out[:, Doing.AWAY] = ends - starts
            return out, np.zeros(len(starts), np.bool_)
        found.settle()
        return found.before(ends) - found.before(starts), found.waiting_at(starts)

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before."""
        for thread in self._threads.values():
            thread.settle()
            thread.forget(before_ns - KEPT_NS)
        for samples in self._lines.values():
            if len(samples) > _STATES_KEPT:
                del samples[: bisect_left(samples, (before_ns - KEPT_NS,))]
