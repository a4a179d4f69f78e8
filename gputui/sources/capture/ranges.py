"""Pushes and pops → instances, nodes and timelines, a whole batch at a time.

A stack machine without a loop over records. In ring order a thread's depth in a domain is the
running sum of +1 and −1, held at zero from below. A push at level L opens inside the newest push
at level L − 1 before it, a pop closes the newest push at its level: both are one binary search
in the pushes sorted by (stack, level, position). What was open before the batch stands in front.
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
    run_starts,
    times_ns,
)
from gputui.sources.capture.instances import NO_INSTANCE, Instances
from gputui.sources.capture.names import is_library_domain
from gputui.sources.capture.nodes import Describe, Nodes
from gputui.sources.capture.strings import Strings
from gputui.sources.capture.timeline import NO_NODE, Timeline

MAX_LANES = 4096
"""Stacks (thread, domain) kept a process; idle ones make room for new ones."""

MAX_LEVEL = 128
"""Ranges nested deeper belong to the one at this level."""

WINDOW_NS = 60_000_000_000
WINDOW_MOMENTS = 1_000_000
"""Timelines go back this far, or hold this many moments together."""

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
        """Pops without a push, and records of stacks over the limit."""
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
            records, lanes = records[known], lanes[known]
            if not len(records):
                return
        order = np.argsort(lanes.astype(np.uint16), kind="stable")
        self._replay(records[order], lanes[order], now_ns)

    def _replay(self, records: Slots, lane_of: Int64s, now_ns: int) -> None:
        count = len(records)
        firsts = run_starts(lane_of)
        sizes = np.diff(np.append(firsts, count))
        lanes = [self._lanes[int(index)] for index in lane_of[firsts]]
        group = np.repeat(np.arange(len(lanes)), sizes)
        times = times_ns(records["start"])
        is_push = records["kind"] == RecordKind.RANGE_PUSH

        depth, matched = _depths(is_push, np.array([lane.depth for lane in lanes]), firsts, group)
        self.ignored += count - int(np.count_nonzero(matched))
        level = np.where(is_push, depth, depth + 1)
        tracked = matched & (level <= MAX_LEVEL)

        pushes = np.flatnonzero(is_push & tracked)
        new = self._instances.open(times[pushes], level[pushes])
        keys, holders = self._pushes(lanes, group, level, pushes, new)
        # A push looks for its parent a level up, a pop for the push that it closes; where the
        # depth is over the limit both look for the instance at the limit.
        wanted = np.where(is_push, level - 1, level)
        wanted = np.where(tracked, wanted, MAX_LEVEL)
        position = np.arange(1, count + 1)
        found = _latest(keys, holders, group, wanted, position)
        found[~matched | (wanted == 0)] = NO_INSTANCE

        self._instances.set_parents(new, found[pushes])
        self._set_nodes(records, lanes, group, level, pushes, new, found[pushes], now_ns)

        pops = np.flatnonzero(~is_push & tracked)
        closed = found[pops]
        rows = self._instances.rows(closed)
        self._instances.close(closed, times[pops], now_ns)
        self.closed_nodes.append(self._instances.node[rows])
        self.closed_ns.append(durations_ns(self._instances.start_ns[rows], times[pops]))

        innermost = found
        innermost[pushes] = new
        innermost[pops] = self._instances.parent[rows]
        nodes = np.full(count, NO_NODE)
        inside = innermost >= 0
        nodes[inside] = self._instances.node[self._instances.rows(innermost[inside])]
        ends = np.append(firsts[1:], count)
        for index, lane in enumerate(lanes):
            part = slice(firsts[index], ends[index])
            lane.timeline.append(times[part], innermost[part], nodes[part])
            lane.depth = int(depth[ends[index] - 1])
        self._keep_stacks(lanes, keys, holders)

    def _pushes(
        self, lanes: list[Lane], group: Int64s, level: Int64s, pushes: Int64s, new: Int64s
    ) -> tuple[Int64s, Int64s]:
        heights = np.array([len(lane.stack) for lane in lanes])
        carried = join([lane.stack for lane in lanes], np.int64)
        carried_group = np.repeat(np.arange(len(lanes)), heights)
        carried_level = np.arange(len(carried)) - np.repeat(np.cumsum(heights) - heights, heights)
        keys = np.concatenate(
            (
                _key(carried_group, carried_level + 1, np.zeros(len(carried), np.int64)),
                _key(group[pushes], level[pushes], pushes + 1),
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
        group: Int64s,
        level: Int64s,
        pushes: Int64s,
        new: Int64s,
        parents: Int64s,
        now_ns: int,
    ) -> None:
        instances = self._instances
        names = records["name"][pushes].astype(np.int64)
        levels = level[pushes]
        rows = instances.rows(new)
        parent_rows = instances.rows(parents)
        places = np.array([-lane.place for lane in lanes])
        describe = self.describer(records)

        def place(index: int) -> tuple[int, str]:
            lane = lanes[int(group[index])]
            return lane.thread, lane.domain

        for value in np.unique(levels):
            at = np.flatnonzero(levels == value)
            above = places[group[pushes[at]]] if value == 1 else instances.node[parent_rows[at]]
            instances.node[rows[at]] = self._nodes.resolve(
                above, names[at], pushes[at], place, describe, now_ns
            )

    def describer(self, records: Slots) -> Describe:
        """Name, colour and category of a record of `records`."""

        def describe(index: int) -> tuple[str, int | None, str | None]:
            return self._strings.range_attributes(records[index])

        return describe

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


def _depths(is_push: Bools, before: Int64s, firsts: Int64s, group: Int64s) -> tuple[Int64s, Bools]:
    """The depth after each record, and whether it was matched (False: a pop without a push)."""
    total = np.cumsum(np.where(is_push, 1, -1))
    at_start = np.append(0, total)[firsts]
    raw = total - at_start[group] + before[group]
    # Each stack's lowest point so far: a stack's values lie under all those of the one before.
    apart = (len(is_push) + int(before.max()) + 1) * 2
    lowest = np.minimum.accumulate(raw - group * apart) + group * apart
    lowest = np.minimum(lowest, 0)
    previous = np.append(0, lowest[:-1])
    previous[firsts] = 0
    return raw - lowest, lowest == previous


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
