"""Which times of operations can be meant.

CUPTI reports 0 for a time that it could not take. Of operations that a program leaves behind when
it ends, it reports a start that no clock of the machine ever showed.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Slots

BEFORE_CALLS_NS = 3_600_000_000_000
"""Nothing is meant that began so long before the process's first call; clocks may be set."""


class Moments:
    """The first call of a process and operations in, operations with times that are meant out."""

    def __init__(self) -> None:
        self._earliest_ns = 0

    def of(self, operations: Slots, new_calls: Slots) -> Slots:
        """Operations that came after these calls, their times 0 where they cannot be meant."""
        if not self._earliest_ns and len(new_calls):
            self._earliest_ns = max(1, int(new_calls["start"].min()) - BEFORE_CALLS_NS)
        wrong = operations["start"] < np.uint64(self._earliest_ns)
        if wrong.any():
            operations = operations.copy()
            operations["start"][wrong] = operations["end"][wrong] = 0
        return operations
