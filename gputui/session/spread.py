"""Least, most and mean of readings over a run."""

from __future__ import annotations

import msgspec

SPREAD_FIELDS = (
    "utilization_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "memory_bandwidth_percent",
    "memory_bandwidth_bytes_per_s",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
)
"""Fields of a GPU whose least, most and mean over a run are kept."""


class Spread(msgspec.Struct):
    """Least, most and mean of one field over samples."""

    count: int = 0
    total: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0

    def add(self, value: float) -> None:
        """Count one more value."""
        if not self.count:
            self.minimum = self.maximum = value
        elif value < self.minimum:
            self.minimum = value
        elif value > self.maximum:
            self.maximum = value
        self.count += 1
        self.total += value

    @property
    def average(self) -> float | None:
        """The mean, None without values."""
        return self.total / self.count if self.count else None
