"""Which rank the others wait for, and why it is late.

A rank is named only where the evidence leaves no other: a weak name sends people to the wrong
machine. Lateness in the reader's sense needs no clocks: see `rank_waits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration
from gputui.report.explain.lines import likeliest_line
from gputui.report.explain.rank_waits import Place
from gputui.report.explain.time_tree import TimeTree, device_trees
from gputui.state import Run

LEAST_LATE = 0.03
"""Share of a step that the others wait, from which a rank is named (measured on synthetic ranks:
nobody late gives 0.4 % at most, lateness of 2 ms in one of six phases 15 to 19 %)."""

APART = 0.5
"""Share of the spread of all ranks that lies between those named and the others."""

EXPLAINED = 0.8
"""Share of its lateness that one cause has to explain."""

SLOWER_CLOCK = 0.95
"""Clock, as a share of the other ranks', below which a GPU's own clock makes it late."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank's steady steps on one device. `late_ns` is how much later it comes to collectives
    than the first rank, mean of a step; None where ranks cannot be compared."""

    rank: int
    process: int
    device: int
    tree: TimeTree
    late_ns: float | None


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for. `cause` is "host", "more work", "throttled", "data",
    "copies", or None where no single one explains most of it."""

    time: RankTime
    excess_ns: Mapping[Leaf, float]
    """What of each leaf it has beyond the median of the others, a step."""
    cause: str | None
    explanation: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who is late. `cost_ns` is what a step would gain if they came with the others;
    `claimed_ns` is the part of their own leaves that this explains, so that no other finding
    repeats it."""

    late: tuple[LateRank, ...]
    cost_ns: float
    step_ns: float
    others: int
    claimed_ns: Mapping[Leaf, int]

    @property
    def share(self) -> float:
        """Of a step, 0 to 1."""
        return self.cost_ns / self.step_ns

    @property
    def word(self) -> str:
        """The verdict's."""
        verb = "ARE" if len(self.late) > 1 else "IS"
        return f"{self._who.upper()} {verb} LATE"

    @property
    def sentence(self) -> str:
        """What it costs."""
        gpus = "The other GPU waits" if self.others == 1 else f"{self.others} GPUs wait"
        return (
            f"{gpus} {duration(self.cost_ns)} of each {duration(self.step_ns)} step for "
            f"{self._who}."
        )

    @property
    def evidence(self) -> tuple[str, ...]:
        """Why, a rank each."""
        return tuple(
            f"Rank {one.time.rank} (GPU {one.time.device}): {one.explanation}" for one in self.late
        )

    @property
    def advice(self) -> str:
        """What to try."""
        known = dict.fromkeys(one.advice for one in self.late if one.advice)
        return "; ".join(known) or f"compare what {self._who} does with the others"

    @property
    def _who(self) -> str:
        names = [str(one.time.rank) for one in self.late]
        if len(names) == 1:
            return f"rank {names[0]}"
        return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def rank_times(run: Run) -> list[RankTime]:
    """Each rank and device, the latest first."""
    trees = {
        place: tree
        for place, tree in device_trees(run).items()
        if tree.wall_ns and run.processes[place[0]].attached.rank is not None
    }
    waited = {
        place: tree.leaves[Leaf.RANK] / tree.steps
        for place, tree in trees.items()
        if Leaf.RANK in tree.leaves and tree.steps
    }
    longest = max(waited.values(), default=0.0)
    found = [
        RankTime(
            _rank(run, place),
            *place,
            tree,
            longest - waited[place] if place in waited else None,
        )
        for place, tree in trees.items()
    ]
    return sorted(found, key=lambda one: (-(one.late_ns or 0.0), one.rank, one.device))


def lateness(run: Run) -> Lateness | None:
    """Who is late; None where nobody is, or where it cannot be told who."""
    times = [one for one in rank_times(run) if one.late_ns is not None]
    if len(times) < 2:
        return None
    late_ns = [one.late_ns or 0.0 for one in times]
    gaps = [late_ns[at] - late_ns[at + 1] for at in range(len(times) - 1)]
    cost_ns = max(gaps)
    count = gaps.index(cost_ns) + 1
    step_ns = median(one.tree.step_mean_ns for one in times)
    if (
        not step_ns
        or cost_ns < LEAST_LATE * step_ns
        or cost_ns < APART * (late_ns[0] - late_ns[-1])
        or count > len(times) / 2
    ):
        return None
    others = times[count:]
    late = tuple(_late(run, one, others) for one in sorted(times[:count], key=lambda one: one.rank))
    return Lateness(late, cost_ns, step_ns, len(others), _claimed(late))


