"""Instances of ranges, one row per entry of a range, and which instance lies in which.

For the modules that open, close and fill instances. Both halves are in one module because they need
each other: an instance is complete when its place is known, and its place when the ranges around it
are complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    Slots,
    are_among,
    distinct,
    join,
    run_starts,
)
from gputui.model.events import NO_PAYLOAD
from gputui.ring import payload_types

# --- Which range lies in which, where ranges of several stacks (or of none) overlap on a thread.
#
# Within one stack the parent is the range below. Start/End ranges and other domains have no common
# stack: as in nsys, a range's parent is the shortest range that its thread began before it and
# ended after it, of any style and domain, and its level is the length of its chain of parents. A
# Start/End range ended by another thread is nobody's parent.
#
# The length of enclosing ranges is known only when they end. Inner ranges wait for that only while
# Start/End ranges leave it open, and not for long; their level is settled link by link, as the
# parents of their parents become known.

UNDECIDED = -2
MAX_AROUND = 256
"""Ranges of other stacks examined around one range, newest first."""


class Nesting:
    """Instances that began inside ranges of other stacks, and Start/End ranges, until their place
    is settled. Columns, because whole libraries annotate beside the program's own ranges."""

    def __init__(self, instances: RangeInstances) -> None:
        self._instances = instances
        self._count = 0
        self._pairs = _Rows(2)
        """An instance, and one of another stack that was open where it began."""
        self._below = _Rows(3)
        """An instance whose level is not known yet, a node, and how many of that node lie in it."""
        self._levels: list[tuple[Int64s, Int64s]] = []
        self._places = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def cross(self, ids: Int64s, around: Int64s) -> None:
        """These `ids` (one per pair) began while the instance beside each was the innermost open
        one of another stack, or an open Start/End range.
        """
        if not len(ids):
            return
        order = np.argsort(ids, kind="stable")
        ids, around = ids[order], around[order]
        firsts = run_starts(ids)
        counts = np.diff(np.append(firsts, len(ids)))
        if counts.max() > MAX_AROUND:
            lasts = np.repeat(firsts + counts, counts)
            newest = np.arange(len(ids)) >= lasts - MAX_AROUND
            ids, around = ids[newest], around[newest]
        self._begin(ids[run_starts(ids)])
        self._wait(ids, around)

    def start_end(self, ids: Int64s) -> None:
        """Register Start/End ranges, whose place among other ranges has to be found."""
        self._begin(ids)

    def _begin(self, ids: Int64s) -> None:
        rows = self._instances.rows(ids)
        self._count += len(ids) - int(np.count_nonzero(self._instances.unplaced[rows]))
        self._instances.unplaced[rows] = True
        self._instances.root[rows] = ids

    def _wait(self, inner: Int64s, outer: Int64s) -> None:
        """Keep each of `outer` from being finalised before the instance beside it."""
        order = np.lexsort((outer, inner))
        inner, outer = inner[order], outer[order]
        new = np.ones(len(inner), np.bool_)
        new[1:] = (inner[1:] != inner[:-1]) | (outer[1:] != outer[:-1])
        inner, outer = inner[new], outer[new]
        np.add.at(self._instances.children, self._instances.rows(outer), 1)
        self._pairs.add(inner, outer)

    def outgrown(self, closed: Int64s) -> None:
        """For instances closed since the last call: whatever began inside one but outlasts it is
        not inside it."""
        if not len(self._pairs) or not len(closed):
            return
        instances = self._instances
        inner, outer = self._pairs.columns()
        end_ns = instances.end_ns
        ends_first = end_ns[instances.rows(outer)] < end_ns[instances.rows(inner)]
        outlasts = np.flatnonzero(ends_first & (self._index_of(outer, closed) >= 0))
        if not len(outlasts):
            return
        moved, end_ns = inner[outlasts], end_ns[instances.rows(inner[outlasts])]
        below = self._outlasting(outer[outlasts], end_ns)
        alive = np.flatnonzero(instances.alive(below))
        self._stop_waiting(outer[outlasts])
        self._pairs.drop(outlasts)
        if not len(alive):
            return
        moved, below = moved[alive], below[alive]
        inner, outer = self._pairs.columns()
        its = self._index_of(inner, distinct(moved)) >= 0
        waiting = np.sort(self._pair(inner[its], outer[its]))
        new = ~are_among(waiting, self._pair(moved, below))
        if new.any():
            self._wait(moved[new], below[new])

    def _pair(self, inner: Int64s, outer: Int64s) -> Int64s:
        """Both in one number, of instances that are there."""
        pairs: Int64s = self._instances.rows(inner) << _SLOT_BITS | self._instances.rows(outer)
        return pairs

    def _outlasting(self, others: Int64s, ends_ns: Int64s) -> Int64s:
        """Further down the stack of each, the range that ends no earlier than the moment beside
        it."""
        instances = self._instances
        below = others.copy()
        left = np.arange(len(below))
        while len(left):
            left = left[instances.alive(below[left])]
            rows = instances.rows(below[left])
            is_shorter = instances.end_ns[rows] < ends_ns[left]
            left = left[is_shorter]
            below[left] = instances.parent[rows[is_shorter]]
        return below

    def _stop_waiting(self, outer: Int64s) -> None:
        rows = self._instances.rows(outer[self._instances.alive(outer)])
        np.subtract.at(self._instances.children, rows, 1)

    def _index_of(self, wanted: Int64s, ids: Int64s) -> Int64s:
        """The position of each of `wanted` in `ids`, which are distinct; −1 if it is not there."""
        if len(self._places) < len(self._instances.node):
            self._places = np.full(len(self._instances.node), -1)
        rows = self._instances.rows(ids)
        self._places[rows] = np.arange(len(ids))
        index = self._places[self._instances.rows(wanted)]
        self._places[rows] = -1
        index[ids[index] != wanted] = -1
        return index

    def place(self, ids: Int64s, decide: Bools, now_ns: int) -> Bools:
        """Find the parents of closed instances and record them: which have their place now.
        `decide` are those that wait no longer to learn it."""
        parents = self._parents(ids, decide, now_ns)
        placed: Bools = parents != UNDECIDED
        self._settle(ids[placed], parents[placed])
        return placed

    def _parents(self, ids: Int64s, decide: Bools, now_ns: int) -> Int64s:
        """The parent of each: the shortest range around it; NO_INSTANCE, or UNDECIDED."""
        instances = self._instances
        own_rows = instances.rows(ids)
        inner, outer = self._pairs.columns()
        index = self._index_of(inner, ids)
        chosen = index >= 0
        index = np.concatenate((index[chosen], np.arange(len(ids))))
        around = np.concatenate((outer[chosen], instances.parent[own_rows]))
        alive = instances.alive(around)
        index, around = index[alive], around[alive]
        rows = instances.rows(around)
        encloses = instances.end_ns[rows] >= instances.end_ns[own_rows[index]]
        encloses &= ~instances.elsewhere[rows]
        index, around, rows = index[encloses], around[encloses], rows[encloses]
        starts_ns, ends_ns = instances.start_ns[rows], instances.end_ns[rows]
        parents = np.full(len(ids), NO_INSTANCE)
        # Of equally long ranges the newest, then the one of the lowest id.
        order = np.lexsort((around, -starts_ns, ends_ns - starts_ns, index))
        if len(order):
            firsts = order[run_starts(index[order])]
            parents[index[firsts]] = around[firsts]
        for number in np.unique(index[ends_ns == LATEST_NS]).tolist():
            some = np.unique(around[index == number]).tolist()
            parents[number] = self._parent_among(some, now_ns, bool(decide[number]))
        return parents

    def _parent_among(self, around: list[int], now_ns: int, decide: bool) -> int:
        """The parent among instances that end later, of which some are open."""
        instances = self._instances
        closed: list[tuple[int, int, int]] = []
        still_open: list[tuple[int, int]] = []
        for other in around:
            row = other & instances.ROW
            start_ns, end_ns = int(instances.start_ns[row]), int(instances.end_ns[row])
            if end_ns == LATEST_NS:
                still_open.append((start_ns, other))
            else:
                closed.append((end_ns - start_ns, -start_ns, other))
        shortest = min(closed, default=(LATEST_NS, 0, NO_INSTANCE))
        # What has already been open for longer than a closed one lasted is longer.
        still_open = [part for part in still_open if now_ns - part[0] < shortest[0]]
        if not still_open:
            return shortest[2]
        newest = max(still_open)[1]
        if decide or (len(still_open) == 1 and not closed):
            return newest
        # Pushes and pops nest, as a rule.
        is_sure = not closed and not instances.start_end[newest & instances.ROW]
        return newest if is_sure else UNDECIDED

    def _settle(self, ids: Int64s, parents: Int64s) -> None:
        """Record finalised instances with their parents."""
        if not len(ids):
            return
        instances = self._instances
        rows, inside = instances.rows(ids), np.flatnonzero(parents >= 0)
        parent_rows = instances.rows(parents[inside])
        roots = np.full(len(ids), NO_INSTANCE)
        roots[inside] = instances.root[parent_rows]
        if len(ids) > 1 and (self._index_of(roots[roots >= 0], ids) >= 0).any():
            for place in range(len(ids)):  # one after the other: some lie in others of them
                self._settle(ids[place : place + 1], parents[place : place + 1])
            return
        self._count -= int(np.count_nonzero(instances.unplaced[rows]))
        instances.unplaced[rows] = False
        inner, outer = self._pairs.columns()
        settled = np.flatnonzero(self._index_of(inner, ids) >= 0)
        self._stop_waiting(outer[settled])
        self._pairs.drop(settled)
        here = ~instances.elsewhere[rows]
        counts = (instances.last_ns[rows] >= 0) & here
        # The link to a Start/End range is counted here: only its end shows on which thread that
        # happens.
        links = (instances.start_end[rows] & here).astype(np.int64)
        above = np.zeros(len(ids), np.int64)
        levels = instances.level[parent_rows]
        in_root = np.flatnonzero(roots[inside] >= 0)
        levels[in_root] += 1 - instances.level[instances.rows(roots[inside][in_root])]
        above[inside] = np.where(instances.start_end[parent_rows], 0, levels)
        np.add.at(instances.busy_children, parent_rows, counts[inside].astype(np.int64))
        below_root, below_nodes, below_counts = self._below.columns()
        index = self._index_of(below_root, ids)
        entered = np.flatnonzero(index >= 0)
        index, below_nodes, below_counts = (
            index[entered],
            below_nodes[entered],
            below_counts[entered],
        )
        self._below.drop(entered)
        own = np.flatnonzero(counts)
        nodes = instances.node[rows[own]]
        self._levels.append((below_nodes, below_counts * (links + above)[index]))
        self._levels.append((nodes, above[own]))
        self.wait_for_levels(
            np.concatenate((roots[index], roots[own])),
            np.concatenate((below_nodes, nodes)),
            np.concatenate((below_counts, np.ones(len(own), np.int64))),
        )

    def wait_for_levels(self, roots: Int64s, nodes: Int64s, counts: Int64s) -> None:
        """So many instances of each node lie in the root beside it; their level grows with its
        own."""
        instances = self._instances
        # Of one that was finalised early, before its inner ranges, nobody asks any more.
        waits = np.flatnonzero(instances.alive(roots))
        waits = waits[instances.unplaced[instances.rows(roots[waits])]]
        if len(waits):
            self._below.add(roots[waits], nodes[waits], counts[waits])

    def take_levels(self) -> dict[int, int]:
        """Node → levels settled since the last call."""
        levels, self._levels = self._levels, []
        nodes, amounts = (join([part[index] for part in levels], np.int64) for index in (0, 1))
        sums = np.bincount(nodes, amounts).astype(np.int64) if len(nodes) else nodes
        some = np.flatnonzero(sums)
        return dict(zip(some.tolist(), sums[some].tolist(), strict=True))


