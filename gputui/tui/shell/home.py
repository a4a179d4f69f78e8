"""The live source and session, kept running in the background while a recording is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gputui.state import Session
from gputui.state.session import Hosts
from gputui.tui.model import Model
from gputui.tui.source import ManyHosts, Playback, Source

if TYPE_CHECKING:
    from gputui.model.events import AnyEvent


@dataclass(slots=True)
class Home:
    """A source and its session, in the background."""

    source: Source | None
    session: Session
    failure: str
    was_paused: bool
    view: str
    """The view that a recording was opened from."""
    hosts: Hosts | None = None
    host: str = ""

    @classmethod
    def leave(cls, source: Source | None, model: Model, view: str) -> Home:
        """Keep what `model` shows. A replay is paused meanwhile."""
        home = cls(
            *(source, model.session, model.failure, model.paused, view, model.hosts, model.host)
        )
        if isinstance(source, Playback):
            source.is_paused = True
        return home

    def take(self) -> Sequence[AnyEvent]:
        """Fold in what the source emitted meanwhile, and return it. A paused replay emits
        nothing."""
        if self.source is None or isinstance(self.source, Playback):
            return ()
        if self.hosts is not None and isinstance(self.source, ManyHosts):
            self.hosts.apply(self.source.take())
            return ()
        events = self.source.hub.drain()
        self.session.apply(events)
        return events

    def enter(self, model: Model) -> None:
        """Show this again; a live session goes on, a replay continues where it was."""
        self.take()
        paused = False
        if isinstance(self.source, Playback):
            self.source.is_paused = paused = self.was_paused
        model.enter(self.source, self.session, "")
        model.failure, model.paused = self.failure, paused
        if self.hosts is not None:
            model.watch(self.hosts, self.host)
