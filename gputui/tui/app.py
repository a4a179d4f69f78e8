"""The application: events in, one drawing out; and a clean end, whatever ends it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType
from textual.driver import Driver

from gputui.base.sanitize import sanitize
from gputui.base.standard_streams import notification
from gputui.model.events import Alert, AnyEvent
from gputui.model.units import duration
from gputui.playback import AT_END_S
from gputui.report.alerts import alert_text
from gputui.report.explain.verdict import Headline
from gputui.state import Session
from gputui.state.session import Hosts
from gputui.tui.model import Model, Tables
from gputui.tui.shell.main import MainScreen
from gputui.tui.source import Connect, JobElsewhere, ManyHosts, Options, Playback, Runner, Source
from gputui.tui.themes import THEMES
from gputui.tui.threads import EventsReady, Threads
from gputui.tui.tour import Tour
from gputui.tui.widgets.line_view import FOR_READERS
from gputui.tui.widgets.run import state

if TYPE_CHECKING:
    from textual.timer import Timer

    from gputui.report.scope import RunScope
    from gputui.state import Run, Session
    from gputui.store.journal.writer import RecordingWriter


# The chosen steps of a run, read again from its recording.


def read_again(app: GputuiApp, run: Run, scope: RunScope) -> None:
    """Have the model take the tables of these steps once they are read, or why they are not."""
    from gputui.playback.opening import read_stretch
    from gputui.report.explain.time_tree import main_loops
    from gputui.report.scope import of_ranks

    path, source, ranks = app.recorded, app.model.source, app.model.ranks
    if path is None:
        app.model.take_stretch(scope, "there is no recording of it")
        return
    number, loops = run.started.run, main_loops(run)

    def read() -> Tables:
        found = read_stretch(str(path), number, loops, scope.first, scope.last)
        length = duration(found.run.duration_ns)
        of = of_ranks(found.run, ranks) if ranks else found.run
        return Tables(found.session, of, f"the scope, about {length}")

    def take(found: Tables | str) -> None:
        if app.model.source is source and app.model.ranks == ranks:
            app.model.take_stretch(scope, found)
            app.main.draw()

    def fail(reason: str) -> None:
        take("the scope cannot be read")
        app.main.refuse(reason)

    app.in_thread(read, take, fail)


# How often the screen is drawn: at each tick, unless drawing takes too much of a core.


SLOW_S = 0.1
"""CPU time of a drawing that is too much for each tick."""

_IN_A_ROW = 3
EVERY_S = 2.0


class Pace:
    """Draws when that is due. `clock` gives seconds, `spent` those of this thread on a core."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._spent = spent
        self._slow = 0
        self._next_s = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the screen is drawn every EVERY_S only."""
        return self._slow >= _IN_A_ROW

    def draw(self, draw: Callable[[], None]) -> float:
        """Draw, or not; the seconds until it is due again, 0 if it was drawn."""
        now_s = self._clock()
        if self.is_slow and now_s < self._next_s:
            return self._next_s - now_s
        began_s = self._spent()
        draw()
        took_s = self._spent() - began_s
        if took_s > SLOW_S:
            self._slow = min(_IN_A_ROW, self._slow + 1)
        elif took_s < SLOW_S / 2:
            self._slow = 0
        self._next_s = self._clock() + EVERY_S
        return 0.0


# Problems of the recording being played or written, reported once and kept in the model; and
# alerts, at once.


_LONGEST = 1000


class Remarks:
    """Adds them to the model, says them on the screen, and has the terminal `notify` of alerts."""

    def __init__(self, model: Model, main: MainScreen, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._model = model
        self._main = main
        self._told = 0
        self._told_home = False

    def of_alerts(self, events: Iterable[AnyEvent], where: str = "") -> None:
        """Those among live events, also while the screen is paused or shows a recording. `where`
        is put before the text."""
        for event in events:
            if isinstance(event, Alert):
                text = f"{where}{alert_text(event)}"
                self._main.tell(text, bad=event.raised)
                if event.raised:
                    self._notify(text)

    def of_playback(self, playback: Playback) -> None:
        """Where the recording is damaged, and whether more of it is to come."""
        text = "; ".join(playback.remarks)
        folder = str(Path(playback.name).parent)
        self._note(text if folder == "." else text.replace(f"{folder}/", ""), playback.has_ended)

    def of_recording(self, recording: RecordingWriter) -> None:
        """Why it stopped, and what was left out or removed to make room."""
        self._note(recording.failure or "", False)
        if len(recording.notices) > self._told:
            self._told = len(recording.notices)
            self._main.tell(sanitize(recording.notices[-1]))

    def of_home(self, recording: RecordingWriter) -> None:
        """Why the background recording stopped: reported once; the screen shows another source."""
        if recording.failure is not None and not self._told_home:
            self._told_home = True
            self._main.tell(sanitize(recording.failure, _LONGEST), bad=True)

    def _note(self, text: str, lost_end: bool) -> None:
        remark, before = sanitize(text, _LONGEST), self._model.remark
        if self._model.note(remark, lost_end=lost_end):
            self._main.refuse(remark)
        elif before and not remark:
            self._main.unsay(before)


# What a screen reader says between keys: a new run, the end of a run, a new verdict.


class News:
    """Remembers what it said last."""

    def __init__(self) -> None:
        self._headline = Headline()
        self._said: tuple[int, str, str] | None = None

    def of(self, model: Model) -> str:
        """A line about what is new; "" where nothing is."""
        run = model.run
        if run is None:
            is_first, self._said = self._said is None, (0, "", "")
            return "no run yet" if is_first else ""
        found = self._headline.update(run, model.found[0])
        word = found.word if found is not None else ""
        now = (run.started.run, run.outcome, word)
        if now == self._said:
            return ""
        before, self._said = self._said, now
        if found is not None and (before is None or before[2] != word):
            return f"{found.word}: {found.headline}"
        return f"{run.started.name} {state(run, lost_end=model.lost_end).words}"


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

    def drain(self) -> Sequence[AnyEvent]:
        """Fold in what the source emitted meanwhile, and return it. A paused replay emits
        nothing."""
        if self.source is None or isinstance(self.source, Playback):
            return ()
        if self.hosts is not None and isinstance(self.source, ManyHosts):
            self.hosts.apply(self.source.drain())
            return ()
        events = self.source.hub.drain()
        self.session.apply(events)
        return events

    def enter(self, model: Model) -> None:
        """Show this again; a live session goes on, a replay continues where it was."""
        self.drain()
        paused = False
        if isinstance(self.source, Playback):
            self.source.is_paused = paused = self.was_paused
        model.enter(self.source, self.session, "")
        model.failure, model.paused = self.failure, paused
        if self.hosts is not None:
            model.watch(self.hosts, self.host)


_FIRST_WAIT_S = 5.0
"""A recording without an event is shown after this, empty."""

MOST_HELD_EVENTS = 20_000
"""A paused screen holds this many events back; with more it folds them in, unseen."""

_CLOSE_WAIT_S = 5.0
_SHOW_CURSOR = "\x1b[?25h"


class GputuiApp(Threads):
    """The screen of a session. `connect` makes the source once the first frame is drawn."""

    CSS_PATH = Path(__file__).with_name("style.tcss")
    TITLE = "gputui"
    ENABLE_COMMAND_PALETTE = False
    # Text is copied by `y` and by the terminal's own selection. Textual's begins at whatever its
    # last layout had under the mouse: where that had just left the screen, a press ended gputui.
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        connect: Connect,
        session: Session,
        options: Options | None = None,
        *,
        driver_class: type[Driver] | None = None,
        starts: bool = True,
    ) -> None:
        """`starts` is false for a `connect` that gives a source which runs already."""
        self.options = options or Options()
        super().__init__(driver_class, ascii_only=self.options.ascii)
        self.animation_level = "none"
        self.outlives_terminal = self.options.keep_running
        self._news = News() if self.options.reader else None
        self.set_class(self.options.reader, FOR_READERS)
        self.model = Model(session, readonly=self.options.readonly)
        self.model.read_stretch = partial(read_again, self)
        self._connect_to = connect
        self._starts = starts
        self._connecting: threading.Thread | None = None
        self._held: list[AnyEvent] = []
        self._source: Source | None = None
        self._home: Home | None = None
        self._writing = False
        self._plays = False
        self._pace = Pace()
        self._due: Timer | None = None
        self.tour = Tour(self, leads=self.options.tour) if self.options.is_demo else None
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self.options.theme
        first = "overview" if self.options.shows_run else "devices"
        self.main = MainScreen(self.model, "hosts" if self.options.shows_hosts else first)
        main = self.main
        self._remarks = Remarks(self.model, main, self._notify_of)

    def get_default_screen(self) -> MainScreen:
        return self.main

    # --- the source

    def on_mount(self) -> None:
        self.call_after_refresh(self._connect)

    def on_ready(self) -> None:
        """What is there now stays: later collections need not look at it."""
        if self._news is not None:
            self.send(_SHOW_CURSOR)
        gc.freeze()
        gc.enable()

    def _connect(self) -> None:
        def connect() -> None:
            self._source = self._connect_to(self._notice)
            if self._starts:
                self._source.start()

        self._connecting = self.in_thread(connect, self._connected, self._not_connected)

    def _notice(self) -> None:
        self._post(EventsReady())

    def _connected(self, _: None) -> None:
        """The source runs; it may have spoken before."""
        self.model.source = self._source
        if self.tour is not None:
            self.tour.start()
        self._take()

    async def on_event(self, event: events.Event) -> None:
        """A key or a click ends the tour of the demo."""
        if self.tour is not None and isinstance(event, events.Key | events.MouseEvent):
            self.tour.take_over()
        await super().on_event(event)
        if self._news is not None and isinstance(event, events.Key):
            self.call_after_refresh(self.main.draw)

    def _not_connected(self, reason: str) -> None:
        """There is nothing to watch."""
        self.model.failure = reason
        self.main.refuse(reason)
        self.main.draw()

    def on_events_ready(self) -> None:
        """The one way from events to the screen."""
        if self.screen_stack:  # else it is being closed
            self._take()

    def _take(self) -> None:
        if self._home is not None and not self._writing:
            self._remarks.of_alerts(self._home.drain())
            if isinstance(self._home.source, Runner):
                self._remarks.of_home(self._home.source.recording)
        if self._source is None:
            return
        if isinstance(self._source, Playback):
            self._take_replayed(self._source)
            return
        if isinstance(self._source, ManyHosts):
            self._take_of_hosts(self._source)
            return
        events = self._source.hub.drain()
        self._remarks.of_alerts(events)
        # The session must hold still while an export reads it in a thread.
        if self._writing or (self.model.paused and len(self._held) < MOST_HELD_EVENTS):
            self._held.extend(events)
            return
        held, self._held = self._held, []
        self.model.apply([*held, *events])
        if isinstance(self._source, Runner):
            self._remarks.of_recording(self._source.recording)
        if not self.model.paused:
            self._draw()

    def _draw(self) -> None:
        """What came is on the screen now, or when it is due; for a screen reader where it is news,
        since every change is read out."""
        if self._news is not None:
            if text := self._news.of(self.model):
                self.main.say(text)
                self.main.draw()
            return
        was_slow = self._pace.is_slow
        wait_s = self._pace.draw(self.main.draw)
        if wait_s and self._due is None:
            self._due = self.set_timer(wait_s, self._draw_late)
        if self._pace.is_slow and not was_slow:
            self.main.tell("drawing takes over 100 ms of CPU: from here on every 2 s, and at keys")

    def _draw_late(self) -> None:
        self._due = None
        self._draw()

    def _notify_of(self, text: str) -> None:
        if self.options.notify:
            self.send(notification(self.options.notify, text))

    def _take_of_hosts(self, source: ManyHosts) -> None:
        """Of hosts the source itself holds back what a paused screen does not take."""
        if self._writing or (self.model.paused and source.waiting < MOST_HELD_EVENTS):
            return
        if self.model.hosts is None:  # news may come before the word that it is connected
            self.model.watch(Hosts(source.names), source.names[0])
        news = source.drain()
        for one in news:
            self._remarks.of_alerts(one.events, f"{one.host}: ")
            if one.link is not None and one.link.state == "up" and one.link.reason:
                self.main.refuse(f"{one.host}: {one.link.reason}")
        self.model.apply_news(news)
        if not self.model.paused:
            self._draw()

    def _take_replayed(self, playback: Playback) -> None:
        """A replay that is halted makes no events but those that were asked for: none is held."""
        if self._writing:
            return  # what waits is taken when the export has ended
        session, events = playback.drain()
        if isinstance(playback, JobElsewhere):  # of a replay they are of then
            self._remarks.of_alerts(events)
        if session is not None:
            self.model.show(session)
        self.model.apply(events)
        self.model.paused = playback.is_paused
        self._remarks.of_playback(playback)
        if playback.has_ended and self._plays and self.tour is None:
            self.main.say(
                "the end of the recording: space plays it again, 2 and 3 look around in it"
            )
        self._plays = not playback.has_ended and playback.position_s > 0
        self._draw()

    def pause(self) -> None:
        """Freeze the screen, or go on with all that came meanwhile; a replay's time itself, which
        begins again after its end."""
        if isinstance(self._source, Playback) and self._source.has_ended and not self.model.paused:
            self._source.seek(0.0)
            return
        self.model.paused = not self.model.paused
        if isinstance(self._source, Playback):
            self._source.is_paused = self.model.paused
        if not self.model.paused:
            self._take()

    # --- recordings, opened and left again

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
            self._take()  # what came so far was told while another source was shown

        from gputui.store.recordings import recording_name

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

    # --- exports

    def write_in_thread(
        self, work: Callable[[], str], then: Callable[[str], None], failed: Callable[[str], None]
    ) -> None:
        """As `in_thread`, while the session holds still."""
        self._writing = True

        def after(told: Callable[[str], None]) -> Callable[[str], None]:
            def end(text: str) -> None:
                self._writing = False
                self._take()
                told(text)

            return end

        self.in_thread(work, after(then), after(failed))

    @property
    def recorded(self) -> Path | None:
        """The file of what is shown."""
        if isinstance(self._source, Runner):
            return self._source.recording.path
        path = Path(self._source.name) if isinstance(self._source, Playback) else None
        return path if path is not None and path.is_file() else None

    # --- the end

    def last_session(self) -> Session | None:
        """What this program was started to show, with all that came until its source was closed;
        None in the middle of a replay."""
        session = self.model.session if self._home is None else self._home.session
        source = self.home_source
        if isinstance(source, Playback):
            return session if source.has_ended else None
        if source is not None:
            session.apply([*self._held, *source.hub.drain()])
        return session

    @property
    def recording(self) -> RecordingWriter | None:
        """Where what went on live is recorded."""
        source = self.home_source
        return source.recording if isinstance(source, Runner) else None

    def await_source(self) -> None:
        """Wait for one that is just being made."""
        if self._connecting is not None:
            self._connecting.join(_CLOSE_WAIT_S)

    def close_source(self) -> bool:
        """Close the source, also one that is just being made; whether nothing is left behind."""
        self.await_source()
        if self._home is not None and self._source is not None:
            self._source.close()
        source = self.home_source
        return True if source is None else source.close()
