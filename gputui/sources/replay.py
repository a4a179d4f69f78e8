"""A recording as a source: its events again, at their own pace or faster."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gputui.events import AnyEvent
from gputui.hub import Hub
from gputui.journal import JournalReader

MINIMUM_SPEED = 0.25
MAXIMUM_SPEED = 64.0

_BATCH_NS = 20_000_000


class Replay:
    """Emits a recording's events as time passes; a stream on stdin as its events arrive."""

    def __init__(
        self,
        reader: JournalReader,
        notify: Callable[[], None],
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
        follows: bool = False,
    ) -> None:
        """`start_s` seconds are passed over at once. With `follows` events are not paced."""
        self.hub = Hub(notify)
        self.name = reader.name
        self._reader = reader
        self._speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
        self._start_ns = int(start_s * 1e9)
        self._follows = follows
        self._changed = threading.Condition()
        self._paused = False
        self._closing = False
        self._ended = False
        # A read of stdin cannot be interrupted: the thread must not hold the exit up.
        self._thread = threading.Thread(target=self._main, name="replay", daemon=True)

    @classmethod
    def open(
        cls,
        path: str,
        notify: Callable[[], None],
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
    ) -> Replay:
        """The recording at `path`, "-" for standard input. Raises JournalError."""
        if path == "-":
            reader = JournalReader(sys.stdin.buffer, "standard input")
            return cls(reader, notify, follows=True)
        return cls(JournalReader.open(Path(path)), notify, speed=speed, start_s=start_s)

    def start(self) -> None:
        """Start emitting."""
        self._thread.start()

    def close(self) -> bool:
        """Stop emitting. Always True: a replay leaves nothing behind."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return True

    @property
    def is_paused(self) -> bool:
        """Whether time stands still."""
        return self._paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    @property
    def speed(self) -> float:
        """Recorded seconds a second, between 0.25 and 64."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self._changed:
            self._speed = min(MAXIMUM_SPEED, max(MINIMUM_SPEED, speed))
            self._changed.notify_all()

    @property
    def has_ended(self) -> bool:
        """Whether every event was emitted."""
        return self._ended

    @property
    def damage(self) -> str | None:
        """Where the recording is cut or damaged, once reading got there."""
        return self._reader.damage

    def _main(self) -> None:
        first_ns: int | None = None
        position_ns = self._start_ns
        batch: list[AnyEvent] = []
        for event in self._reader:
            if first_ns is None:
                first_ns = event.time_ns
            at_ns = event.time_ns - first_ns
            if not self._follows and at_ns > position_ns + _BATCH_NS:
                self.hub.emit(batch)
                batch = []
                if not self._pass(at_ns - position_ns):
                    return
                position_ns = at_ns
            batch.append(event)
            if self._follows:
                self.hub.emit(batch)
                batch = []
        self._ended = True
        self.hub.emit(batch)

    def _pass(self, recorded_ns: int) -> bool:
        """Let `recorded_ns` of the recording pass; False when it is time to stop."""
        left = recorded_ns / 1e9
        with self._changed:
            while left > 0 and not self._closing:
                if self._paused:
                    self._changed.wait()
                    continue
                before = time.monotonic()
                speed = self._speed
                self._changed.wait(left / speed)
                left -= (time.monotonic() - before) * speed
            return not self._closing
