"""The threads of the host: their calls, and what they were doing at any moment.

For `operations`, which asks what a thread was doing while the GPU idled. The readings come from
`thread_readings`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.thread_readings import COLUMN, LineReadings, States
from gputui.attribute.arrays import Int64s, codes_present, distinct, median, run_starts
from gputui.model.leaves import Leaf
from gputui.model.naming import is_synchronization

# --- What a thread is at, by the CUDA call that it is in.

SHORT_NS = 200_000
"""Time between two CUDA calls up to which the thread counts as busy launching. What a framework
does to dispatch an operation, a module or a layer lies below; a tokenizer, a data loader or a
garbage collection above."""


class Doing(IntEnum):
    """What a thread is at."""

    LAUNCHING = 0
    """The thread is in a call that launches, or for a short time between two calls."""
    WAITING = 1
    """The thread is in a call that waits for the GPU."""
    ALLOCATING = 2
    OTHER_CALL = 3
    AWAY = 4
    """Outside CUDA for longer than SHORT_NS."""
    COPYING = 5
    """The thread is in an asynchronous copy. It counts as waiting if the call takes long, otherwise
    as launching."""


LEAF_OF_CALL: dict[int, Leaf] = {
    Doing.WAITING: Leaf.SYNC,
    Doing.ALLOCATING: Leaf.ALLOCATION,
    Doing.OTHER_CALL: Leaf.CUDA,
}
"""What a GPU idles for meanwhile."""

# Capture records no StreamQuery: files of nsys have it, of loops that ask until a stream is done.
_WAITS = re.compile(r"^cu(da)?Memcpy(?!.*Async)|StreamQuery")
_ALLOCATES = re.compile(
    r"cudaMalloc|cudaFree|cudaHost(Alloc|Register|Unregister)"
    r"|cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|HostAlloc)"
)
_LAUNCHES = re.compile(r"Launch|Memcpy.*Async|Memset")


def kind_of_call(name: str) -> Doing:
    """What a thread is at during a CUDA call of this name."""
    if is_synchronization(name) or _WAITS.search(name):
        return Doing.WAITING
    if _ALLOCATES.search(name):
        return Doing.ALLOCATING
    if not _LAUNCHES.search(name):
        return Doing.OTHER_CALL
    # An asynchronous copy is a kind of call of its own.
    return Doing.COPYING if "Memcpy" in name else Doing.LAUNCHING


# --- The CUDA calls of one thread, and what they show of where its time went.
#
# Its time is cut into the outermost calls and the stretches between them. A thread that launches
# makes thousands of calls a second with short stretches between: that is the rule, and only the
# other pieces are looked up.

# Chosen, not measured one by one: SHORT_NS says what lies on either side.
SHORT_MOST_NS = 1_000_000
SHORT_MEDIANS = 5
"""On a slow or crowded CPU launching takes longer: a time of up to this many medians between two
calls counts as launching, too, but never more than SHORT_MOST_NS."""

MOST_CALLS = 1 << 19
"""Kept of a thread: one may poll for hours while nothing runs on the GPU."""

# Chosen, not measured: a median of fewer is no more than an example.
# Least, and most, stretches between calls that the median is of.
_ENOUGH = 64
_SOME = 512

WAITED_NS = 20_000
"""An asynchronous copy that took longer waited for the GPU: with pageable memory it blocks (CUDA
driver API, "API synchronization behavior")."""

Kinds = npt.NDArray[np.int8]

# NumPy compares with an enum three times as slowly.
_LAUNCHING, _WAITING = int(Doing.LAUNCHING), int(Doing.WAITING)
_AWAY, _COPYING = int(Doing.AWAY), int(Doing.COPYING)
_AWAY_ONCE = np.array([Doing.AWAY], np.int8)

_NEVER = np.iinfo(np.int64).max

Rows = npt.NDArray[np.intp]
Pieces = dict[int, tuple[Rows, Int64s]]
"""What a thread did in some intervals: by kind of doing, the numbers of the intervals in which it
did that, in order and each once, and for how long."""


class Parts(NamedTuple):
    """Disjoint parts of a thread's time, in order."""

    starts: Int64s
    ends: Int64s
    kinds: Kinds

    def pick(self, rows: Rows) -> Parts:
        """The calls or stretches of these row numbers."""
        return Parts._make(column.take(rows) for column in self)


