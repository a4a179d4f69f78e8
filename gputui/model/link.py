"""How the link to another host is."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gputui.model.units import duration

State = Literal["connecting", "up", "lost", "failed", "ended"]
"""`lost`: it was up, or will be tried again. `failed`: trying again would change nothing. `ended`:
the run that was followed is over, and all of it was read.
"""


class ClockOffset(NamedTuple):
    """That host's clock less this one's, from the quickest of some round trips."""

    offset_ns: int
    error_ns: int
    """Half of that round trip: the true offset lies within this of `offset_ns`."""

    @property
    def text(self) -> str:
        """ "+26 µs ± 60 µs"."""
        sign = "\N{MINUS SIGN}" if self.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(self.offset_ns))} ± {duration(self.error_ns)}"


class Link(NamedTuple):
    """The link to one host, as this end sees it."""

    state: State = "connecting"
    reason: str = ""
    """One line: why it is lost or has failed; while it is up, what is missing."""
    since_ns: int = 0
    """Since when it has been so, by this end's clock."""
    clock: ClockOffset | None = None
