"""What metrics are called and what they mean, in base units.

Shares are ratios from 0 to 1, clocks are in hertz. Counters are the driver's own, or the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from gputui.model.events import MigSample

PERCENT = 0.01
"""Of a percentage to a ratio."""

MHZ = 1e6
"""Of megahertz to hertz."""


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """A metric with any labels. `name` is without the `_total` that is added to a counter's."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str


Figures = list[tuple[Family, float]]
"""What is told of one set of labels."""


def gauge(name: str, text: str) -> Family:
    """What goes up and down."""
    return Family(f"gputui_{name}", "gauge", text)


def counter(name: str, text: str) -> Family:
    """What only grows."""
    return Family(f"gputui_{name}", "counter", text)


class Fields:
    """Fields of a record, each with its metric and the factor to its base unit."""

    def __init__(self, prefix: str, fields: tuple[tuple[str, str, float, str], ...]) -> None:
        """`fields` are field, metric without `prefix`, factor, help; two of them or more."""
        self._of = attrgetter(*(field for field, _, _, _ in fields))
        self._metrics = [
            (gauge(f"{prefix}_{name}", text), factor) for _, name, factor, text in fields
        ]

    def figures(self, record: Any) -> Figures:
        """Those that are not None."""
        return [
            (family, value * factor)
            for (family, factor), value in zip(self._metrics, self._of(record), strict=True)
            if value is not None
        ]


_SAMPLE: tuple[tuple[str, str, float, str], ...] = (
    ("utilization_percent", "utilization_ratio", PERCENT, "Time in which a kernel ran"),
    ("memory_used_bytes", "memory_used_bytes", 1, "Memory in use, without what is reserved"),
    ("memory_reserved_bytes", "memory_reserved_bytes", 1, "Memory the driver keeps"),
    ("memory_total_bytes", "memory_total_bytes", 1, "Memory there is"),
    ("memory_bandwidth_percent", "memory_bandwidth_ratio", PERCENT, "DRAM bandwidth used (GPM)"),
    (
        "memory_bandwidth_bytes_per_s",
        "memory_bandwidth_bytes_per_second",
        1,
        "DRAM traffic: the share times the peak",
    ),
    ("sm_active_percent", "sm_active_ratio", PERCENT, "Cycles in which an SM had a warp"),
    ("sm_occupancy_percent", "sm_occupancy_ratio", PERCENT, "Warps of those an SM can hold"),
    ("tensor_active_percent", "tensor_active_ratio", PERCENT, "Cycles of the tensor pipes"),
    ("fp16_active_percent", "fp16_active_ratio", PERCENT, "Cycles of the FP16 pipe"),
    ("fp32_active_percent", "fp32_active_ratio", PERCENT, "Cycles of the FP32 pipe"),
    ("fp64_active_percent", "fp64_active_ratio", PERCENT, "Cycles of the FP64 pipe"),
    ("integer_active_percent", "integer_active_ratio", PERCENT, "Cycles of the integer pipe"),
    ("power_watts", "power_watts", 1, "Power, averaged over a second"),
    ("power_instant_watts", "power_instant_watts", 1, "Power now"),
    ("power_limit_watts", "power_limit_watts", 1, "Power limit in force"),
    ("temperature_celsius", "temperature_celsius", 1, "Temperature of the GPU"),
    ("memory_temperature_celsius", "memory_temperature_celsius", 1, "Temperature of the memory"),
    ("performance_state", "performance_state", 1, "0 is the fastest"),
    ("sm_clock_mhz", "sm_clock_hertz", MHZ, "Clock of the SMs"),
    ("memory_clock_mhz", "memory_clock_hertz", MHZ, "Clock of the memory"),
    ("video_clock_mhz", "video_clock_hertz", MHZ, "Clock of the video engines"),
    ("encoder_percent", "encoder_ratio", PERCENT, "Use of the video encoder"),
    ("decoder_percent", "decoder_ratio", PERCENT, "Use of the video decoder"),
    ("pcie_rx_bytes_per_s", "pcie_rx_bytes_per_second", 1, "Into the GPU over PCIe"),
    ("pcie_tx_bytes_per_s", "pcie_tx_bytes_per_second", 1, "Out of the GPU over PCIe"),
    ("nvlink_rx_bytes_per_s", "nvlink_rx_bytes_per_second", 1, "Into the GPU over NVLink"),
    ("nvlink_tx_bytes_per_s", "nvlink_tx_bytes_per_second", 1, "Out of the GPU over NVLink"),
)

_STATUS: tuple[tuple[str, str, float, str], ...] = (
    ("temperature_margin_celsius", "temperature_margin_celsius", 1, "Degrees left to slowdown"),
    ("fan_percent", "fan_ratio", PERCENT, "Fan speed"),
    ("pcie_link_generation", "pcie_link_generation", 1, "Generation of the PCIe link now"),
    ("pcie_link_width", "pcie_link_lanes", 1, "Lanes of the PCIe link now"),
    ("nvlink_active_count", "nvlink_active_links", 1, "NVLinks that are up"),
    ("bar1_used_bytes", "bar1_used_bytes", 1, "BAR1 in use"),
    ("ecc_enabled", "ecc_enabled", 1, "1 when memory errors are corrected"),
    ("retired_pages", "retired_pages", 1, "Pages of memory taken out of use"),
    ("row_remapping_pending", "row_remapping_pending", 1, "1 when a reset is needed to remap"),
    ("row_remapping_failed", "row_remapping_failed", 1, "1 when rows could not be remapped"),
)

OF_SAMPLE = Fields("gpu", _SAMPLE)
"""Of a GpuSample."""

OF_INSTANCE = Fields("mig", tuple(one for one in _SAMPLE if one[0] in MigSample.__struct_fields__))
"""Of a MigSample."""

OF_STATUS = Fields("gpu", _STATUS)
"""Of a GpuStatus."""
