"""Which processes of a run are ranks of a job, and how long each waits in collectives.

All ranks of a synchronizing collective end it together: the last to come waits least, and needs no
clock to be known. Where collectives were matched one by one (attribute.matched_collectives), waits
are exact. Where they were not, what a rank's collectives take beyond those of the rank that waits
least is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gputui.model.events import CollectiveDelta, Scope
from gputui.model.kernel_categories import SYNCHRONIZING
from gputui.model.leaves import Leaf
from gputui.state import Run

# What only processes of one job have.
_TOGETHER = (Leaf.RANK, Leaf.COMMUNICATION)


def ranks_of(run: Run) -> dict[int, int]:
    """The ranks of the processes that have one: by their environment, or, where no process's says
    one, by the order in which one parent started those that take part in collectives
    (torch.multiprocessing.spawn starts them by rank)."""
    attached = {number: process.attached for number, process in run.processes.items()}
    declared_ranks = {
        number: process.rank for number, process in attached.items() if process.rank is not None
    }
    if declared_ranks or len(attached) < 2:
        return declared_ranks
    together = {row.process for row in run.collectives.values()}
    together |= {time.process for time in run.leaf_times.values() if time.leaf in _TOGETHER}
    families = defaultdict[tuple[int, str | None], list[tuple[int, int]]](list)
    for number in together & attached.keys():
        process = attached[number]
        families[process.parent_pid, process.host].append((process.pid, number))
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
    attached = [process.attached for process in run.processes.values()]
    sizes = [process.job.world_size or 0 for process in attached if process.job is not None]
    return len({process.rank for process in attached} - {None}) >= max(sizes, default=0)


def hosts(run: Run) -> set[str]:
    """The hosts of the ranks, where there are several."""
    return {
        name for process in run.processes.values() if (name := process.attached.host) is not None
    }


def rank_processes(run: Run) -> dict[int, int]:
    """The rank of each process that is one: not of its data loaders, which inherit its number."""
    of_rank: dict[int, list[int]] = {}
    for process, rank in ranks_of(run).items():
        of_rank.setdefault(rank, []).append(process)
    working = {row.process for row in run.collectives.values()} | {
        time.process for time in run.leaf_times.values()
    }
    return {
        process: rank
        for rank, processes in of_rank.items()
        for process in [number for number in processes if number in working] or processes[:1]
    }


Place = tuple[int, int]
"""A process and its device."""

LEAST_STEPS = 20
LEAST_COLLECTIVES = 20
"""Steps of each rank, or collectives of one kind and size, without which a difference would be of
chance."""

STEPS_ALIKE = 0.9
"""Ranks whose counts of steps differ by more do not run the same loop."""

MATCHED = 0.9
"""Share of a rank's collectives that have to be found on the other ranks too."""

COMPARED = 1 / 3
"""Share of the loop's collectives that have to be compared at all: of a short run most fall into
the first second, in which connections are made, and the rest may be of one kind only."""

FEWEST_WAITS = 3
"""Waits beside the longest, of equal length, that are more than what one rank did by itself, such
as two baselines or checkpoints while the others waited at a barrier."""

FIRST_SECOND = "all collectives came in the first second, in which connections are made"


class Exposed(NamedTuple):
    """A rank's steady steps, and how long collectives ran in them while nothing else did."""

    steps: int
    collectives_ns: int


