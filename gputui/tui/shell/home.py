"""The live source and session, kept running in the background while a recording is open."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.state import Session
from gputui.tui.source import Playback, Source
from gputui.tui.widgets.view import Model


@dataclass(slots=True)
class Home:
    """A source and its session, in the background."""

    source: Source | None
    session: Session
    failure: str
    was_paused: bool

    @classmethod
    def leave(cls, source: Source | None, model: Model) -> Home:
        """Keep what `model` shows. A replay is paused meanwhile."""
        home = cls(source, model.session, model.failure, model.paused)
        if isinstance(source, Playback):
            source.is_paused = True
        return home

    def take(self) -> None:
        """Fold in what the source emitted meanwhile. A paused replay emits nothing."""
        if self.source is not None and not isinstance(self.source, Playback):
            self.session.apply(self.source.hub.take())

    def enter(self, model: Model) -> None:
        """Show this again; a live session goes on, a replay continues where it was."""
        self.take()
        paused = False
        if isinstance(self.source, Playback):
            self.source.is_paused = paused = self.was_paused
        model.enter(self.source, self.session, "")
        model.failure, model.paused = self.failure, paused
