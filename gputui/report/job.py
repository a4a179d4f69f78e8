"""The job that a run is of: its name, its ranks, those that are not here."""

from __future__ import annotations

from collections import Counter

import msgspec

from gputui.report.explain.rank_waits import hosts
from gputui.state import Run

LISTED = 20
"""Missing ranks that are listed one by one."""


class Job(msgspec.Struct, frozen=True):
    """`missing_ranks` are those of which nothing was recorded; it and `world_size` are null where
    the job's size is not known. `hosts` are named where there are several."""

    id: str | None
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int] | None
    hosts: list[str]

    @property
    def line(self) -> str:
        """In a line."""
        of = "" if self.world_size is None else f" of {self.world_size}"
        words = [f"job {self.id or 'without an id'}: {len(self.ranks)}{of} ranks"]
        if len(self.hosts) > 1:
            words.append(f"on {len(self.hosts)} hosts")
        if self.missing_ranks:
            names = ", ".join(map(str, self.missing_ranks[:LISTED]))
            more = len(self.missing_ranks) - LISTED
            many = "ranks" if len(self.missing_ranks) > 1 else "rank"
            words.append(f"without {many} {names}" + (f" and {more} more" if more > 0 else ""))
        return " ".join(words)


def job_of(run: Run) -> Job | None:
    """None where no process is a rank."""
    attached = [one.attached for one in run.processes.values() if one.attached.rank is not None]
    if not attached:
        return None
    names = Counter(one.job.id for one in attached if one.job is not None and one.job.id)
    sizes = [one.job.world_size for one in attached if one.job is not None and one.job.world_size]
    present = sorted({one.rank for one in attached if one.rank is not None})
    size = max(sizes, default=None)
    missing = None
    if size is not None and size <= MOST_RANKS:
        missing = sorted(set(range(size)) - set(present))
    return Job(
        names.most_common(1)[0][0] if names else None, size, present, missing, sorted(hosts(run))
    )


MOST_RANKS = 100_000
"""More are no job's: the number is a recording's word."""
