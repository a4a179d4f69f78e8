"""The sessions of several hosts, each with its own clock and its own numbers, and how the link to
each of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gputui.model.events import AnyEvent
from gputui.model.units import duration
from gputui.state.history import HISTORY_SAMPLES
from gputui.state.session import Session

# How the link to another host is.

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


LEAST_SAMPLES = 300
"""Kept of each GPU, however many hosts there are: five minutes at one a second."""


class HostNews(NamedTuple):
    """What came from one host: how its link is, or events of it. With `begins_anew` what follows
    is of another recording, whose numbers are its own.
    """

    host: str
    link: Link | None = None
    events: tuple[AnyEvent, ...] = ()
    begins_anew: bool = False


class Host:
    """One host: its link and its session."""

    def __init__(self, name: str, most_samples: int = HISTORY_SAMPLES) -> None:
        self.name = name
        self.link = Link()
        self._most_samples = most_samples
        self.begin()

    def begin(self) -> None:
        """Start an empty session: the far end began anew."""
        self.session = Session(most_samples=self._most_samples)

    @property
    def is_up(self) -> bool:
        """Whether its figures are of now."""
        return self.link.state == "up" and self.session.header is not None


class Hosts(dict[str, Host]):
    """Every host by its name, in the order in which they were named. A GPU of several hosts is
    identified by its host's name and its index there.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # Single samples of many hosts would fill gigabytes, to be averaged in any longer chart.
        most = max(LEAST_SAMPLES, HISTORY_SAMPLES // max(1, len(names)))
        super().__init__((name, Host(name, most)) for name in names)

    def apply(self, news: Iterable[HostNews]) -> None:
        """Fold what came, in order."""
        for item in news:
            host = self[item.host]
            if item.begins_anew:
                host.begin()
            if item.link is not None:
                host.link = item.link
            host.session.apply(item.events)
