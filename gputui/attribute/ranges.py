"""Records of ranges → nodes, instances and timelines: ranges that are pushed and popped, and
Start/End ranges.

For `traced_process`. The tree of ranges is in `range_stacks`, the rows of their instances in
`instances`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from gputui.attribute import Attributes, Strings
from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    KeyTable,
    Slots,
    durations_ns,
    join,
    pick,
    run_starts,
    times_ns,
)
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import NO_INSTANCE, RangeInstances
from gputui.attribute.range_stacks import NO_NODE, NO_STACK, Nodes, RangeStack, RangeStacks
from gputui.model.events import OpenRange
from gputui.ring import RecordKind

# --- Pushes and pops by the level they state, with dropped ones filled in.

MAX_LEVEL = 128
"""Deeper ranges belong to the one at this level."""


@dataclass(slots=True)
class Transitions:
    """Pushes and pops of several stacks, stack after stack. `source` is the record of each."""

    group: Int64s
    level: Int64s
    is_push: Bools
    lost: Bools
    times_ns: Int64s
    source: Int64s

    @classmethod
    def from_records(cls, records: Slots, group: Int64s) -> Transitions:
        return cls(
            group=group,
            level=records["d"].astype(np.int64) + 1,
            is_push=records["kind"] == RecordKind.RANGE_PUSH,
            lost=np.zeros(len(records), np.bool_),
            times_ns=times_ns(records["start"]),
            source=np.arange(len(records)),
        )

    def depths(self) -> Int64s:
        """How many ranges are open after each one."""
        return np.where(self.is_push, self.level, self.level - 1)

    def mended(self, previous: Int64s, before: Int64s, firsts: Int64s) -> Transitions:
        """Fills in events that were lost. `previous` is the depth after the event before; `before`
        is, for each stack, the depth before its first event."""
        previous[firsts] = before
        needed = np.where(self.is_push, self.level - 1, self.level)
        wrong = previous != needed
        if not wrong.any():
            return self
        # A pop of a range that was never seen open is left out; it refers to the ranges around it.
        unseen = ~self.is_push & (previous < needed)
        depth = np.minimum(previous, MAX_LEVEL)
        to = np.minimum(needed - unseen, MAX_LEVEL)
        counts = np.abs(to - depth) + ~unseen
        source = np.repeat(self.source, counts)
        offset = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        lost = offset < np.abs(to - depth)[source]
        opens = (to > depth)[source]
        levels = np.where(opens, depth[source] + 1 + offset, depth[source] - offset)
        return Transitions(
            group=self.group[source],
            level=np.where(lost, levels, self.level[source]),
            is_push=np.where(lost, opens, self.is_push[source]),
            lost=lost,
            times_ns=self.times_ns[source],
            source=source,
        )


# --- Start/End ranges: opened and closed by an id, possibly on different threads.
#
# They overlap freely, so they have no parents in the tree. A range contains what the thread that
# began it does until its end. nsys attributes GPU work only to those that end on the thread they
# began on, so what was launched is kept with the instance until that is known.

MAX_OPEN = 100_000
"""Open ranges kept per process; the oldest make room."""

MAX_PAIRS = 1 << 19
"""Moments placed inside ranges at a time; the newest ranges come first."""

_MAX_PLACES = 4096
# Numbers of places, distinct from those of the stacks.
_FIRST_PLACE = 1 << 24

RECENT = np.dtype(
    [("id", "u8"), ("instance", "i8"), ("node", "i8"), ("thread", "i8"), ("start", "i8"),
     ("end", "i8")]
)  # fmt: skip
"""A range that is open or not finalised; `id` is the program's."""


