"""Every nanosecond of one device under a leaf, up to a moment before which nothing new can come.

The time axis is cut into what was covered by operations and the gaps between. Where operations
overlap, compute comes first, then communication, then copies: only what is exposed counts. A gap
is laid at the door of the thread that launched the operation which ends it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host import AWAY_LEAVES, Doing, HostThreads
from gputui.attribute.accounting.patterns import refine
from gputui.attribute.arrays import Int64s
from gputui.model.leaves import Leaf

RESTART_NS = 1_000_000
"""A gap up to this long that begins in a call which waits for the GPU is the price of that call:
the CPU has to wake, run on and launch again."""

LATENCY_NS = 20_000
"""From a launch to its kernel's start on an idle GPU: more is a wait for something else."""

OPERATION = np.dtype(
    [("start", "i8"), ("end", "i8"), ("call_start", "i8"), ("call_end", "i8"),
     ("thread", "u4"), ("stream", "u4"), ("width", "i8"), ("leaf", "u1")]
)  # fmt: skip
"""An operation and the call that launched it; `call_start` is 0 where that is not known, `width`
the threads that a kernel was launched with."""

_GROUP = np.zeros(len(Leaf), np.int8)
_GROUP[Leaf.COMMUNICATION] = 1
_GROUP[[Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE]] = 2

_LEAF_OF_DOING = np.zeros(len(Doing), np.int64)
_LEAF_OF_DOING[Doing.LAUNCHING] = Leaf.LAUNCH
_LEAF_OF_DOING[Doing.BETWEEN] = Leaf.LAUNCH
_LEAF_OF_DOING[Doing.WAITING] = Leaf.SYNC
_LEAF_OF_DOING[Doing.ALLOCATING] = Leaf.ALLOCATION
_LEAF_OF_DOING[Doing.OTHER_CALL] = Leaf.CUDA
_LEAF_OF_DOING[Doing.AWAY] = Leaf.HOST


