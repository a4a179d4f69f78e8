"""Emits a recording's events as time passes, in a thread, and what a jump leads to."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from gputui.playback.index import Index
from gputui.playback.lines import Kind
from gputui.playback.requests import Requests, Target
from gputui.playback.targets import Place
from gputui.state import Session

_BATCH_NS = 20_000_000
_WAIT_S = 0.5
_AGAIN_S = 0.05


class Emitter:
    """Where in the recording playback is, and the thread that goes on from there as asked."""

    def __init__(self, index: Index, asked: Requests, notify: Callable[[], None]) -> None:
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

    def take(self) -> tuple[Session | None, list[AnyEvent]]:
        """What is new: after a jump the state to continue from, returned once and owned by the
        caller; and the events since.
        """
        with self._lock:
            session, self._session = self._session, None
            return session, self.hub.take()

    def run(self) -> None:
        """Until playback is closed. Runs in a thread of its own."""
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
        """Whether what is shown lies beyond a damaged line: it may be found during a jump."""
        return self._index.is_complete and self.number > len(self._line_index)

    def _is_at_end(self) -> bool:
        return self._line_index.is_complete and self.number >= len(self._line_index)

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
        if number == self.number and not self.is_rough:
            return
        session, is_exact = self._index.state(number)
        hub = Hub(self._notify)
        # A hub waits for the header before it hands anything out; the state already has it.
        hub.emit(list(self._index.events(0, 1)))
        hub.take()
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
            if self._line_index.kind_of(last - 1) == Kind.SAMPLE:
                break
        self._asked.stepped()
        self._emit(first, last)
        if self._is_at_end():
            self.has_ended = True
            self._notify()

    def _play(self) -> bool:
        """Emit what is due next, when it is due; False if nothing more is there."""
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
                self._lock.wait(left / speed)
                passed = (time.monotonic() - before) * speed
                left -= passed
                if self.position_ns is not None:
                    self.position_ns += int(passed * 1e9)
            return not self._asked.is_any
