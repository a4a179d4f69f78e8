"""Pushes and pops → instances, nodes and timelines, a whole batch at a time.

A stack machine without a loop over records. A push at level L opens inside the newest push at
level L − 1 before it, a pop closes the newest push at its level: both are one binary search in
the pushes sorted by (stack, level, position). What was open before the batch stands in front.

Records say at which level they are. Where that does not follow from the record before, records
were dropped between: pops or pushes are put in so that all that comes after is right again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gputui.capture.layout import RecordKind
from gputui.sources.capture.arrays import (
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
from gputui.sources.capture.instances import NO_INSTANCE, Instances
from gputui.sources.capture.names import is_library_domain
from gputui.sources.capture.nodes import Nodes
from gputui.sources.capture.strings import Strings
from gputui.sources.capture.timeline import NO_NODE, Timeline

MAX_LANES = 4096
"""Stacks (thread, domain) kept a process; idle ones make room for new ones."""

MAX_LEVEL = 128
"""Ranges nested deeper belong to the one at this level."""

WINDOW_NS = 60_000_000_000
WINDOW_MOMENTS = 1_000_000
"""Timelines go back this far, or hold this many moments together."""

LOST = "(dropped)"
"""Name of a range whose push was dropped."""

_LOST_NAME = 0xFFFF_FFFF
_IGNORED = MAX_LANES
_POSITION_BITS = 32
_LEVEL_BITS = 8


@dataclass(slots=True)
class Lane:
    """One stack: a thread's ranges in one domain."""

    place: int
    thread: int
    domain: str
    priority: int
    """0 the default domain, 1 the program's own, 2 a library's."""
    depth: int = 0
    stack: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    timeline: Timeline = field(default_factory=Timeline)


