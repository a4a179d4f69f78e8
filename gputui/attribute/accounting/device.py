"""Every nanosecond of one device under a leaf, up to a moment before which nothing new can come.

The time axis is cut into what was covered by operations and the gaps between. Where operations
overlap, compute comes first, then communication, then copies: only what is exposed counts. A gap
is laid at the door of the thread that launched the operation which ends it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.absence import AWAY_LEAVES
from gputui.attribute.accounting.host import Doing, HostThreads
from gputui.attribute.accounting.operations import Columns
from gputui.attribute.accounting.patterns import refine
from gputui.attribute.accounting.samples import Samples
from gputui.attribute.accounting.tracks import WAITED, Tracks
from gputui.attribute.arrays import Int64s, distinct
from gputui.model.leaves import Leaf

RESTART_NS = 1_000_000
"""A gap up to this long that begins in a call which waits for the GPU is the price of that call:
the CPU has to wake, run on and launch again."""

LATENCY_NS = 20_000
"""From a launch to its kernel's start on an idle GPU: more is a wait for something else."""

_GROUP = np.zeros(len(Leaf), np.int8)
_GROUP[Leaf.COMMUNICATION] = 1
_GROUP[[Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE]] = 2

_GROUPS = 3

_LEAF_OF_DOING = {
    Doing.LAUNCHING: Leaf.LAUNCH,
    Doing.WAITING: Leaf.SYNC,
    Doing.ALLOCATING: Leaf.ALLOCATION,
    Doing.OTHER_CALL: Leaf.CUDA,
}


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
    """Operations of one process on one device in, its time by leaf out."""

    def __init__(self, threads: HostThreads, main_thread: int) -> None:
        self._threads = threads
        self._main_thread = main_thread
        self._waiting: list[Columns] = []
        self._starts: list[Int64s] = []
        self.samples = Samples(threads, main_thread)
        self.tracks = Tracks()
        """What is accounted for and not taken yet."""
        self.line_hits: list[tuple[int, int]] = []
        """When the device idled and a thread was away from CUDA: at which line it was."""
        self.accounted_ns = 0
        """Up to where the time axis has been accounted for; 0 before the first operation."""

    def add(self, operations: Columns) -> None:
        """Operations, in any order."""
        if len(operations.starts):
            self._waiting.append(operations)

    def take_starts(self, boundaries: Int64s) -> list[int]:
        """How many operations that are accounted for began before each boundary, since the one
        before; what began later stays."""
        starts = np.concatenate(self._starts) if self._starts else np.empty(0, np.int64)
        begun = np.searchsorted(starts, boundaries)
        self._starts = [starts[begun[-1] :]]
        counts: list[int] = np.diff(begun, prepend=0).tolist()
        return counts

    def account(self, until_ns: int | None) -> None:
        """Divide the time axis up to `until_ns` (None: to the end), or to the last operation
        before."""
        if not self._waiting:
            return
        found = Columns.join(self._waiting)
        self._waiting = []
        if (found.starts[1:] < found.starts[:-1]).any():
            found = found.pick(np.argsort(found.starts, kind="stable"))
        if until_ns is not None:
            ready = int(np.searchsorted(found.starts, until_ns))
            later = np.flatnonzero(found.ends > until_ns)
            if ready < len(found.starts):
                later = np.union1d(later, np.arange(ready, len(found.starts)))
            if len(later):
                # What is still running goes on in the next round from here.
                rest = found.pick(later)
                self._waiting.append(
                    rest._replace(
                        starts=np.maximum(rest.starts, until_ns),
                        goes_on=rest.goes_on | (rest.starts < until_ns),
                    )
                )
                found = Columns._make(column[:ready] for column in found)
                found = found._replace(ends=np.minimum(found.ends, until_ns))
        # What comes too late, in time that is already accounted for, is not counted twice.
        if len(found.starts) and found.starts[0] < self.accounted_ns:
            found = found.pick(np.flatnonzero(found.ends > self.accounted_ns))
            found = found._replace(starts=np.maximum(found.starts, self.accounted_ns))
        if not len(found.starts):
            return
        began = found.starts if not found.goes_on.any() else found.starts[~found.goes_on]
        self._starts.append(began)
        leaves = refine(found.leaves, found.starts, found.ends, found.streams, found.widths)
        self.samples.add(found)
        self._add_busy(found.starts, found.ends, leaves)
        self._add_gaps(found)
        since_ns = self.accounted_ns or int(found.starts[0])
        self.accounted_ns = max(self.accounted_ns, int(found.ends.max()))
        self._add_waits(found, since_ns)

    def _add_waits(self, found: Columns, since_ns: int) -> None:
        threads = {*distinct(found.threads.astype(np.int64)).tolist(), self._main_thread}
        waits = [
            self._threads.waits(thread, since_ns, self.accounted_ns) for thread in sorted(threads)
        ]
        starts, ends = (np.concatenate(column) for column in zip(*waits, strict=True))
        if not len(starts):
            return
        if sum(len(one) > 0 for one, _ in waits) > 1:
            order = np.argsort(starts, kind="stable")
            _, starts, ends = _exclusive(starts[order], ends[order])
        self.tracks.add(WAITED, starts, ends, ends - starts)

    def _add_busy(self, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8]) -> None:
        groups = _GROUP[leaves]
        above: tuple[Int64s, Int64s] | None = None
        for group in range(_GROUPS):
            at = np.flatnonzero(groups == group)
            if not len(at):
                continue
            rows, begins, finishes = _exclusive(starts.take(at), ends.take(at))
            exposed = finishes - begins
            of = leaves.take(at).take(rows)
            if above is not None:
                exposed -= _covered_before(finishes, *above) - _covered_before(begins, *above)
            for leaf in np.flatnonzero(np.bincount(of)).tolist():
                shown = np.flatnonzero((of == leaf) & (exposed > 0))
                self.tracks.add(leaf, begins.take(shown), finishes.take(shown), exposed.take(shown))
            if group == _GROUPS - 1:
                break
            if above is None:
                above = begins, finishes
            else:
                both = np.concatenate((above[0], begins))
                order = np.argsort(both, kind="stable")
                _, *exclusive = _exclusive(both[order], np.concatenate((above[1], finishes))[order])
                above = exclusive[0], exclusive[1]

    def _add_gaps(self, found: Columns) -> None:
        before = np.empty_like(found.starts)
        before[0] = self.accounted_ns or found.starts[0]
        np.maximum.accumulate(found.ends[:-1], out=before[1:])
        np.maximum(before, self.accounted_ns, out=before)
        rows = np.flatnonzero(found.starts > before)
        if not len(rows):
            return
        a, b = before.take(rows), found.starts.take(rows)
        called = found.called_ns.take(rows)
        causes = _Causes(len(rows))
        unseen = called == 0
        in_time = ~unseen & (called <= a)
        if unseen.any():
            causes.add(Leaf.UNKNOWN, np.flatnonzero(unseen), (b - a)[unseen])
        if in_time.any():
            causes.add(Leaf.DEPENDENCY, np.flatnonzero(in_time), (b - a)[in_time])
        late = np.flatnonzero(~unseen & ~in_time)
        threads = found.threads.take(rows.take(late))
        for thread in distinct(threads.astype(np.int64)).tolist():
            of = late.take(np.flatnonzero(threads == thread))
            end = b.take(of)
            returned = np.minimum(found.returned_ns.take(rows.take(of)), end)
            called_in = np.minimum(called.take(of), end)
            self._blame(causes, of, thread, a.take(of), called_in, returned, end)
        for leaf, amounts in causes.by_leaf.items():
            shown = np.flatnonzero(amounts)
            self.tracks.add(leaf, a.take(shown), b.take(shown), amounts.take(shown))

    def _blame(
        self,
        causes: _Causes,
        rows: npt.NDArray[np.intp],
        thread: int,
        a: Int64s,
        called: Int64s,
        returned: Int64s,
        b: Int64s,
    ) -> None:
        """Gaps from `a` to `b` that end with an operation which `thread` launched after they had
        begun: in a call from `called` to `returned`."""
        during, waited = self._threads.during(thread, a, called)
        if thread != self._main_thread and Doing.AWAY in during:
            during = self._follow(during, a, called)
        restarted = waited & (b - a < RESTART_NS)
        if restarted.any():
            causes.add(Leaf.SYNC, rows[restarted], (b - a)[restarted])
            rest = ~restarted
            during = {doing: amounts[rest] for doing, amounts in during.items()}
            rows, a, b, called, returned = (
                rows[rest],
                a[rest],
                b[rest],
                called[rest],
                returned[rest],
            )
        away = during.pop(Doing.AWAY, None)
        # Calls that were not recorded leave no hole: whatever is missing is the program's.
        missing = called - a
        for doing, amounts in during.items():
            causes.add(_LEAF_OF_DOING[Doing(doing)], rows, amounts)
            missing = missing - amounts
        if away is not None:
            missing = missing - self._blame_absence(causes, rows, thread, a, called, away)
        causes.add(Leaf.HOST, rows, np.maximum(0, missing))
        returned = np.maximum(returned, called)
        latency = np.minimum(b - returned, LATENCY_NS)
        causes.add(Leaf.LAUNCH, rows, returned - called + latency)
        causes.add(Leaf.DEPENDENCY, rows, b - returned - latency)

    def _blame_absence(
        self,
        causes: _Causes,
        rows: npt.NDArray[np.intp],
        thread: int,
        a: Int64s,
        called: Int64s,
        away: Int64s,
    ) -> Int64s:
        """What a thread was at for the time that it was away from CUDA: how much is known."""
        # A worker thread waits for the main thread: what that one is at decides.
        asked = self._main_thread if thread != self._main_thread else thread
        known = np.zeros(len(rows), np.int64)
        at = np.flatnonzero(away)
        rows, a, called, left = rows.take(at), a.take(at), called.take(at), away.take(at)
        hits = self._threads.lines_in(asked, a, called)
        self.line_hits += [(moment, line) for moment, line, _ in hits]
        spoken = [leaf for _, _, leaf in hits if leaf is not None]
        for leaf in set(spoken):
            part = np.floor(left * (spoken.count(leaf) / len(hits))).astype(np.int64)
            causes.add(leaf, rows, part)
            left = left - part
            known[at] += part
        shares = self._threads.away(asked, a, called)
        for column, leaf in enumerate(AWAY_LEAVES):
            part = np.floor(left * shares[:, column]).astype(np.int64)
            causes.add(leaf, rows, part)
            known[at] += part
        return known

    def _follow(self, during: dict[int, Int64s], a: Int64s, called: Int64s) -> dict[int, Int64s]:
        """A worker thread that was away (autograd's, between two backward passes) waited for the
        main thread: what that one did meanwhile decides, one step and no further."""
        away = during[Doing.AWAY]
        theirs, _ = self._threads.during(self._main_thread, a, called)
        whole = np.maximum(1, np.sum(list(theirs.values()), axis=0))
        moved = {
            kind: np.floor(ns * (away / whole)).astype(np.int64) for kind, ns in theirs.items()
        }
        left = away - np.sum(list(moved.values()), axis=0)
        found = {**during, Doing.AWAY: left}
        for kind, ns in moved.items():
            found[kind] = found[kind] + ns if kind in found else ns
        return found


class _Causes:
    """For gaps: how much of each is whose."""

    def __init__(self, gaps: int) -> None:
        self._gaps = gaps
        self.by_leaf: dict[int, Int64s] = {}

    def add(self, leaf: int, rows: npt.NDArray[np.intp], amounts: Int64s) -> None:
        """`amounts` of `leaf` in the gaps at `rows`, each named once."""
        if leaf not in self.by_leaf:
            self.by_leaf[leaf] = np.zeros(self._gaps, np.int64)
        self.by_leaf[leaf][rows] += amounts
