"""Why a rank is late: what its time holds beyond the other ranks', or that it had no CPU core.

With more threads than cores some rank is always the last, and naming it sends people to the wrong
place. The thresholds for that were measured on 2 and 4 ranks of Gloo on two cores under a load of 8
to 21: with nobody late in 32 trials, and one or two late by a sleep or by twice the work in 50.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import NamedTuple

from gputui.model.leaves import COPIES, LEAVES, Leaf
from gputui.model.naming import is_library_domain
from gputui.model.units import duration
from gputui.report.explain.lines import likeliest_line
from gputui.report.explain.rank_waits import Matched
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import is_step_name
from gputui.state import Range, Run

LONGER = 1.25
"""How much longer than the others a rank computes that has more work: with nobody late 1.15 times
at most, with twice the work from 1.6 times on, but for one trial."""


CHANCE = 2.5
"""Standard errors by which the waits of ranks differ by more than chance: with nobody late in 50
trials of 24 steps on two cores under a load of 12 to 16 by 2.3 at most, where one was last in
seven; those that sleep 30 ms in each of 16 steps by 3 to 3.8."""


class Cores(NamedTuple):
    """Shares of the time in which the threads of a rank that make its collectives ran, and in which
    they were ready to run and had no core."""

    ran: float
    waited: float


def cores_of(run: Run, process: int) -> Cores | None:
    """None where it was not seen, as in other containers and older recordings."""
    seen = run.processes[process]
    if not seen.core_watched_ns:
        return None
    return Cores(seen.core_run_ns / seen.core_watched_ns, seen.core_wait_ns / seen.core_watched_ns)


def times_longer(own: Cores | None, others: Sequence[Cores | None], least: float) -> float | None:
    """How many times as long as the others it computes; None where that is no more, or less than
    `least` of the time more."""
    measured = [rank_time.ran for rank_time in others if rank_time is not None]
    usual = median(measured) if measured else 0.0
    if own is None or not usual or own.ran < LONGER * usual or own.ran - usual < least:
        return None
    return own.ran / usual


def may_be_chance(
    own: Matched, others: Sequence[Matched], core_wait_ns: int, late: float, least: float
) -> bool:
    """Whether a rank that is late by a share of the time, but for less than `least` of it no longer
    than it waited for cores, waits as much as the others but for chance: what the scheduler does
    to ranks differs from one collective to the next.
    """
    if late * own.window_ns - core_wait_ns >= least * own.window_ns:
        return False
    if not all(rank_time.wait_us2 for rank_time in others):
        return False  # recorded before this was
    fewer_us = (median(rank_time.waited_ns for rank_time in others) - own.waited_ns) / 1e3
    error_us = sqrt(median(rank_time.wait_us2 for rank_time in others) + own.wait_us2)
    return fewer_us < CHANCE * error_us


def had_no_core(
    own: Cores | None, others: Sequence[Cores | None], late: float, least: float
) -> bool:
    """Whether a rank that is late by a share of the time would be by less than `least` of it had
    it waited for cores no longer than the others, and it computed no longer than they did."""
    measured = [rank_time.waited for rank_time in others if rank_time is not None]
    if own is None or not measured or times_longer(own, others, least) is not None:
        return False
    return late - max(0.0, own.waited - median(measured)) < least


LEAST_LATE = 0.03
"""Share of the time that the others wait, from which a rank is named (measured on synthetic ranks:
nobody late gives 0.4 % at most, lateness of 2 ms in one of six phases 15 to 19 %)."""

MOSTLY = 0.5
"""Part of a rank's lateness that what it computes longer must be to be the cause: one that sleeps
computes more too, when it wakes."""

EXPLAINED = 0.8
"""Share of its lateness that one cause has to explain."""

IN_A_PHASE = 0.5
"""Share of its lateness that a phase has to explain to be named."""

SLOWER_CLOCK = 0.95
"""Clock, as a share of the other ranks', below which a GPU's own clock makes it late."""

COMM = "comm"
"""The domain of a program's own ranges around collectives: what is in them is waiting."""


