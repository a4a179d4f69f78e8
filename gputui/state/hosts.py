"""The sessions of several hosts: each its own, with its own clock and its own numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gputui.model.events import AnyEvent
from gputui.model.link import Link
from gputui.state.gpu import Gpu
from gputui.state.session import Session


class GpuKey(NamedTuple):
    """A GPU among those of several hosts: within one, its index is enough."""

    host: str
    gpu: int


class HostNews(NamedTuple):
    """What came from one host: how its link is, or events of it."""

    host: str
    link: Link | None = None
    events: tuple[AnyEvent, ...] = ()


class Host:
    """One host: its link and its session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link = Link()
        self.session = Session()

    @property
    def is_up(self) -> bool:
        """Whether its figures are of now."""
        return self.link.state == "up" and self.session.header is not None


class Hosts(dict[str, Host]):
    """Every host by its name, in the order in which they were named."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__((name, Host(name)) for name in names)

    def apply(self, news: Iterable[HostNews]) -> None:
        """Fold what came, in order."""
        for one in news:
            host = self[one.host]
            if one.link is not None:
                host.link = one.link
            host.session.apply(one.events)

    def gpus(self) -> Iterator[tuple[GpuKey, Gpu]]:
        """The GPUs of all hosts."""
        for host in self.values():
            for index, gpu in sorted(host.session.gpus.items()):
                yield GpuKey(host.name, index), gpu
