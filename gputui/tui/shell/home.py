"""What a screen shows when no recording is opened on it, kept going while one is."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.state import Session
from gputui.tui.source import Playback, Source
from gputui.tui.widgets.view import Model


@dataclass(slots=True)
class Home:
    """A source and its session, out of sight."""

    source: Source | None
    session: Session
    failure: str
    was_paused: bool

    @classmethod
    def leave(cls, source: Source | None, model: Model) -> Home:
        """Keep what `model` shows. A replay is halted meanwhile."""
        home = cls(source, model.session, model.failure, model.paused)
        if isinstance(source, Playback):
            source.is_paused = True
        return home

    def take(self) -> None:
        """Fold in what the source saw meanwhile. Of a replay, which stands still, all waits."""
        if self.source is not None and not isinstance(self.source, Playback):
            self.session.apply(self.source.hub.take())

    def enter(self, model: Model) -> None:
        """Show this again; a live session goes on, a replay as it was left."""
        self.take()
        paused = False
        if isinstance(self.source, Playback):
            self.source.is_paused = paused = self.was_paused
        model.enter(self.source, self.session, "")
        model.failure, model.paused = self.failure, paused
