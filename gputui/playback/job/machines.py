"""The machines of a job as one: GPUs numbered on, hosts added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from gputui.model.events import (
    GpuFacts,
    Header,
    HostSample,
    LauncherSample,
    MachineSample,
    ProcessSample,
)

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

    def __init__(self, taken: set[int]) -> None:
        super().__init__()
        self._taken = taken

    def __missing__(self, index: int) -> int:
        # The first host keeps its indexes.
        new = index if index not in self._taken else max(self._taken) + 1
        self._taken.add(new)
        self[index] = new
        return new


class Machines:
    """The machines on which the members of these headers were recorded, by host name."""

    def __init__(self, headers: Sequence[Header]) -> None:
        self._headers: list[Header] = []
        self._hosts: dict[str, _Host] = {}
        self._taken: set[int] = set()
        for header in headers:
            self.add(header)

    def add(self, header: Header) -> int:
        """The place of one more member."""
        place = len(self._headers)
        self._headers.append(header)
        name = header.host.hostname
        host = self._hosts.setdefault(name, _Host(place, _Indexes(self._taken)))
        for facts in header.gpus:
            host.gpus[facts.index]
        return place

    @property
    def count(self) -> int:
        """How many."""
        return len(self._hosts)

    def host(self, place: int) -> str:
        """The name of a member's host."""
        return self._headers[place].host.hostname

    def indexes(self, place: int) -> dict[int, int]:
        """The session's index of each GPU of a member's host."""
        return self._hosts[self.host(place)].gpus

    def speaks_for_its_host(self, place: int) -> bool:
        """Whether a member's readings of the machine are those that count."""
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
        """Of the session: everything that the first has, and all hosts and GPUs."""
        first = min(self._headers, key=lambda header: header.time_ns)
        own = [self._headers[host.first].host for host in self._hosts.values()]
        names = [*self._hosts][:LISTED]
        names += [f"{self.count - LISTED} more"] if self.count > LISTED else []
        host = replace(
            first.host,
            hostname=", ".join(names),
            cpu_count=sum(one.cpu_count for one in own),
            memory_total_bytes=sum(one.memory_total_bytes for one in own),
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
        """A tick of one host with what is newest of the others."""
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
            launchers=tuple(one for host in hosts for one in host.launchers),
            recorded_bytes=_sum([host.recorded_bytes for host in hosts]),
            traced_bytes=_sum([host.traced_bytes for host in hosts]),
        )


def _together(samples: Sequence[HostSample]) -> HostSample:
    """Percentages as a mean, the rest as a sum; missing where a host lacks it."""
    figures: dict[str, Any] = {}
    for name in HostSample.__struct_fields__:
        values = [getattr(one, name) for one in samples]
        if any(value is None for value in values):
            figures[name] = None
        else:
            figures[name] = fmean(values) if name.endswith("_percent") else sum(values)
    return HostSample(**figures)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
