"""The job that a run is of: its name, its ranks, those that are not here."""

from __future__ import annotations

from collections import Counter

import msgspec

from gputui.model.units import duration
from gputui.report.explain.rank_waits import hosts
from gputui.state import Run, Session
from gputui.state.session import ClockOffset

LISTED = 20
"""Missing ranks that are listed one by one."""


class HostClock(msgspec.Struct, frozen=True):
    """How far a host's clock is ahead of the first's, and by how much that may be wrong; null where
    the two were not compared.
    """

    host: str
    offset_ns: int | None = None
    error_ns: int | None = None

    @property
    def offset(self) -> ClockOffset | None:
        """The offset with its error; None where the two clocks were not compared."""
        if self.offset_ns is None or self.error_ns is None:
            return None
        return ClockOffset(self.offset_ns, self.error_ns)


class Job(msgspec.Struct, frozen=True):
    """`missing_ranks` are those of which nothing was recorded; it and `world_size` are null where
    the job's size is not known. `hosts` are named where there are several, `clocks` of all but the
    first."""

    id: str | None
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int] | None
    hosts: list[str]
    clocks: list[HostClock]

    @property
    def line(self) -> str:
        """The job in one line: its name, how many ranks, and which are missing."""
        of_size = "" if self.world_size is None else f" of {self.world_size}"
        words = [f"job {self.id or 'without an id'}: {len(self.ranks)}{of_size} ranks"]
        if len(self.hosts) > 1:
            words.append(f"on {len(self.hosts)} hosts")
        if self.missing_ranks:
            names = ", ".join(map(str, self.missing_ranks[:LISTED]))
            more = len(self.missing_ranks) - LISTED
            many = "ranks" if len(self.missing_ranks) > 1 else "rank"
            words.append(f"without {many} {names}" + (f" and {more} more" if more > 0 else ""))
        return " ".join(words)


def clocks_of(session: Session, run: Run) -> list[HostClock]:
    """Of each host but the first; nothing where there is only one. A difference of two comparisons
    is as wrong as both."""
    first, *others = sorted(hosts(run)) or [""]
    offsets = session.clocks
    clocks = []
    for host in others:
        if first in offsets and host in offsets and offsets[first].by == offsets[host].by:
            offset_ns = offsets[host].offset_ns - offsets[first].offset_ns
            error_ns = offsets[host].error_ns + offsets[first].error_ns
            clocks.append(HostClock(host, offset_ns, error_ns))
        else:
            clocks.append(HostClock(host))
    return clocks


def clocks_line(session: Session, run: Run) -> str:
    """How far the clocks of a job's hosts are apart, "" of one host."""
    clocks = clocks_of(session, run)
    if not clocks:
        return ""
    first = min(hosts(run))
    offsets = {
        host_clock.host: clock for host_clock in clocks if (clock := host_clock.offset) is not None
    }
    texts = [f"{host} {clock.text}" for host, clock in offsets.items()]
    unknown = len(clocks) - len(texts)
    if not texts:
        return f"the clocks of {len(clocks) + 1} hosts were not compared: each time is of its own"
    if len(texts) > CLOCKS_LISTED:
        error_ns = max(clock.error_ns for clock in offsets.values())
        texts = [f"{len(texts)} hosts, each to ± {duration(error_ns)} or better"]
    texts += [f"{unknown} not compared"] if unknown else []
    return f"clocks beside that of {first}: {', '.join(texts)}"


CLOCKS_LISTED = 4
"""Hosts whose clocks are given one by one."""


def job_of(session: Session, run: Run) -> Job | None:
    """None where no process is a rank."""
    attached = [
        process.attached for process in run.processes.values() if process.attached.rank is not None
    ]
    if not attached:
        return None
    names = Counter(
        process.job.id for process in attached if process.job is not None and process.job.id
    )
    sizes = [
        process.job.world_size
        for process in attached
        if process.job is not None and process.job.world_size
    ]
    present = sorted({process.rank for process in attached if process.rank is not None})
    size = max(sizes, default=None)
    missing = None
    if size is not None and size <= MOST_RANKS:
        missing = sorted(set(range(size)) - set(present))
    return Job(
        names.most_common(1)[0][0] if names else None,
        size,
        present,
        missing,
        sorted(hosts(run)),
        clocks_of(session, run),
    )


# Missing ranks are listed up to the world size, so a hostile one would take all memory.
MOST_RANKS = 100_000
"""More are no job's: the number is a recording's word."""