class StartEndRanges:
    """All Start/End ranges of one process."""

    def __init__(
        self, nodes: Nodes, instances: RangeInstances, stacks: RangeStacks, strings: Strings
    ) -> None:
        self._nodes = nodes
        self._instances = instances
        self._stacks = stacks
        self._strings = strings
        self._table = KeyTable(_MAX_PLACES)
        self._places = itertools.count(_FIRST_PLACE + 1)
        self._recent = np.empty(0, RECENT)
        self._new = np.empty(0, RECENT)
        self.refused = 0
        """Start/End ranges that were closed early to make room for newer ones."""
        self.has_changed = False
        """Whether ranges began or ended since their reader last set this to False."""

    @property
    def any(self) -> bool:
        """Whether any ranges are open or not finalised."""
        return len(self._recent) > 0

    def open(self) -> Int64s:
        instances: Int64s = self._recent["instance"][self._recent["end"] == LATEST_NS]
        return instances

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add the RANGE_START and RANGE_END records of a batch, in ring order."""
        if not len(records):
            return
        self.has_changed = True
        is_start = records["kind"] == RecordKind.RANGE_START
        self._begin(records[is_start], now_ns)
        self._end(records[~is_start], now_ns)
        self._make_room(now_ns)

    def link(self) -> None:
        """Set what was open where the ranges of the last batch began; call after its pushes are
        in.
        """
        new, self._new = self._new, np.empty(0, RECENT)
        if not len(new):
            return
        ids, around = [], []
        for thread in np.unique(new["thread"]).tolist():
            of_thread = new[new["thread"] == thread]
            for stack in self._stacks.of_thread(thread):
                inside, _ = stack.timeline.innermost_at(of_thread["start"].copy())
                alive = self._instances.alive(inside)
                ids.append(of_thread["instance"][alive])
                around.append(inside[alive])
        rows, others, _ = self.around(new["thread"].copy(), new["start"].copy())
        # Of two that began in the same nanosecond, the one that came first is outside.
        begun = self._instances.start_ns[self._instances.rows(others)]
        outside = (begun < new["start"][rows]) | (others < new["instance"][rows])
        outside &= others != new["instance"][rows]
        ids.append(new["instance"][rows[outside]])
        around.append(others[outside])
        self._instances.nesting.cross(np.concatenate(ids), np.concatenate(around))

    def around(self, threads: Int64s, moments_ns: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The ranges around moments of threads: a moment's index, an instance and its node.

        Sorted by moment, then by the start of the range.
        """
        recent = self._recent
        nothing = np.empty(0, np.int64)
        pieces = []
        room = MAX_PAIRS
        for thread in np.unique(threads).tolist() if len(recent) else ():
            of_thread = recent[recent["thread"] == thread][::-1]  # newest first
            if not len(of_thread):
                continue
            moment_rows = np.flatnonzero(threads == thread)
            times = moments_ns[moment_rows]
            order = np.argsort(times, kind="stable")
            moment_rows, times = moment_rows[order], times[order]
            first = np.searchsorted(times, of_thread["start"], side="left")
            counts = np.searchsorted(times, of_thread["end"], side="right") - first
            counts = np.maximum(counts, 0)
            fits = np.cumsum(counts) <= room
            of_thread, first, counts = of_thread[fits], first[fits], counts[fits]
            total = int(counts.sum())
            room -= total
            offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = moment_rows[np.repeat(first, counts) + offsets]
            matches = of_thread[np.repeat(np.arange(len(of_thread)), counts)]
            pieces.append((rows, matches["instance"], matches["node"], matches["start"]))
        if not pieces:
            return nothing, nothing, nothing
        rows, instances, nodes, starts = (
            np.concatenate(column) for column in zip(*pieces, strict=True)
        )
        order = np.lexsort((starts, rows))
        return rows[order], instances[order], nodes[order]

    def close_open(self, end_ns: int, now_ns: int) -> None:
        """The program has ended: what it left open lasts until `end_ns`."""
        still = np.flatnonzero(self._recent["end"] == LATEST_NS)
        ids = self._recent["instance"][still]
        self._instances.unended[self._instances.rows(ids)] = True
        self._close(still, np.maximum(end_ns, self._recent["start"][still]), now_ns)

    def forget(self) -> None:
        """Drop the finalised ranges: call after any were finalised."""
        alive = self._instances.alive(self._recent["instance"])
        if not alive.all():
            self._recent = self._recent[alive]

    def _begin(self, records: Slots, now_ns: int) -> None:
        if not len(records):
            return
        new = np.zeros(len(records), RECENT)
        new["id"] = records["value"]
        new["thread"] = records["thread"].astype(np.int64) & 0x7FFF_FFFF
        new["start"] = times_ns(records["start"])
        new["end"] = LATEST_NS
        new["node"] = self._resolve(records, now_ns)
        ids = self._instances.open(new["start"].copy(), np.ones(len(new), np.int64))
        new["instance"] = ids
        rows = self._instances.rows(ids)
        self._instances.node[rows] = new["node"]
        self._instances.start_end[rows] = True
        self._instances.set_payloads(ids, records)
        self._instances.root[rows] = ids
        self._instances.nesting.start_end(ids)
        self._recent = np.concatenate((self._recent, new))
        self._new = new

    def _end(self, ends: Slots, now_ns: int) -> None:
        if not len(ends):
            return
        still = np.flatnonzero(self._recent["end"] == LATEST_NS)
        ids = self._recent["id"][still]
        # Ids are unique while a process lives, so the order of starts and ends adds nothing.
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(ids[order], ends["value"], side="right") - 1
        hit = places >= 0
        hit[hit] = ids[order][places[hit]] == ends["value"][hit]
        closed, first = np.unique(still[order[places[hit]]], return_index=True)
        if not len(closed):
            return
        by = ends[hit][first]
        threads = by["thread"].astype(np.int64) & 0x7FFF_FFFF
        rows = self._instances.rows(self._recent["instance"][closed])
        self._instances.elsewhere[rows] = threads != self._recent["thread"][closed]
        self._instances.end_thread[rows] = threads
        self._close(closed, times_ns(by["start"]), now_ns)

    def _close(self, rows: Int64s, ends_ns: Int64s, now_ns: int) -> None:
        ends_ns = np.minimum(ends_ns, LATEST_NS - 1)
        self._recent["end"][rows] = ends_ns
        closed = self._recent[rows]
        self._instances.close(closed["instance"].copy(), ends_ns, now_ns)
        self._instances.count(closed["node"].copy(), durations_ns(closed["start"], ends_ns))

    def _make_room(self, now_ns: int) -> None:
        over = np.flatnonzero(self._recent["end"] == LATEST_NS)[:-MAX_OPEN]
        if not len(over):
            return
        self.refused += len(over)
        ids = self._recent["instance"][over].copy()
        starts_ns = self._recent["start"][over]
        self._recent["end"][over] = np.minimum(starts_ns, LATEST_NS - 1)
        self._instances.elsewhere[self._instances.rows(ids)] = True
        self._instances.close(ids, starts_ns, now_ns)

    def _resolve(self, records: Slots, now_ns: int) -> Int64s:
        threads = records["thread"].astype(np.int64) & 0x7FFF_FFFF
        domains = records["a"].astype(np.int64)
        places = self._table.lookup(
            (threads << 32) | domains,
            lambda _key, _first: next(self._places),
            lambda: _FIRST_PLACE,
        )

        def place(index: int) -> tuple[int, str]:
            return int(threads[index]), self._strings.domain(int(domains[index]))

        return self._nodes.resolve(
            -places,
            records["name"].astype(np.int64),
            np.arange(len(records)),
            place,
            lambda index: self._strings.range_attributes(records[index]),
            now_ns,
            "StartEnd",
        )


