"""Pushes and pops by the level they state, with dropped ones filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, times_ns
from gputui.ring.layout import RecordKind

MAX_LEVEL = 128
"""Deeper ranges belong to the one at this level."""


@dataclass(slots=True)
class Transitions:
    """Pushes and pops of several stacks, stack after stack. `source` is the record of each."""

    group: Int64s
    level: Int64s
    is_push: Bools
    lost: Bools
    times_ns: Int64s
    source: Int64s

    @classmethod
    def of(cls, records: Slots, group: Int64s) -> Transitions:
        return cls(
            group=group,
            level=records["d"].astype(np.int64) + 1,
            is_push=records["kind"] == RecordKind.RANGE_PUSH,
            lost=np.zeros(len(records), np.bool_),
            times_ns=times_ns(records["start"]),
            source=np.arange(len(records)),
        )

    def depths(self) -> Int64s:
        """How many ranges are open after each one."""
        return np.where(self.is_push, self.level, self.level - 1)

    def mended(self, previous: Int64s, before: Int64s, firsts: Int64s) -> Transitions:
        """Fill in what was lost.

        `previous` is the depth after the preceding one, `before` that of each stack at its first.
        """
        previous[firsts] = before
        needed = np.where(self.is_push, self.level - 1, self.level)
        wrong = previous != needed
        if not wrong.any():
            return self
        # A pop of a range that was never seen open is left out; it refers to the ranges around it.
        unseen = ~self.is_push & (previous < needed)
        at = np.minimum(previous, MAX_LEVEL)
        to = np.minimum(needed - unseen, MAX_LEVEL)
        counts = np.abs(to - at) + ~unseen
        source = np.repeat(self.source, counts)
        offset = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        lost = offset < np.abs(to - at)[source]
        opens = (to > at)[source]
        levels = np.where(opens, at[source] + 1 + offset, at[source] - offset)
        return Transitions(
            group=self.group[source],
            level=np.where(lost, levels, self.level[source]),
            is_push=np.where(lost, opens, self.is_push[source]),
            lost=lost,
            times_ns=self.times_ns[source],
            source=source,
        )
