"""Every nanosecond of one device under a leaf, up to a moment before which nothing new can come.

The time axis is cut into what was covered by operations and the gaps between. Where operations
overlap, compute comes first, then communication, then copies: only what is exposed counts. A gap
is laid at the door of the thread that launched the operation which ends it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.gaps import Blame, Causes, Gaps, Samples
from gputui.attribute.accounting.host_threads import Doing, HostThreads, Rows
from gputui.attribute.accounting.operations import Columns, Kernels, refine
from gputui.attribute.accounting.phases import PhaseLeaves
from gputui.attribute.accounting.step_rows import StreamOperations, thread_lanes, within_bytes
from gputui.attribute.accounting.tracks import FETCHING, LEAVES, WAITED, Tracks
from gputui.attribute.arrays import Int64s, differences, distinct, present, rows_of, taken
from gputui.attribute.intervals import Busy, Holes, exclusive, union
from gputui.attribute.range_stacks import RangeStacks
from gputui.attribute.records import Strings
from gputui.model.events import StreamLane, ThreadLane
from gputui.model.leaves import Leaf

_GROUP = np.zeros(len(Leaf), np.int8)
_GROUP[Leaf.COMMUNICATION] = 1
_GROUP[[Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE]] = 2

_GROUPS = 3


class DeviceTime:
    """Operations of one process on one device in, its time by leaf out."""

    def __init__(
        self,
        threads: HostThreads,
        main_thread: int,
        phases: PhaseLeaves | None = None,
        holes: Holes | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self._threads = threads
        self._kernels = kernels or Kernels()
        self._main_thread = main_thread
        self._waiting: list[Columns] = []
        self._starts: list[Int64s] = []
        self.samples = Samples(threads, main_thread)
        self.blame = Blame(threads, main_thread)
        self.phases = phases or PhaseLeaves(RangeStacks(Strings()), main_thread)
        self.holes = holes or Holes()
        """Where nothing is known of the device."""
        self.others: Busy | None = None
        """When other traced processes ran something on the device."""
        self.siblings: Busy | None = None
        """When the process's other devices were busy."""
        self._streams = StreamOperations()
        self.tracks = Tracks()
        """What is accounted for and not taken yet."""
        self.accounted_ns = 0
        """Up to where the time axis has been accounted for; 0 before the first operation."""

    def add(self, operations: Columns) -> None:
        """Operations, in any order."""
        if len(operations.starts):
            self._waiting.append(operations)

    def busy_after(self, known: Busy, until_ns: int | None) -> Busy:
        """When the process ran something, up to a moment: what is known, and what came since."""
        since_ns = int(known.ends[-1]) if len(known.ends) else 0
        starts = [known.starts, *(np.maximum(part.starts, since_ns) for part in self._waiting)]
        ends = [known.ends, *(part.ends for part in self._waiting)]
        begins, finishes = np.concatenate(starts), np.concatenate(ends)
        if until_ns is not None:
            finishes = np.minimum(finishes, until_ns)
        some = np.flatnonzero(finishes > begins)
        return union([Busy(begins[some], finishes[some])])

    def rows(self, bounds: Int64s) -> tuple[tuple[ThreadLane, ...], tuple[StreamLane, ...]]:
        """What threads and streams did between the bounds of a step that is accounted for."""
        return within_bytes(
            thread_lanes(self._threads, self._main_thread, bounds, self.accounted_ns),
            self._streams.lanes(bounds),
        )

    def take_starts(self, boundaries: Int64s) -> Int64s:
        """How many operations that are accounted for began before each boundary, since the one
        before; what began later stays."""
        begun = np.zeros(len(boundaries), np.int64)
        parts, self._starts = self._starts, []
        for starts in parts:
            of_part = np.searchsorted(starts, boundaries)
            begun += of_part
            if of_part[-1] < len(starts):
                self._starts.append(starts[of_part[-1] :])
        return differences(begun)

    def account(self, until_ns: int | None) -> None:
        """Divide the time axis up to `until_ns` (None: to the end), or to the last operation
        before."""
        if not self._waiting:
            return
        found = Columns.join(self._waiting)
        self._waiting = []
        apart = found.are_apart
        if not apart and (found.starts[1:] < found.starts[:-1]).any():
            found = found.pick(np.argsort(found.starts, kind="stable"))
            apart = found.are_apart
        if until_ns is not None:
            ready = int(np.searchsorted(found.starts, until_ns))
            if apart:
                running = np.arange(np.searchsorted(found.ends[:ready], until_ns, "right"), ready)
            else:
                running = np.flatnonzero(found.ends[:ready] > until_ns)
            later = np.concatenate((running, np.arange(ready, len(found.starts))))
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
                if len(running):
                    found = found._replace(ends=np.minimum(found.ends, until_ns))
        # What comes too late, in time that is already accounted for, is not counted twice.
        if len(found.starts) and found.starts[0] < self.accounted_ns:
            found = found.pick(np.flatnonzero(found.ends > self.accounted_ns))
            found = found._replace(starts=np.maximum(found.starts, self.accounted_ns))
        if not len(found.starts):
            return
        began = found.starts if not found.goes_on.any() else found.starts[~found.goes_on]
        self._starts.append(began)
        leaves = refine(
            found.leaves,
            found.starts,
            found.ends,
            found.streams,
            found.codes,
            lambda rows: self._kernels.widths(found.codes.take(rows), found.shapes.take(rows)),
        )
        threads: list[int] = distinct(found.threads).tolist()
        self.samples.add(found, threads)
        if apart or found.are_apart:
            self._add_each(found.starts, found.ends, leaves, found.nodes)
            reach = found.ends
        else:
            self._add_busy(found.starts, found.ends, leaves, found.nodes)
            reach = np.maximum.accumulate(found.ends)
        self._streams.add(found, int(reach[-1]))
        self._add_gaps(found, reach, threads)
        since_ns = self.accounted_ns or int(found.starts[0])
        self.accounted_ns = max(self.accounted_ns, int(reach[-1]))
        self._add_waits({*threads, self._main_thread}, since_ns)

    def _add_waits(self, threads: set[int], since_ns: int) -> None:
        until_ns = self.accounted_ns
        waits = [
            Busy(*self._threads.calls(thread, Doing.WAITING, since_ns, until_ns))
            for thread in threads
        ]
        # Those of one thread are disjoint and in order.
        starts, ends = union(waits) if len(waits) > 1 else waits[0]
        self.tracks.add(WAITED, starts, ends, ends - starts)

    def _add_each(
        self, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8], nodes: Int64s
    ) -> None:
        """Operations one after the other."""
        took = ends - starts
        if not took.all():
            of = np.flatnonzero(took)
            starts, ends, took = starts.take(of), ends.take(of), took.take(of)
            leaves, nodes = leaves.take(of), nodes.take(of)
        by_leaf = []
        for leaf in present(leaves, LEAVES):
            its = leaves == leaf
            if 2 * np.count_nonzero(its) > len(its):
                # Nothing of the others is faster than picking most of them.
                exposed = took if its.all() else took * its
                self.tracks.add(leaf, starts, ends, exposed)
                by_leaf.append((leaf, nodes, exposed))
            else:
                of = np.flatnonzero(its)
                exposed = took.take(of)
                self.tracks.add(leaf, starts.take(of), ends.take(of), exposed)
                by_leaf.append((leaf, nodes.take(of), exposed))
        self.phases.add_busy(by_leaf)

    def _add_busy(
        self, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8], nodes: Int64s
    ) -> None:
        groups = _GROUP[leaves]
        above: list[Busy] = []
        for group in present(groups, _GROUPS):
            at = np.flatnonzero(groups == group)
            rows, begins, finishes = exclusive(starts.take(at), ends.take(at))
            exposed = finishes - begins
            if above:
                exposed -= union(above).covered(begins, finishes)
            of = leaves.take(at).take(rows)
            by_leaf = []
            for leaf in present(of, LEAVES):
                shown = np.flatnonzero((of == leaf) & (exposed > 0))
                its = exposed.take(shown)
                self.tracks.add(leaf, begins.take(shown), finishes.take(shown), its)
                by_leaf.append((leaf, nodes.take(at.take(rows.take(shown))), its))
            self.phases.add_busy(by_leaf)
            above.append(Busy(begins, finishes))

    def _add_gaps(self, found: Columns, reach: Int64s, threads: list[int]) -> None:
        """`reach` is how far operations go up to each, `threads` are all that launched any."""
        before = np.empty_like(reach)
        before[0] = self.accounted_ns or found.starts[0]
        before[1:] = reach[:-1]
        lengths = found.starts - before
        rows = rows_of(lengths > 0)
        if not len(rows):
            return
        a, b, lengths = taken(before, rows), taken(found.starts, rows), taken(lengths, rows)
        holed = self.holes.touch(a, b)
        if holed.any():
            # What ran there is not known: it is on no leaf.
            rows, a, b, lengths = (column[~holed] for column in (rows, a, b, lengths))
        called = taken(found.called_ns, rows)
        causes = Causes(lengths)
        late = rows_of(called > a)
        if len(late) < len(rows):
            causes.add_whole(Leaf.UNKNOWN, np.flatnonzero(called == 0))
            causes.add_whole(Leaf.DEPENDENCY, np.flatnonzero((called != 0) & (called <= a)))
        of = taken(rows, late)
        gaps = Gaps(
            late,
            taken(a, late),
            taken(np.minimum(called, b), late),
            taken(found.returned_ns, of),
            taken(b, late),
            taken(lengths, late),
        )
        launched_by = found.threads.take(of) if len(threads) > 1 else None
        for thread in threads:
            its = gaps
            if launched_by is not None:
                its = gaps.pick(np.flatnonzero(launched_by == thread))
            if len(its.rows):
                self.blame.add(causes, thread, its)
        if self.siblings is not None:
            held = self.siblings.covered(a, b)
            causes.move(Leaf.SYNC, Leaf.DEPENDENCY, held / lengths)
        parts = list(causes.found())
        elsewhere = self.others.covered(a, b) if self.others is not None else None
        if elsewhere is not None:
            parts = _without_others(parts, lengths, elsewhere)
        if causes.fetches:
            fetching = causes.fetching()
            if elsewhere is not None:
                fetching = np.floor(fetching * (1.0 - elsewhere / lengths)).astype(np.int64)
            some = np.flatnonzero(fetching)
            self.tracks.add(FETCHING, a.take(some), b.take(some), fetching.take(some))
        for leaf, at, amounts in parts:
            self.tracks.add(leaf, taken(a, at), taken(b, at), amounts)
        self.phases.add_idle(parts, a, lengths, taken(found.threads, rows))


def _without_others(
    parts: list[tuple[Leaf, Rows, Int64s]], lengths: Int64s, held: Int64s
) -> list[tuple[Leaf, Rows, Int64s]]:
    """Causes of gaps in which other processes ran something for so long: that was no idle time."""
    if not held.any():
        return parts
    found: list[tuple[Leaf, Rows, Int64s]] = []
    left = lengths.copy()
    idle = 1.0 - held / lengths
    for leaf, rows, amounts in parts:
        of = np.floor(amounts * idle.take(rows)).astype(np.int64)
        left[rows] -= of
        some = np.flatnonzero(of)
        found.append((leaf, rows.take(some), of.take(some)))
    some = np.flatnonzero(left)
    return [*found, (Leaf.PEER, some, left.take(some))]
