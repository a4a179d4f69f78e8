"""Which recordings of a folder are of one job, and which ranks each has."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.model.events import Header, JobFacts, ProcessAttached, RunStarted
from gputui.store.errors import JournalError, reason
from gputui.store.library import files
from gputui.store.places import SUFFIXES

if TYPE_CHECKING:
    from gputui.store.journal.reader import RecordingReader

MOST = 4096
"""Recordings of a job."""

OTHER_TOOLS = (".nsys-rep", ".json", ".json.gz")
"""Files of other tools that may be of a rank, beside recordings and exports of nsys."""

_NUMBER = re.compile(r"[0-9]{1,6}")

Open = Callable[[str], "RecordingReader"]


@dataclass(slots=True)
class Member:
    """One recording of the job: of its runs, `run` is of it. `rank` is that of its processes where
    they know of none."""

    path: Path
    header: Header
    run: int
    rank: int | None = None

    @property
    def name(self) -> str:
        """The file's."""
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
        """It, as of the job."""
        assert self.header is not None
        return Member(self.path, self.header, self.run, rank)


def members_of(folder: Path, opened: Open) -> tuple[list[Member], list[str]]:
    """The recordings of the job that most of the folder's are of, and a line for each that is left
    out, with the reason.

    Reports of other tools, a file a rank, are numbered by their names, if these differ in one
    number only. Raises JournalError where the folder cannot be read; nothing is of a job where no
    recording has ranks.
    """
    found: list[_Facts] = []
    left_out: list[str] = []
    for path in _paths(folder):
        try:
            facts = _facts(path, opened)
        except JournalError as error:
            left_out.append(f"{path.name} is left out: {error}")
            continue
        if facts.runs:
            found.append(facts)
        else:
            left_out.append(f"{path.name} is left out: no run in it")
    ranked = [one for one in found if one.ranks.get(one.run)]
    if not ranked:
        by_name = not any(one.path.name.endswith(SUFFIXES) for one in found)
        numbers = _numbers_of_names([one.path.name for one in found]) if by_name else []
        return [one.member(number) for one, number in zip(found, numbers, strict=False)], left_out
    names = [name for one in ranked for name in one.jobs.get(one.run, ())]
    wanted = Counter(names).most_common(1)[0][0] if names else None
    kept: list[Member] = []
    holders: dict[int, str] = {}
    for one in found:
        ranks, jobs = one.ranks.get(one.run, set()), one.jobs.get(one.run, set())
        twice = sorted(rank for rank in ranks if rank in holders)
        if not ranks:
            why = "no rank of a job in it"
        elif jobs and wanted not in jobs:
            why = f"of another job: {min(jobs)}"
        elif twice:
            why = f"has rank {twice[0]}, as {holders[twice[0]]} has"
        else:
            kept.append(one.member())
            holders |= dict.fromkeys(ranks, one.path.name)
            continue
        left_out.append(f"{one.path.name} is left out: {why}")
    return kept, left_out


def _paths(folder: Path) -> list[Path]:
    """Recordings, and what other tools wrote, by name."""
    found = [one.path for one in files(folder)]
    try:
        others = [entry for entry in os.scandir(folder) if entry.name.endswith(OTHER_TOOLS)]
    except OSError as error:
        raise JournalError(f"cannot read {folder}: {reason(error)}") from None
    return sorted([*found, *(Path(one.path) for one in others if one.is_file())])[:MOST]


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
