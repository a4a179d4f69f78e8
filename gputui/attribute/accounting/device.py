"""Every nanosecond of one device under a leaf, along its time axis and by range.

For `device_steps`, which divides the axis into steps. Why it idled is decided in `operations`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gputui.attribute import Strings
from gputui.attribute.accounting.host_threads import Doing, HostThreads, Rows, spread
from gputui.attribute.accounting.operations import (
    Blame,
    Causes,
    Columns,
    Gaps,
    Kernels,
    OperationSamples,
    refine,
)
from gputui.attribute.accounting.step_rows import StreamOperations, thread_lanes, within_bytes
from gputui.attribute.arrays import (
    Busy,
    Holes,
    Int64s,
    UInt32s,
    codes_present,
    differences,
    distinct,
    exclusive,
    rows_of,
    take_rows,
    union,
)
from gputui.attribute.range_stacks import NO_NODE, RangeStack, RangeStacks
from gputui.model.events import StreamLane, ThreadLane
from gputui.model.leaves import LEAVES as LEAF_MEANINGS
from gputui.model.leaves import Leaf

# --- Time by leaf along one device's time axis, until it is known where steps begin.

LEAVES = len(Leaf)
WAITED = LEAVES
FETCHING = LEAVES + 1
"""Tracks in addition to those of the leaves, and the last columns: WAITED is when the CPU waited
for the GPU, whether that was busy or idle; FETCHING is how much of INPUT the program spent fetching
it."""

_Track = tuple[Int64s, Int64s, Int64s]
_NO_TRACK: _Track = (np.empty(0, np.int64),) * 3


class Tracks:
    """For each leaf a track: disjoint intervals in order, and how much of each is the leaf's.

    Tracks may lie over each other, since a gap has several causes; what all of them hold in an
    interval adds up to its length.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, list[_Track]] = {}
        self._intervals = 0

    def __len__(self) -> int:
        """How many intervals are held."""
        return self._intervals

    @property
    def first_ns(self) -> int | None:
        """The start of the earliest interval held; None if none is."""
        firsts = [int(pieces[0][0][0]) for pieces in self._tracks.values() if pieces]
        return min(firsts, default=None)

    def busy_until(self, before_ns: int) -> int:
        """When the last operation held that began before a moment was over; 0 without one."""
        reach_ns = 0
        for leaf, pieces in self._tracks.items():
            if leaf < LEAVES and not LEAF_MEANINGS[Leaf(leaf)].is_idle:
                for starts, ends, _ in pieces:
                    if begun := int(np.searchsorted(starts, before_ns)):
                        reach_ns = max(reach_ns, int(ends[begun - 1]))
        return reach_ns

    def add(self, leaf: int, starts: Int64s, ends: Int64s, amounts: Int64s) -> None:
        """Adds intervals of a leaf, after those that its track has."""
        if len(starts):
            self._tracks.setdefault(leaf, []).append((starts, ends, amounts))
            self._intervals += len(starts)

    def take_up_to(self, boundaries: Int64s) -> npt.NDArray[np.int64]:
        """Time by leaf, and of the tracks beside, up to each boundary from the one before; the rest
        stays.

        Intervals that lie across a boundary are divided in proportion.
        """
        rows = np.zeros((len(boundaries), FETCHING + 1), np.int64)
        for leaf, pieces in self._tracks.items():
            if not pieces:
                continue
            kept: list[_Track] = []
            for part in pieces:
                self._intervals -= len(part[0])
                left = _take_of(part, boundaries, rows[:, leaf])
                if len(left[0]):
                    kept.append(left)
                    self._intervals += len(left[0])
            self._tracks[leaf] = kept
        return rows


def _take_of(part: _Track, boundaries: Int64s, sums: Int64s) -> _Track:
    """Add what lies up to each boundary to `sums`, one row each; returns the rest of the piece."""
    starts, ends, amounts = part
    if starts[0] >= boundaries[-1]:
        return part
    if ends[-1] <= boundaries[0]:
        sums[0] += amounts.sum()
        return _NO_TRACK
    begun = np.searchsorted(starts, boundaries)
    sums += _sums_up_to(begun, amounts)
    last = np.maximum(begun - 1, 0)
    beyond = ends.take(last) - boundaries
    divided = np.flatnonzero((beyond > 0) & (begun > 0))
    first = int(begun[-1])
    if not len(divided):
        return starts[first:], ends[first:], amounts[first:]
    rows, beyond = last.take(divided), beyond.take(divided)
    share = beyond / (ends.take(rows) - starts.take(rows))
    rest = np.zeros(len(boundaries) + 1, np.int64)
    rest[divided + 1] = np.rint(amounts.take(rows) * share)
    sums -= rest[1:] - rest[:-1]
    if int(divided[-1]) < len(boundaries) - 1:
        return starts[first:], ends[first:], amounts[first:]
    # What goes on beyond the last boundary is kept from there on.
    first -= 1
    starts, amounts = starts[first:].copy(), amounts[first:].copy()
    starts[0], amounts[0] = boundaries[-1], rest[-1]
    return starts, ends[first:], amounts


