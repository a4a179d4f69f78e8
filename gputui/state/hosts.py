"""The sessions of several hosts: each its own, with its own clock and its own numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputui.model.events import AnyEvent
from gputui.model.link import Link
from gputui.state.long_history import HISTORY_SAMPLES
from gputui.state.session import Session

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
        """Forget what came."""
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
        for one in news:
            host = self[one.host]
            if one.begins_anew:
                host.begin()
            if one.link is not None:
                host.link = one.link
            host.session.apply(one.events)
