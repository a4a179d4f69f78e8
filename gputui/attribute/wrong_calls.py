"""Operations whose correlation id names a call that cannot have launched them.

CUPTI 13.0 was seen (H100) to give every call and kernel of a program the same id, for good, once it
had been switched on and off in it several times.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Slots, times_ns
from gputui.attribute.calls import Calls, Found
from gputui.attribute.collection import Collection, DeltaParts
from gputui.ring.layout import RecordKind

CLOCKS_NS = 1_000_000
"""The most that CUPTI is taken to be wrong by where it puts a GPU's times on the CPU's clock."""

FEW = 50
"""In one batch: a clock that was set does as much."""


class WrongCalls:
    """Finds them in one process."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._count = 0
        self.since_ns: int | None = None
        """When most operations began to have a wrong call; None while few have."""

    def among(self, records: Slots, found: Found) -> Bools:
        """Which operations have a call that was made after they began, or that launches one kernel
        and had it."""
        began = times_ns(records["start"])
        later = (began > 0) & (found.calls["start"] > began + CLOCKS_NS)
        again = ~found.first & (records["kind"] == RecordKind.KERNEL)
        again &= self._calls.single_launches[found.calls["name"]]
        wrong: Bools = found.found & (later | again)
        if wrong.any():
            self._count += (count := int(np.count_nonzero(wrong)))
            if self.since_ns is None and count > max(FEW, len(records) // 2):
                self.since_ns = int(began[wrong].min())
        return wrong

    def collect_parts(self, _: Collection) -> DeltaParts:
        """How many operations named a call that cannot have launched them."""
        count, self._count = self._count, 0
        return {"contradicted": count}
