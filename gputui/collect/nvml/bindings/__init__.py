"""Typed bindings to the driver's management library (NVML): the only place that touches `pynvml`.

Each method is one call. It returns plain numbers and strings in gputui's units, or raises
`DriverError` with a readable reason. Handles, samples and requests are opaque objects.
"""

from gputui.collect.nvml.bindings.calls import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    DriverError,
    Handle,
    start_driver,
)
from gputui.collect.nvml.bindings.counters import CounterCalls, GpmSample
from gputui.collect.nvml.bindings.facts import FactCalls
from gputui.collect.nvml.bindings.health import HealthCalls, XidWatch
from gputui.collect.nvml.bindings.links import LinkCalls
from gputui.collect.nvml.bindings.mig import MigCalls
from gputui.collect.nvml.bindings.processes import GpuProcess, ProcessCalls, ProcessUse
from gputui.collect.nvml.bindings.readings import Memory, ReadingCalls

__all__ = [
    "GPU_IS_LOST", "INVALID_ARGUMENT", "NOT_SUPPORTED", "DriverError", "GpmSample", "GpuProcess",
    "Handle", "Library", "Memory", "ProcessUse", "XidWatch", "start_driver",
]  # fmt: skip


class Library(
    FactCalls, ReadingCalls, HealthCalls, LinkCalls, MigCalls, ProcessCalls, CounterCalls
):
    """NVML, loaded and initialized by the constructor. Raises `DriverError`."""
