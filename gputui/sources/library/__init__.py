"""The driver's management library (NVML) with types: the one place that touches `pynvml`.

Each method is one call. It returns plain numbers and strings in this program's units, or raises
`DriverError` with a reason for people. Handles, samples and requests are opaque objects.
"""

from gputui.sources.library.calls import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    DriverError,
    Handle,
)
from gputui.sources.library.counters import CounterCalls, GpmRequest, GpmSample
from gputui.sources.library.facts import FactCalls
from gputui.sources.library.health import HealthCalls, XidWatch
from gputui.sources.library.links import LinkCalls
from gputui.sources.library.mig import MigCalls
from gputui.sources.library.processes import GpuProcess, ProcessCalls, ProcessUse
from gputui.sources.library.readings import Memory, ReadingCalls

__all__ = [
    "FUNCTION_NOT_FOUND",
    "GPU_IS_LOST",
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "DriverError",
    "GpmRequest",
    "GpmSample",
    "GpuProcess",
    "Handle",
    "Library",
    "Memory",
    "ProcessUse",
    "XidWatch",
]


class Library(
    FactCalls, ReadingCalls, HealthCalls, LinkCalls, MigCalls, ProcessCalls, CounterCalls
):
    """NVML, loaded and initialized by the constructor. Raises `DriverError`."""
