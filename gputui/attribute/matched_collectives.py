"""Collectives, sends and receives matched among the local ranks of a job: who waited for whom.

For `reader`, which has all processes of a run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Set
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

from gputui.attribute.collection import DeltaParts
from gputui.attribute.local_collectives import Collective, CollectiveReport
from gputui.model.events import CollectiveDelta, PeerDelta
from gputui.model.kernel_categories import SYNCHRONIZING, size_class

# --- Keeping what ranks did in order of time, whenever it is learnt of.


class _Begun(Protocol):
    @property
    def start_ns(self) -> int: ...


_One = TypeVar("_One", bound=_Begun)


def insert(queue: deque[_One], item: _One, most: int) -> None:
    """Put it where its start belongs: what came late lies before what was there. Of a full queue
    the oldest goes."""
    place = len(queue)
    while place and queue[place - 1].start_ns > item.start_ns:
        place -= 1
    if place == len(queue):
        queue.append(item)
    elif len(queue) < most:
        queue.insert(place, item)


# --- Sends and receives matched between local ranks: who waits for whom.
#
# The i-th send of a rank to another is the i-th receive there. One kernel serves all sends and
# receives of a group: it lasts until the last of its partners has come, and waited for that one.
# Who came when is known by the clock that the ranks of a host share.

MAX_HELD_MESSAGES = 20_000
"""Messages from one rank to another that wait for the other's part."""

MAX_PAIRS = 4096
"""Pairs of ranks that are followed."""

# A communicator, and the ranks in it from which and to which.
_Pair = tuple[str, int, int]


@dataclass(slots=True)
class _Kernel:
    process: int
    start_ns: int
    end_ns: int
    missing: int
    """Messages whose other part has not been seen."""
    last_ns: int = 0
    last: int = 0
    """When the last partner so far came, and its process."""
    is_first: bool = False
    """Whether a connection was made in it, which takes long and is nobody's fault."""


class _Part(NamedTuple):
    """One side of a message."""

    start_ns: int
    kernel: _Kernel
    size_bytes: int = 0


class _Messages:
    def __init__(self) -> None:
        self.sends: deque[_Part] = deque(maxlen=MAX_HELD_MESSAGES)
        self.receives: deque[_Part] = deque(maxlen=MAX_HELD_MESSAGES)
        self.has_begun = False


class Peers:
    """Collectives of the processes in, sums of each process and partner out."""

    def __init__(self) -> None:
        self._pairs: dict[_Pair, _Messages] = {}
        self._rows: dict[int, dict[int, PeerDelta]] = defaultdict(dict)

    def add(self, process: int, report: CollectiveReport) -> None:
        """What a process did, in order."""
        for collective in report.collectives:
            own = report.own.get(collective.communicator)
            if own is None or not (collective.sent or collective.received):
                continue
            self._add(process, own, collective)

    def match(self, until_ns: int | None) -> None:
        """Compare what has ended before a moment, all of which has come (None: everything)."""
        for messages in self._pairs.values():
            self._match(messages, until_ns)

    @property
    def untaken(self) -> Set[int]:
        """Processes with sums that were not taken."""
        return self._rows.keys()

    def take_peers(self, process: int) -> tuple[PeerDelta, ...]:
        """The sums of a process since the last time."""
        return tuple(self._rows.pop(process, {}).values())

    def _row(self, process: int, peer: int) -> PeerDelta:
        rows = self._rows[process]
        row = rows.get(peer)
        if row is None:
            row = rows[peer] = PeerDelta(peer=peer)
        return row

    def _add(self, process: int, own: int, collective: Collective) -> None:
        pairs = [(collective.communicator, own, to) for to, _ in collective.sent]
        pairs += [(collective.communicator, source, own) for source in collective.received]
        new = {pair for pair in pairs if pair not in self._pairs}
        if len(self._pairs) + len(new) > MAX_PAIRS:
            return
        self._pairs |= {pair: _Messages() for pair in new}
        kernel = _Kernel(process, collective.start_ns, collective.end_ns, len(pairs))
        for to, size_bytes in collective.sent:
            part = _Part(collective.start_ns, kernel, size_bytes)
            insert(self._pairs[collective.communicator, own, to].sends, part, MAX_HELD_MESSAGES)
        for source in collective.received:
            part = _Part(collective.start_ns, kernel)
            insert(
                self._pairs[collective.communicator, source, own].receives, part, MAX_HELD_MESSAGES
            )

    def _match(self, messages: _Messages, until_ns: int | None) -> None:
        while messages.sends and messages.receives:
            # In order of time until all have come: sends and receives of a pair match by their
            # order.
            _, sender, size_bytes = messages.sends[0]
            receiver = messages.receives[0].kernel
            if until_ns is not None and max(sender.end_ns, receiver.end_ns) > until_ns:
                return
            messages.sends.popleft()
            messages.receives.popleft()
            is_first, messages.has_begun = not messages.has_begun, True
            for kernel, partner in ((sender, receiver), (receiver, sender)):
                kernel.is_first |= is_first
                kernel.missing -= 1
                if partner.start_ns > kernel.last_ns:
                    kernel.last_ns, kernel.last = partner.start_ns, partner.process
                row = self._row(kernel.process, partner.process)
                row.messages += 1
                row.bytes += size_bytes if kernel is sender else 0
                if not kernel.missing and not kernel.is_first:
                    came_ns = min(kernel.last_ns, kernel.end_ns)
                    waited = self._row(kernel.process, kernel.last)
                    # Of all messages of a pair, not of its first two alone.
                    waited.wait_ns += max(0, came_ns - kernel.start_ns)
                    waited.matched_ns += kernel.end_ns - kernel.start_ns
                    waited.matched += 1


