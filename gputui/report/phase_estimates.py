"""Notes on phases whose GPU figures are estimated from windows of tracing."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.report.phases import PhaseRow, phase_rows, share_of
from gputui.report.windows import NOTE, Estimates
from gputui.state import Run

MOST_RANGES = 2000
"""Ranges of a run of which the largest error is looked for: the screen asks in every frame."""


def phases_note(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What must be known beside the rows."""
    of = share_of(run, rows)
    estimated = NOTE if Estimates.of(run) is not None else ""
    return "; ".join(filter(None, (of and f"share {of}", estimated)))


def shares_error_points(run: Run) -> float | None:
    """The largest error of the estimated shares of GPU time that are at least a percent; None
    without one."""
    if len(run.ranges) > MOST_RANGES or Estimates.of(run) is None:
        return None
    errors = [
        row.gpu_busy_error_points
        for row in phase_rows(run)
        if row.gpu_busy_error_points is not None and (row.gpu_busy_percent or 0.0) >= 1.0
    ]
    return max(errors, default=None)


def missing_estimates(run: Run, rows: Sequence[PhaseRow]) -> dict[str, str]:
    """Why phases lack estimated figures."""
    if Estimates.of(run) is None:
        return {}
    missing: dict[str, str] = {}
    if any(row.gpu_busy_percent is None for row in rows):
        missing["gpu_busy_percent"] = missing["gpu_estimated_ns"] = "no window of tracing saw it"
    if any(row.gpu_busy_error_points is None for row in rows):
        missing["gpu_busy_error_points"] = "too few windows of tracing saw it"
    return missing
