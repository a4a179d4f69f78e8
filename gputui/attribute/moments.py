"""Which times of operations can be meant.

CUPTI reports 0 for a time that it could not take. Of operations that a program leaves behind when
it ends, queued or half done, it reports times that no clock of the machine ever showed: centuries
ago, or ahead (of FP64 products left on an H100). One of these made all time before it idle.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Slots
from gputui.attribute.collection import Collection, DeltaParts

MARGIN_NS = 3_600_000_000_000
"""Nothing is meant that began so long before the process's first call, or ended so long after it
was read; clocks may be set."""


class PlausibleTimes:
    """The first call of a process and operations in, operations with times that are meant out."""

    def __init__(self) -> None:
        self._earliest_ns = 0
        self._wrong = 0

    def collect_parts(self, _: Collection) -> DeltaParts:
        """How many operations had times that cannot be meant; those without times do not count."""
        wrong, self._wrong = self._wrong, 0
        return {"wrong_times": wrong}

    def check_times(self, operations: Slots, new_calls: Slots, now_ns: int) -> Slots:
        """Operations that came after these calls and were read at `now_ns`, their times 0 where
        they cannot be meant."""
        if not self._earliest_ns and len(new_calls):
            self._earliest_ns = max(1, int(new_calls["start"].min()) - MARGIN_NS)
        latest_ns = np.uint64(now_ns + MARGIN_NS)
        wrong = operations["start"] < np.uint64(self._earliest_ns)
        wrong |= (operations["start"] > latest_ns) | (operations["end"] > latest_ns)
        if wrong.any():
            self._wrong += int(np.count_nonzero(operations["start"][wrong]))
            operations = operations.copy()
            operations["start"][wrong] = operations["end"][wrong] = 0
        return operations