# --- Collectives matched among the local ranks of a job: who waited for whom.
#
# All ranks of a synchronizing collective end it together, so durations say who came last without
# any clock: the rank whose part is shortest, which is the transfer. That its parts belong together
# is known by their order in the communicator and by their overlap in time; where records were lost
# or were not made, the next that overlap are matched.

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

    def queue_of(self, process: int) -> deque[Collective]:
        """The collectives of a process that wait to be matched; it becomes a member if it was
        none."""
        return self.held.setdefault(process, deque(maxlen=MAX_HELD))


class Matching:
    """Collectives of the processes in, sums of each process out."""

    def __init__(self) -> None:
        self._communicators: dict[str, _Communicator] = defaultdict(_Communicator)
        self._until_ns: dict[int, int] = {}
        self._rows: dict[int, dict[Key, CollectiveDelta]] = defaultdict(dict)
        self.peers = Peers()

    def add(self, process: int, report: CollectiveReport, until_ns: int | None) -> None:
        """What a process did; it will report nothing more that ended before `until_ns` (None: at
        all)."""
        if until_ns is None:
            self._until_ns.pop(process, None)
        else:
            self._until_ns[process] = until_ns
        self.peers.add(process, report)
        for communicator, ranks in report.ranks.items():
            self._communicators[communicator].ranks = ranks
        for operation in report.entered:
            sums = self._sums(process, operation.communicator, operation.kind, operation.size_bytes)
            sums.entered += 1
            sums.entered_ns = max(sums.entered_ns or 0, operation.time_ns)
            if operation.kind in SYNCHRONIZING:
                self._communicators[operation.communicator].queue_of(process)
        for collective in report.collectives:
            sums = self._sums_of(process, collective)
            sums.left += collective.operations
            sums.count += 1
            sums.bytes += collective.size_bytes
            sums.time_ns += collective.end_ns - collective.start_ns
            if collective.kind in SYNCHRONIZING:
                own = self._communicators[collective.communicator]
                insert(own.queue_of(process), collective, MAX_HELD)
                own.newest_ns[process] = max(own.newest_ns[process], collective.end_ns)

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
        return {
            "collectives": self.take_collectives(process),
            "peers": self.peers.take_peers(process),
        }

    def take_collectives(self, process: int) -> tuple[CollectiveDelta, ...]:
        """Sums over collectives of a process since the last time."""
        return tuple(self._rows.pop(process, {}).values())

    def _match(self, communicator: _Communicator, until_ns: int | None) -> None:
        held = communicator.held
        while True:
            heads = {process: queue[0] for process, queue in held.items() if queue}
            if not heads:
                return
            first = min(heads, key=lambda process: heads[process].end_ns)
            end_ns = heads[first].end_ns
            together = {
                process: collective
                for process, collective in heads.items()
                if collective.start_ns <= end_ns + SLACK_NS
                and (collective.kind, collective.operations)
                == (heads[first].kind, heads[first].operations)
            }
            waits_ns = _waits_ns(communicator, together, end_ns)
            if waits_ns and until_ns is not None and end_ns + waits_ns > until_ns:
                return
            if len(together) < len(held):
                self._sums_of(first, held[first].popleft()).compared += 1
                continue
            for process in together:
                held[process].popleft()
            if communicator.settled_ns is None:
                start_ns = min(collective.start_ns for collective in together.values())
                communicator.settled_ns = start_ns + SETTLING_NS
            self._compare(communicator, together)

    def _compare(self, communicator: _Communicator, collectives: dict[int, Collective]) -> None:
        durations = {
            process: collective.end_ns - collective.start_ns
            for process, collective in collectives.items()
        }
        last = min(durations, key=lambda process: durations[process])
        transfer_ns = durations[last]
        cost_ns = min(ns for process, ns in durations.items() if process != last) - transfer_ns
        settled_ns = communicator.settled_ns or 0
        ranks = communicator.ranks or len(communicator.held)
        own_ns = collectives[last].own_ns - median(
            collective.own_ns for process, collective in collectives.items() if process != last
        )
        for process, collective in collectives.items():
            sums = self._sums_of(process, collective)
            sums.ranks = max(sums.ranks, ranks)
            if collective.start_ns < settled_ns:
                continue
            sums.compared += 1
            sums.matched += 1
            sums.matched_bytes += collective.size_bytes
            sums.matched_ns += durations[process]
            wait_ns = durations[process] - transfer_ns
            sums.wait_ns += wait_ns
            # Squares tell lateness from chance: of 50 trials with nobody late on two loaded cores 4
            # named a rank without them.
            sums.wait_us2 += (wait_ns // 1000) ** 2
            sums.longest_wait_ns = max(sums.longest_wait_ns, wait_ns)
            sums.first_ns = min(sums.first_ns or collective.start_ns, collective.start_ns)
            sums.last_ns = max(sums.last_ns or 0, collective.end_ns)
            if process == last:
                sums.last += 1
                if own_ns >= cost_ns / 2:
                    sums.blame_ns += cost_ns
                    # Kept apart, so that one long wait, as for a checkpoint that one rank writes,
                    # can be left out of what makes a rank late.
                    sums.longest_blame_ns = max(sums.longest_blame_ns, cost_ns)
                else:
                    sums.inherited_ns += cost_ns

    def _sums_of(self, process: int, collective: Collective) -> CollectiveDelta:
        return self._sums(process, collective.communicator, collective.kind, collective.size_bytes)

    def _sums(self, process: int, communicator: str, kind: str, size_bytes: int) -> CollectiveDelta:
        rows = self._rows[process]
        key = (communicator, kind, size_class(size_bytes))
        if key not in rows and len(rows) >= MAX_ROWS:
            key = _OTHERS
        row = rows.get(key)
        if row is None:
            communicator, kind, size = key
            row = rows[key] = CollectiveDelta(communicator=communicator, kind=kind, size_class=size)
        return row


def _waits_ns(communicator: _Communicator, together: dict[int, Collective], end_ns: int) -> int:
    """How long another part of a collective may still be coming. Not at all where all are there,
    which end together, or where the ranks it is missing of went on without it."""
    missing = communicator.held.keys() - together.keys()
    if missing:
        has_gone_on = all(communicator.newest_ns[rank] >= end_ns + LATE_NS for rank in missing)
        # A rank that launches steps ahead keeps its records back for as long: its part is given up
        # once the rank itself went on.
        return 0 if has_gone_on else MISSING_NS
    shortest_ns = min(collective.end_ns - collective.start_ns for collective in together.values())
    apart_ns = max(collective.end_ns for collective in together.values()) - end_ns
    return 0 if apart_ns <= shortest_ns / 2 else LATE_NS
