"""Collectives matched among the local ranks of a job: who waited for whom.

All ranks of a synchronizing collective end it together, so durations say who came last without
any clock: the rank whose part is shortest, which is the transfer. That its parts belong together
is known by their order in the communicator and by their overlap in time; where records were lost
or were not made, the next that overlap are matched.
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

import msgspec

from gputui.attribute.collection import DeltaParts
from gputui.attribute.collectives.local import Collective, Found
from gputui.attribute.collectives.order import insert
from gputui.attribute.collectives.peers import Peers
from gputui.model.collectives import SYNCHRONIZING, CollectiveSums, size_class
from gputui.model.events import CollectiveDelta

SLACK_NS = 100_000
"""How far apart parts of one collective may lie: clocks of two GPUs differ by some µs."""

SETTLING_NS = 1_000_000_000
"""At the start of a communicator its ranks make connections: not compared."""

LATE_NS = 1_000_000_000
"""How much later than others of its rank a record may come, which are of a later moment."""

MISSING_NS = 30_000_000_000
"""How much later than a rank claims to have reported everything, a record may come: CUPTI keeps a
buffer back as long as a kernel in it has not ended, and programs launch ahead. On four H100s up to
a third of the collectives of a quarter second came late; of longer steps, more do."""

MAX_HELD = 100_000
"""Collectives of one communicator and process that wait for the others'."""

MAX_ROWS = 10_000
"""Rows that wait to be taken."""

_OTHERS = ("", "other", 0)

Key = tuple[str, str, int]


class _Communicator:
    def __init__(self) -> None:
        self.held: dict[int, deque[Collective]] = {}
        self.newest_ns: dict[int, int] = defaultdict(int)
        self.settled_ns: int | None = None
        self.ranks = 0

    def of(self, process: int) -> deque[Collective]:
        """What is held of a process, which is of the communicator from here on."""
        return self.held.setdefault(process, deque(maxlen=MAX_HELD))


