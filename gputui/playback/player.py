"""Plays a recording: at any speed, from any moment, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from gputui.playback.emitter import Emitter
from gputui.playback.index import Index
from gputui.playback.moments import Moment
from gputui.playback.opening import open_recording, remarks
from gputui.playback.requests import Requests
from gputui.playback.targets import Place, Targets
from gputui.state import Session
from gputui.store.journal import open_journal
from gputui.store.journal.reader import RecordingReader


class Playback:
    """Emits a recording's events as time passes. Every control returns at once.

    After a jump the view has a different state: `take` returns it together with the events that
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
        self._emitter = Emitter(self._index, self._asked, notify)
        if start_s:
            self.seek(start_s)
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
                from gputui.playback.job import FollowedJob

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
        """Where the recording is cut or damaged, once reading has reached it."""
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
    def is_indexed(self) -> bool:
        """Whether every moment to jump to is known; if the recording is still being written, every
        one so far.
        """
        return self._targets.are_known

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
        self._asked.go(lambda: self._targets.at(seconds))

    def skip(self, seconds: float) -> None:
        """Go forward or back from here, or from the target of a jump under way."""
        self._go_on(lambda number: self._targets.at(self._seconds_at(number) + seconds))

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

    def take(self) -> tuple[Session | None, list[AnyEvent]]:
        """What is new: after a jump the state to continue from, returned once and owned by the
        caller; and the events since.
        """
        return self._emitter.take()

    def _go_on(self, following: Callable[[int], Place | None]) -> None:
        self._asked.go_on(lambda: self._emitter.number, following)

    def _seconds_at(self, number: int) -> float:
        """The position in seconds; time also passes between two events."""
        here = number == self._emitter.number or not number
        return self.position_s if here else self._targets.seconds_of(number)

    def _read(self) -> None:
        self._line_index.read()
        self._notify()  # its length is known
