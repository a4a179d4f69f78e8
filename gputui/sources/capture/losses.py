"""What of a process was lost, by cause."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gputui.events import Loss
from gputui.sources.capture.arrays import Slots
from gputui.sources.capture.strings import Strings

MAX_DOMAINS = 64
"""Domains that are told apart."""

OTHER_DOMAINS = "(other domains)"


class Losses:
    """Counts the pushes that the library refused, by domain, and joins the other causes to them."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._domains: set[str] = set()
        self._refused: Counter[str] = Counter()
        self._places = 0

    def refuse(self, records: Slots) -> None:
        """Take in REFUSED records."""
        for number, count in zip(*np.unique(records["a"], return_counts=True), strict=True):
            domain = self._strings.domain(int(number))
            if domain not in self._domains and len(self._domains) >= MAX_DOMAINS:
                domain = OTHER_DOMAINS
            self._domains.add(domain)
            self._refused[domain] += int(count)

    def collect(self, ring: int, unread: int, cupti: int, places: int) -> tuple[Loss, ...]:
        """What was lost since the last call. `places` is how many records found no place in the
        reader so far."""
        found = [Loss("ring", "", ring), Loss("unread", "", unread), Loss("cupti", "", cupti)]
        found.append(Loss("places", "", places - self._places))
        found += [Loss("domains", domain, count) for domain, count in self._refused.items()]
        self._refused.clear()
        self._places = places
        return tuple(loss for loss in found if loss.records)
