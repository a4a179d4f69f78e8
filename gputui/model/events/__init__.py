"""The vocabulary: every event a source can emit, one small typed record each.

Sources emit these, the session folds them, the journal stores them as JSON lines. All times
are nanoseconds of CLOCK_REALTIME since the epoch (`time.time_ns()`), the clock that CUPTI and
the capture library stamp with, so that samples, ranges and kernels share one axis.

What is missing is `None`, never 0; why it is missing travels in `GpuUnavailable` and
`HostUnavailable`, which a source emits only when the reasons change.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model.events.base import *
from gputui.model.events.capture import *
from gputui.model.events.capture_parts import *
from gputui.model.events.distributions import *
from gputui.model.events.gpu import *
from gputui.model.events.machine import *
from gputui.model.events.run import *

AnyEvent = Event
"""What a source emits and a session folds."""


def _kinds(base: type[Event]) -> Iterator[type[Event]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


WRITTEN_KINDS: tuple[type[Event], ...] = tuple(_kinds(Event))
"""Every kind of event that a recording may hold."""

KINDS: tuple[type[Event], ...] = tuple(kind for kind in WRITTEN_KINDS if kind is not CaptureSum)
"""The events that sources emit. Sums are not among them: whoever writes a recording adds them."""
