"""The ranks of a job side by side: who is late, and what each GPU's time went to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.model import units
from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.ranks import RankTime, rank_times
from gputui.report.schema import TableSpec, number, percent, time
from gputui.state import Run, Session


def rank_rows(_session: Session, run: Run) -> list[RankTime]:
    """Nothing where there is only one rank to look at."""
    times = rank_times(run)
    return times if len({one.rank for one in times}) > 1 else []


def _share(*leaves: Leaf) -> Callable[[RankTime], float]:
    return lambda row: 100 * row.tree.share(sum(row.tree.leaves.get(leaf, 0) for leaf in leaves))


def _idle(row: RankTime) -> float:
    return 100 * row.tree.share(row.tree.idle_ns)


def _compute(row: RankTime) -> float:
    return 100 - _idle(row) - _transfer(row)


_transfer = _share(Leaf.COMMUNICATION)
_other_host = _share(
    *(
        leaf
        for leaf in LEAVES
        if LEAVES[leaf].is_idle and leaf not in (Leaf.RANK, Leaf.LAUNCH, Leaf.UNKNOWN)
    )
)


def _note(_run: Run, rows: Sequence[RankTime]) -> str:
    if not rows:
        return ""
    if all(row.late_ns is None for row in rows):
        return "who is late cannot be told: fewer than 20 steps, or no collectives in common"
    each = units.duration(max(row.tree.step_mean_ns for row in rows))
    return f"100 % = {each}, the mean of a step"


RANKS: TableSpec[RankTime] = TableSpec(
    key="ranks",
    title="Ranks",
    meaning="The time of each rank's GPU in steady steps, the latest rank first.",
    columns=(
        number("Rank", "rank", lambda row: row.rank, "Its rank"),
        number("GPU", "gpu", lambda row: row.device, "Its GPU"),
        time("Late", "late_ns", lambda row: row.late_ns,
             "How much later it comes to the collectives of a step than the first rank, in all",
             kind=float | None),
        percent("Busy", "busy_percent", lambda row: 100 - _idle(row),
                "Computing, copying or transferring"),
        percent("Compute", "compute_percent", _compute, "Of it, kernels and copies", priority=3),
        percent("Transfer", "transfer_percent", _transfer,
                "Of it, collectives while nothing else ran", priority=2),
        percent("Idle", "idle_percent", _idle, "Nothing ran, or a collective that waited"),
        percent("Other Rank", "other_rank_percent", _share(Leaf.RANK),
                "Of it, a collective that waited for another rank", label="rank"),
        percent("Host", "host_percent", _other_host, "Of it, the CPU", priority=1),
        percent("Launch-Bound", "launch_percent", _share(Leaf.LAUNCH),
                "Of it, the CPU between two launches", priority=4, label="launch"),
        number("Steps", "steps", lambda row: row.tree.steps, "Steady steps", priority=6),
        time("Step", "step_ns", lambda row: row.tree.step_mean_ns, "Mean time of a step",
             kind=float, priority=5),
    ),
    rows=rank_rows,
    order=2,
    in_summary=True,
    document="ranks",
    note=_note,
)  # fmt: skip
TABLES = (RANKS,)
