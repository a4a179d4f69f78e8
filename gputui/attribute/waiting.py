"""Operations whose call has not arrived.

Which range they belong to waits for the call; that a device was busy does not.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, UInt32s, pick, stack, times_ns
from gputui.ring.layout import SLOT

WAIT_NS = 30_000_000_000
MAX_WAITING = 500_000
"""They wait this long, or until this many others wait."""


class Waiting:
    """Their records, when each was read, and what was counted of them already: that it `ran`, and
    that it was `accounted` for.
    """

    def __init__(self) -> None:
        self.records = np.empty(0, SLOT)
        self._read_ns: Int64s = np.empty(0, np.int64)
        self.ran: Bools = np.empty(0, np.bool_)
        self.accounted: Bools = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, records: Slots, ran: Bools, accounted: Bools, now_ns: int) -> None:
        """Add operations, and what was counted of them."""
        self.records = stack((self.records, records))
        self._read_ns = np.append(self._read_ns, np.full(len(records), now_ns))
        self.ran = np.append(self.ran, ran)
        self.accounted = np.append(self.accounted, accounted)

    def take(self, chosen: Bools) -> tuple[Slots, Bools, Bools]:
        """Remove some: their records, and what was counted of them."""
        taken = pick(self.records, chosen), self.ran[chosen], self.accounted[chosen]
        kept = ~chosen
        self.records, self._read_ns = pick(self.records, kept), self._read_ns[kept]
        self.ran, self.accounted = self.ran[kept], self.accounted[kept]
        return taken

    def answered(self, correlations: UInt32s) -> Bools:
        """Which have their call among these."""
        return np.isin(self.records["correlation"], correlations)

    def late(self, now_ns: int) -> Bools:
        """Which have waited long enough, or are too many."""
        late: Bools = self._read_ns < now_ns - WAIT_NS
        late[: max(0, len(late) - MAX_WAITING)] = True
        return late

    def begun(self, until_ns: int | None) -> Bools:
        """Which began up to a moment, at which every call had arrived; None if nothing comes."""
        if until_ns is None:
            return np.ones(len(self), np.bool_)
        begun: Bools = times_ns(self.records["start"]) <= until_ns
        return begun
