"""Start/End ranges: opened and closed by an id, possibly on different threads.

They overlap freely, so they have no parents in the tree. A range contains what the thread that
began it does until its end. nsys attributes GPU work only to those that end on the thread they
began on, so what was launched is kept with the instance until that is known.
"""

from __future__ import annotations

import itertools

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, KeyTable, Slots, durations_ns, times_ns
from gputui.attribute.instances import Instances
from gputui.attribute.range_stacks import RangeStacks
from gputui.attribute.range_tree import Nodes
from gputui.attribute.records import Strings
from gputui.ring.layout import RecordKind

MAX_OPEN = 100_000
"""Open ranges kept per process; the oldest make room."""

MAX_PAIRS = 1 << 19
"""Moments placed inside ranges at a time; the newest ranges come first."""

_MAX_PLACES = 4096
_FIRST_PLACE = 1 << 24
"""Numbers of places, distinct from those of the stacks."""

RECENT = np.dtype(
    [("id", "u8"), ("instance", "i8"), ("node", "i8"), ("thread", "i8"), ("start", "i8"),
     ("end", "i8")]
)  # fmt: skip
"""A range that is open or not finalised; `id` is the program's."""


class StartEndRanges:
    """All Start/End ranges of one process."""

    def __init__(
        self, nodes: Nodes, instances: Instances, stacks: RangeStacks, strings: Strings
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
        """Starts over the limit."""
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
            of = new[new["thread"] == thread]
            for stack in self._stacks.of_thread(thread):
                inside, _ = stack.timeline.at(of["start"].copy())
                alive = self._instances.alive(inside)
                ids.append(of["instance"][alive])
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
        parts = []
        room = MAX_PAIRS
        for thread in np.unique(threads).tolist() if len(recent) else ():
            of = recent[recent["thread"] == thread][::-1]  # newest first
            if not len(of):
                continue
            at = np.flatnonzero(threads == thread)
            times = moments_ns[at]
            order = np.argsort(times, kind="stable")
            at, times = at[order], times[order]
            first = np.searchsorted(times, of["start"], side="left")
            counts = np.searchsorted(times, of["end"], side="right") - first
            counts = np.maximum(counts, 0)
            fits = np.cumsum(counts) <= room
            of, first, counts = of[fits], first[fits], counts[fits]
            total = int(counts.sum())
            room -= total
            offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = at[np.repeat(first, counts) + offsets]
            found = of[np.repeat(np.arange(len(of)), counts)]
            parts.append((rows, found["instance"], found["node"], found["start"]))
        if not parts:
            return nothing, nothing, nothing
        rows, instances, nodes, starts = (
            np.concatenate(column) for column in zip(*parts, strict=True)
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

    def _close(self, at: Int64s, ends_ns: Int64s, now_ns: int) -> None:
        ends_ns = np.minimum(ends_ns, LATEST_NS - 1)
        self._recent["end"][at] = ends_ns
        closed = self._recent[at]
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
