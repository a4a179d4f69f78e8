"""Which rank the others wait for, and whether it always was late.

A rank is named only where the evidence leaves no other: a weak name sends people to the wrong
machine. Who comes late needs no clocks: see `rank_waits`. Two rules name ranks. Those that always
wait far less than the others are late, one or several of them. Where lateness goes round, each
collective's loss is laid at the door of the rank that came last: `blame_ns`.

How late a rank came over the steps is known from the blocks of steady steps that every rank keeps
(model.steps): what its collectives take less than those of the rank that waits longest, a
step. Ranks run the same steps, so step n of one is step n of the other, and no clock is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from gputui.model.events import StepBlock, StepLanes
from gputui.model.leaves import Leaf
from gputui.model.units import duration
from gputui.report.explain.finding import percents, rank_names
from gputui.report.explain.rank_causes import (
    LEAST_LATE,
    LateRank,
    RankTime,
    had_no_core,
    late_rank,
    may_be_chance,
    times_longer,
)
from gputui.report.explain.rank_waits import (
    LEAST_COLLECTIVES,
    STEPS_ALIKE,
    Matched,
    may_be_compared,
    ranks_of,
)
from gputui.report.explain.time_tree import TimeTree, exposed_of
from gputui.state import Run

APART = 0.5
"""Share of the spread of all ranks that lies between those named and the others."""

CLEARLY = 5
"""How many times as much blame as the next rank those named have."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who is late: `share` of the time would be gained if they came with the others. `step_ns` is
    None without steps that all have in common. `claimed_ns` is the part of their own leaves that
    this explains, so that no other finding repeats it."""

    late: tuple[LateRank, ...]
    share: float
    step_ns: float | None
    others: int
    claimed_ns: Mapping[Leaf, int]

    @property
    def cost_ns(self) -> float | None:
        """By how much a step would be shorter if they came with the others."""
        return None if self.step_ns is None else self.share * self.step_ns

    @property
    def word(self) -> str:
        """The word of the verdict, which names the late ranks."""
        verb = "ARE" if len(self.late) > 1 else "IS"
        return f"{self._who.upper()} {verb} LATE"

    @property
    def sentence(self) -> str:
        """How much of the time the others wait, in a sentence."""
        who = "The other rank waits" if self.others == 1 else f"{self.others} ranks wait"
        if self.step_ns is None:
            return f"{who} {100 * self.share:.0f} % of the time for {self._who} in collectives."
        cost = duration(self.share * self.step_ns)
        return f"{who} {cost} of each {duration(self.step_ns)} step for {self._who}."

    @property
    def evidence(self) -> tuple[str, ...]:
        """Why each of the late ranks is late, in a clause for each."""
        return tuple(f"{rank.time.name}: {rank.explanation}" for rank in self.late)

    @property
    def advice(self) -> str:
        """What to try, for all causes of the late ranks."""
        distinct = dict.fromkeys(rank.advice for rank in self.late if rank.advice)
        return "; ".join(distinct) or f"compare what {self._who} does with the others"

    @property
    def _who(self) -> str:
        return rank_names(rank.time.rank for rank in self.late)


def rank_times(
    run: Run, device_trees: Mapping[tuple[int, int], TimeTree], by_match: Mapping[int, Matched]
) -> list[RankTime]:
    """Each rank and device, the latest first. `by_match` is what matched collectives say of each
    process (`rank_waits.matched`)."""
    rows: list[RankTime] = []
    ranks = ranks_of(run)
    trees = {
        place: tree for place, tree in device_trees.items() if place[0] in ranks and tree.wall_ns
    }
    is_known = any(Leaf.RANK in tree.leaves for tree in trees.values())
    is_known = is_known and may_be_compared(run, exposed_of(trees))
    for (process, device), tree in trees.items():
        waited = tree.share(tree.leaves.get(Leaf.RANK, 0)) if is_known else None
        if by_match:
            # Of the time in which there were collectives: one rank may have done more besides.
            waited = by_match[process].waited_share if process in by_match else None
        rows.append(RankTime(run, ranks[process], process, device, tree, waited))
    with_tree = {rank_time.process for rank_time in rows}
    for process, part in by_match.items():
        if process not in with_tree:
            rows.append(RankTime(run, ranks[process], process, None, None, part.waited_share))
    return in_order(rows)


def in_order(rows: Sequence[RankTime]) -> list[RankTime]:
    """How late each is beside the others, the latest first."""
    longest = max(
        (rank_time.waited for rank_time in rows if rank_time.waited is not None), default=0.0
    )
    common = _step_ns([rank_time for rank_time in rows if rank_time.waited is not None])
    for rank_time in rows:
        rank_time.late = None if rank_time.waited is None else longest - rank_time.waited
        rank_time.steps_in_common = common is not None
    return sorted(
        rows,
        key=lambda rank_time: (-(rank_time.late or 0.0), rank_time.rank, rank_time.device or 0),
    )


def lateness_of(ranks: Sequence[RankTime], by_match: Mapping[int, Matched]) -> Lateness | None:
    """Who is late; None where nobody is, or where it cannot be told who. `by_match` is by process,
    where collectives were matched."""
    last = _last(ranks, by_match)
    named = [rank_time for rank_time, lacked in last.ranks if not lacked]
    if not named:
        return None
    times = [rank_time for rank_time in ranks if rank_time.late is not None]
    others = [rank_time for rank_time in times if rank_time not in named]
    late = tuple(
        late_rank(rank_time, others)
        for rank_time in sorted(named, key=lambda rank_time: (rank_time.rank, rank_time.process))
    )
    return Lateness(late, last.share, _step_ns(times), len(others), _claimed(late))


def lack_of_cores(
    ranks: Sequence[RankTime], by_match: Mapping[int, Matched]
) -> tuple[float, str] | None:
    """What the others waited, as a share of the time, for ranks that are not named because they had
    no core, and the reason; None where some are named, or nobody was last."""
    last = _last(ranks, by_match)
    unnamed = [rank_time for rank_time, lacked in last.ranks if lacked]
    if not unnamed or len(unnamed) < len(last.ranks):
        return None
    waits = {
        rank_time.process: 100 * cores.waited for rank_time in ranks if (cores := rank_time.cores)
    }
    own = percents([waits.pop(rank_time.process) for rank_time in unnamed])
    return last.share, (
        f"no rank is named late: {rank_names(late.rank for late in unnamed)} came last, but had no "
        f"CPU core {own} of the time, the others {percents(list(waits.values()))}"
    )


class _Last(NamedTuple):
    """Those for whom the others wait, and whether it was for want of a core; what would be gained
    if they came with the others, as a share of the time."""

    ranks: Sequence[tuple[RankTime, bool]]
    share: float


def _last(ranks: Sequence[RankTime], by_match: Mapping[int, Matched]) -> _Last:
    times = [rank_time for rank_time in ranks if rank_time.late is not None]
    if len(times) < 2:
        return _Last((), 0.0)
    named, share = _always_late(times)
    others = [rank_time for rank_time in times if rank_time not in named]
    usual = median(rank_time.late or 0.0 for rank_time in others)
    late = {rank_time.process: (rank_time.late or 0.0) - usual for rank_time in named}
    # Waited for more than once: a checkpoint that one rank wrote in a short run was enough before.
    if not _are_late_again(named, times, by_match):
        named, share = _blamed(times, by_match)
        others = [rank_time for rank_time in times if rank_time not in named]
        late = {rank_time.process: by_match[rank_time.process].blamed_share for rank_time in named}
    cores = [rank_time.cores for rank_time in others]
    return _Last(
        [
            (
                rank_time,
                had_no_core(rank_time.cores, cores, late[rank_time.process], LEAST_LATE)
                or _is_chance(rank_time, others, by_match, late[rank_time.process]),
            )
            for rank_time in named
        ],
        share,
    )


def _is_chance(
    rank_time: RankTime, others: Sequence[RankTime], by_match: Mapping[int, Matched], late: float
) -> bool:
    if rank_time.cores is None or not all(
        other.process in by_match for other in (rank_time, *others)
    ):
        return False
    if times_longer(rank_time.cores, [other.cores for other in others], LEAST_LATE) is not None:
        return False
    theirs = [by_match[other.process] for other in others]
    core_wait_ns = rank_time.run.processes[rank_time.process].core_wait_ns
    return may_be_chance(by_match[rank_time.process], theirs, core_wait_ns, late, LEAST_LATE)


def _step_ns(times: Sequence[RankTime]) -> float | None:
    """A usual step of the loop that all ranks run; None where they have no steps, or do not run the
    same loop."""
    trees = [
        rank_time.tree
        for rank_time in times
        if rank_time.tree is not None and rank_time.tree.has_steps
    ]
    counts = [tree.steps for tree in trees]
    if not trees or len(trees) < len(times) or min(counts) < STEPS_ALIKE * max(counts):
        return None
    return median(tree.step_mean_ns for tree in trees)


def _always_late(times: Sequence[RankTime]) -> tuple[Sequence[RankTime], float]:
    """Those before the largest gap, where there is one; how large it is."""
    late = [rank_time.late or 0.0 for rank_time in times]
    gaps = [late[index] - late[index + 1] for index in range(len(late) - 1)]
    share = max(gaps)
    count = gaps.index(share) + 1
    if share < LEAST_LATE or share < APART * (late[0] - late[-1]) or count > len(times) / 2:
        return (), 0.0
    return times[:count], share


def _are_late_again(
    named: Sequence[RankTime], times: Sequence[RankTime], by_match: Mapping[int, Matched]
) -> bool:
    """Whether the others waited for them more than once."""
    if not all(rank_time.process in by_match for rank_time in times):
        return bool(named)
    again = [
        (by_match[rank_time.process].waited_again_share, rank_time in named) for rank_time in times
    ]
    own = [share for share, is_named in again if is_named]
    return bool(own) and min(share for share, is_in in again if not is_in) - max(own) >= LEAST_LATE


def _blamed(
    times: Sequence[RankTime], by_match: Mapping[int, Matched]
) -> tuple[Sequence[RankTime], float]:
    """Those that were last far more often than the rest, by what that cost."""
    blame = sorted(
        (
            (by_match[rank_time.process].blamed_share, rank_time)
            for rank_time in times
            if rank_time.process in by_match
        ),
        key=lambda pair: -pair[0],
    )
    for count in range(len(blame) // 2, 0, -1):
        share, least = blame[count - 1]
        enough = by_match[least.process].last >= LEAST_COLLECTIVES and any(
            matched.waited_again_share for matched in by_match.values()
        )
        if share >= LEAST_LATE and enough and share >= CLEARLY * blame[count][0]:
            return [rank_time for _, rank_time in blame[:count]], sum(
                share for share, _ in blame[:count]
            )
    return (), 0.0


def _claimed(late: Sequence[LateRank]) -> dict[Leaf, int]:
    claimed: dict[Leaf, int] = {}
    for rank_time in late:
        if rank_time.time.tree is None:
            continue
        for leaf, share in rank_time.excess.items():
            ns = max(0, round(share * rank_time.time.tree.wall_ns))
            claimed[leaf] = claimed.get(leaf, 0) + ns
    return claimed


GROUPS = 32
"""Of steps, at most."""

Place = tuple[int, int]


def late_over_steps(ranks: Sequence[RankTime], groups: int = GROUPS) -> dict[Place, list[float]]:
    """By process and device: how late a step, in ns, for each of up to so many groups of as many
    steps, the oldest first. Empty where ranks cannot be compared."""
    blocks = {
        (rank_time.process, rank_time.device): own_blocks
        for rank_time in ranks
        if rank_time.late is not None
        and rank_time.device is not None
        and (own_blocks := _blocks(rank_time))
    }
    counts = [sum(block.steps for block in own_blocks) for own_blocks in blocks.values()]
    if len(blocks) < 2 or min(counts) < STEPS_ALIKE * max(counts):
        return {}
    groups = min(groups, *counts, max(map(len, blocks.values())))
    if groups < 2:
        return {}
    each = {place: _in_groups(own_blocks, groups) for place, own_blocks in blocks.items()}
    longest = [max(values[group] for values in each.values()) for group in range(groups)]
    return {
        place: [most - own for most, own in zip(longest, values, strict=True)]
        for place, values in each.items()
    }


def _blocks(rank_time: RankTime) -> list[StepBlock]:
    """Those of the loop that took the most time on the rank's device."""
    kept = rank_time.run.step_blocks.get(rank_time.process)
    loops = [
        blocks
        for (device, _), blocks in (kept.loops.items() if kept is not None else ())
        if device == rank_time.device
    ]
    return max(loops, key=lambda blocks: sum(block.ns for block in blocks), default=[])


