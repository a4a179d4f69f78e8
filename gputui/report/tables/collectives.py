"""Collectives by rank, communicator, kind and size: what they moved, how long they waited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gputui.model.collectives import bus_factor, total_bytes
from gputui.model.events import CollectiveDelta, PeerDelta
from gputui.report.explain.rank_waits import FIRST_SECOND, MATCHED, ranks_of
from gputui.report.schema import (
    RANK,
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
from gputui.state import Run, Session


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
        """Of those that were matched."""
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
    """Those that ended, the longest of each rank first."""
    members: dict[str, set[int]] = defaultdict(set)
    for sums in run.collectives.values():
        members[sums.communicator].add(sums.process)
    ranks = ranks_of(run)
    groups = {
        name: _group({ranks[one] for one in of if one in ranks})
        for name, of in members.items()
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


_MOST_NAMED = 8


def _group(found: Iterable[int]) -> str:
    """The ranks of a communicator that were seen: "0,2", "0-7"; empty where they have none."""
    ranks = sorted(found)
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    more = ["…"] if len(ranks) > _MOST_NAMED else []
    return ",".join([*map(str, ranks[:_MOST_NAMED]), *more])


def _note(_run: Run, rows: Sequence[CollectiveRow]) -> str:
    compared = sum(row.sums.compared for row in rows)
    found = sum(row.sums.matched for row in rows)
    if compared and found < MATCHED * compared:
        return f"only {100 * found / compared:.0f} % found on all ranks: waits are not compared"
    unknown = sum(row.sums.count for row in rows if not row.sums.communicator)
    if unknown:
        return (
            f"{unknown:,} without a communicator: replayed from a CUDA graph, of NCCL before 2.25, "
            "or with NCCL_NVTX_DISABLE"
        )
    if rows and not any(row.sums.matched for row in rows):
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
    """Messages between a rank and another. `chain` goes from the rank along those that are waited
    for most, to the first that had work to do."""

    rank: int | None
    pid: int
    peer: int | None
    sums: PeerDelta
    chain: tuple[int, ...]


def peer_rows(_session: Session, run: Run) -> list[PeerRow]:
    """By rank, whom it waits for most first."""
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
            tuple(ranks[one] for one in _chain(waits, sums.process, sums.peer) if one in ranks),
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


def _waited(row: PeerRow) -> float | None:
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
        percent("Share", "wait_percent", _waited, "Of their time, waiting", kind=float | None),
        text("Chain", "chain", lambda row: " → ".join(map(str, row.chain)),
             "The chain of waiting ranks, down to the one that had work", seen=if_any),
    ),
    rows=peer_rows,
    order=606,
    in_summary=False,
    document="peers",
)  # fmt: skip


TABLES = (
    COLLECTIVES,
    PEERS,
)
