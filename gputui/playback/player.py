"""Plays a recording: at any speed, from any moment, step by step.

What the person asks for is kept as requests; a thread carries them out and emits the events. The
states that jumps lead to come from `index`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from gputui.playback import AT_END_S
from gputui.playback.index import Index, Moment
from gputui.playback.line_index import LineKind
from gputui.playback.opening import open_recording, remarks
from gputui.state import Session
from gputui.store.journal.reader import RecordingReader, open_journal

# Where in a recording to go: to a time, a moment, or samples back.

# A jump beyond what was read so far is tried again: keys and the clock go on meanwhile.
_TARGET_WAIT_S = 0.1


class Place(NamedTuple):
    """A place in a recording: a number of events from its beginning, and whether to follow what is
    written from there."""

    number: int
    follows: bool = False


class Targets:
    """The places of a recording. They are None where it has not been read or folded that far."""

    def __init__(self, index: Index, *, is_live: bool) -> None:
        """`is_live` is for a recording that is still being written."""
        self._index = index
        self._line_index = index.line_index
        self._is_live = is_live

    @property
    def are_known(self) -> bool:
        """Whether every moment is; if the recording is still being written, every one so far."""
        index = self._index
        return index.is_complete or (self._is_live and index.folded >= len(self._line_index) > 0)

    def place_at(self, seconds: float) -> Place | None:
        """The place after all events up to a time."""
        if not self._line_index.wait(0, _TARGET_WAIT_S):
            return None
        time_ns = self._line_index.first_ns + round(max(0.0, seconds) * 1e9)
        if self._is_live and time_ns >= self._line_index.last_ns:
            return Place(len(self._line_index), follows=True)
        is_indexed = self._line_index.wait_for_time(time_ns, _TARGET_WAIT_S)
        return Place(max(1, self._line_index.number_at(time_ns))) if is_indexed else None

    def seconds_of(self, number: int) -> float:
        """When the last of that many events was, from the beginning."""
        return (self._line_index.time_of(number - 1) - self._line_index.first_ns) / 1e9

    def moment_after(self, number: int, *, is_phase: bool) -> Place | None:
        """The place after the next change of phase, or after the next of the other times; `number`
        if there is none."""
        # Read first: folding meanwhile may add the moment.
        are_known = self.are_known
        for moment in self._index.moments:
            if moment.number >= number and (moment.kind == "phase") == is_phase:
                return Place(moment.number + 1)
        return Place(number) if are_known else None

    def samples_before(self, number: int, ticks: int) -> Place:
        """The place after the sample that is `ticks` samples after the one shown at `number`."""
        samples = self._line_index.numbers(LineKind.SAMPLE, 0, number)
        return Place(next((sample + 1 for sample in islice(samples, ticks, None)), 1))


# What the person watching a replay asked for, and the thread that plays it has yet to do.

MINIMUM_SPEED = 0.25
MAXIMUM_SPEED = 64.0

Target = Callable[[], Place | None]
"""The place to go to, which the playing thread determines; None if it is not known yet."""


class Requests:
    """Requests to the thread that plays. Every method returns at once, except those that wait.
    `lock` guards the whole object."""

    def __init__(self, speed: float, *, follows: bool) -> None:
        self.lock = threading.Condition()
        self.speed = 1.0
        self.set_speed(speed)
        self.paused = False
        self.closing = False
        self.follows = follows
        """Whether the newest event is shown as soon as it is there."""
        self.target: Target | None = None
        """The target of the jump to make; None if none was requested."""
        self.steps = 0
        """Samples to go on by."""

    @property
    def is_any(self) -> bool:
        """Whether there is more to do than to play on."""
        return self.closing or self.target is not None or self.steps > 0

    def set_speed(self, speed: float) -> None:
        with self.lock:
            self.speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
            self.lock.notify_all()

    def pause(self, paused: bool) -> None:
        with self.lock:
            self.paused = paused
            if paused:
                self.follows = False
            self.lock.notify_all()

    def close(self) -> None:
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    def step(self, ticks: int) -> None:
        """Pause, and go on by this many samples."""
        with self.lock:
            self.paused, self.follows = True, False
            self.steps += ticks
            self.lock.notify_all()

    def go(self, target: Target) -> None:
        with self.lock:
            self.target = target
            self.follows = False
            self.lock.notify_all()

    def go_on(self, here: Callable[[], int], following: Callable[[int], Place | None]) -> None:
        """Go to where `following` leads from `here`, or from the target of a jump under way."""
        with self.lock:
            before, followed = self.target, self.follows

            def target() -> Place | None:
                start = Place(here(), followed) if before is None else before()
                place = None if start is None else following(start.number)
                if start is not None and place is not None and place.number == start.number:
                    return place._replace(follows=place.follows or start.follows)
                return place

            self.go(target)

    # --- for the thread that plays

    def accept(self, target: Target, place: Place) -> bool:
        """Whether `target`, found to be at `place`, is still where to go; it is done with then."""
        with self.lock:
            if self.target is not target:
                return False
            self.target, self.follows = None, place.follows and not self.paused
            return True

    def stepped(self) -> None:
        """Note that one of the samples to go on by was shown."""
        with self.lock:
            self.steps = max(0, self.steps - 1)

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Waits until there is a request, or `until` holds."""
        with self.lock:
            self.lock.wait_for(lambda: self.is_any or until())

    def wait_for_other(self, target: Target, timeout_s: float) -> None:
        """Waits until another jump is requested."""
        with self.lock:
            self.lock.wait_for(lambda: self.target is not target or self.closing, timeout_s)


