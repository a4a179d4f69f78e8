"""What the screen shows beside what it was started for: recordings, opened and left again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.playback import AT_END_S
from gputui.state import Session
from gputui.state.session import Hosts
from gputui.tui.model import Model
from gputui.tui.source import ManyHosts, Options, Playback, Runner, Source
from gputui.tui.threads import Threads

if TYPE_CHECKING:
    from gputui.model.events import AnyEvent
    from gputui.state import Run
    from gputui.tui.shell.main import MainScreen


# The live source and session, kept running in the background while a recording is open.


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


_FIRST_WAIT_S = 5.0
"""A recording without an event is shown after this, empty."""


class Visits(Threads):
    """An application whose source can be left for a recording."""

    options: Options
    model: Model
    main: MainScreen
    _source: Source | None = None
    _home: Home | None = None
    _held: list[AnyEvent]

    def _take(self) -> None:
        raise NotImplementedError

    def _notice(self) -> None:
        raise NotImplementedError

    @property
    def home_source(self) -> Source | None:
        """What this program was started to show, also while a recording is opened."""
        return self._source if self._home is None else self._home.source

    @property
    def run_to_end(self) -> Run | None:
        """The run that ends with this program, None where none is active."""
        session = self.model.session if self._home is None else self._home.session
        active = session.run is not None and session.run.is_active
        return session.run if active and isinstance(self.home_source, Runner) else None

    @property
    def is_starting_run(self) -> bool:
        """Whether a run was asked for whose start is not known here yet: leaving ends it, too."""
        source = self.home_source
        if source is None:
            return self.options.starts_run and not self.model.failure
        return isinstance(source, Runner) and source.has_run and self.run_to_end is None

    def visit(self, path: Path, *, follow: bool) -> None:
        """Play a recording on this screen; what is at home goes on. `follow` one that is being
        written."""
        if self._source is None and not self.model.failure:
            self.main.say("still starting")
            return

        def shown(playback: Playback) -> None:
            if self._home is None:
                self.model.session.apply(self._held)
                self._held = []
                # `b` leads back to where a recording was opened.
                self._home = Home.leave(self._source, self.model, self.main.current)
            elif self._source is not None:
                self._source.close()
            self._source = playback
            self.model.enter(playback, Session(), recording_name(path))
            self.main.show_run()

        from gputui.store.library import recording_name

        def failed(reason: str) -> None:
            self.main.refuse(reason.replace(f"{path.parent}/", ""))

        start_s = 0.0 if follow else AT_END_S
        self.in_thread(lambda: self._opened(path, start_s, follow), shown, failed)

    def play(self, path: Path, start_s: float, speed: float = 1.0) -> None:
        """Show another recording in place of the one that is played."""

        def shown(playback: Playback) -> None:
            if self._home is not None:  # meanwhile a person opened another one
                playback.close()
                return
            if self._source is not None:
                self._source.close()
            self._source = playback
            self.model.enter(playback, Session(), "")
            self._take()

        opened = partial(self._opened, path, start_s, speed=speed)
        self.in_thread(opened, shown, self.main.refuse)

    def _opened(
        self, path: Path, start_s: float, follow: bool = False, speed: float = 1.0
    ) -> Playback:
        """A playback that has something to show."""
        from gputui.playback.player import Playback as Player

        first = threading.Event()

        def notice() -> None:
            first.set()
            self._notice()

        playback: Playback = Player.open(
            str(path), notice, speed=speed, start_s=start_s, follow=follow
        )
        playback.start()
        if not follow:
            first.wait(_FIRST_WAIT_S)
        return playback

    def go_home(self) -> None:
        """Close the recording that was opened and show what goes on at home."""
        if self._home is None:
            self.main.say("no recording was opened from here: 7 shows those there are")
            return
        if self._source is not None:
            self._source.close()
        home, self._home = self._home, None
        self._source = home.source
        home.enter(self.model)
        self._take()
        self.main.run_worker(self.main.go_back(home.view))
