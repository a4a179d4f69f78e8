"""The difference between two hosts' clocks, from round trips over the link."""

from __future__ import annotations

from collections import deque

from gputui.model.link import ClockOffset

ROUND_TRIPS = 8
"""The quickest of these counts: what delays one trip delays it in one direction."""


class ClockEstimate:
    """Offsets of the newest round trips (Cristian, 1989: the other clock was read between the
    question and its answer; the middle is the estimate, half the round trip its error).
    """

    def __init__(self) -> None:
        self._trips: deque[ClockOffset] = deque(maxlen=ROUND_TRIPS)

    def add(self, asked_ns: int, there_ns: int, answered_ns: int) -> None:
        """A round trip; one that ends before it began is a clock that was set, or a lie."""
        if answered_ns >= asked_ns:
            middle_ns = (asked_ns + answered_ns) // 2
            self._trips.append(ClockOffset(there_ns - middle_ns, (answered_ns - asked_ns + 1) // 2))

    @property
    def best(self) -> ClockOffset | None:
        """None before the first."""
        return min(self._trips, key=lambda trip: trip.error_ns, default=None)
