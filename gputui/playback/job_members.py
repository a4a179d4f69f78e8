"""Which recordings of a folder belong to one job, which ranks each has, and their machines as one.
`job_recording` merges their events."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gputui.base import JournalError, reason
from gputui.model.events import (
    GpuFacts,
    Header,
    HostSample,
    JobFacts,
    LauncherSample,
    MachineSample,
    ProcessAttached,
    ProcessSample,
    RunStarted,
)
from gputui.store import SUFFIXES
from gputui.store.recordings import recordings_in

if TYPE_CHECKING:
    from gputui.store.journal.reader import RecordingReader


MAX_MEMBERS = 4096
"""Recordings of a job."""

OTHER_TOOLS = (".nsys-rep", ".json", ".json.gz")
"""Files of other tools that may be of a rank, beside recordings and exports of nsys."""

_NUMBER = re.compile(r"[0-9]{1,6}")

Open = Callable[[str], "RecordingReader"]


@dataclass(slots=True)
class Member:
    """One recording of the job. `run` is the run in it that belongs to the job. `rank` is the rank
    of its processes if they do not know it themselves."""

    path: Path
    header: Header
    run: int
    rank: int | None = None

    @property
    def name(self) -> str:
        """The name of the recording's file."""
        return self.path.name


@dataclass(slots=True)
class _Facts:
    path: Path
    header: Header | None = None
    runs: list[int] = field(default_factory=list)
    ranks: dict[int, set[int]] = field(default_factory=dict)
    jobs: dict[int, set[str]] = field(default_factory=dict)

    @property
    def run(self) -> int:
        """The newest run with ranks, the newest where there are none."""
        return next((run for run in reversed(self.runs) if self.ranks.get(run)), self.runs[-1])

    def member(self, rank: int | None = None) -> Member:
        """The recording as a member of the job."""
        assert self.header is not None
        return Member(self.path, self.header, self.run, rank)


def members_of(folder: Path, opened: Open) -> tuple[list[Member], list[str]]:
    """The recordings of the job that most of the folder's are of, and a line for each that is left
    out, with the reason.

    Reports of other tools, a file a rank, are numbered by their names, if these differ in one
    number only. Raises JournalError where the folder cannot be read; nothing is of a job where no
    recording has ranks.
    """
    candidates: list[_Facts] = []
    left_out: list[str] = []
    for path in _paths(folder):
        try:
            facts = _facts(path, opened)
        except JournalError as error:
            left_out.append(f"{path.name} is left out: {error}")
            continue
        if facts.runs:
            candidates.append(facts)
        else:
            left_out.append(f"{path.name} is left out: no run in it")
    ranked = [facts for facts in candidates if facts.ranks.get(facts.run)]
    if not ranked:
        by_name = not any(facts.path.name.endswith(SUFFIXES) for facts in candidates)
        numbers = _numbers_of_names([facts.path.name for facts in candidates]) if by_name else []
        pairs = zip(candidates, numbers, strict=False)
        return [facts.member(number) for facts, number in pairs], left_out
    names = [name for facts in ranked for name in facts.jobs.get(facts.run, ())]
    wanted = Counter(names).most_common(1)[0][0] if names else None
    kept: list[Member] = []
    holders: dict[int, str] = {}
    for facts in candidates:
        run, name = facts.run, facts.path.name
        ranks, jobs = facts.ranks.get(run, set()), facts.jobs.get(run, set())
        twice = sorted(rank for rank in ranks if rank in holders)
        if not ranks:
            why = "no rank of a job in it"
        elif jobs and wanted not in jobs:
            why = f"of another job: {min(jobs)}"
        elif twice:
            why = f"has rank {twice[0]}, as {holders[twice[0]]} has"
        else:
            kept.append(facts.member())
            holders |= dict.fromkeys(ranks, name)
            continue
        left_out.append(f"{name} is left out: {why}")
    return kept, left_out


def _paths(folder: Path) -> list[Path]:
    """Recordings, and what other tools wrote, by name."""
    paths = [recording.path for recording in recordings_in(folder)]
    try:
        others = [entry for entry in os.scandir(folder) if entry.name.endswith(OTHER_TOOLS)]
    except OSError as error:
        raise JournalError(f"cannot read {folder}: {reason(error)}") from None
    return sorted([*paths, *(Path(entry.path) for entry in others if entry.is_file())])[
        :MAX_MEMBERS
    ]


def _facts(path: Path, opened: Open) -> _Facts:
    facts = _Facts(path)
    with closing(opened(str(path))) as recording:
        for event in recording:
            if isinstance(event, Header):
                facts.header = facts.header or event
            elif isinstance(event, RunStarted):
                facts.runs.append(event.run)
            elif isinstance(event, ProcessAttached) and event.rank is not None:
                facts.ranks.setdefault(event.run, set()).add(event.rank)
                job: JobFacts | None = event.job
                if job is not None and job.id:
                    facts.jobs.setdefault(event.run, set()).add(job.id)
    return facts


def _numbers_of_names(names: Sequence[str]) -> list[int]:
    """The number in which names that are alike otherwise differ; none where they do not."""
    if len(names) < 2:
        return []
    frames = {_NUMBER.sub("#", name) for name in names}
    rows = [[int(number) for number in _NUMBER.findall(name)] for name in names]
    if len(frames) > 1 or not rows[0]:
        return []
    apart = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    if len(apart) != 1 or len(set(apart[0])) < len(names):
        return []
    return list(apart[0])


