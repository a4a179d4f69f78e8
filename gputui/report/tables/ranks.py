"""The ranks of a job side by side: who is late, where GPU time went, and their collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputui.model.events import CollectiveDelta, PeerDelta
from gputui.model.events.distributions import Statistics
from gputui.model.kernel_categories import bus_factor, total_bytes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import (
    FIRST_SECOND,
    MATCHED,
    hidden_share,
    matched,
    ranks_of,
    was_clock_set,
    why_not_matched,
)
from gputui.report.explain.ranks import lack_of_cores, late_over_steps
from gputui.report.schema import (
    RANK,
    Column,
    TableSpec,
    count,
    if_any,
    if_differs,
    number,
    percent,
    rate,
    size,
    text,
    time,
)
from gputui.report.scope import tables_of_processes
from gputui.report.statistics import (
    TableRow,
    api_rows,
    kernel_rows,
    medians_note,
    memory_time_rows,
    statistics_columns,
)
from gputui.report.tables.nsys import API, KERNELS, MEMORY_TIME, by_rank
from gputui.state import Run, Session


def rank_rows(session: Session, run: Run) -> list[RankTime]:
    """Nothing where there is only one rank to look at."""
    return ranks_side_by_side(Analysis(session, run))


def ranks_side_by_side(analysis: Analysis) -> list[RankTime]:
    """The rows of a run that is already analysed."""
    times = analysis.ranks
    late = late_over_steps(times)
    for row in times:
        row.late_in_order_ns = late.get((row.process, row.device or 0))
    return times if len({row.rank for row in times}) > 1 else []


def _share(*leaves: Leaf) -> Callable[[RankTime], float | None]:
    def cell(row: RankTime) -> float | None:
        share = row.share(*leaves)
        return None if share is None else 100 * share

    return cell


_BUSY = tuple(leaf for leaf in LEAVES if not LEAVES[leaf].is_idle)
_IDLE = tuple(leaf for leaf in LEAVES if LEAVES[leaf].is_idle)
_COMPUTE = tuple(leaf for leaf in _BUSY if leaf is not Leaf.COMMUNICATION)
_HOST = tuple(leaf for leaf in _IDLE if leaf not in (Leaf.RANK, Leaf.LAUNCH, Leaf.UNKNOWN))


def _late(row: RankTime) -> float | None:
    return None if row.late is None else 100 * row.late


def _waited(row: RankTime) -> float | None:
    return None if row.waited is None else 100 * row.waited


def _hidden(row: RankTime) -> float | None:
    share = hidden_share(row.run, row.process)
    return None if share is None else 100 * share


def _steps(row: RankTime) -> int | None:
    return row.tree.steps or None if row.tree is not None else None


def _step_ns(row: RankTime) -> float | None:
    return row.tree.step_mean_ns if row.tree is not None and row.tree.has_steps else None


def why_unknown(run: Run, rows: Sequence[RankTime]) -> str:
    """Why it is not known which rank is late; empty where it is, or where there is no rank."""
    if any(row.late is not None for row in rows):
        unnamed = lack_of_cores(rows, matched(run))
        return unnamed[1] if unnamed else ""
    why = why_not_matched(run)
    if rows and not why and was_clock_set(run):
        why = f"a host's clock was set by {duration(run.clock_set_ns)} while it ran"
    if rows and not why:
        why = "fewer than 20 steps alike, or no collectives in common"
    return f"which rank is late is not known: {why}" if why else ""


RANKS: TableSpec[RankTime] = TableSpec(
    key="ranks",
    title="Ranks",
    meaning="The time of each rank's GPU in steady steps, the latest rank first.",
    columns=(
        number("Rank", "rank", lambda row: row.rank, "Its rank"),
        text("Host", "host", lambda row: row.host, "Its host, of several", kind=str | None,
             seen=if_any),
        number("GPU", "gpu", lambda row: row.device, "Its GPU", kind=int | None, seen=if_any),
        percent("Late", "late_percent", _late,
                "How much less its collectives wait than those of the first rank, of the time",
                kind=float | None),
        time("Late a Step", "late_ns", lambda row: row.late_ns,
             "How much later it comes to the collectives of a step than the first rank, in all",
             kind=float | None, seen=if_any),
        percent("Waits", "other_rank_percent", _waited,
                "A collective waited for another rank, and nothing else ran", kind=float | None),
        percent("Busy", "busy_percent", _share(*_BUSY), "Computing, copying or transferring",
                kind=float | None, seen=if_any),
        percent("Compute", "compute_percent", _share(*_COMPUTE), "Of it, kernels and copies",
                kind=float | None, seen=if_any, priority=3),
        percent("Transfer", "transfer_percent", _share(Leaf.COMMUNICATION),
                "Of it, collectives while nothing else ran", kind=float | None, seen=if_any,
                priority=2),
        percent("Idle", "idle_percent", _share(*_IDLE),
                "Nothing ran, or a collective that waited", kind=float | None, seen=if_any),
        percent("Host", "host_percent", _share(*_HOST), "Of it, the CPU", kind=float | None,
                seen=if_any, priority=1),
        percent("Launch-Bound", "launch_percent", _share(Leaf.LAUNCH),
                "Of it, while the CPU was between two launches", kind=float | None,
                seen=if_any, priority=4, label="launch"),
        percent("Hidden", "hidden_percent", _hidden,
                "Collectives beside other kernels: in no other column", kind=float | None,
                seen=if_any, priority=4),
        number("Steps", "steps", _steps, "Steady steps", kind=int | None, seen=if_any, priority=6),
        Column("Late in Order", None, "late_in_order_ns", unit="ns", kind=list[float] | None,
               meaning="How late a step, over up to 32 groups of steps, the oldest first",
               document=lambda row: row.late_in_order_ns, in_table=False),
        time("Step", "step_ns", _step_ns, "Mean time of a step", kind=float | None, seen=if_any,
             priority=5),
    ),
    rows=rank_rows,
    order=2,
    in_summary=True,
    document="ranks",
    note=why_unknown,
)  # fmt: skip


# --- kernels, CUDA calls and copies of each rank: the tables of nsys add ranks up


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow(TableRow):
    """What one rank has of a name; percent is of the rank's own total."""

    rank: int


