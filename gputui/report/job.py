"""A job from several recordings, one of each node: its ranks side by side, and which are missing.

Recordings of nodes have clocks of their own, and collectives are matched within a node; so ranks of
several are compared by sums: what each rank's collectives take beyond those of the rank that waits
least is waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gputui.model.leaves import Leaf
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import matched, rank_of, rank_processes, waits_by_sums
from gputui.report.explain.ranks import Lateness, in_order, lateness_of, rank_times
from gputui.report.explain.time_tree import exposed_of, trees_without_waits
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class Part:
    """One recording."""

    name: str
    session: Session
    run: Run | None

    @property
    def host(self) -> str:
        """Where it was made."""
        header = self.session.header
        return header.host.hostname if header is not None and header.host else self.name


@dataclass(frozen=True, slots=True)
class Job:
    """`left_out` are recordings that are not of it, with the reason; `missing` the ranks that none
    has, None where the job's size is not known."""

    id: str | None
    world_size: int | None
    parts: tuple[Part, ...]
    ranks: tuple[RankTime, ...]
    late: Lateness | None
    present: tuple[int, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def hosts(self) -> list[str]:
        """By name."""
        return sorted({part.host for part in self.parts})

    @property
    def missing(self) -> list[int] | None:
        """In order."""
        if self.world_size is None:
            return None
        return sorted(set(range(self.world_size)) - set(self.present))


@dataclass(slots=True)
class _Facts:
    ids: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)


def job_of(parts: Sequence[Part]) -> Job:
    """The job that most of the recordings are of."""
    facts = [_facts(part.run) for part in parts]
    wanted = _commonest([name for one in facts for name in one.ids])
    kept: list[Part] = []
    left_out: list[tuple[str, str]] = []
    holders: dict[int, str] = {}
    sizes: list[int] = []
    for part, one in zip(parts, facts, strict=True):
        twice = sorted(rank for rank in one.ranks if rank in holders)
        if not one.ranks:
            left_out.append((part.name, "no rank of a job in it"))
        elif one.ids and wanted not in one.ids:
            left_out.append((part.name, f"of another job: {min(one.ids)}"))
        elif twice:
            left_out.append((part.name, f"has rank {twice[0]}, as {holders[twice[0]]} has"))
        else:
            kept.append(part)
            sizes += one.sizes
            holders |= dict.fromkeys(one.ranks, part.name)
    times = _times(kept)
    return Job(
        wanted,
        max(sizes, default=None),
        tuple(kept),
        tuple(times),
        lateness_of(times, matched(kept[0].run) if len(kept) == 1 and kept[0].run else {}),
        tuple(sorted(holders)),
        tuple(left_out),
    )


def _facts(run: Run | None) -> _Facts:
    found = _Facts()
    for process in run.processes.values() if run is not None else ():
        attached = process.attached
        if attached.rank is None:
            continue
        found.ranks.add(attached.rank)
        if attached.job is not None:
            found.ids |= {attached.job.id} if attached.job.id else set()
            found.sizes |= {attached.job.world_size} if attached.job.world_size else set()
    return found


def _commonest(names: Sequence[str]) -> str | None:
    return Counter(names).most_common(1)[0][0] if names else None


def _times(parts: Sequence[Part]) -> list[RankTime]:
    if len(parts) == 1:
        run = parts[0].run
        return rank_times(run) if run is not None else []
    trees = {
        (number, *place): tree
        for number, part in enumerate(parts)
        if part.run is not None
        for place, tree in trees_without_waits(part.run).items()
        if tree.wall_ns and rank_of(part.run, place[0]) is not None
    }
    for key, waited_ns in waits_by_sums(exposed_of(trees)).items():
        trees[key].wait(waited_ns)
    found: list[RankTime] = []
    for number, part in enumerate(parts):
        if part.run is None:
            continue
        for process, rank in rank_processes(part.run).items():
            own = {key[2]: tree for key, tree in trees.items() if key[:2] == (number, process)}
            for device, tree in own.items() or [(None, None)]:
                waited = None
                if tree is not None and Leaf.RANK in tree.leaves:
                    waited = tree.share(tree.leaves[Leaf.RANK])
                found.append(
                    RankTime(part.run, rank, process, device, tree, waited, None, part.host)
                )
    return in_order(found)