class Segments(NamedTuple):
    """Parts of the time axis: from `starts` to `ends` a device spent `amounts` under `leaves`.

    Several segments may share an interval (a gap has several causes); the amounts of all segments
    in an interval add up to its length.
    """

    starts: Int64s
    ends: Int64s
    leaves: npt.NDArray[np.int64]
    amounts: Int64s

    @classmethod
    def join(cls, parts: list[Segments]) -> Segments:
        """All of them, one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = np.empty(0, np.int64)
            return cls(nothing, nothing, nothing, nothing)
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def sums(self, boundaries: Int64s) -> npt.NDArray[np.float64]:
        """Time by leaf before, between and after the boundaries: one row more than there are of
        them. What lies across a boundary is divided in proportion."""
        rows, leaves = len(boundaries) + 1, len(Leaf)
        first = np.searchsorted(boundaries, self.starts, side="right")
        last = np.searchsorted(boundaries, self.ends, side="left")
        within = last <= first
        keys = first[within] * leaves + self.leaves[within]
        out = np.zeros((rows, leaves))
        out += np.bincount(keys, self.amounts[within], rows * leaves).reshape(rows, leaves)
        for at in np.flatnonzero(~within).tolist():
            inside = boundaries[first[at] : last[at]]
            cuts = np.concatenate(([self.starts[at]], inside, [self.ends[at]]))
            parts = np.diff(cuts) * (self.amounts[at] / (self.ends[at] - self.starts[at]))
            out[first[at] : last[at] + 1, self.leaves[at]] += parts
        return out


def _exclusive(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """What each interval covers beyond those that began before it: rows, starts, ends."""
    reach = np.maximum.accumulate(ends)
    begins = starts.copy()
    begins[1:] = np.maximum(starts[1:], reach[:-1])
    rows = np.flatnonzero(ends > begins)
    return rows, begins[rows], ends[rows]


def _covered_before(moments: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """How much of disjoint intervals, in order, lies before each moment."""
    if not len(starts):
        return np.zeros(len(moments), np.int64)
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    at = np.searchsorted(starts, moments, side="right") - 1
    inside = np.maximum(at, 0)
    covered: Int64s = sums[inside] + np.clip(
        moments - starts[inside], 0, ends[inside] - starts[inside]
    )
    return np.where(at < 0, 0, covered)


class DeviceTime:
    """Operations of one process on one device in, segments out."""

    def __init__(self, threads: HostThreads, main_thread: int) -> None:
        self._threads = threads
        self._main_thread = main_thread
        self._waiting: list[npt.NDArray[np.void]] = []
        self.line_hits: list[tuple[int, int]] = []
        """When the device idled and a thread was away from CUDA: at which line it was."""
        self.accounted_ns = 0
        """Up to where the time axis has been accounted for; 0 before the first operation."""

    def add(self, operations: npt.NDArray[np.void]) -> None:
        """Operations, in any order."""
        if len(operations):
            self._waiting.append(operations)

    def account(self, until_ns: int | None) -> Segments:
        """The segments up to `until_ns` (None: to the end), or to the last operation before."""
        if not self._waiting:
            return Segments.join([])
        found = np.concatenate(self._waiting)
        found = found[np.argsort(found["start"], kind="stable")]
        starts, ends = found["start"], found["end"]
        if until_ns is not None:
            ready = starts < until_ns
            over = ends > until_ns
            later = found[~ready | over]
            if len(later):
                # What is still running goes on in the next round from here.
                later = later.copy()
                np.maximum(later["start"], until_ns, out=later["start"])
            self._waiting = [later] if len(later) else []
            found = found[ready]
            starts, ends = found["start"], np.minimum(found["end"], until_ns)
        else:
            self._waiting = []
        # What comes too late, in time that is already accounted for, is not counted twice.
        if self.accounted_ns:
            fresh = ends > self.accounted_ns
            found, ends = found[fresh], ends[fresh]
            starts = np.maximum(found["start"], self.accounted_ns)
        if not len(found):
            return Segments.join([])
        leaves = refine(found["leaf"], starts, ends, found["stream"], found["width"])
        segments = [*self._busy(starts, ends, leaves), *self._gaps(found, starts, ends)]
        self.accounted_ns = max(self.accounted_ns, int(ends.max()))
        return Segments.join(segments)

    def _busy(self, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8]) -> list[Segments]:
        groups = _GROUP[leaves]
        out: list[Segments] = []
        above_starts, above_ends = np.empty(0, np.int64), np.empty(0, np.int64)
        for group in range(3):
            at = np.flatnonzero(groups == group)
            if not len(at):
                continue
            rows, begins, finishes = _exclusive(starts[at], ends[at])
            exposed = finishes - begins
            if len(above_starts):
                exposed = exposed - (
                    _covered_before(finishes, above_starts, above_ends)
                    - _covered_before(begins, above_starts, above_ends)
                )
            shown = exposed > 0
            out.append(
                Segments(
                    begins[shown],
                    finishes[shown],
                    leaves[at][rows][shown].astype(np.int64),
                    exposed[shown],
                )
            )
            both_starts = np.concatenate((above_starts, begins))
            both_ends = np.concatenate((above_ends, finishes))
            order = np.argsort(both_starts, kind="stable")
            _, above_starts, above_ends = _exclusive(both_starts[order], both_ends[order])
        return out

    def _gaps(self, found: npt.NDArray[np.void], starts: Int64s, ends: Int64s) -> list[Segments]:
        reach = np.maximum.accumulate(ends)
        before = np.empty_like(reach)
        before[1:] = reach[:-1]
        before[0] = self.accounted_ns or starts[0]
        np.maximum(before, self.accounted_ns, out=before)
        rows = np.flatnonzero(starts > before)
        if not len(rows):
            return []
        a, b = before[rows], starts[rows]
        calls, returns = found["call_start"][rows], found["call_end"][rows]
        threads = found["thread"][rows]
        amounts = np.zeros((len(rows), len(Leaf)), np.int64)
        unseen = calls == 0
        amounts[unseen, Leaf.UNKNOWN] = (b - a)[unseen]
        in_time = ~unseen & (calls <= a)
        amounts[in_time, Leaf.DEPENDENCY] = (b - a)[in_time]
        late = np.flatnonzero(~unseen & ~in_time)
        if len(late):
            self._late(amounts, late, a, np.minimum(calls, b), np.minimum(returns, b), b, threads)
        which, leaves = np.nonzero(amounts)
        return [Segments(a[which], b[which], leaves, amounts[which, leaves])]

    def _late(
        self,
        amounts: npt.NDArray[np.int64],
        rows: npt.NDArray[np.intp],
        a: Int64s,
        calls: Int64s,
        returns: Int64s,
        b: Int64s,
        threads: npt.NDArray[np.uint32],
    ) -> None:
        """Gaps whose last operation was launched only after they began."""
        for thread in np.unique(threads[rows]).tolist():
            of = rows[threads[rows] == thread]
            during, waited = self._threads.during(thread, a[of], calls[of])
            if thread != self._main_thread:
                self._follow(during, a[of], calls[of])
            restarted = waited & (b[of] - a[of] < RESTART_NS)
            amounts[of[restarted], Leaf.SYNC] = (b - a)[of[restarted]]
            rest, parts = of[~restarted], during[~restarted]
            away = parts[:, Doing.AWAY].copy()
            parts[:, Doing.AWAY] = 0
            for doing, leaf in enumerate(_LEAF_OF_DOING.tolist()):
                amounts[rest, leaf] += parts[:, doing]
            # A worker thread waits for the main thread: what that one is at decides.
            asked = self._main_thread if thread != self._main_thread else thread
            was_away = away > 0
            hits = self._threads.lines_in(asked, a[rest][was_away], calls[rest][was_away])
            spoken = [leaf for _, _, leaf in hits if leaf is not None]
            for leaf in set(spoken):
                part = np.floor(away * (spoken.count(leaf) / len(hits))).astype(np.int64)
                amounts[rest, leaf] += part
                away = away - part
            shares = self._threads.away(asked, a[rest], calls[rest])
            for column, away_leaf in enumerate(AWAY_LEAVES):
                amounts[rest, away_leaf] += np.floor(away * shares[:, column]).astype(np.int64)
            self.line_hits += [(moment, line) for moment, line, _ in hits]
            returned = np.maximum(returns[rest], calls[rest])
            amounts[rest, Leaf.LAUNCH] += returned - calls[rest]
            latency = np.minimum(b[rest] - returned, LATENCY_NS)
            amounts[rest, Leaf.LAUNCH] += latency
            amounts[rest, Leaf.DEPENDENCY] += b[rest] - returned - latency
            # Calls that were not recorded leave no hole: whatever is missing is the program's.
            missing = (b - a)[rest] - amounts[rest].sum(axis=1)
            amounts[rest, Leaf.HOST] += np.maximum(0, missing)

    def _follow(self, during: npt.NDArray[np.int64], a: Int64s, calls: Int64s) -> None:
        """A worker thread that was away (autograd's, between two backward passes) waited for the
        main thread: what that one did meanwhile decides, one step and no further."""
        away = during[:, Doing.AWAY]
        rows = np.flatnonzero(away)
        if not len(rows):
            return
        theirs, _ = self._threads.during(self._main_thread, a[rows], calls[rows])
        whole = np.maximum(1, theirs.sum(axis=1))
        share = away[rows, np.newaxis] / whole[:, np.newaxis]
        moved = np.floor(theirs * share).astype(np.int64)
        moved[:, Doing.AWAY] += away[rows] - moved.sum(axis=1)
        during[rows, Doing.AWAY] = 0
        during[rows] += moved