# Emits a recording's events as time passes, in a thread, and what a jump leads to.

# Events of so much of the recording go out together: no screen shows them apart.
_BATCH_NS = 20_000_000
_WAIT_S = 0.5
_AGAIN_S = 0.05

LOOK_S = 0.5
"""How long a recording that opens at its end is read before what is there is shown, and how often
that is repeated; showing takes a fifth of the time at most."""

FIRST_LOOK_S = 0.3
"""The same for the first look at another tool's file, which is rarely read to its end by then."""


class Emitter:
    """Where playback is in the recording, and the thread that goes on from there as requested."""

    def __init__(
        self, index: Index, asked: Requests, notify: Callable[[], None], *, is_imported: bool
    ) -> None:
        """`is_imported` is for a file of another tool."""
        self._index = index
        self._line_index = index.line_index
        self._asked = asked
        self._lock = asked.lock
        self._notify = notify
        self._session: Session | None = None
        self.hub = Hub(notify)
        """Where the events are; a new one after each jump."""
        self.number = 0
        """Events from the beginning that were emitted or jumped over."""
        self.position_ns: int | None = None
        """The moment shown; None before the first event."""
        self.has_ended = False
        """Whether every event was emitted."""
        self.is_rough = False
        """Whether the state shown lacks samples, until a complete one follows."""
        self.is_jumping = False
        """Whether the state that was gone to is being made."""
        self._has_arrived = False
        """Whether playback has reached the place where it opens; only then it follows requests."""
        self._looks_at = time.monotonic() + (FIRST_LOOK_S if is_imported else LOOK_S)

    def drain(self) -> tuple[Session | None, list[AnyEvent]]:
        """What is new: after a jump the state to continue from, returned once and owned by the
        caller; and the events since.
        """
        with self._lock:
            session, self._session = self._session, None
            return session, self.hub.drain()

    def run(self) -> None:
        """Plays until playback is closed. Runs in a thread of its own."""
        asked = self._asked
        while not asked.closing:
            if asked.target is not None:
                self._jump(asked.target)
            elif self._is_beyond():
                self._jump_to(self.number)
            elif asked.steps:
                self._step_once()
            elif asked.paused:
                asked.wait(lambda: not asked.paused)
            elif not self._play():
                self.has_ended = self._is_at_end()
                if self.has_ended:
                    self._notify()
                    asked.wait()
                else:
                    self._line_index.wait(self.number, _WAIT_S)

    def show_sums(self, events: Sequence[AnyEvent]) -> None:
        """Show what a file of another tool comes to so far, before any event of it can be told.
        What is there then takes the place of all of this."""
        with self._lock:
            if self._asked.target is None or self._asked.closing:
                return  # it is played as it comes
            self.is_rough = True
        self.hub.emit(events)

    def see_folded(self) -> None:
        """More was folded: make exact what was shown early, and leave what turned out to lie beyond
        a damaged line.
        """
        if self._index.is_complete:
            self._notify()  # the damage is known
        with self._lock:
            is_exact = self.is_rough and self._index.folded >= self.number
            if (is_exact or self._is_beyond()) and self._asked.target is None:
                follows = self._asked.follows
                self._asked.go(lambda: Place(self.number, follows))

    def _is_beyond(self) -> bool:
        """Whether the shown place lies beyond a damaged line, which may be discovered during a
        jump."""
        return self._index.is_complete and self.number > len(self._line_index)

    def _is_at_end(self) -> bool:
        return self._line_index.is_complete and self.number >= len(self._line_index)

    def _jump(self, target: Target) -> None:
        with self._index.hurry():
            place = target()
            if place is not None:
                if self._asked.accept(target, place):
                    self.is_jumping = True
                    self._jump_to(place.number)
                    self.is_jumping = False
                    self._has_arrived = True
                return
            if not self._has_arrived:
                self._look()
        # Not read or folded that far yet; tried again when more is.
        self._asked.wait_for_other(target, _AGAIN_S)

    def _look(self) -> None:
        """Show what there is so far of a recording that takes long to read: a report of 0.7 million
        rows stayed dark for as long as `summary` took four times over."""
        before = time.monotonic()
        if before >= self._looks_at and self._line_index.has_captures:
            self._jump_to(len(self._line_index))
            after = time.monotonic()
            self._looks_at = after + max(LOOK_S, 4 * (after - before))

    def _jump_to(self, number: int) -> None:
        number = min(number, len(self._line_index))
        if number == self.number and not self.is_rough:
            return
        session, is_exact = self._index.state(number)
        hub = Hub(self._notify)
        # A hub waits for the header before it hands anything out; the state already has it.
        hub.emit(list(self._index.events(0, 1)))
        hub.drain()
        with self._lock:
            self._session = session
            self.hub = hub
            self.is_rough = not is_exact
            self.number = number
            self.position_ns = self._line_index.time_of(number - 1) if number else None
            self.has_ended = self._is_at_end()
        self._notify()

    def _step_once(self) -> None:
        first = self.number
        last = first
        while self._line_index.wait(last, _WAIT_S) and not self._asked.closing:
            last += 1
            if self._line_index.kind_of(last - 1) == LineKind.SAMPLE:
                break
        self._asked.stepped()
        self._emit(first, last)
        if self._is_at_end():
            self.has_ended = True
            self._notify()

    def _play(self) -> bool:
        """Emits the next events when they are due; False if there are no more."""
        self._has_arrived = True
        if self.number >= len(self._line_index):
            return False
        if self._asked.follows:
            self._emit(self.number, len(self._line_index))
            return True
        due_ns = self._line_index.time_of(self.number)
        if self.position_ns is not None and not self._pass(due_ns - self.position_ns):
            return True
        last = min(self._line_index.number_at(due_ns + _BATCH_NS), self.number + 4096)
        self._emit(self.number, max(last, self.number + 1))
        return True

    def _emit(self, first: int, last: int) -> None:
        if last <= first:
            return
        events: list[AnyEvent] = list(self._index.events(first, last))
        with self._lock:
            if self._asked.target is not None:
                return  # a jump comes first
            self.number = last
            self.position_ns = self._line_index.time_of(last - 1)
            hub = self.hub
        hub.emit(events)

    def _pass(self, recorded_ns: int) -> bool:
        """Let `recorded_ns` of the recording pass; False when something else is requested."""
        left = recorded_ns / 1e9
        with self._lock:
            while left > 0 and not self._asked.is_any:
                if self._asked.paused:
                    return False
                before = time.monotonic()
                speed = self._asked.speed
                # Whatever is asked for meanwhile notifies, so that keys act at once at any speed.
                self._lock.wait(left / speed)
                passed = (time.monotonic() - before) * speed
                left -= passed
                if self.position_ns is not None:
                    self.position_ns += int(passed * 1e9)
            return not self._asked.is_any