class _Known(NamedTuple):
    """Calls, and the pieces that may be no launching of the time since the last call before."""

    since_ns: int
    until_ns: int
    calls: Parts
    pieces: Parts


class ThreadCalls:
    """The outermost calls of one thread, in order, and the pieces of its time that may be no
    launching: other calls, and stretches between calls that are not short. These few are found
    once, when calls are taken in."""

    __slots__ = ("_known", "_pending")

    def __init__(self) -> None:
        # In the parts that they came in: copying them end to end took more than what was found in
        # them.
        self._known: list[_Known] = []
        self._pending: list[Parts] = []

    def add(self, calls: Parts) -> None:
        """Add calls in any order: `settle` sorts them."""
        self._pending.append(calls)

    def settle(self) -> None:
        """Take in what is pending: as a rule it comes in order, after what is known; else all is
        sorted, and the outermost are kept."""
        if not self._pending:
            return
        calls, self._pending = _joined(self._pending), []
        since_ns = self._known[-1].until_ns if self._known else int(calls.starts[0])
        stretches = _stretches(calls, since_ns)
        if stretches.min() < 0:
            calls = _joined([*(period.calls for period in self._known), calls])
            calls = calls.pick(np.argsort(calls.starts, kind="stable"))
            inside = calls.starts[1:] < np.maximum.accumulate(calls.ends[:-1])
            calls = calls.pick(np.flatnonzero(np.concatenate(([True], ~inside))))
            self._known, since_ns = [], int(calls.starts[0])
            stretches = _stretches(calls, since_ns)
        until_ns, pieces = int(calls.ends[-1]), _pieces(calls, stretches)
        self._known.append(_Known(since_ns, until_ns, calls, pieces))

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before, and the oldest where they are too many."""
        surplus = sum(len(period.calls.starts) for period in self._known) - MOST_CALLS
        while self._known and (surplus > 0 or self._known[0].until_ns < before_ns):
            surplus -= len(self._known.pop(0).calls.starts)

    def begun(self, since_ns: int, until_ns: int) -> int:
        """How many calls began within an interval."""
        begun = 0
        for period in self._near(since_ns, until_ns):
            first, beyond = np.searchsorted(period.calls.starts, (since_ns, until_ns)).tolist()
            begun += beyond - first
        return begun

    def during(self, starts: Int64s, ends: Int64s) -> tuple[Pieces, Rows]:
        """Time of each kind but launching in intervals that are disjoint and in order, and the
        rows of those at whose start a wait was under way."""
        stretches = self._stretches_between(int(starts[0]), int(ends[-1]))
        first = np.searchsorted(ends, stretches.starts, side="right")
        pieces, rows = spread(first, _beyond(starts, first, stretches.ends))
        amounts = np.minimum(stretches.ends.take(pieces), ends.take(rows))
        amounts -= np.maximum(stretches.starts.take(pieces), starts.take(rows))
        kinds = stretches.kinds.take(pieces)
        by_doing: Pieces = {}
        for kind in codes_present(kinds, len(Doing)):
            its = np.flatnonzero(kinds == kind)
            by_doing[kind] = _each_once(rows.take(its), amounts.take(its))
        waits = np.flatnonzero(kinds == _WAITING)
        waiting, begins = pieces.take(waits), starts.take(rows.take(waits))
        begun = (stretches.starts.take(waiting) <= begins) & (begins < stretches.ends.take(waiting))
        return by_doing, rows.take(waits[begun])

    def calls(self, kind: Doing, since_ns: int, until_ns: int) -> tuple[Int64s, Int64s]:
        """The calls of a kind that does not launch, as far as they lie in an interval, in order."""
        pieces = self._pieces_within(since_ns, until_ns)
        rows = np.flatnonzero(pieces.kinds == int(kind))
        return (
            np.maximum(pieces.starts.take(rows), since_ns),
            np.minimum(pieces.ends.take(rows), until_ns),
        )

    def _near(self, since_ns: int, until_ns: int) -> list[_Known]:
        return [period for period in self._known
                if period.since_ns < until_ns and period.until_ns > since_ns]  # fmt: skip

    def _pieces_within(self, since_ns: int, until_ns: int) -> Parts:
        near = [period.pieces for period in self._near(since_ns, until_ns)]
        starts, ends, kinds = _joined(near) if near else _NO_PARTS
        inside = slice(
            np.searchsorted(ends, since_ns, side="right"), np.searchsorted(starts, until_ns)
        )
        return Parts(starts[inside], ends[inside], kinds[inside])

    def _stretches_between(self, since_ns: int, until_ns: int) -> Parts:
        """What the thread did but launch, in order: other calls, and stretches outside CUDA."""
        if not self._known:
            return Parts(np.array([-_NEVER]), np.array([_NEVER]), _AWAY_ONCE)
        pieces = self._pieces_within(since_ns, until_ns)
        short_ns = self._short_ns(since_ns, until_ns)
        if short_ns > SHORT_NS:
            is_long = pieces.ends - pieces.starts > short_ns
            pieces = pieces.pick(np.flatnonzero((pieces.kinds != _AWAY) | is_long))
        # Before the first call that is known, and after the last, the thread was away, as far as
        # anybody knows.
        first, last = self._known[0].calls.starts[:1], self._known[-1].calls.ends[-1:]
        joined = [pieces]
        if since_ns < first[0]:
            joined.insert(0, Parts(np.array([-_NEVER]), first, _AWAY_ONCE))
        if until_ns > last[0]:
            joined.append(Parts(last, np.array([_NEVER]), _AWAY_ONCE))
        return _joined(joined)

    def _short_ns(self, since_ns: int, until_ns: int) -> float:
        """The longest time between two calls that counts as launching, within an interval."""
        begins, ends = [_NO_PARTS.ends], [_NO_PARTS.starts]
        for period in self._near(since_ns, until_ns):
            some = slice(None, None, max(1, len(period.calls.starts) // _SOME))
            begins.append(period.calls.ends[:-1][some])
            ends.append(period.calls.starts[1:][some])
        return _short(np.concatenate(begins), np.concatenate(ends))


_NO_PARTS = Parts(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))


def _joined(many: list[Parts]) -> Parts:
    if len(many) == 1:
        return many[0]
    return Parts._make(map(np.concatenate, zip(*many, strict=True)))


def _stretches(calls: Parts, reach_ns: int) -> Int64s:
    """The time between calls: from the end of the call before to the start of each; for the first
    call from `reach_ns`. Below 0 where calls overlap."""
    stretches = np.empty_like(calls.starts)
    np.subtract(calls.starts[1:], calls.ends[:-1], out=stretches[1:])
    stretches[0] = calls.starts[0] - reach_ns
    return stretches


def _pieces(calls: Parts, stretches: Int64s) -> Parts:
    """The pieces of time that are no launching: calls that do not launch, and those of the
    `stretches` before calls that are longer than SHORT_NS."""
    pieces = calls.pick(np.flatnonzero(calls.kinds != _LAUNCHING))
    copies = pieces.kinds == _COPYING
    if copies.any():
        pieces.kinds[copies] = _WAITING
        pieces = pieces.pick(np.flatnonzero(~copies | (pieces.ends - pieces.starts > WAITED_NS)))
    away = np.flatnonzero(stretches > SHORT_NS)
    if not len(away):
        return pieces
    called = calls.starts.take(away)
    absent = Parts(called - stretches.take(away), called, np.full(len(away), _AWAY, np.int8))
    pieces = _joined([pieces, absent])
    return pieces.pick(np.argsort(pieces.starts, kind="stable"))


def _short(begins: Int64s, ends: Int64s) -> float:
    """The longest time between two calls that counts as launching, by the lengths of all of
    them."""
    if len(begins) < _ENOUGH:
        return SHORT_NS
    some = slice(None, None, -(-len(begins) // _SOME))
    usual = median(ends[some] - begins[some])
    return min(max(SHORT_NS, SHORT_MEDIANS * usual), SHORT_MOST_NS)


def spread(first: Rows, beyond: Rows) -> tuple[Rows, Rows]:
    """The rows from each `first` to before its `beyond`, and to which of them each belongs."""
    count = beyond - first
    if not len(count) or count.max() <= 1:
        row_numbers = np.flatnonzero(count > 0)
        return row_numbers, first.take(row_numbers)
    count = np.maximum(0, count)
    row_numbers = np.repeat(np.arange(len(count)), count)
    return row_numbers, np.arange(len(row_numbers)) + (first - np.cumsum(count) + count).take(
        row_numbers
    )


def _beyond(starts: Int64s, first: Rows, ends: Int64s) -> Rows:
    """How many of `starts` lie before each end, at least `first`: as a rule, one more at most."""
    last = len(starts) - 1
    beyond = first + (starts.take(first, mode="clip") < ends)
    np.minimum(beyond, len(starts), out=beyond)
    more = np.flatnonzero((beyond <= last) & (starts.take(beyond, mode="clip") < ends))
    beyond[more] = np.searchsorted(starts, ends.take(more))
    return beyond


def _each_once(rows: Rows, amounts: Int64s) -> tuple[Rows, Int64s]:
    """The sums of rows that are in order."""
    if (rows[1:] > rows[:-1]).all():
        return rows, amounts
    begins = run_starts(rows)
    return rows.take(begins), np.add.reduceat(amounts, begins)


# --- What the threads of a program did at any moment: in their CUDA calls, and between them.

KEPT_NS = 1_000_000_000
"""Calls that ended this long before the accounted time are forgotten."""

MAX_THREADS = 1024

_HOST, _WAIT, _SCHEDULER = COLUMN[Leaf.HOST], COLUMN[Leaf.WAIT], COLUMN[Leaf.SCHEDULER]


class HostThreads:
    """All threads of one process."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadCalls] = {}
        self._states: dict[int, States] = {}
        self.lines = LineReadings()
        """Readings of the lines that Python threads were at."""

    @property
    def launching(self) -> list[int]:
        """The threads that made CUDA calls."""
        return list(self._threads)

    def calls_in(self, thread: int, since_ns: int, until_ns: int) -> int:
        """How many outermost calls of a thread began within an interval."""
        calls = self._threads[thread]
        calls.settle()
        return calls.begun(since_ns, until_ns)

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """A reading of a thread: what it ran and waited for a core so far."""
        self._states.setdefault(thread, States()).add(time_ns, run_ns, delay_ns, asleep_in)

    def away(self, thread: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """What a thread was at in each interval in which it was away: shares by AWAY_LEAVES."""
        return self._states.get(thread, States()).shares(starts, ends)

    def absence(
        self, thread: int, starts: Int64s, ends: Int64s, worker: int | None = None
    ) -> npt.NDArray[np.float64]:
        """What a thread that is to blame for gaps did while it was away, as shares by AWAY_LEAVES,
        which `away` has without regard to other threads. If it sleeps while another thread that
        launches is ready and has no core, as autograd's in a backward pass, then a core is missing.
        If it sleeps while the `worker` that launches for it runs, it waits for what the worker
        computes."""
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
        if worker in self._states and asleep.any():
            ran = self._states[worker].shares(starts, ends, unread=Leaf.WAIT)[:, _HOST]
            ran = np.minimum(ran, asleep)
            shares[:, _WAIT] -= ran
            shares[:, _HOST] += ran
        return shares

    def add(self, threads: Int64s, starts: Int64s, ends: Int64s, kinds: Kinds) -> None:
        """CUDA calls, in any order."""
        present = distinct(threads).tolist()
        for thread in present:
            if thread not in self._threads:
                if len(self._threads) >= MAX_THREADS:
                    continue
                self._threads[thread] = ThreadCalls()
            if len(present) == 1:
                self._threads[thread].add(Parts(starts, ends, kinds))
            else:
                its = threads == thread
                self._threads[thread].add(Parts(starts[its], ends[its], kinds[its]))

    def during(self, thread: int, starts: Int64s, ends: Int64s) -> tuple[Pieces, Rows]:
        """Time of each kind but launching in intervals that are disjoint and in order, and the
        rows of those at whose start a wait was under way."""
        calls_of_thread = self._threads.get(thread)
        if calls_of_thread is None:
            return {Doing.AWAY: (np.arange(len(starts)), ends - starts)}, np.empty(0, np.intp)
        calls_of_thread.settle()
        return calls_of_thread.during(starts, ends)

    def calls(
        self, thread: int, kind: Doing, since_ns: int, until_ns: int
    ) -> tuple[Int64s, Int64s]:
        """When a thread was in calls of a kind that does not launch, within an interval and in
        order."""
        calls_of_thread = self._threads.get(thread)
        if calls_of_thread is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        calls_of_thread.settle()
        return calls_of_thread.calls(kind, since_ns, until_ns)

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before."""
        for thread in self._threads.values():
            thread.settle()
            thread.forget(before_ns - KEPT_NS)
        self.lines.forget(before_ns - KEPT_NS)
