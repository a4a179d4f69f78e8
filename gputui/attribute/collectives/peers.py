"""Sends and receives matched between local ranks: who waits for whom.

The i-th send of a rank to another is the i-th receive there. One kernel serves all sends and
receives of a group: it lasts until the last of its partners has come, and waited for that one. Who
came when is known by the clock that the ranks of a host share.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gputui.attribute.collectives.local import Collective, Found
from gputui.attribute.collectives.order import insert
from gputui.model.collectives import PeerSums
from gputui.model.events import PeerDelta

MAX_HELD = 20_000
"""Messages from one rank to another that wait for the other's part."""

MAX_PAIRS = 4096
"""Pairs of ranks that are followed."""

_Pair = tuple[str, int, int]
"""A communicator, and the ranks in it from which and to which."""


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
        self.sends: deque[_Part] = deque(maxlen=MAX_HELD)
        self.receives: deque[_Part] = deque(maxlen=MAX_HELD)
        self.has_begun = False


class Peers:
    """Collectives of the processes in, sums of each process and partner out."""

    def __init__(self) -> None:
        self._pairs: dict[_Pair, _Messages] = {}
        self._rows: dict[int, dict[int, PeerSums]] = defaultdict(lambda: defaultdict(PeerSums))

    def add(self, process: int, found: Found) -> None:
        """What a process did, in order."""
        for one in found.collectives:
            own = found.own.get(one.communicator)
            if own is None or not (one.sent or one.received):
                continue
            self._add(process, own, one)

    def match(self, until_ns: int | None) -> None:
        """Compare what has ended before a moment, all of which has come (None: everything)."""
        for messages in self._pairs.values():
            self._match(messages, until_ns)

    @property
    def untaken(self) -> Set[int]:
        """Processes with sums that were not taken."""
        return self._rows.keys()

    def take(self, process: int) -> tuple[PeerDelta, ...]:
        """The sums of a process since the last time."""
        rows = self._rows.pop(process, {})
        return tuple(
            PeerDelta(peer=peer, **msgspec.structs.asdict(sums)) for peer, sums in rows.items()
        )

    def _add(self, process: int, own: int, one: Collective) -> None:
        pairs = [(one.communicator, own, to) for to, _ in one.sent]
        pairs += [(one.communicator, source, own) for source in one.received]
        new = {pair for pair in pairs if pair not in self._pairs}
        if len(self._pairs) + len(new) > MAX_PAIRS:
            return
        self._pairs |= {pair: _Messages() for pair in new}
        kernel = _Kernel(process, one.start_ns, one.end_ns, len(pairs))
        for to, size_bytes in one.sent:
            part = _Part(one.start_ns, kernel, size_bytes)
            insert(self._pairs[one.communicator, own, to].sends, part, MAX_HELD)
        for source in one.received:
            part = _Part(one.start_ns, kernel)
            insert(self._pairs[one.communicator, source, own].receives, part, MAX_HELD)

    def _match(self, messages: _Messages, until_ns: int | None) -> None:
        while messages.sends and messages.receives:
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
                row = self._rows[kernel.process][partner.process]
                row.messages += 1
                row.bytes += size_bytes if kernel is sender else 0
                if not kernel.missing and not kernel.is_first:
                    came_ns = min(kernel.last_ns, kernel.end_ns)
                    waited = self._rows[kernel.process][kernel.last]
                    waited.wait_ns += max(0, came_ns - kernel.start_ns)
                    waited.matched_ns += kernel.end_ns - kernel.start_ns
                    waited.matched += 1
