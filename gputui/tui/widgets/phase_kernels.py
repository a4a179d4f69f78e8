"""The kernels that a phase launched, below the tree of phases."""

from __future__ import annotations

from gputui.report.phase_tree import ranges_below
from gputui.report.phases import PhaseRow
from gputui.report.statistics import kernel_rows
from gputui.report.tables.nsys import KERNELS
from gputui.state import Run, Session
from gputui.tui.widgets.canvas import Row, heading
from gputui.tui.widgets.names import short_names
from gputui.tui.widgets.table import column, declared, table_rows
from gputui.tui.widgets.view import Lead

_NAME = 50
"""Cells of a name where there is room."""


def phase_kernels(
    session: Session, run: Run, phase: PhaseRow, width: int, height: int
) -> tuple[list[Row], dict[Row, Lead]]:
    """Those that took most, in so many rows, the heading and the titles included, and where each
    leads."""
    known = kernel_rows(session, run, ranges_below(phase.phase))
    found = known[: height - 2]
    if not found:
        return [], {}
    names = short_names([row.name for row in found], _NAME)
    told_apart = dict(zip([row.name for row in found], names, strict=True))
    columns = [
        column("kernel", lambda row: told_apart[row.name], 0, flexible=True, right=False, width=24),
        *declared(KERNELS, "category", "time_percent", "total_ns", "instances", "med_ns",
                  time_percent="of these", total_ns="GPU time"),
    ]  # fmt: skip
    titles, *rows = table_rows(columns, found, width)
    leads = {row: Lead("kernels", one.name) for row, one in zip(rows, found, strict=True)}
    note = f"{len(found)} of {len(known)}" if len(found) < len(known) else ""
    return [heading(f"Kernels of {phase.path}", width, note), titles, *rows], leads