class _Rows:
    """Columns to which rows are added, and from which they are dropped."""

    def __init__(self, columns: int) -> None:
        self._parts: list[tuple[Int64s, ...]] = [(np.empty(0, np.int64),) * columns]

    def __len__(self) -> int:
        return sum(len(part[0]) for part in self._parts)

    def add(self, *columns: Int64s) -> None:
        self._parts.append(columns)

    def columns(self) -> tuple[Int64s, ...]:
        """All rows added so far, a column each."""
        if len(self._parts) > 1:
            self._parts = [tuple(map(np.concatenate, zip(*self._parts, strict=True)))]
        return self._parts[0]

    def drop(self, rows: Int64s) -> None:
        """Remove these rows of `columns`."""
        if len(rows):
            kept = np.ones(len(self), np.bool_)
            kept[rows] = False
            self._parts = [tuple(column[kept] for column in self.columns())]


# --- Instances: one row per entry of a range, until everything it launched has arrived.

NO_INSTANCE = -1

CLOSED_LIMIT = 1_000_000
"""Closed instances that may wait for their operations; beyond this, all are finalised."""

# Chosen, not measured.
HORIZON_NS = 10_000_000_000
"""How long a closed instance waits for operations that its calls announced."""

# Chosen, not measured.
UNDECIDED_NS = 2_000_000_000
"""How long it waits to learn which of several open ranges encloses it."""

