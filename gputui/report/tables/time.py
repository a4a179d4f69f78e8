"""Where the time of each step goes: the leaves of the time tree, which add up to 100 %."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model import units
from gputui.model.leaves import LEAVES
from gputui.report.explain.rank_waits import matched
from gputui.report.explain.time_tree import device_trees, shared_gpus, time_tree
from gputui.report.schema import RANK, REASON, ROWS, Column, TableSpec, number, percent, text, time
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class LeafRow:
    """A leaf: `share_percent` is of the wall time of the scope."""

    key: str
    label: str
    is_idle: bool
    share_percent: float
    total_ns: int
    step_ns: float | None


def leaf_rows(run: Run) -> list[LeafRow]:
    """The leaves of a run that took time, the largest first."""
    tree = time_tree(run)
    if tree is None:
        return []
    return [
        LeafRow(
            LEAVES[leaf].key,
            LEAVES[leaf].label,
            LEAVES[leaf].is_idle,
            100 * tree.share(ns),
            ns,
            tree.a_step(ns),
        )
        for leaf, ns in sorted(tree.leaves.items(), key=lambda item: -item[1])
        if ns
    ]


def _note(run: Run, _rows: Sequence[LeafRow]) -> str:
    tree = time_tree(run)
    if tree is None:
        return ""
    if not tree.steps:
        return f"100 % = {units.duration(tree.wall_ns)} since the first kernel; no steps were found"
    each = units.duration(tree.step_mean_ns)
    return f"100 % = {each}, the mean of {tree.program_steps:,} steady steps"


def _unavailable(run: Run, rows: Sequence[LeafRow]) -> Mapping[str, str]:
    return {ROWS: REASON} if run.kernels and not rows else {}


TIME: TableSpec[LeafRow] = TableSpec(
    key="time",
    title="Where each step goes",
    meaning="The leaves of the time tree: every nanosecond of the devices in steady steps.",
    columns=(
        text(
            "State",
            "state",
            lambda row: "idle" if row.is_idle else "busy",
            "busy or idle",
            in_table=False,
        ),
        text("Cause", "cause", lambda row: row.label, "The leaf's name"),
        text("Key", "key", lambda row: row.key, "Its name in conditions (--fail-if)"),
        percent("Share", "share_percent", lambda row: row.share_percent, "Of the wall time"),
        time("Per step", "step_ns", lambda row: row.step_ns, "Mean time a step", kind=float | None),
        time("Total", "total_ns", lambda row: row.total_ns, "In all steady steps", priority=1),
    ),
    rows=lambda _session, run: leaf_rows(run),
    order=1,
    in_summary=True,
    document="time",
    note=_note,
    unavailable=_unavailable,
)


@dataclass(frozen=True, slots=True)
class SharedRow:
    """What one process has of a GPU, in shares of the device's time."""

    gpu: int
    rank: int | None
    pid: int
    busy_percent: float
    idle_percent: float
    leaves_ns: dict[str, int]


def _shared_rows(_session: Session, run: Run) -> list[SharedRow]:
    shares = shared_gpus(run, device_trees(run, matched(run)))
    walls: dict[int, int] = defaultdict(int)
    for part in shares:
        walls[part.gpu] += part.busy_ns + part.idle_ns
    return [
        SharedRow(
            part.gpu,
            run.processes[part.process].attached.rank,
            run.processes[part.process].attached.pid,
            100 * part.busy_ns / walls[part.gpu],
            100 * part.idle_ns / walls[part.gpu],
            {LEAVES[leaf].key: ns for leaf, ns in part.leaves.items() if ns},
        )
        for part in shares
    ]


SHARED_GPUS: TableSpec[SharedRow] = TableSpec(
    key="shared_gpus",
    title="Processes on One GPU",
    meaning="What each traced process has of a GPU that several of them use at once.",
    columns=(
        number("GPU", "gpu", lambda row: row.gpu, "The GPU's index"),
        RANK,
        number("PID", "pid", lambda row: row.pid, "The process"),
        percent("Busy", "busy_percent", lambda row: row.busy_percent,
                "It ran something, of the device's time; where others did too, its part of that",
                kind=float),
        percent("Idle", "idle_percent", lambda row: row.idle_percent,
                "Nobody ran anything, in equal parts for those that might have", kind=float),
        Column("Leaves", key="leaves_ns", document=lambda row: row.leaves_ns,
               value=lambda row: len(row.leaves_ns),
               meaning="By leaf; those of all processes of a GPU add up to its wall time",
               kind=dict[str, int], in_table=False, unit="ns"),
    ),
    rows=_shared_rows,
    order=3,
    in_summary=True,
    document="shared_gpus",
)  # fmt: skip

TABLES = (TIME, SHARED_GPUS)