ALIKE = 1.05
"""Ranks whose times are less than this many times one another have the same of it."""


def _rows(
    session: Session, run: Run, rows_of: Callable[[Session, Run], list[TableRow]]
) -> list[RankRow]:
    """The rows of each name together; the name with the longest time over all ranks comes first."""
    rows = [
        RankRow(rank=rank, **{each.name: getattr(row, each.name) for each in fields(row)})
        for rank, own in _run_of_each_rank(run).items()
        for row in rows_of(session, own)
    ]
    whole: dict[str, int] = defaultdict(int)
    for row in rows:
        whole[row.name] += row.total
    return sorted(rows, key=lambda row: (-whole[row.name], row.name, row.rank))


def _run_of_each_rank(run: Run) -> dict[int, Run]:
    """For each rank, the run with only the captured facts of the rank's processes. All facts are
    cut, since a column of the tables may need any of them."""
    processes: dict[int, set[int]] = defaultdict(set)
    for process, rank in ranks_of(run).items():
        processes[rank].add(process)
    ranges = {
        rank: {number for number, node in run.ranges.items() if node.definition.process in own}
        for rank, own in processes.items()
    }
    return {
        rank: replace(
            run,
            **tables_of_processes(run, own, ranges[rank]),
            timing=replace(run.timing, **tables_of_processes(run.timing, own, ranges[rank])),
        )
        for rank, own in sorted(processes.items())
    }


class RankSum(NamedTuple):
    """What one rank has of a name."""

    rank: int
    launches: int
    total_ns: int

    @property
    def average_ns(self) -> float:
        """Mean time of a launch in ns; 0 where there was none."""
        return self.total_ns / self.launches if self.launches else 0.0


