"""Plays a recording: at any speed, from any moment, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from gputui.playback.index import Index
from gputui.playback.lines import Kind
from gputui.playback.moments import Moment
from gputui.playback.opening import Recording, open_recording, remarks
from gputui.playback.requests import Requests, Target
from gputui.playback.targets import Place, Targets
from gputui.state import Session
from gputui.store.journal import open_journal

_BATCH_NS = 20_000_000
_WAIT_S = 0.5
_AGAIN_S = 0.05


class Playback:
    """Emits a recording's events as time passes. Every control returns at once.

    After a jump the view has a different state: `take` returns it together with the events that
    continue it. Callers that never jump may just take the events from `hub`.
    """

    def __init__(
        self,
        recording: Recording,
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
        self._index = Index(recording, live=follows, notify=self._see_folded)
        self._line_index = self._index.line_index
        self._targets = Targets(self._index, is_live=follows)
        self._asked = Requests(speed, follows=follows)
        self._lock = self._asked.lock
        self._hub = Hub(notify)
        self._ended = False
        self._number = 0
        self._position_ns: int | None = None
        self._start_ns = int(start_s * 1e9)
        self._session: Session | None = None
        self._is_rough = False
        self._helpers = [
            threading.Thread(target=self._read, name="read", daemon=True),
            threading.Thread(target=self._index.fold, name="index", daemon=True),
        ]
        # A read of stdin cannot be interrupted: the threads must not delay the exit.
        self._thread = threading.Thread(target=self._main, name="playback", daemon=True)

    @classmethod
    def open(
        cls,
        path: str,
        notify: Callable[[], None],
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
        follow: bool = False,
    ) -> Playback:
        """What is at `path` (see open_recording), "-" for standard input, which is followed.

        With `follow`, waits for a file that is still being written. Raises JournalError.
        """
        if follow and path != "-":
            stop = threading.Event()
            reader = open_journal(Path(path), stop=stop)
            return cls(reader, notify, speed=speed, start_s=start_s, follows=True, stop=stop)
        recording = open_recording(path)
        return cls(recording, notify, speed=speed, start_s=start_s, follows=path == "-")

    @property
    def hub(self) -> Hub:
        """Where its events are; a new one after each jump."""
        return self._hub

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
        return self._ended

    @property
    def damage(self) -> str | None:
        """Where the recording is cut or damaged, once reading has reached it."""
        return self._recording.damage or self._line_index.failure

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks about the recording, one line each; none before it was read to its end."""
        if not self._index.is_complete:
            return ()
        failure = self._line_index.failure
        return (*remarks(self._recording), *((failure,) if failure else ()))

    @property
    def position_s(self) -> float:
        """Playback position, in seconds from the start."""
        position_ns = self._position_ns
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
        return not self._is_rough

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
        with self._lock:
            session, self._session = self._session, None
            return session, self._hub.take()

    def _go_on(self, following: Callable[[int], Place | None]) -> None:
        self._asked.go_on(lambda: self._number, following)

    def _seconds_at(self, number: int) -> float:
        """The position in seconds; time also passes between two events."""
        here = number == self._number or not number
        return self.position_s if here else self._targets.seconds_of(number)

    # --- the thread

    def _main(self) -> None:
        if self._start_ns:
            self.seek(self._start_ns / 1e9)
        asked = self._asked
        while not asked.closing:
            if asked.target is not None:
                self._jump(asked.target)
            elif asked.steps:
                self._step_once()
            elif asked.paused:
                asked.wait(lambda: not asked.paused)
            elif not self._play():
                self._ended = self._is_at_end()
                if self._ended:
                    self._notify()
                    asked.wait()
                else:
                    self._line_index.wait(self._number, _WAIT_S)

    def _read(self) -> None:
        self._line_index.read()
        self._notify()  # its length is known

    def _see_folded(self) -> None:
        """More was folded: make exact what was shown early, and leave what turned out to lie beyond
        a damaged line.
        """
        if self._index.is_complete:
            self._notify()  # the damage is known
        with self._lock:
            is_exact = self._is_rough and self._index.folded >= self._number
            is_beyond = self._index.is_complete and self._number > len(self._line_index)
            if (is_exact or is_beyond) and self._asked.target is None:
                follows = self._asked.follows
                self._asked.go(lambda: Place(self._number, follows))

    def _is_at_end(self) -> bool:
        return self._line_index.is_complete and self._number >= len(self._line_index)

    def _jump(self, target: Target) -> None:
        with self._index.hurry():
            place = target()
            if place is not None:
                if self._asked.take(target, place):
                    self._jump_to(place.number)
                return
        # Not read or folded that far yet; tried again when more is.
        self._asked.wait_for_other(target, _AGAIN_S)

    def _jump_to(self, number: int) -> None:
        number = min(number, len(self._line_index))
        if number == self._number and not self._is_rough:
            return
        session, is_exact = self._index.state(number)
        hub = Hub(self._notify)
        # A hub waits for the header before it hands anything out; the state already has it.
        hub.emit(list(self._index.events(0, 1)))
        hub.take()
        with self._lock:
            self._session = session
            self._hub = hub
            self._is_rough = not is_exact
            self._number = number
            self._position_ns = self._line_index.time_of(number - 1) if number else None
            self._ended = self._is_at_end()
        self._notify()

    def _step_once(self) -> None:
        first = self._number
        last = first
        while self._line_index.wait(last, _WAIT_S) and not self._asked.closing:
            last += 1
            if self._line_index.kind_of(last - 1) == Kind.SAMPLE:
                break
        self._asked.stepped()
        self._emit(first, last)
        if self._is_at_end():
            self._ended = True
            self._notify()

    def _play(self) -> bool:
        """Emit what is due next, when it is due; False if nothing more is there."""
        if self._number >= len(self._line_index):
            return False
        if self._asked.follows:
            self._emit(self._number, len(self._line_index))
            return True
        due_ns = self._line_index.time_of(self._number)
        if self._position_ns is not None and not self._pass(due_ns - self._position_ns):
            return True
        last = min(self._line_index.number_at(due_ns + _BATCH_NS), self._number + 4096)
        self._emit(self._number, max(last, self._number + 1))
        return True

    def _emit(self, first: int, last: int) -> None:
        if last <= first:
            return
        events: list[AnyEvent] = list(self._index.events(first, last))
        with self._lock:
            if self._asked.target is not None:
                return  # a jump comes first
            self._number = last
            self._position_ns = self._line_index.time_of(last - 1)
            hub = self._hub
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
                self._lock.wait(left / speed)
                passed = (time.monotonic() - before) * speed
                left -= passed
                if self._position_ns is not None:
                    self._position_ns += int(passed * 1e9)
            return not self._asked.is_any
