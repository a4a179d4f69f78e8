"""The recordings of a job's nodes or ranks, merged into one session: as they are read, or while
they are still written.

Which recordings are of the job is decided in `job_members`.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import replace

from gputui.base import JournalError
from gputui.base.decoding import made_once
from gputui.model.events import (
    KINDS,
    About,
    Alert,
    AnyEvent,
    ClockCompared,
    Header,
    KernelDefined,
    LaunchShape,
    MachineSample,
    Numbered,
    ProcessAttached,
    ProcessDetached,
    ProcessOutOfSight,
    RunEnded,
    RunOutput,
    RunStarted,
)
from gputui.playback.job_members import MAX_MEMBERS, Machines, Member, Open, members_of
from gputui.store import SUFFIXES
from gputui.store.journal.reader import JournalReader, RotatedReader, open_journal
from gputui.store.recordings import recordings_in

if TYPE_CHECKING:
    from gputui.store.journal.reader import RecordingReader

# One member's events as those of the merged session.

RUN = 1
"""The number of the job's run in the merged session."""

# Events about a machine: of those that were recorded several times, one is enough.
_MACHINE = tuple(kind for kind in KINDS if kind.about in (About.MACHINE, About.GPU))


class FreshNumbers:
    """Numbers given one after another, from 1, in a session of several recordings."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, key: object) -> int:
        """The number of a thing, a new one if it has none."""
        return self._numbers.setdefault(key, len(self._numbers) + 1)


class MemberNumbers:
    """What the numbers of one member are in the merged session."""

    def __init__(self, place: int, shared: dict[Numbered, FreshNumbers], gpu: Callable[[int], int]):
        self._place = place
        self._shared = shared
        self._given: dict[tuple[Numbered, int], int] = {}
        own = (Numbered.PROCESS, Numbered.RANGE, Numbered.MARK)
        self.renumber = {
            kind: self._renumber(kind) for kind in (*own, Numbered.KERNEL, Numbered.SHAPE)
        }
        self.renumber |= {Numbered.RUN: lambda _: RUN, Numbered.GPU: gpu}

    def same_as(self, kind: Numbered, number: int, key: object) -> bool:
        """Give a name or shape the number of an equal one; whether it is the first of its kind."""
        counter = self._shared[kind]
        last = len(counter)
        self._given[kind, number] = counter.number(key)
        return len(counter) > last

    def items(self, kind: Numbered) -> dict[int, int]:
        """Every number that was given a new one."""
        return {number: new for (other, number), new in self._given.items() if other is kind}

    def _renumber(self, kind: Numbered) -> Callable[[int], int]:
        given, counter, place = self._given, self._shared[kind], self._place

        def renumber(number: int) -> int:
            if not number:
                return 0
            new = given.get((kind, number))
            if new is None:
                new = given[kind, number] = counter.number((place, number))
            return new

        return renumber


class MemberEvents:
    """Turns a member's events into events of the merged session. Of several runs only the job's is
    kept; of several recordings of a machine, only the first one's readings of it."""

    def __init__(
        self, place: int, member: Member, machines: Machines, shared: dict[Numbered, FreshNumbers]
    ) -> None:
        self._place, self._member, self._machines = place, member, machines
        self.numbers = MemberNumbers(place, shared, machines.indexes(place).__getitem__)
        self._foreign: set[int] = set()
        self._attached: dict[int, ProcessAttached] = {}
        self._going: set[int] = set()
        self.newest_ns = 0

    def translate(self, event: AnyEvent) -> AnyEvent | None:
        """An event, in the member's order; None if it is left out."""
        member, numbers = self._member, self.numbers
        if isinstance(event, Header):
            return None
        self.newest_ns = max(self.newest_ns, event.time_ns)
        if isinstance(event, _MACHINE) and not self._machines.speaks_for_its_host(self._place):
            return None
        if getattr(event, "run", member.run) != member.run:
            if isinstance(event, ProcessAttached):
                self._foreign.add(event.process)
            return None
        if getattr(event, "process", None) in self._foreign:
            return None
        if isinstance(event, KernelDefined):
            if not numbers.same_as(Numbered.KERNEL, event.kernel, (event.name, event.mangled)):
                return None
        elif isinstance(event, LaunchShape):
            kernel = numbers.renumber[Numbered.KERNEL](event.kernel)
            key = replace(event, time_ns=0, shape=1, kernel=kernel)
            if not numbers.same_as(Numbered.SHAPE, event.shape, key):
                return None
        event = renumbered(event, numbers.renumber)
        if isinstance(event, ProcessAttached):
            rank = member.rank if event.rank is None else event.rank
            visible = self._machines.visible(self._place, event.visible_devices)
            event = replace(event, rank=rank, visible_devices=visible, host=self._host)
            self._attached[event.process] = event
            self._going.add(event.process)
        elif isinstance(event, ProcessDetached):
            self._going.discard(event.process)
        elif isinstance(event, ClockCompared):
            event = replace(event, host=self._machines.host(self._place))
        elif isinstance(event, MachineSample):
            event = self._machines.sample(self._place, event)
        elif isinstance(event, Alert) and event.gpu is not None:
            event = replace(event, subject=f"gpu{event.gpu}")
        return event

    def lost(self) -> Iterator[ProcessOutOfSight]:
        """The member's processes that have not ended when nothing more comes of it."""
        for process in sorted(self._going):
            yield ProcessOutOfSight(time_ns=self.newest_ns, process=process)

    def again(self) -> Iterator[ProcessAttached]:
        """The member's processes again, because more of it comes, or because there are several
        hosts now."""
        for event in self._attached.values():
            yield replace(event, time_ns=self.newest_ns, host=self._host)

    @property
    def _host(self) -> str | None:
        return self._machines.host(self._place) if self._machines.count > 1 else None


