"""One member's events as those of the merged session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

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
    RunStarted,
)
from gputui.model.renumbering import renumbered
from gputui.playback.job.machines import Machines
from gputui.playback.job.members import Member

RUN = 1
"""The number of the job's run in the merged session."""

_MACHINE = tuple(kind for kind in KINDS if kind.about in (About.MACHINE, About.GPU))
"""Events about a machine: of those that were recorded several times, one is enough."""


class Counter:
    """Numbers given one after another, from 1, in a session of several recordings."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, key: object) -> int:
        """The number of a thing, a new one if it has none."""
        return self._numbers.setdefault(key, len(self._numbers) + 1)


class MemberNumbers:
    """What the numbers of one member are in the merged session."""

    def __init__(self, place: int, shared: dict[Numbered, Counter], gpu: Callable[[int], int]):
        self._place = place
        self._shared = shared
        self._known: dict[tuple[Numbered, int], int] = {}
        own = (Numbered.PROCESS, Numbered.RANGE, Numbered.MARK)
        self.of = {kind: self._of(kind) for kind in (*own, Numbered.KERNEL, Numbered.SHAPE)}
        self.of |= {Numbered.RUN: lambda _: RUN, Numbered.GPU: gpu}

    def same_as(self, kind: Numbered, number: int, key: object) -> bool:
        """Give a name or shape the number of an equal one; whether it is the first of its kind."""
        counter = self._shared[kind]
        last = len(counter)
        self._known[kind, number] = counter.of(key)
        return len(counter) > last

    def items(self, kind: Numbered) -> dict[int, int]:
        """Every number that was given a new one."""
        return {number: new for (of, number), new in self._known.items() if of is kind}

    def _of(self, kind: Numbered) -> Callable[[int], int]:
        known, counter, place = self._known, self._shared[kind], self._place

        def of(number: int) -> int:
            if not number:
                return 0
            new = known.get((kind, number))
            if new is None:
                new = known[kind, number] = counter.of((place, number))
            return new

        return of


class MemberEvents:
    """What a member's events are in the session of all: of several runs only the job's, of several
    recordings of a machine only the first's readings of it."""

    def __init__(
        self, place: int, member: Member, machines: Machines, shared: dict[Numbered, Counter]
    ) -> None:
        self._place, self._member, self._machines = place, member, machines
        self.numbers = MemberNumbers(place, shared, machines.indexes(place).__getitem__)
        self._foreign: set[int] = set()
        self._attached: dict[int, ProcessAttached] = {}
        self._going: set[int] = set()
        self.newest_ns = 0

    def of(self, event: AnyEvent) -> AnyEvent | None:
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
            kernel = numbers.of[Numbered.KERNEL](event.kernel)
            key = replace(event, time_ns=0, shape=1, kernel=kernel)
            if not numbers.same_as(Numbered.SHAPE, event.shape, key):
                return None
        event = renumbered(event, numbers.of)
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
        """Its processes that have not ended, where nothing more comes."""
        for process in sorted(self._going):
            yield ProcessOutOfSight(time_ns=self.newest_ns, process=process)

    def again(self) -> Iterator[ProcessAttached]:
        """Its processes once more: something comes again, or there are several hosts now."""
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

    def of(self, event: AnyEvent, members: int) -> AnyEvent | None:
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
        failed = (one for one in self._ends if one.exit_code or one.signal is not None)
        return replace(next(failed, self._ends[-1]), time_ns=self._ends[-1].time_ns)
