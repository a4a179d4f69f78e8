"""Start/End ranges: opened and closed by an id, perhaps on different threads.

They overlap freely, so they have no parents, and calls are not attributed to them: an id says
nothing of which thread is inside.
"""

from __future__ import annotations

import itertools

import numpy as np

from gputui.capture.layout import RecordKind
from gputui.sources.capture.arrays import Int64s, KeyTable, Slots, durations_ns, times_ns
from gputui.sources.capture.nodes import Nodes
from gputui.sources.capture.strings import Strings
from gputui.sources.trace import TraceSink

MAX_OPEN = 100_000
"""Open ranges kept a process; the oldest make room."""

_MAX_PLACES = 4096
_FIRST_PLACE = 1 << 24
"""Numbers of places apart from those of the stacks."""


class StartEndRanges:
    """All Start/End ranges of one process."""

    def __init__(self, nodes: Nodes, strings: Strings) -> None:
        self._nodes = nodes
        self._strings = strings
        self._table = KeyTable(_MAX_PLACES)
        self._places = itertools.count(_FIRST_PLACE + 1)
        self._ids = np.empty(0, np.uint64)
        self.open_nodes = np.empty(0, np.int64)
        self.open_since_ns = np.empty(0, np.int64)
        """Node and start of the ranges that are open now."""
        self.ignored = 0
        """Ends without a start, and starts over the limit."""
        self.trace: TraceSink | None = None
        self.closed_nodes: list[Int64s] = []
        self.closed_ns: list[Int64s] = []

    def feed(self, records: Slots, now_ns: int) -> None:
        """Take in the RANGE_START and RANGE_END records of a batch, in ring order."""
        if not len(records):
            return
        is_start = records["kind"] == RecordKind.RANGE_START
        starts = records[is_start]
        ids = np.concatenate((self._ids, starts["value"]))
        nodes = np.concatenate((self.open_nodes, self._resolve(starts, now_ns)))
        since_ns = np.concatenate((self.open_since_ns, times_ns(starts["start"])))
        open_now = np.ones(len(ids), np.bool_)

        ends = records[~is_start]
        # Ids are unique while a process lives: the order of starts and ends tells nothing more.
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(ids[order], ends["value"], side="right") - 1
        hit = places >= 0
        hit[hit] = ids[order][places[hit]] == ends["value"][hit]
        closed, first = np.unique(order[places[hit]], return_index=True)
        ends_ns = times_ns(ends["start"][hit][first])
        self.closed_nodes.append(nodes[closed])
        self.closed_ns.append(durations_ns(since_ns[closed], ends_ns))
        if self.trace is not None:
            self.trace.ranges(nodes[closed], since_ns[closed], ends_ns)
        open_now[closed] = False

        kept = np.flatnonzero(open_now)[-MAX_OPEN:]
        self.ignored += len(ends) - len(closed) + int(np.count_nonzero(open_now)) - len(kept)
        self._ids = ids[kept]
        self.open_nodes = nodes[kept]
        self.open_since_ns = since_ns[kept]

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
