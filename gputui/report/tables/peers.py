"""Who waits for whom in sends and receives: what each rank exchanged with which, and the chain."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gputui.model.collectives import PeerSums
from gputui.report.explain.rank_waits import ranks_of
from gputui.report.schema import TableSpec, count, if_any, number, percent, size, text, time
from gputui.state import Run, Session

GOES_ON = 0.5
"""A rank hands its waiting on, to the one that it waits for itself, if it waits half as long."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Messages between a rank and another. `chain` goes from the rank along those that are waited
    for most, to the first that had work to do."""

    rank: int | None
    pid: int
    peer: int | None
    sums: PeerSums
    chain: tuple[int, ...]


def peer_rows(_session: Session, run: Run) -> list[PeerRow]:
    """By rank, whom it waits for most first."""
    waits: dict[int, dict[int, int]] = defaultdict(dict)
    for key, sums in run.peers.items():
        waits[key.process][key.peer] = sums.wait_ns
    ranks = ranks_of(run)
    rows = [
        PeerRow(
            ranks.get(key.process),
            run.processes[key.process].attached.pid,
            ranks.get(key.peer),
            sums,
            tuple(ranks[one] for one in _chain(waits, key.process, key.peer) if one in ranks),
        )
        for key, sums in run.peers.items()
        if key.peer in run.processes
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
TABLES = (PEERS,)