def _in_groups(blocks: Sequence[StepBlock], groups: int) -> list[float]:
    """What collectives took a step, in groups of as many steps; blocks of any size are spread."""
    ends = [0, *accumulate(block.steps for block in blocks)]
    sums = [0, *accumulate(dict(block.leaves).get(Leaf.COMMUNICATION, 0) for block in blocks)]

    def up_to(step: float) -> float:
        place = min(max(bisect_right(ends, step) - 1, 0), len(blocks) - 1)
        part = (step - ends[place]) / max(1, ends[place + 1] - ends[place])
        return sums[place] + part * (sums[place + 1] - sums[place])

    edges = [ends[-1] * group / groups for group in range(groups + 1)]
    totals = [up_to(edge) for edge in edges]
    size = ends[-1] / groups
    return [(totals[group + 1] - totals[group]) / size for group in range(groups)]


# A step of each rank on one time axis.


@dataclass(frozen=True, slots=True)
class RankLane:
    """A rank's step, and where it begins on the axis."""

    rank: int
    step: StepLanes
    offset_ns: int


def lanes_together(
    run: Run, ranks: Sequence[RankTime], offsets_ns: Mapping[str, int] | None
) -> list[RankLane]:
    """The newest step of the first rank, and of each other rank the one that lies beside it most.
    Ranks of several hosts begin together unless `offsets_ns` has how far their clocks are ahead."""

    def early_ns(time: RankTime) -> int:
        return (offsets_ns or {}).get(time.host or "", 0)

    lanes_of: dict[tuple[int, int], list[StepLanes]] = {}
    for lanes in run.step_lanes:
        lanes_of.setdefault((lanes.process, lanes.device), []).append(lanes)
    first: StepLanes | None = None
    first_early_ns = 0
    placed: list[RankLane] = []
    for time in ranks:
        kept = lanes_of.get((time.process, -1 if time.device is None else time.device), [])
        if not kept:
            continue
        if first is None:
            first = max(kept, key=lambda lanes: lanes.start_ns)
            first_early_ns = early_ns(time)
            placed.append(RankLane(time.rank, first, 0))
        elif time.host is not None and offsets_ns is None:
            placed.append(RankLane(time.rank, kept[-1], 0))
        else:
            late_ns = first_early_ns - early_ns(time)
            beside = max(kept, key=lambda lanes: _overlap_ns(lanes, first, late_ns))
            if _overlap_ns(beside, first, late_ns) > 0:
                start_ns = beside.start_ns + late_ns - first.start_ns
                placed.append(RankLane(time.rank, beside, start_ns))
    return placed if len(placed) > 1 else []


def _overlap_ns(lanes: StepLanes, other: StepLanes, late_ns: int) -> int:
    start_ns = lanes.start_ns + late_ns
    end_ns = min(start_ns + lanes.duration_ns, other.start_ns + other.duration_ns)
    return end_ns - max(start_ns, other.start_ns)
