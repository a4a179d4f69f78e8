"""Which processes of a run are ranks of a job, and of which hosts."""

from __future__ import annotations

from collections import defaultdict

from gputui.model.leaves import Leaf
from gputui.state import Run

_TOGETHER = (Leaf.RANK, Leaf.COMMUNICATION)
"""What only processes of one job have."""


def ranks_of(run: Run) -> dict[int, int]:
    """The ranks of the processes that have one: by their environment, or, where no process's says
    one, by the order in which one parent started those that take part in collectives
    (torch.multiprocessing.spawn starts them by rank)."""
    attached = {number: one.attached for number, one in run.processes.items()}
    known = {number: one.rank for number, one in attached.items() if one.rank is not None}
    if known or len(attached) < 2:
        return known
    together = {key.process for key in run.collectives}
    together |= {key.process for key in run.leaf_times if key.leaf in _TOGETHER}
    families = defaultdict[tuple[int, str | None], list[tuple[int, int]]](list)
    for number in together & attached.keys():
        one = attached[number]
        families[one.parent_pid, one.host].append((one.pid, number))
    return {
        number: rank
        for family in families.values()
        if len(family) > 1
        for rank, (_, number) in enumerate(sorted(family))
    }


def all_ranks_seen(run: Run) -> bool:
    """Whether every rank of the job is among the run's processes."""
    if run.is_of_some_ranks:
        return False
    attached = [one.attached for one in run.processes.values()]
    sizes = [one.job.world_size or 0 for one in attached if one.job is not None]
    return len({one.rank for one in attached} - {None}) >= max(sizes, default=0)


def hosts(run: Run) -> set[str]:
    """The hosts of the ranks, where there are several."""
    return {name for one in run.processes.values() if (name := one.attached.host) is not None}


def rank_processes(run: Run) -> dict[int, int]:
    """The rank of each process that is one: not of its data loaders, which inherit its number."""
    of_rank: dict[int, list[int]] = {}
    for process, rank in ranks_of(run).items():
        of_rank.setdefault(rank, []).append(process)
    working = {key.process for key in run.collectives} | {key.process for key in run.leaf_times}
    return {
        process: rank
        for rank, processes in of_rank.items()
        for process in [one for one in processes if one in working] or processes[:1]
    }
