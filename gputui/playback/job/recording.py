"""The recordings of a job's nodes or ranks, merged into one session as they are read."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.model.events import AnyEvent, Header, Numbered
from gputui.playback.job.machines import Machines
from gputui.playback.job.member_events import Counter, MemberEvents, OneRun
from gputui.playback.job.members import Member, Open, members_of

if TYPE_CHECKING:
    from gputui.store.journal.reader import RecordingReader


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
                files.enter_context(contextlib.closing(opened(str(one.path)))) for one in members
            ]
            self._files = files.pop_all()
        shared = {kind: Counter() for kind in Numbered}
        machines = Machines([one.header for one in members])
        self._events = [
            MemberEvents(place, member, machines, shared) for place, member in enumerate(members)
        ]
        self.numbers = tuple(one.numbers for one in self._events)
        self.header: Header = machines.header()

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
        run = OneRun()
        merged = heapq.merge(
            *(self._of_member(place) for place in range(len(self.members))),
            key=attrgetter("time_ns"),
        )
        for found in merged:
            event = run.of(found, len(self.members))
            if event is not None:
                yield event

    def _of_member(self, place: int) -> Iterator[AnyEvent]:
        events = self._events[place]
        for event in self._recordings[place]:
            found = events.of(event)
            if found is not None:
                yield found
        yield from events.lost()
