"""Why a recording lacks figures: never 0, never without a reason.

Reports of other tools lack figures that gputui records, and a run may have ended before some were
known. This is deduced from what there is, not from the kind of file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gputui.model.step_kinds import HELD_NS
from gputui.report.schema import ROWS
from gputui.state import Run

REASON = "not measured when this was recorded"
"""Why a figure is missing."""


def has_idle_times(run: Run, process: int, device: int) -> bool:
    """Whether gaps and overlap of a process's work on a device were measured.

    They were introduced together with the figures of single streams, of which any work has at least
    one.
    """
    use = run.timing.devices.get((process, device))
    return not (use and use.operations) or any(
        (stream.process, stream.device) == (process, device)
        for stream in run.timing.streams.values()
    )


def why_unaccounted(run: Run) -> str:
    """Why it is not known where the time of a run went in which kernels ran."""
    if run.is_active:
        # Or was, where the recording ends before the run.
        return f"The steps are not known yet: that takes up to {HELD_NS / 1e9:g} s of GPU work."
    return f"Where the time went was {REASON}."


def has_streams(run: Run) -> bool:
    """Whether streams, and the launches of threads, were measured if anything ran."""
    return bool(run.timing.streams) or not run.devices


def has_idle_ranges(run: Run) -> bool:
    """Whether the range in which a GPU was idle was recorded, if one was idle."""
    return bool(run.timing.idle_by_range() or not run.ranges) or all(
        has_idle_times(run, use.process, use.device) and not (use.idle and use.idle.total)
        for use in run.timing.devices.values()
    )


def has_shapes(run: Run) -> bool:
    """Whether the launch shapes of kernels were recorded, if there are kernels."""
    return bool(run.shapes) or not run.kernels


def empty_of_kernels(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    """Why a table is empty though kernels ran."""
    return {ROWS: REASON} if run.kernels and not rows else {}


def no_rows_unless(measured: Callable[[Run], bool]) -> Callable[[Run, object], Mapping[str, str]]:
    """Why a table is empty if its subject was not `measured`."""
    return lambda run, _rows: {} if measured(run) else {ROWS: REASON}