class Playback:
    """Emits a recording's events as time passes. Every control returns at once.

    After a jump the view has a different state: `drain` returns it together with the events that
    continue it. Callers that never jump may just take the events from `hub`.
    """

    def __init__(
        self,
        recording: RecordingReader,
        notify: Callable[[], None],
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
        follows: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """`start_s` seconds are skipped at once.

        With `follows` the newest event is shown as soon as it is there, until playback is paused or
        moved; `stop` ends the waiting for a followed recording.
        """
        self.name = recording.name
        self._recording = recording
        self._notify = notify
        self._stop = stop
        self._follows_folder = follows and Path(recording.name).is_dir()
        self._index = Index(recording, live=follows, notify=lambda: self._emitter.see_folded())
        self._line_index = self._index.line_index
        self._targets = Targets(self._index, is_live=follows)
        self._asked = Requests(speed, follows=follows)
        self._emitter = Emitter(
            self._index, self._asked, notify, is_imported=self.share_read is not None
        )
        if start_s:
            self.seek(start_s)
        if hasattr(recording, "tell_sums"):
            recording.tell_sums = self._emitter.show_sums
        self._helpers = [
            threading.Thread(target=self._read, name="read", daemon=True),
            threading.Thread(target=self._index.fold, name="index", daemon=True),
        ]
        # A read of stdin cannot be interrupted: the threads must not delay the exit.
        self._thread = threading.Thread(target=self._emitter.run, name="playback", daemon=True)

    @classmethod
    def open(
        cls,
        path: str,
        notify: Callable[[], None],
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
        follow: bool = False,
    ) -> Self:
        """What is at `path` (see open_recording), "-" for standard input, which is followed.

        With `follow`, waits for a file that is still being written, or for those in a folder, of
        the ranks of a job. Raises JournalError.
        """
        if follow and path != "-":
            stop = threading.Event()
            place = Path(path)
            followed: RecordingReader
            if place.is_dir():
                from gputui.playback.job_recording import FollowedJob

                followed = FollowedJob(place, stop)
            else:
                followed = open_journal(place, stop=stop)
            return cls(followed, notify, speed=speed, start_s=start_s, follows=True, stop=stop)
        recording = open_recording(path)
        return cls(recording, notify, speed=speed, start_s=start_s, follows=path == "-")

    @property
    def hub(self) -> Hub:
        """Where its events are; a new one after each jump."""
        return self._emitter.hub

    def start(self) -> None:
        for helper in self._helpers:
            helper.start()
        self._thread.start()

    def close(self) -> bool:
        """Stop. Always True: a replay leaves nothing behind."""
        self._asked.close()
        if self._stop is not None:
            self._stop.set()
        self._index.close()
        return True

    # --- state

    @property
    def is_paused(self) -> bool:
        return self._asked.paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        self._asked.pause(paused)

    @property
    def speed(self) -> float:
        """Recorded seconds per second, between 0.25 and 64."""
        return self._asked.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._asked.set_speed(speed)

    @property
    def has_ended(self) -> bool:
        """Whether every event was emitted."""
        return self._emitter.has_ended

    @property
    def damage(self) -> str | None:
        """Where the recording is cut or damaged, once reading has reached that place."""
        return self._recording.damage or self._line_index.failure

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks about the recording, one line each; none before it was read to its end, but what
        is left out of a folder that is followed."""
        if not self._index.is_complete:
            return remarks(self._recording) if self._follows_folder else ()
        failure = self._line_index.failure
        return (*remarks(self._recording), *((failure,) if failure else ()))

    @property
    def position_s(self) -> float:
        """Playback position, in seconds from the start."""
        position_ns = self._emitter.position_ns
        return 0.0 if position_ns is None else (position_ns - self._line_index.first_ns) / 1e9

    @property
    def begun_ns(self) -> int:
        """When the recording begins, which positions count from."""
        return self._line_index.first_ns

    @property
    def length_s(self) -> float:
        """Length of the recording, as far as it has been read (see `is_read`)."""
        return (self._line_index.last_ns - self._line_index.first_ns) / 1e9

    @property
    def is_read(self) -> bool:
        """Whether the recording has been read to its end, so that its length is known."""
        return self._line_index.is_complete

    @property
    def share_read(self) -> float | None:
        """How much of the recording has been read, from 0 to 1; None if its file does not show
        it."""
        share: float | None = getattr(self._recording, "share_read", None)
        return share

    def stop_reading(self) -> bool:
        """Read no further; whether that is possible, and not at its end anyway. What was read
        stays, and a remark says where it ends."""
        stop = getattr(self._recording, "stop", None)
        if stop is None or self.is_read:
            return False
        stop()
        return True

    @property
    def is_indexed(self) -> bool:
        """Whether every moment to jump to is known; if the recording is still being written, every
        one so far.
        """
        return self._targets.are_known

    @property
    def is_jumping(self) -> bool:
        """Whether what was gone to is not shown yet."""
        return self._emitter.is_jumping or self._asked.target is not None

    @property
    def is_exact(self) -> bool:
        """False for a short while after a jump to where nothing was folded yet: long charts and
        averages of the run lack samples, until a complete state follows.
        """
        return not self._emitter.is_rough

    @property
    def moments(self) -> list[Moment]:
        """What there is to jump to, as far as the recording has been read."""
        return list(self._index.moments)

    # --- moving

    def seek(self, seconds: float) -> None:
        """Go to a time from the beginning; beyond the end means the end, or, if the recording is
        still being written, its newest event and those that follow.
        """
        self._asked.go(lambda: self._targets.place_at(seconds))

    def seek_end(self) -> None:
        """Go to the end, wherever it turns out to be: `length_s` is only what was read so far."""
        self.seek(AT_END_S)

    def skip(self, seconds: float) -> None:
        """Go forward or back from here, or from the target of a jump under way."""
        self._go_on(lambda number: self._targets.place_at(self._seconds_at(number) + seconds))

    def step(self, ticks: int = 1) -> None:
        """Pause, and go on by this many samples of the machine; backwards if negative."""
        if ticks > 0:
            self._asked.step(ticks)
            return
        self.is_paused = True
        self._go_on(lambda number: self._targets.samples_before(number, -ticks))

    def next_phase(self) -> None:
        """Go to the next change of phase, if there is one."""
        self._go_on(lambda number: self._targets.moment_after(number, is_phase=True))

    def next_event(self) -> None:
        """Go to the next start, exit, out-of-memory error, throttling or loss of a process."""
        self._go_on(lambda number: self._targets.moment_after(number, is_phase=False))

    def drain(self) -> tuple[Session | None, list[AnyEvent]]:
        """What is new: after a jump the state to continue from, returned once and owned by the
        caller; and the events since.
        """
        return self._emitter.drain()

    def _go_on(self, following: Callable[[int], Place | None]) -> None:
        self._asked.go_on(lambda: self._emitter.number, following)

    def _seconds_at(self, number: int) -> float:
        """The position in seconds; time also passes between two events."""
        here = number == self._emitter.number or not number
        return self.position_s if here else self._targets.seconds_of(number)

    def _read(self) -> None:
        self._line_index.read()
        self._notify()  # its length is known