def _sums_up_to(ends: npt.NDArray[np.intp], amounts: Int64s) -> Int64s:
    """The sum of the amounts before each end, from the one before on. Ends come in order."""
    sums = np.zeros(len(ends), np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    some = np.flatnonzero(ends > starts)
    if len(some):
        sums[some] = np.add.reduceat(amounts[: ends[-1]], starts[some])
    return sums


# --- What a device did and why it idled, by phase.
#
# What runs counts in the innermost range that launched it. A gap is the work of the thread that
# launched what ends it: each of its causes is divided, in proportion to time, among the innermost
# ranges that were open there. A thread without ranges takes the main thread's, as everywhere.

Share = tuple[int, Rows, Int64s]
"""A leaf, the gaps that it has a part of, in order, and how much of each."""

_LIBRARY = 2
_FEW_NODES = 4096


class PhaseLeaves:
    """Time of one device by range and leaf."""

    def __init__(self, stacks: RangeStacks, main_thread: int) -> None:
        self._stacks = stacks
        self._main_thread = main_thread
        self._busy: dict[tuple[int, int], int] = defaultdict(int)
        self._idle: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._idle_ns: dict[int, int] = defaultdict(int)

    def take_sums(self) -> dict[tuple[int, int], int]:
        """Node and leaf → ns since the last call; nothing as long as there are no ranges."""
        if not self._stacks.all():
            return {}
        sums_by_place = dict(self._busy)
        for node, causes in self._idle.items():
            # To the nanosecond: what rounding leaves is the largest cause's. What is left for a
            # cause after the others' shares of a gap may be a nanosecond below none.
            rounded = {leaf: max(0, round(ns)) for leaf, ns in causes.items()}
            largest = max(rounded, key=lambda leaf: rounded[leaf])
            rounded[largest] += self._idle_ns[node] - sum(rounded.values())
            sums_by_place |= {(node, leaf): ns for leaf, ns in rounded.items() if ns > 0}
        for sums in (self._busy, self._idle, self._idle_ns):
            sums.clear()
        return sums_by_place

    def add_busy(self, by_leaf: Sequence[tuple[int, Int64s, Int64s]]) -> None:
        """Operations by leaf: the innermost ranges that launched them, and how much counts."""
        sums = [
            (node, leaf, round(ns))
            for leaf, nodes, exposed in by_leaf
            for node, ns in _by_node(nodes, exposed)
        ]
        for node, leaf, ns in sorted(sums):
            self._busy[node, leaf] += ns

    def add_idle(
        self,
        by_leaf: Sequence[Share],
        starts_ns: Int64s,
        lengths: Int64s,
        threads: UInt32s,
    ) -> None:
        """Gaps, disjoint and in order, that end with what `threads` launched; `parts` are their
        causes, which add up to the gaps."""
        if not self._stacks.all():
            self._idle_ns[NO_NODE] += int(lengths.sum())
            for leaf, _, amounts in by_leaf:
                self._idle[NO_NODE][int(leaf)] += int(amounts.sum())
            return
        launched_by = distinct(threads).tolist()
        if len(launched_by) == 1:
            self._share_out(launched_by[0], starts_ns, lengths, list(by_leaf))
            return
        for thread in launched_by:
            its = threads == thread
            rows_of_thread = np.flatnonzero(its)
            place = np.cumsum(its) - 1
            shares: list[Share] = []
            for leaf, rows, amounts in by_leaf:
                own = np.flatnonzero(its.take(rows))
                shares.append((leaf, place.take(rows.take(own)), amounts.take(own)))
            self._share_out(
                thread, starts_ns.take(rows_of_thread), lengths.take(rows_of_thread), shares
            )

    def _share_out(
        self, thread: int, starts_ns: Int64s, lengths: Int64s, shares: list[Share]
    ) -> None:
        stacks = _own(self._stacks.of_thread(thread)) or _own(
            self._stacks.of_thread(self._main_thread)
        )
        bounds, nodes = _innermost(stacks, int(starts_ns[0]), int(starts_ns[-1] + lengths[-1]))
        gap = np.maximum(np.searchsorted(starts_ns, bounds, side="right") - 1, 0)
        inside = np.minimum(np.maximum(bounds - starts_ns.take(gap), 0), lengths.take(gap))
        before = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], out=before[1:])
        inside += before.take(gap)
        passed = inside[1:] - inside[:-1]
        left = dict(_sums(nodes, passed))
        for node, ns in left.items():
            self._idle_ns[node] += round(ns)
        # The cause of the most gaps, launching as a rule, has what the others leave.
        most = max(range(len(shares)), key=lambda index: len(shares[index][1]))
        overlaps = [_overlaps(bounds, nodes, starts_ns, lengths, *amounts) if index != most else {}
                 for index, (_, *amounts) in enumerate(shares)]  # fmt: skip
        for sums in overlaps:
            for node, ns in sums.items():
                left[node] -= ns
        overlaps[most] = left
        for (leaf, *_), sums in zip(shares, overlaps, strict=True):
            for node, ns in sums.items():
                self._idle[node][int(leaf)] += ns