def _claimed(late: Sequence[LateRank]) -> dict[Leaf, int]:
    claimed: dict[Leaf, int] = {}
    for one in late:
        for leaf, ns in one.excess_ns.items():
            claimed[leaf] = claimed.get(leaf, 0) + max(0, round(ns * one.time.tree.steps))
    return claimed


_HOST = (
    Leaf.LAUNCH,
    Leaf.SYNC,
    Leaf.ALLOCATION,
    Leaf.CUDA,
    Leaf.HOST,
    Leaf.WAIT,
    Leaf.SCHEDULER,
    Leaf.COMPILE,
)
_COPIES = (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE)
_NEITHER = (Leaf.COMMUNICATION, Leaf.RANK, Leaf.UNKNOWN, Leaf.DEPENDENCY)


def _group(leaf: Leaf) -> str | None:
    if leaf in _NEITHER:
        return None
    if leaf in _HOST:
        return "host"
    if leaf is Leaf.INPUT:
        return "data"
    return "copies" if leaf in _COPIES else "more work"


def _late(run: Run, one: RankTime, others: Sequence[RankTime]) -> LateRank:
    excess = _excess(one, others)
    groups: dict[str, float] = {}
    for leaf, ns in excess.items():
        if (group := _group(leaf)) is not None:
            groups[group] = groups.get(group, 0.0) + ns
    whole = sum(ns for ns in excess.values() if ns > 0)
    group = max(groups, key=lambda name: groups[name], default=None)
    if group is None or whole <= 0 or groups[group] < EXPLAINED * whole:
        return LateRank(one, excess, None, "no single cause explains most of it")
    leaf = max((leaf for leaf in excess if _group(leaf) == group), key=lambda leaf: excess[leaf])
    more = f"{duration(groups[group])} a step more than the others"
    if group == "more work" and (clock := _slow_clock(run, one, others)):
        return LateRank(one, excess, "throttled", clock, "look at that GPU's cooling and power")
    if group == "more work":
        return LateRank(
            one,
            excess,
            group,
            f"its GPU computes {more}, most of it {LEAVES[leaf].label}",
            "give every rank the same number of tokens: pack or bucket sequences by length",
        )
    if group == "copies":
        return LateRank(one, excess, group, f"{LEAVES[leaf].label} take {more}", "pin host memory")
    line = likeliest_line(run, one.process)
    at = f", most often at {line.where}" if line else ""
    waits = "waits for data" if group == "data" else f"waits for its CPU ({LEAVES[leaf].label})"
    return LateRank(
        one,
        excess,
        group,
        f"its GPU {waits} {more}{at}",
        "more DataLoader workers on it, or cheaper samples"
        if group == "data"
        else "find what only that process does: logging, checkpoints, data loading, a busy core",
    )


def _excess(one: RankTime, others: Sequence[RankTime]) -> dict[Leaf, float]:
    """What of each leaf a rank has beyond the median of the others, ns a step."""
    found = set(one.tree.leaves).union(*(other.tree.leaves for other in others))
    return {
        leaf: _a_step(one, leaf) - median(_a_step(other, leaf) for other in others)
        for leaf in found - {Leaf.COMMUNICATION, Leaf.RANK}
    }


def _a_step(one: RankTime, leaf: Leaf) -> float:
    return one.tree.a_step(one.tree.leaves.get(leaf, 0)) or 0.0


def _slow_clock(run: Run, one: RankTime, others: Sequence[RankTime]) -> str | None:
    clocks = {
        time.device: spread.average or 0.0
        for time in (one, *others)
        if (spread := run.readings.gpu_spreads.get((time.device, "sm_clock_mhz"))) is not None
    }
    theirs = [clocks[other.device] for other in others if other.device in clocks]
    if one.device not in clocks or not theirs:
        return None
    usual = median(theirs)
    if clocks[one.device] >= SLOWER_CLOCK * usual:
        return None
    return f"GPU {one.device} runs at {clocks[one.device]:.0f} MHz, the others at {usual:.0f}"


def _rank(run: Run, place: Place) -> int:
    rank = run.processes[place[0]].attached.rank
    assert rank is not None
    return rank
