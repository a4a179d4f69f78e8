"""The ranks of a job side by side: who is late, and what each GPU's time went to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import hidden_share, matched, was_clock_set, why_not_matched
from gputui.report.explain.ranks import lack_of_cores, late_over_steps, rank_times
from gputui.report.schema import Column, TableSpec, if_any, number, percent, text, time
from gputui.state import Run, Session


def rank_rows(_session: Session, run: Run) -> list[RankTime]:
    """Nothing where there is only one rank to look at."""
    times = rank_times(run)
    late = late_over_steps(times)
    for one in times:
        one.late_in_order_ns = late.get((one.process, one.device or 0))
    return times if len({one.rank for one in times}) > 1 else []


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
TABLES = (RANKS,)