class Ranges:
    """All push/pop ranges of one process."""

    def __init__(self, nodes: Nodes, instances: Instances, strings: Strings) -> None:
        self._nodes = nodes
        self._instances = instances
        self._strings = strings
        self._table = KeyTable(2 * MAX_LANES)
        self._lanes: dict[int, Lane] = {}
        self._by_name: dict[tuple[int, str], int] = {}
        self._of_thread: dict[int, list[Lane]] = {}
        self._places = 0
        self._made_room_ns = -WINDOW_NS
        self.ignored = 0
        """Pops without a push, records that were dropped, and those of stacks over the limit."""
        self.closed_nodes: list[Int64s] = []
        self.closed_ns: list[Int64s] = []
        """Node and duration of the instances that closed, until taken."""

    def lanes_of(self, thread: int) -> list[Lane]:
        """A thread's stacks, the default domain first and libraries last."""
        return self._of_thread.get(thread, [])

    def threads(self) -> Int64s:
        """The threads that have stacks, sorted."""
        return np.array(sorted(self._of_thread), np.int64)

    def open(self) -> Int64s:
        """The instances that are open now."""
        return join([lane.stack for lane in self._lanes.values() if len(lane.stack)], np.int64)

    def feed(self, records: Slots, now_ns: int) -> None:
        """Take in the RANGE_PUSH and RANGE_POP records of a batch, in ring order."""
        if not len(records):
            return
        lanes = self._lane_indices(records)
        known = lanes != _IGNORED
        if not known.all():
            self.ignored += int(np.count_nonzero(~known))
            records, lanes = pick(records, known), lanes[known]
            if not len(records):
                return
        order = np.argsort(lanes.astype(np.uint16), kind="stable")
        self._replay(pick(records, order), lanes[order], now_ns)

    def _replay(self, records: Slots, lane_of: Int64s, now_ns: int) -> None:
        firsts = run_starts(lane_of)
        lanes = [self._lanes[int(index)] for index in lane_of[firsts]]
        steps = _Steps.of(records, np.repeat(np.arange(len(lanes)), _sizes(firsts, len(records))))
        before = np.array([lane.depth for lane in lanes])
        depths = steps.depths()
        ends = np.append(firsts[1:], len(records)) - 1
        for lane, end in zip(lanes, ends.tolist(), strict=True):
            lane.depth = int(depths[end])
        steps, mended = steps.mended(np.concatenate(([0], depths[:-1])), before, firsts)
        self.ignored += mended
        if not len(steps.level):
            return
        tracked = steps.level <= MAX_LEVEL

        pushes = np.flatnonzero(steps.is_push & tracked)
        new = self._instances.open(steps.times_ns[pushes], steps.level[pushes])
        keys, holders = self._pushes(lanes, steps, pushes, new)
        # A push looks for its parent a level up, a pop for the push that it closes; where the
        # level is over the limit both look for the instance at the limit.
        wanted = np.where(steps.is_push, steps.level - 1, steps.level)
        wanted = np.where(tracked, wanted, MAX_LEVEL)
        position = np.arange(1, len(wanted) + 1)
        found = _latest(keys, holders, steps.group, wanted, position)
        found[wanted == 0] = NO_INSTANCE

        self._instances.set_parents(new, found[pushes])
        self._set_nodes(records, lanes, steps, pushes, new, found[pushes], now_ns)

        pops = np.flatnonzero(~steps.is_push & tracked)
        innermost = found.copy()
        innermost[pushes] = new
        innermost[pops] = self._instances.parent[self._instances.rows(found[pops])]
        nodes = np.full(len(innermost), NO_NODE)
        inside = innermost >= 0
        nodes[inside] = self._instances.node[self._instances.rows(innermost[inside])]
        self._close(found[pops], steps.times_ns[pops], steps.lost[pops], now_ns)

        firsts = np.searchsorted(steps.group, np.arange(len(lanes) + 1))
        for index, lane in enumerate(lanes):
            part = slice(firsts[index], firsts[index + 1])
            lane.timeline.append(steps.times_ns[part], innermost[part], nodes[part])
        self._keep_stacks(lanes, keys, holders)

    def _close(self, ids: Int64s, times_ns: Int64s, lost: Bools, now_ns: int) -> None:
        rows = self._instances.rows(ids)
        self._instances.close(ids, times_ns, now_ns)
        nodes = self._instances.node[rows]
        # When a range ended, or began, is not known where that record was dropped.
        whole = ~lost & ~self._instances.lost[rows]
        self.closed_nodes.append(nodes[whole])
        self.closed_ns.append(durations_ns(self._instances.start_ns[rows][whole], times_ns[whole]))

    def _pushes(
        self, lanes: list[Lane], steps: _Steps, pushes: Int64s, new: Int64s
    ) -> tuple[Int64s, Int64s]:
        heights = np.array([len(lane.stack) for lane in lanes])
        carried = join([lane.stack for lane in lanes], np.int64)
        carried_group = np.repeat(np.arange(len(lanes)), heights)
        carried_level = np.arange(len(carried)) - np.repeat(np.cumsum(heights) - heights, heights)
        keys = np.concatenate(
            (
                _key(carried_group, carried_level + 1, np.zeros(len(carried), np.int64)),
                _key(steps.group[pushes], steps.level[pushes], pushes + 1),
            )
        )
        order = np.argsort(keys)
        return keys[order], np.concatenate((carried, new))[order]

    def _keep_stacks(self, lanes: list[Lane], keys: Int64s, holders: Int64s) -> None:
        heights = np.array([min(lane.depth, MAX_LEVEL) for lane in lanes])
        group = np.repeat(np.arange(len(lanes)), heights)
        level = np.arange(len(group)) - np.repeat(np.cumsum(heights) - heights, heights) + 1
        end = np.full(len(group), (1 << _POSITION_BITS) - 1)
        stacks = _latest(keys, holders, group, level, end)
        for lane, stack in zip(lanes, np.split(stacks, np.cumsum(heights)[:-1]), strict=True):
            lane.stack = stack.copy()

    def _set_nodes(
        self,
        records: Slots,
        lanes: list[Lane],
        steps: _Steps,
        pushes: Int64s,
        new: Int64s,
        parents: Int64s,
        now_ns: int,
    ) -> None:
        instances = self._instances
        source = steps.source[pushes]
        lost = steps.lost[pushes]
        group = steps.group[pushes]
        names = np.where(lost, _LOST_NAME, records["name"][source].astype(np.int64))
        levels = steps.level[pushes]
        rows = instances.rows(new)
        instances.lost[rows] = lost
        parent_rows = instances.rows(parents)
        places = np.array([-lane.place for lane in lanes])

        def place(index: int) -> tuple[int, str]:
            lane = lanes[int(group[index])]
            return lane.thread, lane.domain

        def describe(index: int) -> tuple[str, int | None, str | None]:
            if lost[index]:
                return LOST, None, None
            return self._strings.range_attributes(records[source[index]])

        for value in np.unique(levels):
            at = np.flatnonzero(levels == value)
            above = places[group[at]] if value == 1 else instances.node[parent_rows[at]]
            instances.node[rows[at]] = self._nodes.resolve(
                above, names[at], at, place, describe, now_ns
            )

    # --- stacks

    def _lane_indices(self, records: Slots) -> Int64s:
        threads = records["thread"].astype(np.int64)
        domains = records["a"].astype(np.int64)

        def define(_key: int, first: int) -> int:
            thread = int(threads[first])
            domain = self._strings.domain(int(domains[first]))
            return self._lane(thread, domain)

        # Thread ids are below 2³¹ on Linux; of a hostile one the low bits are kept.
        keys = ((threads & 0x7FFF_FFFF) << 32) | domains
        if len(self._table) >= MAX_LANES:
            self._make_room()
        return self._table.lookup(keys, define, lambda: _IGNORED)

    def _lane(self, thread: int, domain: str) -> int:
        index = self._by_name.get((thread, domain))
        if index is not None:
            return index
        if len(self._lanes) >= MAX_LANES:
            return _IGNORED
        index = next(i for i in range(len(self._lanes), -1, -1) if i not in self._lanes)
        self._places += 1
        priority = 2 if is_library_domain(domain) else int(domain != "")
        lane = Lane(self._places, thread, domain, priority)
        self._lanes[index] = lane
        self._by_name[thread, domain] = index
        siblings = self._of_thread.setdefault(thread, [])
        siblings.append(lane)
        siblings.sort(key=lambda lane: (lane.priority, lane.place))
        return index

    def _make_room(self) -> None:
        newest = max((lane.timeline.last_ns for lane in self._lanes.values()), default=0)
        if newest < self._made_room_ns + WINDOW_NS:
            return
        self._made_room_ns = newest
        for key, index in list(self._by_name.items()):
            lane = self._lanes[index]
            if lane.depth == 0 and lane.timeline.last_ns < newest - WINDOW_NS:
                del self._by_name[key], self._lanes[index]
                self._of_thread[lane.thread].remove(lane)
                if not self._of_thread[lane.thread]:
                    del self._of_thread[lane.thread]
        kept = np.array(sorted(self._lanes), np.int64)
        self._table.keep(lambda values: np.isin(values, kept))

    def forget(self) -> None:
        """Drop what is too long ago, or too much, from the timelines."""
        window_ns = WINDOW_NS
        lanes = self._lanes.values()
        newest = max((lane.timeline.last_ns for lane in lanes), default=0)
        while window_ns:
            for lane in lanes:
                lane.timeline.forget(newest - window_ns)
            if sum(len(lane.timeline) for lane in lanes) <= WINDOW_MOMENTS:
                return
            window_ns //= 2


