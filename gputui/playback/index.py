"""What a recording holds and when: read once, ahead of the player, into a file that can be sought.

Events go to an unnamed temporary file as plain lines, whatever they came from. States of the
session are kept every so often, so that any moment is a short fold away.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from gputui.events import (
    AnyEvent,
    CaptureDelta,
    MachineSample,
    ProcessDetached,
    RangeDefined,
    RunEnded,
    RunProgress,
    RunStarted,
)
from gputui.playback.clone import State
from gputui.session import Session
from gputui.sources.recordings import Recording

SNAPSHOTS = 384
"""States kept; when there are more every second one goes and they come half as often."""

FIRST_SPACING = 32
"""Events between states in the beginning."""

MOMENTS = 20_000

_WORK_S = 0.02
_REST_S = 0.004
"""The index leaves the processor to the screen after each stretch of work."""

IDLE_REASONS = frozenset({"gpu_idle", "idle", "applications_clocks_setting", "none"})
"""Throttle reasons that tell of no trouble."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something worth jumping to. `number` counts the events before it."""

    time_ns: int
    kind: Literal["phase", "run", "exit", "throttle", "memory", "process"]
    text: str
    number: int


class Index:
    """The events of a recording by number and by time. One thread reads, any may ask."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._times = array("q")
        self._offsets = array("Q", [0])
        self._spacing = FIRST_SPACING
        self._snapshots: list[tuple[int, State]] = []
        self._session = Session()
        self._notes = _Notes()
        self.moments: list[Moment] = []
        self.is_complete = False
        self._closing = False

    def __len__(self) -> int:
        return len(self._times)

    @property
    def first_ns(self) -> int:
        """When the recording begins, 0 before anything was read."""
        return self._times[0] if self._times else 0

    @property
    def last_ns(self) -> int:
        """The newest moment that was read."""
        return self._times[-1] if self._times else 0

    def build(self) -> None:
        """Read the recording to its end. Run by a thread."""
        began = time.monotonic()
        for event in self._recording:
            if self._closing:
                break
            self._add(event)
            if time.monotonic() - began > _WORK_S:
                time.sleep(_REST_S)
                began = time.monotonic()
        with self._changed:
            self.is_complete = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait until event `number` was read, or there is none; whether it was read."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._times) > number or self.is_complete or self._closing, timeout_s
            )
            return len(self._times) > number

    def wait_for_time(self, time_ns: int, timeout_s: float) -> bool:
        """Wait until the recording was read up to a moment; whether it was, or has ended."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.last_ns > time_ns or self.is_complete or self._closing, timeout_s
            )

    def time_of(self, number: int) -> int:
        """When event `number` was, never before the one before it."""
        return self._times[number]

    def number_at(self, time_ns: int) -> int:
        """How many events there are up to and at a moment."""
        return bisect_right(self._times, time_ns)

    def events(self, first: int, last: int) -> Iterator[AnyEvent]:
        """Events `first` to before `last`, decoded as they are taken."""
        start, end = self._offsets[first], self._offsets[last]
        with self._reading:
            self._spool.seek(start)
            data = self._spool.read(end - start)
        return map(_decoder.decode, data.splitlines())

    def state(self, number: int) -> Session:
        """A session of its own into which the first `number` events are folded."""
        with self._changed:
            place = bisect_right([at for at, _ in self._snapshots], number) - 1
            at, state = self._snapshots[place] if place >= 0 else (0, None)
            # Within the lock: a state that is let go of is emptied.
            session = state.session() if state is not None else Session()
        if number > at:
            session.apply(self.events(at, number))
        return session

    def _add(self, event: AnyEvent) -> None:
        line = _encoder.encode(event) + b"\n"
        self._session.apply((event,))
        number = len(self._times)
        note = self._notes.see(event, number)
        with self._reading:
            self._spool.seek(0, 2)
            self._spool.write(line)
        with self._changed:
            self._times.append(max(event.time_ns, self.last_ns))
            self._offsets.append(self._offsets[-1] + len(line))
            if note is not None and len(self.moments) < MOMENTS:
                self.moments.append(note)
            if (number + 1) % self._spacing == 0:
                self._keep(number + 1)
            self._changed.notify_all()

    def _keep(self, number: int) -> None:
        self._snapshots.append((number, State(self._session)))
        if len(self._snapshots) > SNAPSHOTS:
            self._spacing *= 2
            kept = []
            for at, state in self._snapshots:
                if at % self._spacing == 0:
                    kept.append((at, state))
                else:
                    state.drop()
            self._snapshots = kept
        # States are kept for good, and are millions of objects: a full collection would look
        # through them for a third of a second, in the midst of a jump.
        gc.freeze()


class _Notes:
    """Finds the moments as events go by."""

    def __init__(self) -> None:
        self._stages: dict[int, str] = {}
        self._open: dict[int, int] = {}
        self._throttled: dict[int, frozenset[str]] = {}
        self._names: dict[int, str] = {}

    def see(self, event: AnyEvent, number: int) -> Moment | None:
        """The moment that an event is, None for most."""
        match event:
            case RunStarted():
                return Moment(event.time_ns, "run", f"{event.name} started", number)
            case RunEnded():
                reason = event.reason.lower()
                lacked = "out of memory" in reason
                return Moment(event.time_ns, "memory" if lacked else "exit", event.reason, number)
            case ProcessDetached(clean=False):
                text = f"process {event.process} vanished"
                return Moment(event.time_ns, "process", text, number)
            case RangeDefined():
                self._names[event.range] = event.name
            case RunProgress():
                return self._stage(event, number)
            case CaptureDelta():
                return self._range(event, number)
            case MachineSample():
                return self._sample(event, number)
        return None

    def _stage(self, event: RunProgress, number: int) -> Moment | None:
        if self._stages.get(event.run) == event.stage:
            return None
        self._stages[event.run] = event.stage
        return Moment(event.time_ns, "phase", event.stage, number)

    def _range(self, event: CaptureDelta, number: int) -> Moment | None:
        """A phase changes when the outermost open range does: the one that is open longest."""
        outermost = min(event.open_ranges, key=lambda entry: entry.since_ns, default=None)
        now = outermost.range if outermost else 0
        if self._open.get(event.process, 0) == now:
            return None
        self._open[event.process] = now
        text = self._names.get(now, "outside every range")
        return Moment(event.time_ns, "phase", text, number)

    def _sample(self, event: MachineSample, number: int) -> Moment | None:
        for sample in event.gpus:
            reasons = frozenset(sample.throttle_reasons or ()) - IDLE_REASONS
            before = self._throttled.get(sample.index, frozenset())
            self._throttled[sample.index] = reasons
            if reasons - before:
                words = ", ".join(sorted(reasons - before))
                text = f"GPU {sample.index} throttles: {words}"
                return Moment(event.time_ns, "throttle", text, number)
        return None
