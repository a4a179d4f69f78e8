"""Plays a recording: at any speed, from any moment, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from gputui.playback.index import Index
from gputui.playback.lines import Kind
from gputui.playback.moments import Moment
from gputui.playback.opening import Recording, open_recording, remarks
from gputui.state import Session
from gputui.store.journal import open_journal

MINIMUM_SPEED = 0.25
MAXIMUM_SPEED = 64.0

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
        self._index = Index(recording, live=follows, told=self._see_folded)
        self._outline = self._index.outline
        self._lock = threading.Condition()
        self._hub = Hub(notify)
        self._speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
        self._paused = False
        self._closing = False
        self._ended = False
        self._is_live = follows
        self._follows = follows
        self._number = 0
        self._position_ns: int | None = None
        self._start_ns = int(start_s * 1e9)
        self._target: Callable[[], int | None] | None = None
        self._steps = 0
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
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._stop is not None:
            self._stop.set()
        self._index.close()
        return True

    # --- state

    @property
    def is_paused(self) -> bool:
        return self._paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        with self._lock:
            self._paused = paused
            if paused:
                self._follows = False
            self._lock.notify_all()

    @property
    def speed(self) -> float:
        """Recorded seconds per second, between 0.25 and 64."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self._lock:
            self._speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
            self._lock.notify_all()

    @property
    def has_ended(self) -> bool:
        """Whether every event was emitted."""
        return self._ended

    @property
    def damage(self) -> str | None:
        """Where the recording is cut or damaged, once reading has reached it."""
        return self._recording.damage or self._outline.failure

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks about the recording, one line each; none before it was read to its end."""
        if not self._index.is_complete:
            return ()
        failure = self._outline.failure
        return (*remarks(self._recording), *((failure,) if failure else ()))

    @property
    def position_s(self) -> float:
        """Playback position, in seconds from the start."""
        position_ns = self._position_ns
        return 0.0 if position_ns is None else (position_ns - self._outline.first_ns) / 1e9

    @property
    def length_s(self) -> float:
        """Length of the recording, as far as it has been read (see `is_read`)."""
        return (self._outline.last_ns - self._outline.first_ns) / 1e9

    @property
    def is_read(self) -> bool:
        """Whether the recording has been read to its end, so that its length is known."""
        return self._outline.is_complete

    @property
    def is_indexed(self) -> bool:
        """Whether every moment to jump to is known; if the recording is still being written, every
        one so far.
        """
        index = self._index
        return index.is_complete or (self._is_live and index.folded >= len(self._outline) > 0)

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
        self._go(lambda: self._number_at(seconds))

    def skip(self, seconds: float) -> None:
        """Go forward or back from here, or from the target of a jump under way."""
        self._go_on(lambda number: self._number_at(self._seconds_at(number) + seconds))

    def step(self, ticks: int = 1) -> None:
        """Pause, and go on by this many samples of the machine; backwards if negative."""
        if ticks > 0:
            with self._lock:
                self._paused, self._follows = True, False
                self._steps += ticks
                self._lock.notify_all()
            return
        self.is_paused = True
        self._go_on(lambda number: self._back(number, -ticks))

    def next_phase(self) -> None:
        """Go to the next change of phase, if there is one."""
        self._go_to_moment(lambda moment: moment.kind == "phase")

    def next_event(self) -> None:
        """Go to the next start, exit, out-of-memory error, throttling or loss of a process."""
        self._go_to_moment(lambda moment: moment.kind != "phase")

    def take(self) -> tuple[Session | None, list[AnyEvent]]:
        """What is new: after a jump the state to continue from, returned once and owned by the
        caller; and the events since.
        """
        with self._lock:
            session, self._session = self._session, None
            return session, self._hub.take()

    def _go(self, target: Callable[[], int | None]) -> None:
        with self._lock:
            self._target = target
            self._follows = False
            self._lock.notify_all()

    def _go_on(self, following: Callable[[int], int | None]) -> None:
        """Go to where `following` leads from the number that is shown, or about to be."""
        with self._lock:
            before = self._target
            followed = self._follows

            def target() -> int | None:
                number = self._number if before is None else before()
                follows = followed if before is None else self._follows
                self._follows = False
                there = None if number is None else following(number)
                if there is not None and there == number:
                    self._follows |= follows  # the position is unchanged
                return there

            self._target = target
            self._follows = False
            self._lock.notify_all()

    def _number_at(self, seconds: float) -> int | None:
        """How many events there are up to a time; None if that has not been read yet."""
        if not self._outline.wait(0, _WAIT_S):
            return None
        time_ns = self._outline.first_ns + round(max(0.0, seconds) * 1e9)
        if self._is_live and time_ns >= self._outline.last_ns:
            self._follows = True
            return len(self._outline)
        known = self._outline.wait_for_time(time_ns, _WAIT_S)
        return max(1, self._outline.number_at(time_ns)) if known else None

    def _seconds_at(self, number: int) -> float:
        """The position in seconds; time also passes between two events."""
        if number == self._number or not number:
            return self.position_s
        return (self._outline.time_of(number - 1) - self._outline.first_ns) / 1e9

    def _go_to_moment(self, wanted: Callable[[Moment], bool]) -> None:
        def following(number: int) -> int | None:
            # Read first: folding meanwhile may add the moment.
            all_known = self.is_indexed
            found = next(
                (
                    moment.number + 1
                    for moment in self._index.moments
                    if moment.number >= number and wanted(moment)
                ),
                None,
            )
            return number if found is None and all_known else found

        self._go_on(following)

    def _back(self, number: int, ticks: int) -> int:
        """The event after the sample that is `ticks` before the one shown at `number`."""
        samples = self._outline.numbers(Kind.SAMPLE, 0, number)
        return next((sample + 1 for sample in islice(samples, ticks, None)), 1)

    # --- the thread

    def _main(self) -> None:
        if self._start_ns:
            self.seek(self._start_ns / 1e9)
        while not self._closing:
            if self._target is not None:
                self._jump()
            elif self._steps:
                self._step_once()
            elif self._paused:
                with self._lock:
                    self._lock.wait_for(lambda: self._is_asked() or not self._paused)
            elif not self._play():
                self._ended = self._is_at_end()
                if self._ended:
                    self._notify()
                    with self._lock:
                        self._lock.wait_for(self._is_asked)
                else:
                    self._outline.wait(self._number, _WAIT_S)

    def _read(self) -> None:
        self._outline.read()
        self._notify()  # its length is known

    def _see_folded(self) -> None:
        """More was folded: make exact what was shown early, and leave what turned out to lie beyond
        a damaged line.
        """
        if self._index.is_complete:
            self._notify()  # the damage is known
        with self._lock:
            is_exact = self._is_rough and self._index.folded >= self._number
            is_beyond = self._index.is_complete and self._number > len(self._outline)
            if (is_exact or is_beyond) and self._target is None:
                self._target = lambda: self._number
                self._lock.notify_all()

    def _is_at_end(self) -> bool:
        return self._outline.is_complete and self._number >= len(self._outline)

    def _is_asked(self) -> bool:
        return self._closing or self._target is not None or self._steps > 0

    def _jump(self) -> None:
        asked = self._target
        if asked is None:
            return
        with self._index.hurry():
            number = asked()
            if number is not None:
                self._jump_to(asked, number)
                return
        with self._lock:
            # Not read or folded that far yet; asked again when more is.
            self._lock.wait_for(lambda: self._target is not asked or self._closing, _AGAIN_S)

    def _jump_to(self, asked: Callable[[], int | None], number: int) -> None:
        with self._lock:
            if self._target is not asked:
                return  # another jump was requested meanwhile
            self._target = None
        number = min(number, len(self._outline))
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
            self._position_ns = self._outline.time_of(number - 1) if number else None
            self._ended = self._is_at_end()
        self._notify()

    def _step_once(self) -> None:
        first = self._number
        last = first
        while self._outline.wait(last, _WAIT_S) and not self._closing:
            last += 1
            if self._outline.kind_of(last - 1) == Kind.SAMPLE:
                break
        with self._lock:
            self._steps = max(0, self._steps - 1)
        self._emit(first, last)
        if self._is_at_end():
            self._ended = True
            self._notify()

    def _play(self) -> bool:
        """Emit what is due next, when it is due; False if nothing more is there."""
        if self._number >= len(self._outline):
            return False
        if self._follows:
            self._emit(self._number, len(self._outline))
            return True
        due_ns = self._outline.time_of(self._number)
        if self._position_ns is not None and not self._pass(due_ns - self._position_ns):
            return True
        last = min(self._outline.number_at(due_ns + _BATCH_NS), self._number + 4096)
        self._emit(self._number, max(last, self._number + 1))
        return True

    def _emit(self, first: int, last: int) -> None:
        if last <= first:
            return
        events: list[AnyEvent] = list(self._index.events(first, last))
        with self._lock:
            if self._target is not None:
                return  # a jump comes first
            self._number = last
            self._position_ns = self._outline.time_of(last - 1)
            hub = self._hub
        hub.emit(events)

    def _pass(self, recorded_ns: int) -> bool:
        """Let `recorded_ns` of the recording pass; False when something else is requested."""
        left = recorded_ns / 1e9
        with self._lock:
            while left > 0 and not self._is_asked():
                if self._paused:
                    return False
                before = time.monotonic()
                speed = self._speed
                self._lock.wait(left / speed)
                passed = (time.monotonic() - before) * speed
                left -= passed
                if self._position_ns is not None:
                    self._position_ns += int(passed * 1e9)
            return not self._is_asked()