@dataclass(slots=True)
class _Steps:
    """Pushes and pops of several stacks, stack after stack. `source` is the record of each."""

    group: Int64s
    level: Int64s
    is_push: Bools
    lost: Bools
    times_ns: Int64s
    source: Int64s

    @classmethod
    def of(cls, records: Slots, group: Int64s) -> _Steps:
        return cls(
            group=group,
            level=records["d"].astype(np.int64) + 1,
            is_push=records["kind"] == RecordKind.RANGE_PUSH,
            lost=np.zeros(len(records), np.bool_),
            times_ns=times_ns(records["start"]),
            source=np.arange(len(records)),
        )

    def depths(self) -> Int64s:
        """How many ranges are open after each step."""
        return np.where(self.is_push, self.level, self.level - 1)

    def mended(self, previous: Int64s, before: Int64s, firsts: Int64s) -> tuple[_Steps, int]:
        """With lost steps put in, and how many records were lost or made no sense.

        `previous` is the depth after the step before, `before` that of each stack at its first.
        """
        previous[firsts] = before
        needed = np.where(self.is_push, self.level - 1, self.level)
        wrong = previous != needed
        if not wrong.any():
            return self, 0
        # A pop of a range that was never seen open is left out; it asks for those around it.
        unseen = ~self.is_push & (previous < needed)
        at = np.minimum(previous, MAX_LEVEL)
        to = np.minimum(needed - unseen, MAX_LEVEL)
        counts = np.abs(to - at) + ~unseen
        source = np.repeat(self.source, counts)
        offset = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        lost = offset < np.abs(to - at)[source]
        opens = (to > at)[source]
        levels = np.where(opens, at[source] + 1 + offset, at[source] - offset)
        steps = _Steps(
            group=self.group[source],
            level=np.where(lost, levels, self.level[source]),
            is_push=np.where(lost, opens, self.is_push[source]),
            lost=lost,
            times_ns=self.times_ns[source],
            source=source,
        )
        return steps, int(np.count_nonzero(lost)) + int(np.count_nonzero(unseen))


def _sizes(firsts: Int64s, count: int) -> Int64s:
    return np.diff(np.append(firsts, count))


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