class Matched(NamedTuple):
    """A rank's collectives that were matched and go on all the time: `waited` is the share of their
    time in which it waited, `window_ns` from the first to the last, `exposed` the share of their
    time in which nothing else ran, in steady steps if there are any. Of `waited_ns` the longest
    wait took `longest_ns`, and `wait_us2` is the sum of all their squares, in µs²; `blame_ns` is
    without the longest."""

    waited: float
    waited_ns: int
    longest_ns: int
    wait_us2: int
    window_ns: int
    blame_ns: int
    last: int
    exposed: float

    @property
    def waited_share(self) -> float:
        """The share of the time in which the process waited for another rank and had nothing else
        to do."""
        return self.exposed * self.waited_ns / self.window_ns if self.window_ns else 0.0

    @property
    def waited_again_share(self) -> float:
        """That share without the longest wait, which may have been for a single event; 0 if most of
        the rest was in few collectives."""
        again_ns = self.waited_ns - self.longest_ns
        if not self.window_ns or self._is_in_few(again_ns):
            return 0.0
        return self.exposed * again_ns / self.window_ns

    def _is_in_few(self, again_ns: int) -> bool:
        """Whether this waiting was in few collectives: n equal waits w have (Σw)²/Σw² = n."""
        squares = self.wait_us2 - (self.longest_ns // 1000) ** 2
        return (again_ns / 1e3) ** 2 < FEWEST_WAITS * squares

    @property
    def blamed_share(self) -> float:
        """The share of the time that the process cost the others by coming last."""
        return self.exposed * self.blame_ns / self.window_ns if self.window_ns else 0.0


def matched(run: Run) -> dict[int, Matched]:
    """By process. Empty where too few collectives could be matched to say anything, or of only one
    of several ranks.

    Collectives that come now and then are not of the loop, and may wait long for what one rank
    does before it, such as a baseline or a checkpoint: nobody is late in the loop for that.
    """
    matched_by_process = {
        process: part for process, part in _compared(run).items() if isinstance(part, Matched)
    }
    return (
        matched_by_process if len(matched_by_process) > 1 or len(rank_processes(run)) == 1 else {}
    )


def why_not_matched(run: Run) -> str | None:
    """Why collectives that were seen do not say who is late; None where they do, also by their
    sums, or where none were seen."""
    if len(hosts(run)) > 1 and run.collectives and not run.leaf_times:
        return "collectives are matched within a host, and no rank works on a GPU"
    compared = _compared(run)
    if sum(isinstance(part, Matched) for part in compared.values()) > 1 or _may_be_summed(run):
        return None
    return next((part for part in compared.values() if isinstance(part, str)), None)


def _compared(run: Run) -> dict[int, Matched | str]:
    """By process, what its collectives say, or why they say nothing."""
    if len(hosts(run)) > 1:
        return {}  # collectives are matched among the ranks of a host
    rows: dict[int, list[CollectiveDelta]] = {process: [] for process in ranks_of(run)}
    for row in run.collectives.values():
        if row.process in rows:
            rows[row.process].append(row)
    return {process: _of_rank(run, process, own) for process, own in rows.items() if own}


def _of_rank(run: Run, process: int, rows: Sequence[CollectiveDelta]) -> Matched | str:
    of_loop = [row for row in rows if row.count >= LEAST_COLLECTIVES]
    together = [row for row in of_loop if row.matched >= LEAST_COLLECTIVES]
    compared = sum(row.compared for row in rows)
    matched = sum(row.matched for row in rows)
    if matched < MATCHED * compared:
        return f"{100 * matched / compared:.0f} % of the collectives were found on all ranks"
    if not compared and any(row.ranks > 1 for row in rows):
        return FIRST_SECOND
    if not together:
        return f"fewer than {LEAST_COLLECTIVES} collectives of a kind and size were compared"
    whole = sum(row.count for row in of_loop if row.kind in SYNCHRONIZING)
    if matched < COMPARED * whole:
        return f"{100 * matched / whole:.0f} % of the collectives came after the first second"
    # Of the loop's collectives alone: by one all-gather after a baseline one of two H100s that are
    # never late waited 28 of 44 ms a step.
    exposed = _exposed(run, process, of_loop)
    if exposed is None:
        return "collectives ran longer beside the steps than in them"
    others_ns = sum(row.time_ns for row in of_loop if row.kind not in SYNCHRONIZING)
    waited_ns = sum(row.wait_ns for row in together)
    whole_ns = sum(row.matched_ns for row in together) + others_ns
    return Matched(
        waited_ns / whole_ns if whole_ns else 0.0,
        waited_ns,
        max(row.longest_wait_ns for row in together),
        sum(row.wait_us2 for row in together),
        max(row.last_ns or 0 for row in together) - min(row.first_ns or 0 for row in together),
        sum(row.blame_ns for row in together) - max(row.longest_blame_ns for row in together),
        sum(row.last for row in together),
        exposed,
    )


def _exposed(run: Run, process: int, of_loop: Sequence[CollectiveDelta]) -> float | None:
    """Which share of a process's collectives `of_loop` ran alone: all of them without a GPU. With
    steps, in those; None where they ran alone for longer beside the steps, so that most of their
    waits may be there."""
    all_ns = _alone_ns(run, process, tuple(Scope))
    loop_ns = sum(row.time_ns for row in of_loop)
    if all_ns is None or not loop_ns:
        return 1.0
    in_steps = sum(
        loop.steps
        for loop in run.loops.values()
        if loop.process == process and loop.scope == Scope.STEADY
    )
    if in_steps < LEAST_STEPS:
        return min(1.0, all_ns / loop_ns)
    alone_ns = _alone_ns(run, process, (Scope.STEADY,)) or 0
    rare_ns = _collectives_ns(run, process) - loop_ns
    if all_ns - alone_ns - rare_ns > alone_ns:
        return None
    return min(1.0, alone_ns / loop_ns)


def _collectives_ns(run: Run, process: int) -> int:
    return sum(row.time_ns for row in run.collectives.values() if row.process == process)


def _alone_ns(run: Run, process: int, scopes: Collection[Scope]) -> int | None:
    """How long collectives ran while nothing else did; None without a GPU."""
    times = [time for time in run.leaf_times.values() if time.process == process]
    if not times:
        return None
    return sum(
        time.ns for time in times if time.leaf == Leaf.COMMUNICATION and time.scope in scopes
    )


def hidden_share(run: Run, process: int) -> float | None:
    """Share of the time of a process's GPUs in which collectives ran beside other kernels; None
    where collectives or the GPU were not seen."""
    alone_ns = _alone_ns(run, process, tuple(Scope))
    whole_ns = _collectives_ns(run, process)
    all_ns = sum(time.ns for time in run.leaf_times.values() if time.process == process)
    if alone_ns is None or not whole_ns or not all_ns:
        return None
    return max(0, whole_ns - alone_ns) / all_ns


def waits(
    run: Run, exposed: Mapping[Place, Exposed], by_match: Mapping[int, Matched]
) -> dict[Place, int]:
    """The part of each rank's exposed collectives that is waiting, in ns.

    Empty where it cannot be known: fewer than two ranks are seen, they do different loops, or
    took too few steps.
    """
    if by_match:
        return {
            place: round(by_match[place[0]].waited * part.collectives_ns)
            for place, part in exposed.items()
            if place[0] in by_match
        }
    ranks = ranks_of(run)
    ranked = {place: part for place, part in exposed.items() if place[0] in ranks}
    if not may_be_compared(run, ranked):
        return {}
    # What the collectives of each take beyond those of the rank that waits least.
    each = {place: part.collectives_ns / part.steps for place, part in ranked.items()}
    least = min(each.values())
    return {place: round((ns - least) * ranked[place].steps) for place, ns in each.items() if least}


def may_be_compared(run: Run, exposed: Mapping[Place, Exposed]) -> bool:
    """Whether how long ranks wait says who is late, where collectives were not matched: not where
    one of them does something by itself, such as a baseline, and the others wait at a barrier."""
    if run.collectives and not _may_be_summed(run):
        return False
    if was_clock_set(run):
        return False
    of_process = ranks_of(run)
    ranks = {of_process.get(process) for process, _ in exposed}
    return len(ranks) == len(exposed) and _same_loop(exposed.values())


CLOCK_SET = 0.01
"""Share of the run from which a clock that was set makes sums of waits wrong: a third of the least
lateness that is named. Waits that were matched one by one stand without the longest."""


def was_clock_set(run: Run) -> bool:
    """Whether a host's clock was set so far that sums do not say who waits."""
    length_ns = run.updated_ns - run.started.time_ns
    return run.clock_set_ns > CLOCK_SET * length_ns


def _same_loop(compared: Collection[Exposed]) -> bool:
    """Whether at least two ranks took enough steps, and as many."""
    counts = [part.steps for part in compared]
    return len(counts) > 1 and min(counts) >= max(LEAST_STEPS, STEPS_ALIKE * max(counts))


def beside_the_loop(run: Run, exposed: Mapping[Place, Exposed]) -> set[int]:
    """Ranks' processes that take no steps while another rank takes enough of them."""
    ranks = ranks_of(run)
    steps: dict[int, int] = {}
    for (process, _), part in exposed.items():
        if process in ranks:
            steps[process] = steps.get(process, 0) + part.steps
    if max(steps.values(), default=0) < LEAST_STEPS:
        return set()
    return {process for process, count in steps.items() if not count}


SYNCHRONIZED = 0.8
"""Share of the time of all collectives that has to be in synchronizing ones: in a pipeline's sends
and receives nobody is late who waits little."""


def _may_be_summed(run: Run) -> bool:
    """Whether sums say who waits, where collectives were seen and could not be matched."""
    if len(hosts(run)) < 2 and any(row.compared for row in run.collectives.values()):
        return False
    if not run.leaf_times:
        return False  # which are beside other work is not known without a GPU
    whole_ns = sum(row.time_ns for row in run.collectives.values())
    together_ns = sum(row.time_ns for row in run.collectives.values() if row.kind in SYNCHRONIZING)
    return together_ns >= SYNCHRONIZED * whole_ns