def _innermost(stacks: list[RangeStack], first_ns: int, last_ns: int) -> tuple[Int64s, Int64s]:
    """The moments from `first_ns` to `last_ns`, both among them, between which one range stays the
    innermost, and its node; the default domain comes first."""
    ends = np.array([first_ns]), np.array([last_ns])
    if len(stacks) == 1:
        times, nodes = stacks[0].timeline.between(first_ns, last_ns)
        return np.concatenate((ends[0], times, ends[1])), nodes
    moments = [stack.timeline.between(first_ns, last_ns)[0] for stack in stacks]
    times = np.sort(np.concatenate((ends[0], *moments)))
    nodes = np.zeros(len(times), np.int64)
    for stack in stacks:
        outside = np.flatnonzero(nodes == NO_NODE)
        if len(outside):
            nodes[outside] = stack.timeline.innermost_at(times[outside])[1]
    return np.concatenate((times, ends[1])), nodes


def _overlaps(
    bounds: Int64s,
    nodes: Int64s,
    starts_ns: Int64s,
    lengths: Int64s,
    rows: Rows,
    amounts: Int64s,
) -> dict[int, float]:
    """Amounts of the gaps at these rows by node, in proportion to the time that each has in
    them."""
    if not len(rows):
        return {}
    begins, lengths = starts_ns.take(rows), lengths.take(rows)
    ends = begins + lengths
    intervals, pieces = spread(
        np.searchsorted(bounds, begins, side="right") - 1, np.searchsorted(bounds, ends)
    )
    shared = np.minimum(bounds.take(pieces + 1), ends.take(intervals))
    shared -= np.maximum(bounds.take(pieces), begins.take(intervals))
    return dict(
        _sums(nodes.take(pieces), amounts.take(intervals) * (shared / lengths.take(intervals)))
    )


def _by_node(nodes: Int64s, amounts: Int64s) -> Iterable[tuple[int, float]]:
    if not len(nodes):
        return ()
    if (nodes == nodes[0]).all():
        return [(int(nodes[0]), int(amounts.sum()))]
    return _sums(nodes, amounts)


