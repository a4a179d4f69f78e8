"""The recordings of a job's nodes or ranks, merged into one session as they are read."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.model.events import (
    Alert,
    AnyEvent,
    Header,
    KernelDefined,
    LaunchShape,
    MachineSample,
    ProcessAttached,
    ProcessDetached,
    ProcessOutOfSight,
    RunEnded,
    RunStarted,
)
from gputui.model.events.base import Numbered
from gputui.model.renumbering import renumbered
from gputui.playback.job.machines import Machines
from gputui.playback.job.members import Member, Open, members_of

if TYPE_CHECKING:
    from gputui.playback.opening import Recording

RUN = 1
"""The number of the job's run in the merged session."""

_MACHINE = tuple(
    kind
    for kind in AnyEvent.__args__
    if not {"run", "process", "kernel", "shape"} & set(kind.__struct_fields__)
)
"""Events about a machine: of those that were recorded several times, one is enough."""


def open_job(folder: Path, opened: Open, facts: Open) -> JobRecording | None:
    """The job in `folder`, None if no recording there has a rank. `facts` opens them to see which
    they are. Raises JournalError."""
    members, left_out = members_of(folder, facts)
    return JobRecording(str(folder), members, left_out, opened) if members else None


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


class JobRecording:
    """The events of all members in order of time, with numbers of one session: see Recording.

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
            self._recordings: list[Recording] = [
                files.enter_context(contextlib.closing(opened(str(one.path)))) for one in members
            ]
            self._files = files.pop_all()
        shared = {kind: Counter() for kind in Numbered}
        self._machines = Machines([one.header for one in members])
        self.numbers = tuple(
            MemberNumbers(place, shared, self._machines.indexes(place).__getitem__)
            for place in range(len(members))
        )
        self.header: Header = self._machines.header()

    @property
    def skipped(self) -> int:
        """Events left out so far."""
        return sum(one.skipped for one in self._recordings)

    @property
    def damage(self) -> str | None:
        """Where and why reading of a member ended early."""
        return next((one.damage for one in self._recordings if one.damage), None)

    def close(self) -> None:
        """Close the files of all members."""
        self._files.close()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        has_started = False
        ends: list[RunEnded] = []
        merged = heapq.merge(
            *(self._of_member(place) for place in range(len(self.members))),
            key=attrgetter("time_ns"),
        )
        for event in merged:
            if isinstance(event, RunStarted):
                if has_started:
                    continue
                has_started = True
            elif isinstance(event, RunEnded):
                ends.append(event)
                if len(ends) < len(self.members):
                    continue
                event = self._end(ends)
            yield event

    def _end(self, ends: Sequence[RunEnded]) -> RunEnded:
        """That of the first member that failed, as late as the last."""
        failed = (one for one in ends if one.exit_code or one.signal is not None)
        return replace(next(failed, ends[-1]), time_ns=ends[-1].time_ns)

    def _of_member(self, place: int) -> Iterator[AnyEvent]:
        member, numbers = self.members[place], self.numbers[place]
        speaks = self._machines.speaks_for_its_host(place)
        foreign: set[int] = set()
        going: set[int] = set()
        newest_ns = 0
        for event in self._recordings[place]:
            if isinstance(event, Header):
                continue
            newest_ns = max(newest_ns, event.time_ns)
            if isinstance(event, _MACHINE) and not speaks:
                continue
            if getattr(event, "run", member.run) != member.run:
                if isinstance(event, ProcessAttached):
                    foreign.add(event.process)
                continue
            if getattr(event, "process", None) in foreign:
                continue
            if isinstance(event, KernelDefined):
                if not numbers.same_as(Numbered.KERNEL, event.kernel, (event.name, event.mangled)):
                    continue
            elif isinstance(event, LaunchShape):
                kernel = numbers.of[Numbered.KERNEL](event.kernel)
                key = replace(event, time_ns=0, shape=1, kernel=kernel)
                if not numbers.same_as(Numbered.SHAPE, event.shape, key):
                    continue
            event = renumbered(event, numbers.of)
            if isinstance(event, ProcessAttached):
                event = self._attached(place, event)
                going.add(event.process)
            elif isinstance(event, ProcessDetached):
                going.discard(event.process)
            elif isinstance(event, MachineSample):
                event = self._machines.sample(place, event)
            elif isinstance(event, Alert) and event.gpu is not None:
                event = replace(event, subject=f"gpu{event.gpu}")
            yield event
        for process in sorted(going):
            yield ProcessOutOfSight(time_ns=newest_ns, process=process)

    def _attached(self, place: int, event: ProcessAttached) -> ProcessAttached:
        rank = self.members[place].rank if event.rank is None else event.rank
        visible = self._machines.visible(place, event.visible_devices)
        host = self._machines.host(place) if self._machines.count > 1 else None
        return replace(event, rank=rank, visible_devices=visible, host=host)