@dataclass(slots=True)
class RankTime:
    """One rank, on one device if it has any. `waited` is the share of its time in which its
    collectives waited for others, `late` how much less that is than the first rank's; None where
    ranks cannot be compared."""

    run: Run
    rank: int
    process: int
    device: int | None
    tree: TimeTree | None
    waited: float | None
    late: float | None = None
    steps_in_common: bool = False
    """Whether its steps are those of the other ranks."""
    late_in_order_ns: list[float] | None = None
    """How late a step, over groups of steps, the oldest first; None where that is not known."""

    @property
    def host(self) -> str | None:
        """The host that it is on, where recordings of several hosts are one session."""
        return self.run.processes[self.process].attached.host

    @property
    def name(self) -> str:
        """The rank as sentences name it, with its host, process and GPU where they are known."""
        clauses = [self.host] if self.host else []
        attached = self.run.processes[self.process].attached
        if attached.rank is None:  # the program itself may not call it so
            clauses.append(f"process {attached.pid}")
        clauses += [f"GPU {self.device}"] if self.device is not None else []
        return f"Rank {self.rank}" + (f" ({', '.join(clauses)})" if clauses else "")

    @property
    def late_ns(self) -> float | None:
        """How much later it comes than the first, in all collectives of a step; None without steps
        that the compared ranks have in common."""
        if self.late is None or self.tree is None or not self.steps_in_common:
            return None
        return self.late * self.tree.step_mean_ns

    @property
    def cores(self) -> Cores | None:
        """What its threads had of the CPU; None on a GPU, where a leaf says it."""
        return None if self.tree is not None else cores_of(self.run, self.process)

    def share(self, *leaves: Leaf) -> float | None:
        """Of leaves, 0 to 1; None without a GPU."""
        if self.tree is None:
            return None
        return self.tree.share(sum(self.tree.leaves.get(leaf, 0) for leaf in leaves))


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for. `excess` is what it has of each leaf beyond the median of
    the others, as shares of its time. `cause` is "host", "more work", "throttled", "data",
    "copies", or None where no single one explains most of it."""

    time: RankTime
    excess: Mapping[Leaf, float]
    cause: str | None
    explanation: str
    advice: str = ""


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
_NEITHER = (Leaf.COMMUNICATION, Leaf.RANK, Leaf.UNKNOWN, Leaf.DEPENDENCY)

_BALANCE = "give every rank the same number of tokens: pack or bucket sequences by length"
_FIND_IT = "find what only that process does: logging, checkpoints, data loading, a busy core"


def _group(leaf: Leaf) -> str | None:
    if leaf in _NEITHER:
        return None
    if leaf in _HOST:
        return "host"
    if leaf is Leaf.INPUT:
        return "data"
    return "copies" if leaf in COPIES else "more work"


def late_rank(rank_time: RankTime, others: Sequence[RankTime]) -> LateRank:
    """A rank with what makes it late."""
    if rank_time.tree is None:
        phase = _phase(rank_time, others, _cpu_by_phase)
        where = phase or "its time is spread over its phases"
        least = max(LEAST_LATE, MOSTLY * (rank_time.late or 0.0))
        if times := times_longer(rank_time.cores, [other.cores for other in others], least):
            longer = f"its CPU computes {times:.1f} times as long as the others', {where}"
            return LateRank(rank_time, {}, "more work", longer, _BALANCE)
        return LateRank(rank_time, {}, "host", f"on its CPU, {where}", _FIND_IT)
    excess = _excess(rank_time, others)
    groups: dict[str, float] = {}
    for leaf, share in excess.items():
        if (group := _group(leaf)) is not None:
            groups[group] = groups.get(group, 0.0) + share
    whole = sum(share for share in excess.values() if share > 0)
    group = max(groups, key=lambda name: groups[name], default=None)
    if group is None or whole <= 0 or groups[group] < EXPLAINED * whole:
        return LateRank(rank_time, excess, None, "no single cause explains most of it")
    leaf = max((leaf for leaf in excess if _group(leaf) == group), key=lambda leaf: excess[leaf])
    label = LEAVES[leaf].label
    more = f"{_amount(rank_time, groups[group])} more than the others"
    if group == "more work":
        if clock := _slow_clock(rank_time, others):
            return LateRank(
                rank_time, excess, "throttled", clock, "look at that GPU's cooling and power"
            )
        phase = _phase(rank_time, others, _kernels_by_phase)
        return LateRank(
            rank_time,
            excess,
            group,
            f"its GPU computes {more}, most of it {label}" + (f", {phase}" if phase else ""),
            _BALANCE,
        )
    if group == "copies":
        return LateRank(rank_time, excess, group, f"{label} take {more}", "pin host memory")
    line = likeliest_line(rank_time.run, rank_time.process, leaf) or likeliest_line(
        rank_time.run, rank_time.process
    )
    phase = _phase(rank_time, others, _idle_by_phase)
    clauses = [phase, f"most often at {line.where}" if line else None]
    where = "".join(f", {part}" for part in clauses if part)
    if group == "data":
        return LateRank(
            rank_time,
            excess,
            group,
            f"its GPU waits for data {more}{where}",
            "more DataLoader workers on it, or cheaper samples",
        )
    return LateRank(
        rank_time, excess, group, f"its GPU waits for its CPU ({label}) {more}{where}", _FIND_IT
    )


def _amount(rank_time: RankTime, share: float) -> str:
    if rank_time.tree is not None and rank_time.tree.has_steps:
        return f"{duration(share * rank_time.tree.step_mean_ns)} a step"
    return f"{100 * share:.0f} % of the time"


def _excess(rank_time: RankTime, others: Sequence[RankTime]) -> dict[Leaf, float]:
    """What of each leaf a rank has beyond the median of the others, as shares of the time."""
    trees = [other.tree for other in others if other.tree is not None]
    if rank_time.tree is None or not trees:
        return {}
    every_leaf = set(rank_time.tree.leaves).union(*(tree.leaves for tree in trees))
    return {
        leaf: (rank_time.share(leaf) or 0.0) - median(other.share(leaf) or 0.0 for other in others)
        for leaf in every_leaf - {Leaf.COMMUNICATION, Leaf.RANK}
    }


Phases = Mapping[str, float]
"""Shares of the time by phase."""


def _phase(
    rank_time: RankTime, others: Sequence[RankTime], phases_of: Callable[[RankTime], Phases]
) -> str | None:
    """Where most of what a rank has beyond the others lies; None where it is in no one phase."""
    own, theirs = phases_of(rank_time), [phases_of(other) for other in others]
    excess = {
        name: share - median(their.get(name, 0.0) for their in theirs)
        for name, share in own.items()
    }
    name = max(excess, key=lambda name: excess[name], default=None)
    if name is None or excess[name] <= 0 or excess[name] < IN_A_PHASE * (rank_time.late or 0.0):
        return None
    return f"most of it in {name}" if name else "most of it outside every range"


def _cpu_by_phase(rank: RankTime) -> Phases:
    """Time inside each range and in none of its inner ones; of steps only, where they are what the
    program does."""
    run, process = rank.run, rank.process
    sums: dict[str, float] = defaultdict(float)
    times = [
        row
        for row in run.collectives.values()
        if row.process == process and row.first_ns is not None and row.last_ns is not None
    ]
    window_ns = max((row.last_ns or 0 for row in times), default=0) - min(
        (row.first_ns or 0 for row in times), default=0
    )
    nodes = [
        node
        for node in run.ranges.values()
        if node.definition.process == process
        and node.definition.domain != COMM
        and not is_library_domain(node.definition.domain)
    ]
    own_ns = {
        node.definition.range: max(
            0, node.cpu.total - sum(run.ranges[child].cpu.total for child in node.children)
        )
        for node in nodes
    }
    in_steps = [node for node in nodes if _is_in_step(run, node)]
    steps_ns = sum(own_ns[node.definition.range] for node in in_steps)
    for node in in_steps if steps_ns >= window_ns / 2 else nodes:
        share = own_ns[node.definition.range] / window_ns if window_ns else 0.0
        sums[node.path] += share
    return sums


def _is_in_step(run: Run, node: Range) -> bool:
    wanted = run.started.step_range
    names = node.path.split("/")
    return any(name == wanted if wanted else is_step_name(name) for name in names)


def _idle_by_phase(rank: RankTime) -> Phases:
    assert rank.device is not None
    return _by_path(rank, rank.run.timing.idle_by_range(rank.process, rank.device))


def _kernels_by_phase(rank: RankTime) -> Phases:
    sums: dict[int, int] = defaultdict(int)
    for row in rank.run.kernels.values():
        if (row.process, row.device) == (rank.process, rank.device):
            sums[row.phase] += row.time.total
    return _by_path(rank, sums)


def _by_path(rank: RankTime, by_range: Mapping[int, int]) -> Phases:
    """Times of ranges as shares of the steps' time, if the program's steps are ranges; else of all
    time, with "" for outside every range."""
    run = rank.run
    nodes = {number: run.ranges[number] for number in by_range if number in run.ranges}
    in_steps = {number for number, node in nodes.items() if _is_in_step(run, node)}
    # By its steps: what a rank did before them names another phase.
    if in_steps and rank.tree is not None and rank.tree.has_steps:
        whole_ns = rank.tree.wall_ns
    else:
        in_steps, whole_ns = set(by_range), _span_ns(rank)
    sums: dict[str, float] = defaultdict(float)
    for number in in_steps:
        path = nodes[number].path if number in nodes else ""
        sums[path] += by_range[number] / whole_ns if whole_ns else 0.0
    return sums


def _span_ns(rank: RankTime) -> int:
    use = rank.run.timing.devices.get((rank.process, rank.device))
    return 0 if use is None else use.span_ns


def _slow_clock(rank_time: RankTime, others: Sequence[RankTime]) -> str | None:
    clock = _clock(rank_time)
    theirs = [mhz for other in others if (mhz := _clock(other)) is not None]
    if clock is None or not theirs:
        return None
    usual = median(theirs)
    if clock >= SLOWER_CLOCK * usual:
        return None
    return f"GPU {rank_time.device} runs at {clock:.0f} MHz, the others at {usual:.0f}"


def _clock(rank_time: RankTime) -> float | None:
    if rank_time.device is None:
        return None
    clock = rank_time.run.readings.series(rank_time.device, "sm_clock_mhz")
    return clock.average if clock is not None else None