def _sums(
    keys: Int64s, amounts: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> Iterator[tuple[int, float]]:
    distinct_keys, places = None, keys
    if int(keys.max()) >= _FEW_NODES:
        distinct_keys, places = np.unique(keys, return_inverse=True)
    sums = np.bincount(places, amounts)
    some = np.flatnonzero(sums)
    distinct_keys = some if distinct_keys is None else distinct_keys[some]
    return zip(distinct_keys.tolist(), sums[some].tolist(), strict=True)


def _own(stacks: list[RangeStack]) -> list[RangeStack]:
    return [stack for stack in stacks if stack.priority < _LIBRARY]


# --- Every nanosecond of one device under a leaf, up to a moment before which nothing new can
# come.
#
# The time axis is cut into what was covered by operations and the gaps between. Where operations
# overlap, compute comes first, then communication, then copies: only what is exposed counts. A gap
# is laid at the door of the thread that launched the operation which ends it.

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
        self.samples = OperationSamples(threads, main_thread)
        self.blame = Blame(threads, main_thread)
        self.phases = phases or PhaseLeaves(RangeStacks(Strings()), main_thread)
        self.holes = holes or Holes()
        """The intervals in which nothing is known of the device."""
        self.others: Busy | None = None
        """When other traced processes ran something on the device."""
        self.siblings: Busy | None = None
        """When the process's other devices were busy."""
        self._streams = StreamOperations()
        self.tracks = Tracks()
        """Time that is accounted for and waits until it is known where steps begin."""
        self.accounted_ns = 0
        """The moment up to which the time axis is accounted for; 0 before the first operation."""

    def add(self, operations: Columns) -> None:
        """Add operations of this device, in any order."""
        if len(operations.starts):
            self._waiting.append(operations)

    def busy_after(self, was_busy: Busy, until_ns: int | None) -> Busy:
        """When the process ran something, up to a time: what was known before, and what was added
        since."""
        since_ns = int(was_busy.ends[-1]) if len(was_busy.ends) else 0
        starts = [was_busy.starts, *(np.maximum(part.starts, since_ns) for part in self._waiting)]
        ends = [was_busy.ends, *(part.ends for part in self._waiting)]
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
        waiting, self._starts = self._starts, []
        for starts in waiting:
            # Cut at once, where operations lie apart: each column is looked at once less.
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
        operations = Columns.join(self._waiting)
        self._waiting = []
        apart = operations.are_apart
        if not apart and (operations.starts[1:] < operations.starts[:-1]).any():
            operations = operations.pick(np.argsort(operations.starts, kind="stable"))
            apart = operations.are_apart
        if until_ns is not None:
            ready = int(np.searchsorted(operations.starts, until_ns))
            if apart:
                running = np.arange(
                    np.searchsorted(operations.ends[:ready], until_ns, "right"), ready
                )
            else:
                running = np.flatnonzero(operations.ends[:ready] > until_ns)
            later = np.concatenate((running, np.arange(ready, len(operations.starts))))
            if len(later):
                # What is still running goes on in the next round from here.
                rest = operations.pick(later)
                self._waiting.append(
                    rest._replace(
                        starts=np.maximum(rest.starts, until_ns),
                        goes_on=rest.goes_on | (rest.starts < until_ns),
                    )
                )
                operations = Columns._make(column[:ready] for column in operations)
                if len(running):
                    operations = operations._replace(ends=np.minimum(operations.ends, until_ns))
        # What comes too late, in time that is already accounted for, is not counted twice.
        if len(operations.starts) and operations.starts[0] < self.accounted_ns:
            operations = operations.pick(np.flatnonzero(operations.ends > self.accounted_ns))
            operations = operations._replace(
                starts=np.maximum(operations.starts, self.accounted_ns)
            )
        if not len(operations.starts):
            return
        began = (
            operations.starts
            if not operations.goes_on.any()
            else operations.starts[~operations.goes_on]
        )
        self._starts.append(began)
        leaves = refine(
            operations.leaves,
            operations.starts,
            operations.ends,
            operations.streams,
            operations.codes,
            lambda rows: self._kernels.widths(
                operations.codes.take(rows), operations.shapes.take(rows)
            ),
        )
        threads: list[int] = distinct(operations.threads).tolist()
        self.samples.add(operations, threads)
        if apart or operations.are_apart:
            self._add_each(operations.starts, operations.ends, leaves, operations.nodes)
            reach = operations.ends
        else:
            self._add_busy(operations.starts, operations.ends, leaves, operations.nodes)
            reach = np.maximum.accumulate(operations.ends)
        self._streams.add(operations, int(reach[-1]))
        self._add_gaps(operations, reach, threads)
        since_ns = self.accounted_ns or int(operations.starts[0])
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
            rows = np.flatnonzero(took)
            starts, ends, took = starts.take(rows), ends.take(rows), took.take(rows)
            leaves, nodes = leaves.take(rows), nodes.take(rows)
        by_leaf = []
        for leaf in codes_present(leaves, LEAVES):
            its = leaves == leaf
            if 2 * np.count_nonzero(its) > len(its):
                # Nothing of the others is faster than picking most of them.
                exposed = took if its.all() else took * its
                self.tracks.add(leaf, starts, ends, exposed)
                by_leaf.append((leaf, nodes, exposed))
            else:
                rows = np.flatnonzero(its)
                exposed = took.take(rows)
                self.tracks.add(leaf, starts.take(rows), ends.take(rows), exposed)
                by_leaf.append((leaf, nodes.take(rows), exposed))
        self.phases.add_busy(by_leaf)

    def _add_busy(
        self, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8], nodes: Int64s
    ) -> None:
        groups = _GROUP[leaves]
        above: list[Busy] = []
        for group in codes_present(groups, _GROUPS):
            members = np.flatnonzero(groups == group)
            rows, begins, finishes = exclusive(starts.take(members), ends.take(members))
            exposed = finishes - begins
            if above:
                exposed -= union(above).covered(begins, finishes)
            shown_leaves = leaves.take(members).take(rows)
            by_leaf = []
            for leaf in codes_present(shown_leaves, LEAVES):
                shown = np.flatnonzero((shown_leaves == leaf) & (exposed > 0))
                its = exposed.take(shown)
                self.tracks.add(leaf, begins.take(shown), finishes.take(shown), its)
                by_leaf.append((leaf, nodes.take(members.take(rows.take(shown))), its))
            self.phases.add_busy(by_leaf)
            above.append(Busy(begins, finishes))

    def _add_gaps(self, operations: Columns, reach: Int64s, threads: list[int]) -> None:
        """`reach` is how far operations go up to each, `threads` are all that launched any."""
        before = np.empty_like(reach)
        before[0] = self.accounted_ns or operations.starts[0]
        before[1:] = reach[:-1]
        lengths = operations.starts - before
        rows = rows_of(lengths > 0)
        if not len(rows):
            return
        a, b, lengths = (
            take_rows(before, rows),
            take_rows(operations.starts, rows),
            take_rows(lengths, rows),
        )
        holed = self.holes.touch(a, b)
        if holed.any():
            # What ran there is not known: it is on no leaf.
            rows, a, b, lengths = (column[~holed] for column in (rows, a, b, lengths))
        called = take_rows(operations.called_ns, rows)
        causes = Causes(lengths)
        late = rows_of(called > a)
        if len(late) < len(rows):
            causes.add_whole(Leaf.UNKNOWN, np.flatnonzero(called == 0))
            causes.add_whole(Leaf.DEPENDENCY, np.flatnonzero((called != 0) & (called <= a)))
        launches = take_rows(rows, late)
        gaps = Gaps(
            late,
            take_rows(a, late),
            take_rows(np.minimum(called, b), late),
            take_rows(operations.returned_ns, launches),
            take_rows(b, late),
            take_rows(lengths, late),
        )
        launched_by = operations.threads.take(launches) if len(threads) > 1 else None
        for thread in threads:
            its = gaps
            if launched_by is not None:
                its = gaps.pick(np.flatnonzero(launched_by == thread))
            if len(its.rows):
                self.blame.add(causes, thread, its)
        if self.siblings is not None:
            held = self.siblings.covered(a, b)
            causes.move(Leaf.SYNC, Leaf.DEPENDENCY, held / lengths)
        by_cause = list(causes.amounts_by_leaf())
        elsewhere = self.others.covered(a, b) if self.others is not None else None
        if elsewhere is not None:
            by_cause = _without_others(by_cause, lengths, elsewhere)
        if causes.fetches:
            fetching = causes.fetching()
            if elsewhere is not None:
                fetching = np.floor(fetching * (1.0 - elsewhere / lengths)).astype(np.int64)
            some = np.flatnonzero(fetching)
            self.tracks.add(FETCHING, a.take(some), b.take(some), fetching.take(some))
        for leaf, its_rows, amounts in by_cause:
            self.tracks.add(leaf, take_rows(a, its_rows), take_rows(b, its_rows), amounts)
        self.phases.add_idle(by_cause, a, lengths, take_rows(operations.threads, rows))


def _without_others(
    by_cause: list[tuple[Leaf, Rows, Int64s]], lengths: Int64s, held: Int64s
) -> list[tuple[Leaf, Rows, Int64s]]:
    """Causes of gaps in which other processes ran something for so long: that was no idle time."""
    if not held.any():
        return by_cause
    reduced: list[tuple[Leaf, Rows, Int64s]] = []
    left = lengths.copy()
    idle = 1.0 - held / lengths
    for leaf, rows, amounts in by_cause:
        idle_ns = np.floor(amounts * idle.take(rows)).astype(np.int64)
        left[rows] -= idle_ns
        some = np.flatnonzero(idle_ns)
        reduced.append((leaf, rows.take(some), idle_ns.take(some)))
    some = np.flatnonzero(left)
    return [*reduced, (Leaf.PEER, some, left.take(some))]
