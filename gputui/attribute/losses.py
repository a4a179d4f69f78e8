"""What was lost of a process, by cause."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np

from gputui.attribute.arrays import Slots, times_ns
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.intervals import Holes
from gputui.attribute.records import Strings
from gputui.model.events import Loss
from gputui.ring.layout import REFUSED_DEFERRED

MAX_DOMAINS = 64
"""Domains counted separately."""

OTHER_DOMAINS = "(other domains)"

MOST_EVENTS = 1 << 32
"""More deferred events than any call submits: a bound for a corrupted ring."""


class Losses:
    """Counts what the library refused, by domain, and adds the other causes."""

    def __init__(self, strings: Strings, unknown: Holes) -> None:
        """What was lost of the devices is added to `unknown`."""
        self._strings = strings
        self._unknown = unknown
        self._flushed_ns = 0
        self.holes = Holes()
        """When records were lost."""
        self._domains: set[str] = set()
        self._refused: Counter[tuple[Literal["domains", "deferred"], str]] = Counter()
        self._unplaced = 0

    def refuse(self, records: Slots) -> None:
        """Count REFUSED records: what the library did not take, by cause and domain."""
        deferred = records["sub"] == REFUSED_DEFERRED
        counts = np.where(deferred, np.clip(records["value"], 1, MOST_EVENTS), 1)
        keys, rows = np.unique(records["a"].astype(np.int64) << 1 | deferred, return_inverse=True)
        sums = np.bincount(rows, counts, len(keys)).astype(np.int64)
        for key, count in zip(keys.tolist(), sums.tolist(), strict=True):
            domain = self._strings.domain(key >> 1)
            if domain not in self._domains and len(self._domains) >= MAX_DOMAINS:
                domain = OTHER_DOMAINS
            self._domains.add(domain)
            self._refused["deferred" if key & 1 else "domains", domain] += count

    def lose(self, records: Slots, flushes: Slots) -> None:
        """Add LOST records. What ran on the devices is written at the next flush: since the one
        before it may be missing."""
        asked = times_ns(flushes["start"])
        records = records[records["value"] > 0]  # of 0, another thread's said it
        for start, end in zip(
            times_ns(records["start"]).tolist(), times_ns(records["end"]).tolist(), strict=True
        ):
            before = int(asked[asked < start].max(initial=self._flushed_ns))
            self.holes.add(start, end)
            self._unknown.add(min(before or start, start), end)
        if len(asked):
            self._flushed_ns = max(self._flushed_ns, int(asked.max()))

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Losses of every cause, and how many records they are."""
        ring = collection.ring
        losses = [
            Loss("ring", "", ring.dropped),
            Loss("unread", "", collection.unread),
            Loss("cupti", "", ring.cupti_dropped),
            Loss("places", "", collection.unplaced - self._unplaced),
            *(Loss(cause, domain, count) for (cause, domain), count in self._refused.items()),
        ]
        self._refused.clear()
        self._unplaced = collection.unplaced
        return {
            "losses": tuple(loss for loss in losses if loss.records),
            "dropped": sum(loss.records for loss in losses),
        }
