"""Pushes and pops → instances, nodes and timelines, a whole batch at a time.

A stack machine without a loop over records. A push at level L opens inside the newest preceding
push at level L − 1, a pop closes the newest push at its own level: both are one binary search in
the pushes sorted by (stack, level, position). What was open before the batch is put in front.

Records carry their level. If that does not follow from the previous record, records were dropped in
between: pops or pushes are inserted so that everything after them is right again.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, durations_ns, join, pick, run_starts
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import NO_INSTANCE, Instances
from gputui.attribute.range_stacks import NO_NODE, NO_STACK, RangeStack, RangeStacks
from gputui.attribute.range_tree import Nodes
from gputui.attribute.records import Attributes, Strings
from gputui.attribute.startend import StartEndRanges
from gputui.attribute.transitions import MAX_LEVEL, Transitions
from gputui.model.events import OpenRange

LOST = "(dropped)"
"""Name of a range whose push was dropped."""

_LOST_NAME = 0xFFFF_FFFF
_POSITION_BITS = 32
_LEVEL_BITS = 8


class Ranges:
    """All push/pop ranges of one process."""

    def __init__(self, nodes: Nodes, instances: Instances, strings: Strings) -> None:
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
            known = stacks != NO_STACK
            # Up to the first record without a stack; on the next try, idle ones have made room.
            end = len(records) if known.all() else int(np.argmin(known))
            if end == 0:
                self.refused += int(np.count_nonzero(~known))
                records, stacks = pick(records, known), stacks[known]
                end = len(records)
            order = np.argsort(stacks[:end].astype(np.uint16), kind="stable")
            if end:
                self._replay(pick(records[:end], order), stacks[:end][order], now_ns)
            records = records[end:]

    def _replay(self, records: Slots, stack_of: Int64s, now_ns: int) -> None:
        firsts = run_starts(stack_of)
        stacks = [self.stacks[int(index)] for index in stack_of[firsts]]
        sizes = np.diff(np.append(firsts, len(records)))
        moves = Transitions.of(records, np.repeat(np.arange(len(stacks)), sizes))
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
        found = _latest(keys, holders, moves.group, wanted, position)
        found[wanted == 0] = NO_INSTANCE

        self._instances.set_parents(new, found[pushes])
        self._set_nodes(records, stacks, moves, pushes, new, found[pushes], now_ns)

        pops = np.flatnonzero(~moves.is_push & tracked)
        innermost = found.copy()
        innermost[pushes] = new
        innermost[pops] = self._instances.parent[self._instances.rows(found[pops])]
        nodes = np.full(len(innermost), NO_NODE)
        inside = innermost >= 0
        nodes[inside] = self._instances.node[self._instances.rows(innermost[inside])]
        self._close(found[pops], moves.times_ns[pops], moves.lost[pops], now_ns)

        firsts = np.searchsorted(moves.group, np.arange(len(stacks) + 1))
        for index, stack in enumerate(stacks):
            part = slice(firsts[index], firsts[index + 1])
            stack.timeline.append(moves.times_ns[part], innermost[part], nodes[part])
        begun_ns = moves.times_ns[pushes]
        first_new = np.searchsorted(moves.group[pushes], np.arange(len(stacks) + 1))
        for index, stack in enumerate(stacks):
            if len(self.stacks.of_thread(stack.thread)) > 1 or self.start_end.any:
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
            found, _ = other.timeline.at(times_ns - (other.place > stack.place))
            alive = self._instances.alive(found)
            inside.append(ids[alive])
            around.append(found[alive])
        rows, found, _ = self.start_end.around(np.full(len(ids), stack.thread), times_ns)
        inside.append(ids[rows])
        around.append(found)
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
            at = np.flatnonzero(levels == value)
            above = places[group[at]] if value == 1 else instances.node[parent_rows[at]]
            instances.node[rows[at]] = self._nodes.resolve(
                above, names[at], at, place, describe, now_ns
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