HOST_SETTLE_NS = 1_000_000_000
"""How long it waits in a process without any sign of CUDA: the first CUDA calls may still be on
their way, no longer than the interval between the library's flushes.
"""

SETTLED_FLUSHES = 2
"""The first flush after an event may have begun before it; the second cannot have."""

_SLOT_BITS = 24
_SLOT_MASK = (1 << _SLOT_BITS) - 1


@dataclass(slots=True)
class Finalised:
    """Complete instances: closed, with all operations known. Parallel arrays.

    `first_ns` exceeds `last_ns` if nothing ran. `depths` counts the enclosing ranges of its own
    stack that Nesting does not count; `busy_children` the ranges directly inside it, of any stack,
    that launched something. `start_end` is the style; `elsewhere` means that another thread ended
    the range (`end_threads`, 0 otherwise), which then has no GPU work, as in nsys; `unended` that
    the program left it open. `payloads` are valid if `payload_types` are not 0.
    """

    ids: Int64s
    nodes: Int64s
    starts_ns: Int64s
    ends_ns: Int64s
    first_ns: Int64s
    last_ns: Int64s
    operations: Int64s
    depths: Int64s
    busy_children: Int64s
    start_end: Bools
    elsewhere: Bools
    unended: Bools
    end_threads: Int64s
    payloads: npt.NDArray[np.uint64]
    payload_types: npt.NDArray[np.uint8]


