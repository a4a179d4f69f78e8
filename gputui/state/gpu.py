"""One GPU as views see it."""

from __future__ import annotations

from collections import deque

import msgspec

from gputui.model.events import GpuFacts, GpuSample, GpuStatus
from gputui.state.history import LongHistory

HISTORY_SAMPLES = 4096
"""Samples kept for charts: 68 minutes at one a second."""

CHART_FIELDS = (
    "utilization_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "memory_bandwidth_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
)
"""Fields of a GPU that charts show: kept for a day."""


class Gpu(msgspec.Struct):
    """One GPU: what it is, how it is, how it was."""

    facts: GpuFacts
    sample: GpuSample | None = None
    status: GpuStatus | None = None
    """What is read seldom; its own `time_ns` tells its age."""
    sample_ns: int = 0
    """When the card last told a figure: a card that hangs keeps this while time goes on."""
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)
    history: deque[tuple[int, GpuSample]] = msgspec.field(
        default_factory=lambda: deque(maxlen=HISTORY_SAMPLES)
    )
    long_history: LongHistory = msgspec.field(default_factory=lambda: LongHistory(CHART_FIELDS))