class OneRun:
    """The runs of all members as one: begun with the first, over with the last."""

    def __init__(self) -> None:
        self._has_started = False
        self._ends: list[RunEnded] = []

    def fold(self, event: AnyEvent, members: int) -> AnyEvent | None:
        """An event of one of `members`; None if it is left out."""
        if isinstance(event, RunStarted):
            is_first, self._has_started = not self._has_started, True
            return event if is_first else None
        if isinstance(event, RunEnded):
            self._ends.append(event)
            return self._end() if len(self._ends) == members else None
        return event

    def _end(self) -> RunEnded:
        """That of the first member that failed, as late as the last."""
        failed = (end for end in self._ends if end.exit_code or end.signal is not None)
        return replace(next(failed, self._ends[-1]), time_ns=self._ends[-1].time_ns)


def open_job(folder: Path, opened: Open, facts: Open) -> JobRecording | None:
    """The job in `folder`, None if no recording there has a rank. `facts` opens them to see which
    they are. Raises JournalError."""
    members, left_out = members_of(folder, facts)
    return JobRecording(str(folder), members, left_out, opened) if members else None


class JobRecording:
    """The events of all members in order of time, with numbers of one session: see RecordingReader.

    Of several runs in a member the job's is taken. Members keep their own clocks. `left_out` is a
    line for each recording that is not of the job.
    """

    def __init__(
        self, name: str, members: Sequence[Member], left_out: Sequence[str], opened: Open
    ) -> None:
        self.name = name
        self.members = tuple(members)
        self.left_out = tuple(left_out)
        with contextlib.ExitStack() as files:
            self._recordings: list[RecordingReader] = [
                files.enter_context(contextlib.closing(opened(str(member.path))))
                for member in members
            ]
            self._files = files.pop_all()
        shared = {kind: FreshNumbers() for kind in Numbered}
        machines = Machines([member.header for member in members])
        self._events = [
            MemberEvents(place, member, machines, shared) for place, member in enumerate(members)
        ]
        self.numbers = tuple(events.numbers for events in self._events)
        self.header: Header = machines.header()

    @property
    def skipped(self) -> int:
        """Events left out so far."""
        return sum(recording.skipped for recording in self._recordings)

    @property
    def damage(self) -> str | None:
        """Where and why reading of a member ended early."""
        return next((member.damage for member in self._recordings if member.damage), None)

    def close(self) -> None:
        """Close the files of all members."""
        self._files.close()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        run = OneRun()
        merged = heapq.merge(
            *(self._of_member(place) for place in range(len(self.members))),
            key=attrgetter("time_ns"),
        )
        for event in merged:
            kept = run.fold(event, len(self.members))
            if kept is not None:
                yield kept

    def _of_member(self, place: int) -> Iterator[AnyEvent]:
        events = self._events[place]
        for event in self._recordings[place]:
            translated = events.translate(event)
            if translated is not None:
                yield translated
        yield from events.lost()