class Matching:
    """Collectives of the processes in, sums of each process out."""

    def __init__(self) -> None:
        self._communicators: dict[str, _Communicator] = defaultdict(_Communicator)
        self._until_ns: dict[int, int] = {}
        self._rows: dict[int, dict[Key, CollectiveSums]] = defaultdict(dict)
        self.peers = Peers()

    def add(self, process: int, found: Found, until_ns: int | None) -> None:
        """What a process did; it will report nothing more that ended before `until_ns` (None: at
        all)."""
        if until_ns is None:
            self._until_ns.pop(process, None)
        else:
            self._until_ns[process] = until_ns
        self.peers.add(process, found)
        for communicator, ranks in found.ranks.items():
            self._communicators[communicator].ranks = ranks
        for operation in found.entered:
            sums = self._sums(process, operation.communicator, operation.kind, operation.size_bytes)
            sums.entered += 1
            sums.entered_ns = max(sums.entered_ns or 0, operation.time_ns)
            if operation.kind in SYNCHRONIZING:
                self._communicators[operation.communicator].of(process)
        for one in found.collectives:
            sums = self._of(process, one)
            sums.left += one.operations
            sums.count += 1
            sums.bytes += one.size_bytes
            sums.time_ns += one.end_ns - one.start_ns
            if one.kind in SYNCHRONIZING:
                own = self._communicators[one.communicator]
                insert(own.of(process), one, MAX_HELD)
                own.newest_ns[process] = max(own.newest_ns[process], one.end_ns)

    def match(self) -> None:
        """Compare what every process has reported by now."""
        until_ns = min(self._until_ns.values(), default=None)
        self.peers.match(None if until_ns is None else until_ns - LATE_NS)
        for communicator in self._communicators.values():
            if len(communicator.held) > 1:
                self._match(communicator, until_ns)

    @property
    def untaken(self) -> set[int]:
        """Processes with sums, here or of peers, that were not taken."""
        return self._rows.keys() | self.peers.untaken

    def take_parts(self, process: int) -> DeltaParts:
        """The sums of a process since the last time, by the field of CaptureDelta they go to."""
        return {"collectives": self.take(process), "peers": self.peers.take(process)}

    def take(self, process: int) -> tuple[CollectiveDelta, ...]:
        """Sums over collectives of a process since the last time."""
        rows = self._rows.pop(process, {})
        return tuple(
            CollectiveDelta(
                communicator=communicator,
                kind=kind,
                size_class=size,
                **msgspec.structs.asdict(sums),
            )
            for (communicator, kind, size), sums in rows.items()
        )

    def _match(self, communicator: _Communicator, until_ns: int | None) -> None:
        held = communicator.held
        while True:
            heads = {process: queue[0] for process, queue in held.items() if queue}
            if not heads:
                return
            first = min(heads, key=lambda process: heads[process].end_ns)
            end_ns = heads[first].end_ns
            together = {
                process: one
                for process, one in heads.items()
                if one.start_ns <= end_ns + SLACK_NS
                and (one.kind, one.operations) == (heads[first].kind, heads[first].operations)
            }
            waits_ns = _waits_ns(communicator, together, end_ns)
            if waits_ns and until_ns is not None and end_ns + waits_ns > until_ns:
                return
            if len(together) < len(held):
                self._of(first, held[first].popleft()).compared += 1
                continue
            for process in together:
                held[process].popleft()
            if communicator.settled_ns is None:
                start_ns = min(one.start_ns for one in together.values())
                communicator.settled_ns = start_ns + SETTLING_NS
            self._compare(communicator, together)

    def _compare(self, communicator: _Communicator, parts: dict[int, Collective]) -> None:
        durations = {process: one.end_ns - one.start_ns for process, one in parts.items()}
        last = min(durations, key=lambda process: durations[process])
        transfer_ns = durations[last]
        cost_ns = min(ns for process, ns in durations.items() if process != last) - transfer_ns
        settled_ns = communicator.settled_ns or 0
        ranks = communicator.ranks or len(communicator.held)
        own_ns = parts[last].own_ns - median(
            one.own_ns for process, one in parts.items() if process != last
        )
        for process, one in parts.items():
            sums = self._of(process, one)
            sums.ranks = max(sums.ranks, ranks)
            if one.start_ns < settled_ns:
                continue
            sums.compared += 1
            sums.matched += 1
            sums.matched_bytes += one.size_bytes
            sums.matched_ns += durations[process]
            wait_ns = durations[process] - transfer_ns
            sums.wait_ns += wait_ns
            sums.wait_us2 += (wait_ns // 1000) ** 2
            sums.longest_wait_ns = max(sums.longest_wait_ns, wait_ns)
            sums.first_ns = min(sums.first_ns or one.start_ns, one.start_ns)
            sums.last_ns = max(sums.last_ns or 0, one.end_ns)
            if process == last:
                sums.last += 1
                if own_ns >= cost_ns / 2:
                    sums.blame_ns += cost_ns
                    sums.longest_blame_ns = max(sums.longest_blame_ns, cost_ns)
                else:
                    sums.inherited_ns += cost_ns

    def _of(self, process: int, one: Collective) -> CollectiveSums:
        return self._sums(process, one.communicator, one.kind, one.size_bytes)

    def _sums(self, process: int, communicator: str, kind: str, size_bytes: int) -> CollectiveSums:
        rows = self._rows[process]
        key = (communicator, kind, size_class(size_bytes))
        if key not in rows and len(rows) >= MAX_ROWS:
            key = _OTHERS
        return rows.setdefault(key, CollectiveSums())


def _waits_ns(communicator: _Communicator, together: dict[int, Collective], end_ns: int) -> int:
    """How long another part of a collective may still be coming. Not at all where all are there,
    which end together, or where the ranks it is missing of went on without it."""
    missing = communicator.held.keys() - together.keys()
    if missing:
        has_gone_on = all(communicator.newest_ns[rank] >= end_ns + LATE_NS for rank in missing)
        return 0 if has_gone_on else MISSING_NS
    shortest_ns = min(one.end_ns - one.start_ns for one in together.values())
    apart_ns = max(one.end_ns for one in together.values()) - end_ns
    return 0 if apart_ns <= shortest_ns / 2 else LATE_NS