def rank_sums(
    run: Run, statistics: Iterable[tuple[str, int, Statistics]]
) -> dict[str, list[RankSum]]:
    """By name, the processes and times of the ranks, the rank with the most time first; empty if
    there is only one rank."""
    sums: dict[str, dict[int, list[int]]] = defaultdict(dict)
    ranks = ranks_of(run)
    for name, process, times in statistics:
        if (rank := ranks.get(process)) is not None:
            own = sums[name].setdefault(rank, [0, 0])
            own[0] += times.count
            own[1] += times.total
    if len({rank for each in sums.values() for rank in each}) < 2:
        return {}
    return {
        # Without distributions: with them a large job's kernels took 50 ms a reading, and 2 since.
        name: sorted((RankSum(rank, *own) for rank, own in each.items()), key=_most_first)
        for name, each in sums.items()
    }


def _most_first(rank_sum: RankSum) -> tuple[int, int]:
    return -rank_sum.total_ns, rank_sum.rank


def rank_with_most(rows: Sequence[RankSum]) -> str:
    """The rank with the most time, and how many times that of the rank with the least. If only one
    rank has such time, that rank; empty if no rank has."""
    if not rows:
        return ""
    first, last = rows[0], rows[-1]
    if first is last or not last.total_ns:
        return f"rank {first.rank}"
    times = first.total_ns / last.total_ns
    return f"rank {first.rank} {times:.2f}×" if times >= ALIKE else "alike"


def _spec(whole: TableSpec[TableRow], counted: str,
          rows_of: Callable[[Session, Run], list[TableRow]]) -> TableSpec[RankRow]:  # fmt: skip
    names: tuple[Column[Any], ...] = whole.columns[len(statistics_columns(counted)) :]
    return TableSpec(
        key=by_rank(whole.key),
        title=f"{whole.title} by Rank",
        meaning=f"{whole.meaning.removesuffix('.')} and rank; shares are of the rank's own total.",
        columns=(RANK, *statistics_columns(counted), *names),
        rows=lambda session, run: _rows(session, run, rows_of),
        order=whole.order + 3,
        note=lambda _run, rows: medians_note(row.exact for row in rows),
        is_traced=True,
    )


# Collectives by rank, communicator, kind and size: what they moved, how long they waited.


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Collectives of one rank, or process, of one communicator, kind and size."""

    rank: int | None
    pid: int
    ranks: int
    group: str
    sums: CollectiveDelta

    @property
    def transfer_ns(self) -> int | None:
        """The collectives that were matched."""
        return self.sums.matched_ns - self.sums.wait_ns if self.sums.matched else None

    @property
    def algorithm_rate(self) -> float | None:
        """Bytes a second of the whole operation, without waiting; None where unknown."""
        whole = total_bytes(self.sums.kind, self.sums.matched_bytes, self.ranks)
        return 1e9 * whole / self.transfer_ns if self.transfer_ns and whole else None

    @property
    def bus_rate(self) -> float | None:
        """Bytes a second that each rank's link carries, as nccl-tests counts them."""
        factor = bus_factor(self.sums.kind, self.ranks)
        if self.algorithm_rate is None or not factor:
            return None
        return self.algorithm_rate * factor


def collective_rows(_session: Session, run: Run) -> list[CollectiveRow]:
    """The collectives that ended; the longest of each rank come first."""
    members: dict[str, set[int]] = defaultdict(set)
    for sums in run.collectives.values():
        members[sums.communicator].add(sums.process)
    ranks = ranks_of(run)
    groups = {
        name: _group({ranks[process] for process in processes if process in ranks})
        for name, processes in members.items()
        if name
    }
    rows = [
        CollectiveRow(
            ranks.get(sums.process),
            run.processes[sums.process].attached.pid,
            sums.ranks or len(members[sums.communicator]),
            groups.get(sums.communicator, ""),
            sums,
        )
        for sums in run.collectives.values()
        if sums.count
    ]
    return sorted(rows, key=lambda row: (-1 if row.rank is None else row.rank, -row.sums.time_ns))


