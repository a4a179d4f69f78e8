"""What the sources of a session share: the hub where their events meet, recorded in order and then
taken by the session's thread; and the numbers that their events refer to things by.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from gputui.model.events import MAX_KERNELS, MAX_SHAPES, OTHER_KERNELS, AnyEvent, Header


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


Geometry = tuple[int, int, int, int, int, int, int, int, int]
"""Grid x y z, block x y z, registers per thread, static and dynamic shared bytes per block."""


class Numbering:
    """Assigns numbers from 1. Shared by the readers of a session, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes = 0
        self._ranges = 0
        self._marks = 0
        self._kernels: dict[str, int] = {}
        self._shapes: dict[tuple[int, Geometry], int] = {}

    def process(self) -> int:
        """A number for a process that was attached or imported."""
        with self._lock:
            self._processes += 1
            return self._processes

    def range(self) -> int:
        """A number for a node of a process's range tree."""
        with self._lock:
            self._ranges += 1
            return self._ranges

    def mark(self) -> int:
        """A number for a mark's domain and name."""
        with self._lock:
            self._marks += 1
            return self._marks

    def kernel(self, mangled: str) -> tuple[int, str, bool]:
        """The number of a kernel name, the name it is stored under, and whether that is new."""
        with self._lock:
            if mangled not in self._kernels and len(self._kernels) >= MAX_KERNELS:
                mangled = OTHER_KERNELS
            number_before = self._kernels.get(mangled)
            if number_before is not None:
                return number_before, mangled, False
            number = len(self._kernels) + 1
            self._kernels[mangled] = number
            return number, mangled, True

    def shape(self, kernel: int, geometry: Geometry) -> tuple[int, bool]:
        """The number of a kernel's launch shape and whether that is new; 0 if the table is full."""
        with self._lock:
            number_before = self._shapes.get((kernel, geometry))
            if number_before is not None:
                return number_before, False
            if len(self._shapes) >= MAX_SHAPES:
                return 0, False
            number = len(self._shapes) + 1
            self._shapes[kernel, geometry] = number
            return number, True
