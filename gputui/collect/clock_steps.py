"""Wall clocks that are set while gputui watches, as by NTP after a start with a wrong time."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_NS = 50_000_000
"""What NTP corrects it slews, at most 0.5 ms a second, unless it is off by more (ntpd 128 ms)."""

_CLOSE_NS = 5_000_000
"""Two readings this far apart, or more, had another process between them."""


def _steady_ns() -> int:
    # Not CLOCK_MONOTONIC, which stands still while the machine sleeps.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ClockSteps:
    """How far the wall clock ran away from one that is never set, from reading to reading."""

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = _steady_ns
    ) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_ns: int | None = None

    def read(self) -> int | None:
        """How far it was set since the last reading; None where it was not."""
        before_ns = self._steady()
        wall_ns = self._wall()
        if self._steady() - before_ns >= _CLOSE_NS:
            return None  # the next reading has it
        ahead_ns = wall_ns - before_ns
        step_ns = 0 if self._ahead_ns is None else ahead_ns - self._ahead_ns
        self._ahead_ns = ahead_ns
        return step_ns if abs(step_ns) >= LEAST_NS else None