# Ranks that are named one by one in a cell: chosen for its width, not measured.
_MOST_NAMED = 8


def _group(members: Iterable[int]) -> str:
    """The ranks of a communicator that were seen: "0,2", "0-7"; empty where they have none."""
    ranks = sorted(members)
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    more = ["…"] if len(ranks) > _MOST_NAMED else []
    # NCCL's id of a communicator does not say which of three dimensions it is: its ranks do.
    return ",".join([*map(str, ranks[:_MOST_NAMED]), *more])


def _note(_run: Run, rows: Sequence[CollectiveRow]) -> str:
    compared = sum(row.sums.compared for row in rows)
    matched_sum = sum(row.sums.matched for row in rows)
    if compared and matched_sum < MATCHED * compared:
        return (
            f"only {100 * matched_sum / compared:.0f} % found on all ranks: waits are not compared"
        )
    unknown = sum(row.sums.count for row in rows if not row.sums.communicator)
    if unknown:
        return (
            f"{unknown:,} without a communicator: replayed from a CUDA graph, of NCCL before 2.25, "
            "or with NCCL_NVTX_DISABLE"
        )
    if rows and not any(row.sums.matched for row in rows):
        # A short run of comm has all of its collectives in the first second.
        is_early = any(row.sums.ranks > 1 for row in rows)
        why = FIRST_SECOND if is_early else "not matched among ranks"
        return f"{why}: bandwidths and waits are not known"
    return ""


def _matched(name: str) -> Callable[[CollectiveRow], int | None]:
    def cell(row: CollectiveRow) -> int | None:
        return getattr(row.sums, name) if row.sums.matched else None

    return cell


COLLECTIVES: TableSpec[CollectiveRow] = TableSpec(
    key="collectives",
    title="Collectives",
    meaning="NCCL's operations, and ranges of a domain `comm`, matched among the local ranks.",
    columns=(
        RANK,
        number("PID", "pid", lambda row: row.pid, "The process", priority=9),
        text("Kind", "kind", lambda row: row.sums.kind, "What it does"),
        text("Communicator", "communicator", lambda row: row.sums.communicator,
             "NCCL's id, or the category of the range", priority=4),
        text("Group", "group", lambda row: row.group,
             "The ranks of the communicator that were seen", seen=if_differs, flexible=False,
             priority=2),
        number("Ranks", "ranks", lambda row: row.ranks, "Ranks of the communicator", priority=5),
        count("Count", "count", lambda row: row.sums.count, "Kernels, or ranges, that ended"),
        size("Bytes", "message_bytes", lambda row: row.sums.bytes,
             # NCCL's size of an all-to-all is one rank's share, too: on four H100s its bandwidth
             # was a quarter of the 340 GB/s that comm measured.
             "Message sizes as NCCL has them: of all-gather, reduce-scatter and "
             "all-to-all one rank's share"),
        time("Time", "time_ns", lambda row: row.sums.time_ns, "In all"),
        time("Waited", "wait_ns", _matched("wait_ns"),
             "For the last rank, of those after the communicator's first second",
             kind=int | None, seen=if_any),
        count("Last", "last", _matched("last"), "How often it came last", kind=int | None,
              seen=if_any, priority=3),
        time("Blame", "blame_ns", _matched("blame_ns"),
             "What would have been gained had it come with the last but one", kind=int | None,
             seen=if_any, priority=6),
        percent("Matched", "matched_percent",
                lambda row: 100 * row.sums.matched / row.sums.compared
                if row.sums.compared else None,
                "Found on the other ranks too", kind=float | None, seen=if_any, priority=7),
        rate("Algorithm", "algorithm_bytes_per_s", lambda row: row.algorithm_rate,
             "Total size over transfer time, without waiting", kind=float | None, seen=if_any,
             priority=2),
        rate("Bus", "bus_bytes_per_s", lambda row: row.bus_rate,
             "What each rank's link carries, as nccl-tests counts it; not with in-switch reduction",
             kind=float | None, seen=if_any, priority=1),
    ),
    rows=collective_rows,
    order=605,
    in_summary=False,
    document="collectives",
    note=_note,
)  # fmt: skip


