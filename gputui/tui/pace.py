"""How often the screen is drawn: at each tick, unless drawing takes too much of a core."""

from __future__ import annotations

import time
from collections.abc import Callable

SLOW_S = 0.1
"""CPU time of a drawing that is too much for each tick."""

_IN_A_ROW = 3
EVERY_S = 2.0


class Pace:
    """Draws when that is due. `clock` gives seconds, `spent` those of this thread on a core."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._spent = spent
        self._slow = 0
        self._next_s = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the screen is drawn every EVERY_S only."""
        return self._slow >= _IN_A_ROW

    def draw(self, draw: Callable[[], None]) -> float:
        """Draw, or not; the seconds until it is due again, 0 if it was drawn."""
        now_s = self._clock()
        if self.is_slow and now_s < self._next_s:
            return self._next_s - now_s
        began_s = self._spent()
        draw()
        took_s = self._spent() - began_s
        if took_s > SLOW_S:
            self._slow = min(_IN_A_ROW, self._slow + 1)
        elif took_s < SLOW_S / 2:
            self._slow = 0
        self._next_s = self._clock() + EVERY_S
        return 0.0
