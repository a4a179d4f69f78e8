"""What the person watching a replay asked for, and the thread that plays it has yet to do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputui.playback.targets import Place

MINIMUM_SPEED = 0.25
MAXIMUM_SPEED = 64.0

Target = Callable[[], Place | None]
"""Where to go, found by the thread that plays: None where that is not known yet."""


class Requests:
    """Every method returns at once, except those that wait. `lock` guards all of it."""

    def __init__(self, speed: float, *, follows: bool) -> None:
        self.lock = threading.Condition()
        self.speed = 1.0
        self.set_speed(speed)
        self.paused = False
        self.closing = False
        self.follows = follows
        """Whether the newest event is shown as soon as it is there."""
        self.target: Target | None = None
        """Of the jump to make."""
        self.steps = 0
        """Samples to go on by."""

    @property
    def is_any(self) -> bool:
        """Whether there is more to do than to play on."""
        return self.closing or self.target is not None or self.steps > 0

    def set_speed(self, speed: float) -> None:
        with self.lock:
            self.speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
            self.lock.notify_all()

    def pause(self, paused: bool) -> None:
        with self.lock:
            self.paused = paused
            if paused:
                self.follows = False
            self.lock.notify_all()

    def close(self) -> None:
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    def step(self, ticks: int) -> None:
        """Pause, and go on by this many samples."""
        with self.lock:
            self.paused, self.follows = True, False
            self.steps += ticks
            self.lock.notify_all()

    def go(self, target: Target) -> None:
        with self.lock:
            self.target = target
            self.follows = False
            self.lock.notify_all()

    def go_on(self, here: Callable[[], int], following: Callable[[int], Place | None]) -> None:
        """Go to where `following` leads from `here`, or from the target of a jump under way."""
        with self.lock:
            before, followed = self.target, self.follows

            def target() -> Place | None:
                start = Place(here(), followed) if before is None else before()
                place = None if start is None else following(start.number)
                if start is not None and place is not None and place.number == start.number:
                    return place._replace(follows=place.follows or start.follows)
                return place

            self.go(target)

    # --- for the thread that plays

    def take(self, target: Target, place: Place) -> bool:
        """Whether `target`, found to be at `place`, is still where to go; it is done with then."""
        with self.lock:
            if self.target is not target:
                return False
            self.target, self.follows = None, place.follows and not self.paused
            return True

    def stepped(self) -> None:
        """One step is done."""
        with self.lock:
            self.steps = max(0, self.steps - 1)

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until there is a request, or `until` holds."""
        with self.lock:
            self.lock.wait_for(lambda: self.is_any or until())

    def wait_for_other(self, target: Target, timeout_s: float) -> None:
        """Until another jump is requested."""
        with self.lock:
            self.lock.wait_for(lambda: self.target is not target or self.closing, timeout_s)