class RangeInstances:
    """A pool of reused rows. An id holds a row and how often it had been reused before, so that a
    stale id finds nothing rather than another instance.
    """

    ROW = _SLOT_MASK
    """The bits of an id that hold its row."""

    def __init__(self) -> None:
        self.nesting = Nesting(self)
        self.now_ns = 0
        """The newest timestamp of any range record."""
        self._used = 0
        self._free = np.empty(0, np.int64)
        self.flushes = 0
        self._closed: list[Int64s] = []
        self._closed_count = 0
        self._waiting = 0
        """How many arrays of `_closed` have been waiting since the last call of `finalise`."""
        self._counted: list[tuple[Int64s, Int64s]] = []
        self.generation = np.empty(0, np.int64)
        self.node = np.empty(0, np.int64)
        self.level = np.empty(0, np.int64)
        self.parent = np.empty(0, np.int64)
        self.root = np.empty(0, np.int64)
        """The nearest enclosing instance, or itself, whose place Nesting finds."""
        self.start_ns = np.empty(0, np.int64)
        self.end_ns = np.empty(0, np.int64)
        self.first_ns = np.empty(0, np.int64)
        self.last_ns = np.empty(0, np.int64)
        self.awaited = np.empty(0, np.int64)
        self.children = np.empty(0, np.int64)
        self.operations = np.empty(0, np.int64)
        self.busy_children = np.empty(0, np.int64)
        self.touched = np.empty(0, np.int64)
        self.closed_ns = np.empty(0, np.int64)
        self.lost = np.empty(0, np.bool_)
        self.unplaced = np.empty(0, np.bool_)
        """Whether Nesting has still to find its place."""
        self.start_end = np.empty(0, np.bool_)
        self.elsewhere = np.empty(0, np.bool_)
        self.unended = np.empty(0, np.bool_)
        self.end_thread = np.empty(0, np.int64)
        self.payload = np.empty(0, np.uint64)
        self.payload_type = np.empty(0, np.uint8)

    def count(self, nodes: Int64s, durations_ns: Int64s) -> None:
        """Count closed instances and their durations in their nodes."""
        self._counted.append((nodes, durations_ns))

    def take_counted(self) -> tuple[Int64s, Int64s]:
        """Node and duration of each instance that closed since the last call."""
        counted, self._counted = self._counted, []
        nodes, durations_ns = ([part[n] for part in counted] for n in (0, 1))
        return join(nodes, np.int64), join(durations_ns, np.int64)

    @staticmethod
    def rows(ids: Int64s) -> Int64s:
        return ids & _SLOT_MASK

    def open(self, starts_ns: Int64s, levels: Int64s) -> Int64s:
        """The ids of new instances. Their node and parent have yet to be set."""
        count = len(starts_ns)
        reused = self._free[len(self._free) - min(count, len(self._free)) :]
        self._free = self._free[: len(self._free) - len(reused)]
        fresh = count - len(reused)
        if self._used + fresh > len(self.node):
            self._grow(self._used + fresh)
        rows = np.concatenate((reused, np.arange(self._used, self._used + fresh)))
        self._used += fresh
        self.start_ns[rows] = starts_ns
        self.end_ns[rows] = LATEST_NS
        self.level[rows] = levels
        self.first_ns[rows] = LATEST_NS
        self.last_ns[rows] = -1
        self.awaited[rows] = 0
        self.children[rows] = 0
        self.parent[rows] = NO_INSTANCE
        self.root[rows] = NO_INSTANCE
        self.start_end[rows] = False
        self.elsewhere[rows] = False
        self.unended[rows] = False
        self.end_thread[rows] = 0
        self.payload_type[rows] = NO_PAYLOAD
        self.lost[rows] = False
        self.unplaced[rows] = False
        self.operations[rows] = 0
        self.busy_children[rows] = 0
        self.touched[rows] = self.flushes
        return (self.generation[rows] << _SLOT_BITS) | rows

    def set_payloads(self, ids: Int64s, records: Slots) -> None:
        """Store the payloads of instances whose record has one."""
        types = payload_types(records)
        has = np.flatnonzero(types)
        rows = self.rows(ids[has])
        self.payload_type[rows] = types[has]
        self.payload[rows] = records["end"][has]

    def set_parents(self, ids: Int64s, parents: Int64s) -> None:
        """Set the instance in which each new one was opened (NO_INSTANCE for the outermost)."""
        self.parent[self.rows(ids)] = parents
        np.add.at(self.children, self.rows(parents[parents >= 0]), 1)

    def inherit_roots(self, ids: Int64s, levels: Int64s) -> None:
        """Instances that Nesting did not take lie where their parent lies."""
        if not len(self.nesting):
            return
        for level in np.unique(levels[levels > 1]).tolist():
            rows = self.rows(ids[levels == level])
            rows = rows[(self.root[rows] < 0) & (self.parent[rows] >= 0)]
            self.root[rows] = self.root[self.rows(self.parent[rows])]

    def close(self, ids: Int64s, ends_ns: Int64s, now_ns: int) -> None:
        """Close instances. `now_ns` is when their end was read."""
        rows = self.rows(ids)
        self.end_ns[rows] = np.minimum(ends_ns, LATEST_NS - 1)  # the latest is kept for open ones
        self.closed_ns[rows] = now_ns
        self.touched[rows] = self.flushes
        self._closed.append(ids)
        self._closed_count += len(ids)

    def alive(self, ids: Int64s) -> Bools:
        """Which of these ids still refer to an instance."""
        rows = self.rows(ids)
        in_use = (ids >= 0) & (rows < self._used)
        rows = np.where(in_use, rows, 0)
        return in_use & (self.generation[rows] == ids >> _SLOT_BITS) if self._used else in_use

    def await_operations(self, ids: Int64s, change: int) -> None:
        """`change` is 1 when a call announces operations, −1 when the first of them arrives."""
        np.add.at(self.awaited, self.rows(ids[self.alive(ids)]), change)

    def add_operations(self, ids: Int64s, starts_ns: Int64s, ends_ns: Int64s, first: Bools) -> None:
        """Add operations to the instance that launched each.

        Only the first operation of each call is counted, as in nsys.
        """
        mask = self.alive(ids)
        rows = self.rows(ids[mask])
        np.minimum.at(self.first_ns, rows, starts_ns[mask])
        np.maximum.at(self.last_ns, rows, ends_ns[mask])
        np.add.at(self.operations, rows[first[mask]], 1)
        self.touched[rows] = self.flushes

    def finalise(self, now_ns: int, sees_gpu: bool, everything: bool) -> Finalised:
        """Remove and return the complete instances, or all closed ones.

        Each gives its GPU work to its parent first: round by round, innermost first.
        """
        # What waited already was looked at when it had closed: that neither it nor what began in it
        # can change has been a tenth of the time of summing up a report rich in ranges.
        self.nesting.outgrown(join(self._closed[self._waiting :], np.int64))
        closed = join(self._closed, np.int64)
        everything = everything or self._closed_count > CLOSED_LIMIT
        waited_ns = now_ns - self.closed_ns[self.rows(closed)]
        # None can become ready in a later round that is not settled in the first: most still wait
        # for the flushes after them.
        left = np.flatnonzero(self._settled(closed, waited_ns, sees_gpu, everything))
        done: list[Int64s] = []
        while len(left):
            ids, waits_ns = closed[left], waited_ns[left]
            ready = self.children[self.rows(ids)] <= 0
            ready &= self._settled(ids, waits_ns, sees_gpu, everything)
            if not ready.any():
                # Inner ranges may never close if ranges of two domains cross.
                forced = (waits_ns >= 2 * HORIZON_NS) | everything
                if not forced.any():
                    break
                levels = np.where(forced, self.level[self.rows(ids)], 0)
                ready = forced & (levels == levels.max())
            ready &= self._placed(ids, ready, now_ns, everything)
            if not ready.any():
                break
            done.append(left[ready])
            self._give_to_parents(self.rows(ids[ready]))
            left = left[~ready]
        finished = join(done, np.int64)
        ids, closed = closed[finished], np.delete(closed, finished)
        self._closed = [closed] if len(closed) else []
        self._waiting = len(self._closed)
        self._closed_count = len(closed)
        return self._release(ids)

    def _settled(self, ids: Int64s, waited_ns: Int64s, sees_gpu: bool, everything: bool) -> Bools:
        """Which instances wait for no further operation."""
        if everything:
            return np.ones(len(ids), np.bool_)
        if not sees_gpu:
            return waited_ns >= HOST_SETTLE_NS
        rows = self.rows(ids)
        settled = self.flushes - self.touched[rows] >= SETTLED_FLUSHES
        return (settled & (self.awaited[rows] <= 0)) | (waited_ns >= HORIZON_NS)

    def _placed(self, ids: Int64s, ready: Bools, now_ns: int, everything: bool) -> Bools:
        """Which of the ready instances have a settled place in the tree."""
        placed = np.ones(len(ids), np.bool_)
        rows = self.rows(ids)
        own = np.flatnonzero(ready & (self.root[rows] == ids))
        if len(own):
            decide = (now_ns - self.closed_ns[rows[own]] >= UNDECIDED_NS) | everything
            placed[own] = self.nesting.place(ids[own], decide, self.now_ns)
        return placed

    def _give_to_parents(self, rows: Int64s) -> None:
        parents = self.parent[rows]
        mask = self.alive(parents)
        rows = rows[mask]
        parents = self.rows(parents[mask])
        roots = self.root[rows]
        ran = self.last_ns[rows] >= 0
        # Those Nesting placed, it has counted.
        stacked = (roots & _SLOT_MASK != rows) | (roots < 0)
        np.add.at(self.busy_children, parents[stacked & ran], 1)
        inside = stacked & ran & (roots >= 0)
        if inside.any():
            nodes = self.node[rows[inside]]
            self.nesting.wait_for_levels(roots[inside], nodes, np.ones(len(nodes), np.int64))
        np.minimum.at(self.first_ns, parents, self.first_ns[rows])
        np.maximum.at(self.last_ns, parents, self.last_ns[rows])
        np.maximum.at(self.touched, parents, self.touched[rows])
        np.add.at(self.operations, parents, self.operations[rows])
        np.subtract.at(self.children, parents, 1)

    def _release(self, ids: Int64s) -> Finalised:
        rows = self.rows(ids)
        self.generation[rows] += 1
        self._free = np.concatenate((self._free, rows))
        self.last_ns[rows[self.elsewhere[rows]]] = -1
        roots = self.root[rows]
        above = np.where(roots < 0, 1, self.level[self.rows(np.maximum(roots, 0))])
        return Finalised(
            ids=ids,
            nodes=self.node[rows],
            starts_ns=self.start_ns[rows],
            ends_ns=self.end_ns[rows],
            first_ns=self.first_ns[rows],
            last_ns=self.last_ns[rows],
            operations=self.operations[rows],
            depths=np.maximum(0, self.level[rows] - above),
            busy_children=self.busy_children[rows],
            start_end=self.start_end[rows],
            elsewhere=self.elsewhere[rows],
            unended=self.unended[rows],
            end_threads=np.where(self.elsewhere[rows], self.end_thread[rows], 0),
            payloads=self.payload[rows],
            payload_types=self.payload_type[rows],
        )

    def _grow(self, least: int) -> None:
        size = max(1024, least, 3 * len(self.node) // 2)
        for name in (
            "generation", "node", "level", "parent", "root", "start_ns", "end_ns",
            "first_ns", "last_ns", "awaited", "children", "operations", "busy_children",
            "touched", "closed_ns", "lost", "unplaced", "start_end", "elsewhere", "unended",
            "end_thread", "payload", "payload_type",
        ):  # fmt: skip
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
