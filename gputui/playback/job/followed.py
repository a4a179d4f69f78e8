"""A job whose recordings are still written, of each node or rank, as one session that grows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    Header,
    MachineSample,
    Numbered,
    ProcessAttached,
    RunEnded,
    RunOutput,
    RunStarted,
)
from gputui.playback.job.machines import Machines
from gputui.playback.job.member_events import Counter, MemberEvents, OneRun
from gputui.playback.job.members import MOST, Member
from gputui.store.errors import JournalError
from gputui.store.journal import JournalReader, RotatedReader, open_journal
from gputui.store.library import files
from gputui.store.places import SUFFIXES

HOLD_S = 2.0
"""How long an event waits for earlier ones of other members, which write once a sample."""

SILENT_S = 30.0
"""A recording not written to for so long, and three samples, may have lost its recorder."""

LOOK_S = 1.0
"""Between two looks for new recordings."""

_WAIT_S = 0.1
_AHEAD = 1000
"""Events that a member is read ahead."""

_BEFORE_RANKS = 10_000
"""Events of a recording kept until a rank is seen in it; samples are not."""


class FollowedJob:
    """The events of all members, about in order of time, as they come: see RecordingReader and
    JobRecording. Recordings that begin later join, and `stop` ends it.

    The job is that of the first rank seen, the newest recordings looked at first.
    """

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        """Raises JournalError where no recording is in the folder."""
        self.name = str(folder)
        self._folder, self._stop = folder, stop
        self._changed = threading.Condition()
        self._read: dict[Path, _Reading] = {}
        self._joined: list[_Reading] = []
        self._problems: dict[Path, str] = {}
        self._machines = Machines([])
        self._shared = {kind: Counter() for kind in Numbered}
        self._run = OneRun()
        self._job: str | None = None
        self._holders: dict[int, Path] = {}
        self._looked_s = 0.0
        self._look()
        if not self._read:
            why = next(iter(self._problems.values()), f"{folder}: no recording is in it yet")
            raise JournalError(why)
        first = next(iter(self._read.values())).recording.header
        self.header: Header = replace(first, gpus=())

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each recording that is not of the job; before there is one, that."""
        if not self._joined and not self._problems:
            why = (f"; {path.name}: {one.why}" for path, one in self._read.items() if one.why)
            return (f"{self._folder}: no rank of a job is seen in it yet{''.join(why)}",)
        return tuple(f"{path.name} is left out: {why}" for path, why in self._problems.items())

    @property
    def skipped(self) -> int:
        """Events left out so far."""
        return sum(one.recording.skipped for one in self._read.values())

    @property
    def damage(self) -> str | None:
        """Where and why reading of a member ended early."""
        found = (one.recording.damage for one in self._read.values())
        return next((damage for damage in found if damage), None)

    def close(self) -> None:
        """Stop reading; each member's thread closes its files."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        while not self._stop.is_set():
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._look()
            is_idle = True
            for event in self._new():
                is_idle = False
                yield event
            if is_idle:
                with self._changed:
                    self._changed.wait(_WAIT_S)

    def _new(self) -> Iterator[AnyEvent]:
        for one in [one for one in self._read.values() if one.events is None]:
            if not one.is_left_out.is_set():
                yield from self._join(one)
        yield from self._ready()
        for one in self._joined:
            yield from one.lost()

    def _look(self) -> None:
        """Begin to read recordings that are new, the newest first."""
        self._looked_s = time.monotonic()
        for found in files(self._folder)[:MOST]:
            path = found.path
            if path in self._read or not path.name.endswith(SUFFIXES):
                continue
            try:
                recording = open_journal(path, stop=self._stop)
            except JournalError as error:
                self._problems[path] = str(error)  # its first line may be written by half
                continue
            self._problems.pop(path, None)
            self._read[path] = _Reading(path, recording, self._changed, self._stop)

    def _join(self, one: _Reading) -> Iterator[AnyEvent]:
        """Take a recording for a member as soon as there is a rank in it."""
        before = one.why
        attached = one.rank()
        if attached is None or attached.rank is None:
            if one.why != before:
                yield self.header  # so that whoever shows it looks at `left_out` again
            return
        job = attached.job.id if attached.job is not None else None
        self._job = self._job or job
        holder = self._holders.setdefault(attached.rank, one.path)
        if job and job != self._job:
            self._problems[one.path] = f"of another job: {job}"
        elif holder != one.path:
            self._problems[one.path] = f"has rank {attached.rank}, as {holder.name} has"
        if one.path in self._problems:
            one.is_left_out.set()
            with self._changed:
                self._changed.notify_all()
            yield self.header  # as above
            return
        header = one.recording.header
        hosts = self._machines.count
        place = self._machines.add(header)
        member = Member(one.path, header, attached.run)
        one.events = MemberEvents(place, member, self._machines, self._shared)
        self._joined.append(one)
        self.header = self._machines.header()
        yield self.header
        if self._machines.count > hosts > 0:
            for known in self._joined:
                yield from known.events.again() if known.events else ()
        for event in one.take_before():
            yield from self._of(one, event)

    def _ready(self) -> Iterator[AnyEvent]:
        """What comes next by time, of what need not wait for another member."""
        while True:
            now_s = time.monotonic()
            heads = [one for one in self._joined if one.queue]
            first = min(heads, key=lambda one: one.queue[0][1].time_ns, default=None)
            if first is not None:
                arrived_s, event = first.queue[0]
                if now_s - arrived_s < HOLD_S and any(
                    one.may_be_earlier(event.time_ns, now_s) for one in self._joined
                ):
                    first = None
            if first is None:
                return
            yield from self._of(first, first.take())

    def _of(self, one: _Reading, event: AnyEvent) -> Iterator[AnyEvent]:
        assert one.events is not None
        if one.is_silent:
            one.is_silent = False
            yield from one.events.again()
        found = one.events.of(event)
        if isinstance(found, RunEnded):
            one.has_ended = True
        if found is not None:
            found = self._run.of(found, len(self._joined))
        if found is not None:
            yield found


class _Reading:
    """One recording, read in a thread. `events` is None before it is a member's."""

    def __init__(
        self,
        path: Path,
        recording: JournalReader | RotatedReader,
        changed: threading.Condition,
        stop: threading.Event,
    ) -> None:
        self.path, self.recording = path, recording
        self.events: MemberEvents | None = None
        self.queue: deque[tuple[float, AnyEvent]] = deque()
        self.has_ended = self.is_silent = False
        self.why = ""
        """Why no rank may come of it."""
        self._last_line = ""
        self.is_left_out = threading.Event()
        self._before: deque[AnyEvent] = deque(maxlen=_BEFORE_RANKS)
        self._changed, self._stop = changed, stop
        self._arrived_s = time.monotonic()
        self._silent_s = SILENT_S + 3 * recording.header.interval_s
        self._is_over = False
        threading.Thread(target=self._fill, name=path.name, daemon=True).start()

    def rank(self) -> ProcessAttached | None:
        """Where it has a rank; what comes before is kept."""
        while self.queue:
            event = self.take()
            if not isinstance(event, MachineSample):
                self._before.append(event)
            if isinstance(event, RunStarted):
                self.why = event.capture_unavailable_reason or ""
            elif isinstance(event, RunEnded):
                self.why = f"{event.reason}{': ' * bool(self._last_line)}{self._last_line}"
            elif isinstance(event, RunOutput) and event.lines:
                self._last_line = event.lines[-1]
            if isinstance(event, ProcessAttached) and event.rank is not None:
                return event
        return None

    def take_before(self) -> Iterator[AnyEvent]:
        """What was kept, once."""
        while self._before:
            yield self._before.popleft()

    def take(self) -> AnyEvent:
        """The next event, of which there is one."""
        with self._changed:
            _, event = self.queue.popleft()
            self._changed.notify_all()
            return event

    def may_be_earlier(self, time_ns: int, now_s: float) -> bool:
        """Whether an event may still come that is earlier."""
        if self.queue or self.has_ended or self._is_over or self.events is None:
            return False
        return self.events.newest_ns < time_ns and now_s - self._arrived_s < HOLD_S

    def lost(self) -> Iterator[AnyEvent]:
        """Once, where nothing has come for long, or can come, from a run that has not ended."""
        is_lost = self._is_over or time.monotonic() - self._arrived_s > self._silent_s
        if self.queue or self.has_ended or self.is_silent or not is_lost or self.events is None:
            return
        self.is_silent = True
        yield from self.events.lost()

    def _fill(self) -> None:
        with closing(self.recording):
            for event in self.recording:
                with self._changed:
                    self._changed.wait_for(lambda: len(self.queue) < _AHEAD or self._is_done())
                    if self._is_done():
                        return
                    self._arrived_s = time.monotonic()
                    self.queue.append((self._arrived_s, event))
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True

    def _is_done(self) -> bool:
        return self._stop.is_set() or self.is_left_out.is_set()