# --- who waits for whom in sends and receives: what each rank exchanged with which, and the chain


GOES_ON = 0.5
"""A rank hands its waiting on, to the one that it waits for itself, if it waits half as long."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Messages between a rank and another one. `chain` leads from the rank along the ranks that are
    waited for the most, to the first one that had work to do."""

    rank: int | None
    pid: int
    peer: int | None
    sums: PeerDelta
    chain: tuple[int, ...]


def peer_rows(_session: Session, run: Run) -> list[PeerRow]:
    """For each rank, the ranks that it waits for, the one with the longest wait first."""
    waits: dict[int, dict[int, int]] = defaultdict(dict)
    for sums in run.peers.values():
        waits[sums.process][sums.peer] = sums.wait_ns
    ranks = ranks_of(run)
    rows = [
        PeerRow(
            ranks.get(sums.process),
            run.processes[sums.process].attached.pid,
            ranks.get(sums.peer),
            sums,
            tuple(
                ranks[process]
                for process in _chain(waits, sums.process, sums.peer)
                if process in ranks
            ),
        )
        for sums in run.peers.values()
        if sums.peer in run.processes
    ]
    return sorted(rows, key=lambda row: (-1 if row.rank is None else row.rank, -row.sums.wait_ns))


def _chain(waits: dict[int, dict[int, int]], process: int, peer: int) -> list[int]:
    if not waits[process][peer]:
        return []
    chain = [process, peer]
    waited_ns = waits[process][peer]
    while chain[-1] in waits:
        onward, ns = max(waits[chain[-1]].items(), key=lambda pair: pair[1])
        if onward in chain or ns < GOES_ON * waited_ns:
            break
        chain.append(onward)
    return chain


def _wait_of(row: PeerRow) -> float | None:
    sums = row.sums
    return 100 * sums.wait_ns / sums.matched_ns if sums.matched_ns else None


PEERS: TableSpec[PeerRow] = TableSpec(
    key="peers",
    title="Who Waits for Whom (sends and receives)",
    meaning="Messages between ranks of this machine, as pipelines send them: for each kernel, the "
    "partner that came last.",
    columns=(
        number("Rank", "rank", lambda row: row.rank, "The rank that waits", kind=int | None),
        number("PID", "pid", lambda row: row.pid, "Its process", priority=9),
        number("For Rank", "for_rank", lambda row: row.peer, "The other one", kind=int | None),
        count("Messages", "messages", lambda row: row.sums.messages, "In both directions",
              priority=3),
        size("Sent", "sent_bytes", lambda row: row.sums.bytes, "To it", priority=4),
        count("Last", "kernels", lambda row: row.sums.matched,
              "Kernels whose last partner it was", priority=2),
        time("Time", "time_ns", lambda row: row.sums.matched_ns, "Of these kernels", priority=1),
        time("Waited", "wait_ns", lambda row: row.sums.wait_ns, "Of it, until it came"),
        percent("Share", "wait_percent", _wait_of, "Of their time, waiting", kind=float | None),
        text("Chain", "chain", lambda row: " → ".join(map(str, row.chain)),
             "The chain of waiting ranks, down to the one that had work", seen=if_any),
    ),
    rows=peer_rows,
    order=606,
    in_summary=False,
    document="peers",
)  # fmt: skip

TABLES = (
    RANKS,
    _spec(KERNELS, "Instances", kernel_rows),
    _spec(API, "Num Calls", lambda _session, run: api_rows(run)),
    _spec(MEMORY_TIME, "Count", lambda _session, run: memory_time_rows(run)),
    COLLECTIVES,
    PEERS,
)