# --- Pushes and pops → instances, nodes and timelines, a whole batch at a time.
#
# A stack machine without a loop over records. A push at level L opens inside the newest preceding
# push at level L − 1, a pop closes the newest push at its own level: both are one binary search in
# the pushes sorted by (stack, level, position). What was open before the batch is put in front.
#
# Records carry their level. If that does not follow from the previous record, records were dropped
# in between: pops or pushes are inserted so that everything after them is right again.

LOST = "(dropped)"
"""Name of a range whose push was dropped."""

# An id that no string has: the library numbers them from 1.
_LOST_NAME = 0xFFFF_FFFF
# The key by which pushes are sorted: stack | level | position in the batch.
_POSITION_BITS = 32
_LEVEL_BITS = 8


class PushPopRanges:
    """All push/pop ranges of one process."""

    def __init__(self, nodes: Nodes, instances: RangeInstances, strings: Strings) -> None:
        self._nodes = nodes
        self._instances = instances
        self._strings = strings
        self.stacks = RangeStacks(strings)
        self.start_end = StartEndRanges(nodes, instances, self.stacks, strings)
        self.refused = 0
        """Records that could not be placed: stacks or levels over their limits."""
        self._opened: tuple[OpenRange, ...] = ()
        self._has_changed = False

    def open(self) -> Int64s:
        return join(
            [stack.open_ids for stack in self.stacks.all() if len(stack.open_ids)], np.int64
        )

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add the RANGE_PUSH and RANGE_POP records of a batch, in ring order."""
        self._has_changed |= len(records) > 0
        while len(records):
            stacks = self.stacks.indices(records)
            has_stack = stacks != NO_STACK
            # Up to the first record without a stack; on the next try, idle ones have made room.
            end = len(records) if has_stack.all() else int(np.argmin(has_stack))
            if end == 0:
                self.refused += int(np.count_nonzero(~has_stack))
                records, stacks = pick(records, has_stack), stacks[has_stack]
                end = len(records)
            order = np.argsort(stacks[:end].astype(np.uint16), kind="stable")
            if end:
                self._replay(pick(records[:end], order), stacks[:end][order], now_ns)
            records = records[end:]

    def _replay(self, records: Slots, stack_of: Int64s, now_ns: int) -> None:
        firsts = run_starts(stack_of)
        stacks = [self.stacks[int(index)] for index in stack_of[firsts]]
        sizes = np.diff(np.append(firsts, len(records)))
        moves = Transitions.from_records(records, np.repeat(np.arange(len(stacks)), sizes))
        before = np.array([stack.depth for stack in stacks])
        depths = moves.depths()
        ends = np.append(firsts[1:], len(records)) - 1
        for stack, end in zip(stacks, ends.tolist(), strict=True):
            stack.depth = int(depths[end])
        moves = moves.mended(np.concatenate(([0], depths[:-1])), before, firsts)
        if not len(moves.level):
            return
        tracked = moves.level <= MAX_LEVEL
        self.refused += int(np.count_nonzero(~tracked & ~moves.lost))

        pushes = np.flatnonzero(moves.is_push & tracked)
        new = self._instances.open(moves.times_ns[pushes], moves.level[pushes])
        seen = ~moves.lost[pushes]
        self._instances.set_payloads(new[seen], pick(records, moves.source[pushes][seen]))
        keys, holders = self._pushes(stacks, moves, pushes, new)
        # A push looks for its parent one level up, a pop for the push that it closes; beyond the
        # level limit both look for the instance at the limit.
        wanted = np.where(moves.is_push, moves.level - 1, moves.level)
        wanted = np.where(tracked, wanted, MAX_LEVEL)
        position = np.arange(1, len(wanted) + 1)
        holders_found = _latest(keys, holders, moves.group, wanted, position)
        holders_found[wanted == 0] = NO_INSTANCE

        self._instances.set_parents(new, holders_found[pushes])
        self._set_nodes(records, stacks, moves, pushes, new, holders_found[pushes], now_ns)

        pops = np.flatnonzero(~moves.is_push & tracked)
        innermost = holders_found.copy()
        innermost[pushes] = new
        innermost[pops] = self._instances.parent[self._instances.rows(holders_found[pops])]
        nodes = np.full(len(innermost), NO_NODE)
        inside = innermost >= 0
        nodes[inside] = self._instances.node[self._instances.rows(innermost[inside])]
        self._close(holders_found[pops], moves.times_ns[pops], moves.lost[pops], now_ns)

        firsts = np.searchsorted(moves.group, np.arange(len(stacks) + 1))
        for index, stack in enumerate(stacks):
            part = slice(firsts[index], firsts[index + 1])
            stack.timeline.append(moves.times_ns[part], innermost[part], nodes[part])
        begun_ns = moves.times_ns[pushes]
        first_new = np.searchsorted(moves.group[pushes], np.arange(len(stacks) + 1))
        for index, stack in enumerate(stacks):
            if len(self.stacks.of_thread(stack.thread)) > 1 or self.start_end.any:
                # A slice for each stack: picking its own out of all of them took stacks times
                # records.
                part = slice(first_new[index], first_new[index + 1])
                self._look_around(stack, new[part], begun_ns[part])
        self._instances.inherit_roots(new, moves.level[pushes])
        self._keep_stacks(stacks, keys, holders)

    def _close(self, ids: Int64s, times_ns: Int64s, lost: Bools, now_ns: int) -> None:
        rows = self._instances.rows(ids)
        self._instances.close(ids, times_ns, now_ns)
        nodes = self._instances.node[rows]
        # The start or end of a range whose record was dropped is unknown.
        whole = ~lost & ~self._instances.lost[rows]
        starts_ns = self._instances.start_ns[rows][whole]
        self._instances.count(nodes[whole], durations_ns(starts_ns, times_ns[whole]))

    def _look_around(self, stack: RangeStack, ids: Int64s, times_ns: Int64s) -> None:
        """What the thread's other stacks had open where each new instance began."""
        inside: list[Int64s] = []
        around: list[Int64s] = []
        for other in self.stacks.of_thread(stack.thread):
            if other is stack:
                continue
            # Of two that began in the same nanosecond, the older stack's is outside.
            innermost, _ = other.timeline.innermost_at(times_ns - (other.place > stack.place))
            alive = self._instances.alive(innermost)
            inside.append(ids[alive])
            around.append(innermost[alive])
        rows, innermost, _ = self.start_end.around(np.full(len(ids), stack.thread), times_ns)
        inside.append(ids[rows])
        around.append(innermost)
        self._instances.nesting.cross(np.concatenate(inside), np.concatenate(around))

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """The ranges that are open, and since when the oldest instance of each is."""
        if self._has_changed or self.start_end.has_changed:
            self._has_changed = self.start_end.has_changed = False
            ids = np.concatenate((self.open(), self.start_end.open()))
            rows = self._instances.rows(ids)
            nodes, since_ns = self._instances.node[rows], self._instances.start_ns[rows]
            order = np.lexsort((since_ns, nodes))
            nodes, oldest = np.unique(nodes[order], return_index=True)
            numbers = collection.nodes.number[nodes].tolist()
            oldest_ns = since_ns[order][oldest].tolist()
            self._opened = tuple(map(OpenRange, numbers, oldest_ns))
        return {"open_ranges": self._opened}

    def close_open(self, end_ns: int, now_ns: int) -> None:
        """The program has ended: what it left open lasts until `end_ns`."""
        self._has_changed = True
        ids = self.open()
        rows = self._instances.rows(ids)
        self._instances.unended[rows] = True
        ends_ns = np.maximum(end_ns, self._instances.start_ns[rows])
        self._close(ids, ends_ns, np.zeros(len(ids), np.bool_), now_ns)
        for stack in self.stacks.all():
            stack.open_ids, stack.depth = np.empty(0, np.int64), 0
        # Counted where they close.
        self.start_end.close_open(end_ns, now_ns)

    def _pushes(
        self, stacks: list[RangeStack], moves: Transitions, pushes: Int64s, new: Int64s
    ) -> tuple[Int64s, Int64s]:
        heights = np.array([len(stack.open_ids) for stack in stacks])
        carried = join([stack.open_ids for stack in stacks], np.int64)
        carried_group = np.repeat(np.arange(len(stacks)), heights)
        carried_level = np.arange(len(carried)) - np.repeat(np.cumsum(heights) - heights, heights)
        keys = np.concatenate(
            (
                _key(carried_group, carried_level + 1, np.zeros(len(carried), np.int64)),
                _key(moves.group[pushes], moves.level[pushes], pushes + 1),
            )
        )
        order = np.argsort(keys)
        return keys[order], np.concatenate((carried, new))[order]

    def _keep_stacks(self, stacks: list[RangeStack], keys: Int64s, holders: Int64s) -> None:
        heights = np.array([min(stack.depth, MAX_LEVEL) for stack in stacks])
        group = np.repeat(np.arange(len(stacks)), heights)
        level = np.arange(len(group)) - np.repeat(np.cumsum(heights) - heights, heights) + 1
        end = np.full(len(group), (1 << _POSITION_BITS) - 1)
        opened = _latest(keys, holders, group, level, end)
        for stack, ids in zip(stacks, np.split(opened, np.cumsum(heights)[:-1]), strict=True):
            stack.open_ids = ids.copy()

    def _set_nodes(
        self,
        records: Slots,
        stacks: list[RangeStack],
        moves: Transitions,
        pushes: Int64s,
        new: Int64s,
        parents: Int64s,
        now_ns: int,
    ) -> None:
        instances = self._instances
        source = moves.source[pushes]
        lost = moves.lost[pushes]
        group = moves.group[pushes]
        names = np.where(lost, _LOST_NAME, records["name"][source].astype(np.int64))
        levels = moves.level[pushes]
        rows = instances.rows(new)
        instances.lost[rows] = lost
        parent_rows = instances.rows(parents)
        places = np.array([-stack.branch for stack in stacks])

        def place(index: int) -> tuple[int, str]:
            stack = stacks[int(group[index])]
            return stack.thread, stack.domain

        def describe(index: int) -> Attributes:
            if lost[index]:
                return Attributes(LOST)
            return self._strings.range_attributes(records[source[index]])

        for value in np.flatnonzero(np.bincount(levels)).tolist():
            of_level = np.flatnonzero(levels == value)
            above = places[group[of_level]] if value == 1 else instances.node[parent_rows[of_level]]
            instances.node[rows[of_level]] = self._nodes.resolve(
                above, names[of_level], of_level, place, describe, now_ns
            )


def _key(group: Int64s, level: Int64s, position: Int64s) -> Int64s:
    return (((group << _LEVEL_BITS) | level) << _POSITION_BITS) | position


def _latest(
    keys: Int64s, holders: Int64s, group: Int64s, level: Int64s, position: Int64s
) -> Int64s:
    """The newest instance pushed at `level` of `group` before `position`."""
    if not len(keys):
        return np.full(len(group), NO_INSTANCE)
    places = np.searchsorted(keys, _key(group, level, position)) - 1
    return holders[np.maximum(places, 0)]
