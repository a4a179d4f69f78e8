"""What a recording cannot tell because it was not measured: never 0, never without a word.

Recordings of older versions lack figures that came later, and reports made elsewhere may lack
them too. Which they are is seen from what they hold beside, not from a version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gputui.report.schema import ROWS
from gputui.state import Run
from gputui.state.timing import DeviceUse

REASON = "not measured when this was recorded"
"""Why a figure is missing."""


def has_idle_times(run: Run, process: int, device: int) -> bool:
    """Whether gaps, and what ran at once, were measured of a process's work on a device.

    They came together with the figures of single streams, of which work has one at least.
    """
    use = run.timing.devices.get((process, device), DeviceUse())
    streams = run.timing.streams
    return not use.operations or any(
        (key.process, key.device) == (process, device) for key in streams
    )


def has_streams(run: Run) -> bool:
    """Whether streams, and the launches of threads, were measured where anything ran."""
    return bool(run.timing.streams) or not run.devices


def has_idle_ranges(run: Run) -> bool:
    """Whether it was noted in which range a GPU idled, where one did."""
    uses = run.timing.devices.items()
    return any(use.idle_ranges for _, use in uses) or all(
        has_idle_times(run, *key) and not use.idle.total for key, use in uses
    )


def has_shapes(run: Run) -> bool:
    """Whether the launch shapes of kernels were noted, where there are kernels."""
    return bool(run.shape_launches) or not run.kernels


def empty_of_kernels(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    """Why a table is empty though kernels ran."""
    return {ROWS: REASON} if run.kernels and not rows else {}


def no_rows_unless(measured: Callable[[Run], bool]) -> Callable[[Run, object], Mapping[str, str]]:
    """Why a table is empty where what it is of was not `measured`."""
    return lambda run, _rows: {} if measured(run) else {ROWS: REASON}
