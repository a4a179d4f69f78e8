"""Where the time of each step goes: the leaves of the time tree, which add up to 100 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model import units
from gputui.model.leaves import LEAVES
from gputui.report.availability import REASON
from gputui.report.explain.time_tree import time_tree
from gputui.report.schema import ROWS, TableSpec, percent, text, time
from gputui.state import Run


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
    return f"100 % = {each}, the mean of {tree.steps} steady steps"


def _unavailable(run: Run, rows: Sequence[LeafRow]) -> Mapping[str, str]:
    return {ROWS: REASON} if run.kernels and not rows else {}


TIME: TableSpec[LeafRow] = TableSpec(
    key="time",
    title="Where each step goes",
    meaning="The leaves of the time tree: every nanosecond of the devices in steady steps.",
    columns=(
        text("State", "state", lambda row: "idle" if row.is_idle else "busy", "busy or idle"),
        text("Cause", "cause", lambda row: row.label, "The leaf's name"),
        text("Key", "key", lambda row: row.key, "Its name in conditions", in_table=False),
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
TABLES = (TIME,)