# The machines of a job as one: GPUs numbered on, hosts added up.

LISTED = 8
"""Hosts named in the header of the session."""


@dataclass(slots=True)
class _Host:
    first: int
    """The member that was recorded first there: readings of the machine are its."""
    gpus: dict[int, int] = field(default_factory=dict)
    newest: HostSample | None = None
    processes: tuple[ProcessSample, ...] = ()
    launchers: tuple[LauncherSample, ...] = ()
    recorded_bytes: int | None = None
    traced_bytes: int | None = None


class _Indexes(dict[int, int]):
    """The session's index of each GPU of a host; one that the header lacks gets one, too."""

    def __init__(self, used: set[int]) -> None:
        super().__init__()
        self._used = used

    def __missing__(self, index: int) -> int:
        # The first host keeps its indexes.
        new = index if index not in self._used else max(self._used) + 1
        self._used.add(new)
        self[index] = new
        return new


class Machines:
    """The machines on which the members of these headers were recorded, by host name."""

    def __init__(self, headers: Sequence[Header]) -> None:
        self._headers: list[Header] = []
        self._hosts: dict[str, _Host] = {}
        self._used: set[int] = set()
        for header in headers:
            self.add(header)

    def add(self, header: Header) -> int:
        """The place of one more member."""
        place = len(self._headers)
        self._headers.append(header)
        name = header.host.hostname
        host = self._hosts.setdefault(name, _Host(place, _Indexes(self._used)))
        for facts in header.gpus:
            host.gpus[facts.index]
        return place

    @property
    def count(self) -> int:
        """How many machines the job has."""
        return len(self._hosts)

    def host(self, place: int) -> str:
        """The name of a member's host."""
        return self._headers[place].host.hostname

    def indexes(self, place: int) -> dict[int, int]:
        """The session's index of each GPU of a member's host."""
        return self._hosts[self.host(place)].gpus

    def speaks_for_its_host(self, place: int) -> bool:
        """Whether this member's readings of the machine are the ones that are used."""
        return self._hosts[self.host(place)].first == place

    def visible(self, place: int, visible: str | None) -> str | None:
        """CUDA_VISIBLE_DEVICES with the session's indexes."""
        indexes = self.indexes(place)
        if all(index == new for index, new in indexes.items()):
            return visible
        if visible is None:
            return ",".join(str(indexes[index]) for index in sorted(indexes))
        entries = [entry.strip() for entry in visible.split(",")]
        return ",".join(
            str(indexes[int(entry)]) if entry.isascii() and entry.isdigit() and len(entry) < 6
            else entry
            for entry in entries
        )  # fmt: skip

    def header(self) -> Header:
        """The header of the merged session: everything that the first member's has, with the hosts
        and GPUs of all."""
        first = min(self._headers, key=lambda header: header.time_ns)
        own = [self._headers[host.first].host for host in self._hosts.values()]
        names = [*self._hosts][:LISTED]
        names += [f"{self.count - LISTED} more"] if self.count > LISTED else []
        host = replace(
            first.host,
            hostname=", ".join(names),
            cpu_count=sum(host.cpu_count for host in own),
            memory_total_bytes=sum(host.memory_total_bytes for host in own),
        )
        gpus: dict[int, GpuFacts] = {}
        for place, header in enumerate(self._headers):
            indexes = self.indexes(place)
            for facts in header.gpus:
                ways = {indexes[other]: way for other, way in facts.topology.items()}
                new = replace(facts, index=indexes[facts.index], topology=ways)
                gpus.setdefault(new.index, new)
        reason = None if gpus else first.gpu_unavailable_reason
        return replace(first, host=host, gpus=tuple(gpus.values()), gpu_unavailable_reason=reason)

    def sample(self, place: int, event: MachineSample) -> MachineSample:
        """A tick of one host, together with the newest readings of the others."""
        if self.count == 1:
            return event
        own = self._hosts[self.host(place)]
        own.newest = event.host
        own.recorded_bytes, own.traced_bytes = event.recorded_bytes, event.traced_bytes
        if event.processes is not None:
            own.processes, own.launchers = event.processes, event.launchers
        hosts = [*self._hosts.values()]
        return replace(
            event,
            host=_together([host.newest for host in hosts if host.newest is not None]),
            processes=None
            if event.processes is None
            else tuple(process for host in hosts for process in host.processes),
            launchers=tuple(launcher for host in hosts for launcher in host.launchers),
            recorded_bytes=_sum([host.recorded_bytes for host in hosts]),
            traced_bytes=_sum([host.traced_bytes for host in hosts]),
        )


def _together(samples: Sequence[HostSample]) -> HostSample:
    """Percentages as a mean, the rest as a sum; missing where a host lacks it."""
    figures: dict[str, Any] = {}
    for name in HostSample.__struct_fields__:
        values = [getattr(sample, name) for sample in samples]
        if any(value is None for value in values):
            figures[name] = None
        else:
            figures[name] = fmean(values) if name.endswith("_percent") else sum(values)
    return HostSample(**figures)


def _sum(values: Sequence[int | None]) -> int | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None