# A job whose recordings are still written, of each node or rank, as one session that grows.

HOLD_S = 2.0
"""How long an event waits for earlier ones of other members, which write once a sample."""

SILENT_S = 30.0
"""A recording not written to for so long, and three samples, may have lost its recorder."""

LOOK_S = 1.0
"""Between two looks for new recordings."""

# Members' threads notify; this bounds what a missed notification costs.
_WAIT_S = 0.1
# Events that a member is read ahead.
_AHEAD = 1000

# Events of a recording kept until a rank is seen in it; samples are not.
_BEFORE_RANKS = 10_000


class FollowedJob:
    """The events of all members as they come, about in order of time: see RecordingReader and
    JobRecording.

    Recordings that begin later join, and `stop` ends reading. The job is the one of the first rank
    that is seen; the newest recordings are looked at first.
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
        self._shared = {kind: FreshNumbers() for kind in Numbered}
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
            why = (
                f"; {path.name}: {reading.why}"
                for path, reading in self._read.items()
                if reading.why
            )
            return (f"{self._folder}: no rank of a job is seen in it yet{''.join(why)}",)
        return tuple(f"{path.name} is left out: {why}" for path, why in self._problems.items())

    @property
    def skipped(self) -> int:
        """Events left out so far."""
        return sum(reading.recording.skipped for reading in self._read.values())

    @property
    def damage(self) -> str | None:
        """Where and why reading of a member ended early."""
        damages = (reading.recording.damage for reading in self._read.values())
        return next((damage for damage in damages if damage), None)

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
        for reading in [reading for reading in self._read.values() if reading.events is None]:
            if not reading.is_left_out.is_set():
                yield from self._join(reading)
        yield from self._ready()
        for reading in self._joined:
            yield from reading.lost()

    def _look(self) -> None:
        """Begin to read recordings that are new, the newest first."""
        self._looked_s = time.monotonic()
        for path in (recording.path for recording in recordings_in(self._folder)[:MAX_MEMBERS]):
            if path in self._read or not path.name.endswith(SUFFIXES):
                continue
            try:
                recording = open_journal(path, stop=self._stop)
            except JournalError as error:
                self._problems[path] = str(error)  # its first line may be written by half
                continue
            self._problems.pop(path, None)
            self._read[path] = _Reading(path, recording, self._changed, self._stop)

    def _join(self, reading: _Reading) -> Iterator[AnyEvent]:
        """Take a recording for a member as soon as there is a rank in it."""
        before = reading.why
        attached = reading.rank()
        if attached is None or attached.rank is None:
            if reading.why != before:
                yield self.header  # so that whoever shows it looks at `left_out` again
            return
        job = attached.job.id if attached.job is not None else None
        self._job = self._job or job
        holder = self._holders.setdefault(attached.rank, reading.path)
        if job and job != self._job:
            self._problems[reading.path] = f"of another job: {job}"
        elif holder != reading.path:
            self._problems[reading.path] = f"has rank {attached.rank}, as {holder.name} has"
        if reading.path in self._problems:
            reading.is_left_out.set()
            with self._changed:
                self._changed.notify_all()
            yield self.header  # as above
            return
        header = reading.recording.header
        hosts = self._machines.count
        place = self._machines.add(header)
        member = Member(reading.path, header, attached.run)
        reading.events = MemberEvents(place, member, self._machines, self._shared)
        self._joined.append(reading)
        self.header = self._machines.header()
        yield self.header
        if self._machines.count > hosts > 0:
            for member_reading in self._joined:
                yield from member_reading.events.again() if member_reading.events else ()
        for event in reading.drain_before():
            yield from self._translated(reading, event)

    def _ready(self) -> Iterator[AnyEvent]:
        """What comes next by time, of what need not wait for another member."""
        while True:
            now_s = time.monotonic()
            heads = [reading for reading in self._joined if reading.queue]
            first = min(heads, key=lambda head: head.queue[0][1].time_ns, default=None)
            if first is not None:
                arrived_s, event = first.queue[0]
                if now_s - arrived_s < HOLD_S and any(
                    reading.may_be_earlier(event.time_ns, now_s) for reading in self._joined
                ):
                    first = None
            if first is None:
                return
            yield from self._translated(first, first.next_event())

    def _translated(self, reading: _Reading, event: AnyEvent) -> Iterator[AnyEvent]:
        assert reading.events is not None
        if reading.is_silent:
            reading.is_silent = False
            yield from reading.events.again()
        translated = reading.events.translate(event)
        if isinstance(translated, RunEnded):
            reading.has_ended = True
        if translated is not None:
            translated = self._run.fold(translated, len(self._joined))
        if translated is not None:
            yield translated


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
        """Why this recording can have no rank of the job."""
        self._last_line = ""
        self.is_left_out = threading.Event()
        self._before: deque[AnyEvent] = deque(maxlen=_BEFORE_RANKS)
        self._changed, self._stop = changed, stop
        self._arrived_s = time.monotonic()
        self._silent_s = SILENT_S + 3 * recording.header.interval_s
        self._is_over = False
        threading.Thread(target=self._fill, name=path.name, daemon=True).start()

    def rank(self) -> ProcessAttached | None:
        """The first process of the recording that has a rank, once it has come; the events before
        it are kept."""
        while self.queue:
            event = self.next_event()
            if not isinstance(event, MachineSample):
                self._before.append(event)
            if isinstance(event, RunStarted):
                self.why = event.capture_unavailable_reason or ""
            elif isinstance(event, RunEnded):
                # Why no rank of a job that is followed comes: its program failed, with its last
                # line.
                self.why = f"{event.reason}{': ' * bool(self._last_line)}{self._last_line}"
            elif isinstance(event, RunOutput) and event.lines:
                self._last_line = event.lines[-1]
            if isinstance(event, ProcessAttached) and event.rank is not None:
                return event
        return None

    def drain_before(self) -> Iterator[AnyEvent]:
        """The events that were kept, each given once."""
        while self._before:
            yield self._before.popleft()

    def next_event(self) -> AnyEvent:
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


# Giving the numbers of a session's events anew: several recordings become one session by it.
# Which fields are such numbers is declared where they are (events.base.Numbered).


Numbers = Mapping[Numbered, Callable[[int], int]]
"""The new number of each old one, by what the numbers refer to."""

_Part = TypeVar("_Part", bound=msgspec.Struct)


class _Plan(NamedTuple):
    numbers: tuple[tuple[str, Numbered], ...]
    tuples: tuple[str, ...]


def renumbered(part: _Part, numbers: Numbers) -> _Part:
    """The event or part with other numbers, also in its own parts."""
    plan = _plan(type(part))
    changed: dict[str, Any] = {}
    for name, kind in plan.numbers:
        value = getattr(part, name)
        if value is not None and (new := numbers[kind](value)) != value:
            changed[name] = new
    for name in plan.tuples:
        if value := getattr(part, name):
            changed[name] = tuple(renumbered(item, numbers) for item in value)
    return msgspec.structs.replace(part, **changed) if changed else part


@made_once
def _plan(kind: type[msgspec.Struct]) -> _Plan:
    numbers, tuples = [], []
    for field in msgspec.structs.fields(kind):
        for hint in _members(field.type):
            marks = [
                item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Numbered)
            ]
            if marks:
                numbers.append((field.name, marks[0]))
            elif get_origin(hint) is tuple and any(map(_holds_numbers, get_args(hint))):
                tuples.append(field.name)
    return _Plan(tuple(numbers), tuple(tuples))


def _members(hint: Any) -> list[Any]:
    """The types of a field that may be one of several, without what else is declared of it."""
    if get_origin(hint) is Annotated:
        if any(isinstance(item, Numbered) for item in hint.__metadata__):
            return [hint]
        return _members(get_args(hint)[0])
    if get_origin(hint) is tuple or not get_args(hint):
        return [hint]
    return [member for item in get_args(hint) for member in _members(item)]


def _holds_numbers(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct) and any(_plan(hint))
