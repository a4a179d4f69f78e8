"""Where the events of all sources meet: recorded in order, then taken by the session's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from gputui.model.events import AnyEvent, Header


class EventWriter(Protocol):
    """What the hub writes events to, in the order of the fold: a journal."""

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` and flush them."""


class Hub:
    """Collects events from any thread until the session's thread takes them.

    `notify` is called, from the emitting thread, when there is something new and the previous
    notice has been answered; a slow reader thus gets one larger batch, not a queue of notices. A
    session starts with its header: earlier events wait for it. `watch` gives what follows from
    events, as alerts do: it comes right behind them.
    """

    def __init__(
        self,
        notify: Callable[[], None],
        recorder: EventWriter | None = None,
        watch: Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]] = lambda _: (),
    ) -> None:
        self._notify = notify
        self._watch = watch
        self._recorder = recorder
        self._lock = threading.Lock()
        self._recording = threading.Lock()
        self._events: list[AnyEvent] = []
        self._noticed = False
        self._before_header: list[AnyEvent] | None = []

    def emit(self, events: Sequence[AnyEvent]) -> None:
        """Add `events`. Called by sources, from their own threads."""
        if not events:
            return
        with self._recording:
            # One lock for both keeps the journal in the order of the fold.
            if self._before_header is not None:
                if not isinstance(events[0], Header):
                    self._before_header += events
                    return
                events = [*events, *self._before_header]
                self._before_header = None
            events = [*events, *self._watch(events)]
            if self._recorder is not None:
                self._recorder.write(events)
            with self._lock:
                self._events.extend(events)
                notify = not self._noticed
                self._noticed = True
        if notify:
            self._notify()

    @property
    def awaits_header(self) -> bool:
        """Whether everything is still waiting for the header."""
        return self._before_header is not None

    def drain(self) -> list[AnyEvent]:
        """Everything since the last call, oldest first."""
        with self._lock:
            events, self._events = self._events, []
            self._noticed = False
        return events
