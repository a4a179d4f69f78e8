"""Everything that is known of a GPU, in groups; what is not there says why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gputui.model.units import MISSING, duration, percent, quantity, rate, size
from gputui.report.machine_tables import mig_instances
from gputui.state import Gpu
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.gpu_figures import celsius, throttle_times, trouble, watts
from gputui.tui.widgets.table import Column, table_rows

_GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Chip",
        (
            ("uuid", "UUID"),
            ("pci_bus_id", "PCI bus"),
            ("architecture", "architecture"),
            ("compute_capability", "compute capability"),
            ("sm_count", "SMs"),
            ("vbios_version", "VBIOS"),
            ("compute_mode", "compute mode"),
            ("persistence_mode", "persistence mode"),
            ("mig_enabled", "MIG"),
        ),
    ),
    (
        "Load",
        (
            ("utilization_percent", "GPU utilization"),
            ("sm_active_percent", "SM active"),
            ("sm_occupancy_percent", "SM occupancy"),
            ("tensor_active_percent", "tensor cores active"),
            ("fp16_active_percent", "FP16 pipe active"),
            ("fp32_active_percent", "FP32 pipe active"),
            ("fp64_active_percent", "FP64 pipe active"),
            ("integer_active_percent", "integer pipe active"),
            ("encoder_percent", "video encoder"),
            ("decoder_percent", "video decoder"),
        ),
    ),
    (
        "Memory",
        (
            ("memory_kind", "kind"),
            ("memory_used_bytes", "used"),
            ("memory_reserved_bytes", "reserved by the driver"),
            ("memory_total_bytes", "in all"),
            ("memory_bandwidth_percent", "bandwidth"),
            ("memory_bandwidth_bytes_per_s", "bandwidth"),
            ("peak_memory_bandwidth_bytes_per_s", "peak bandwidth"),
            ("memory_bus_width_bits", "bus width"),
            ("bar1_used_bytes", "BAR1 used"),
            ("bar1_total_bytes", "BAR1 in all"),
        ),
    ),
    (
        "Power and heat",
        (
            ("power_watts", "power, mean of 1 s"),
            ("power_instant_watts", "power now"),
            ("power_limit_watts", "limit"),
            ("power_limit_default_watts", "limit by default"),
            ("power_limit_minimum_watts", "least limit"),
            ("power_limit_maximum_watts", "highest limit"),
            ("energy_joules", "energy since driver load"),
            ("temperature_celsius", "temperature"),
            ("temperature_margin_celsius", "below slowdown by"),
            ("temperature_slowdown_celsius", "slows at"),
            ("temperature_shutdown_celsius", "shuts down at"),
            ("memory_temperature_celsius", "memory temperature"),
            ("memory_temperature_maximum_celsius", "memory at most"),
            ("fan_percent", "fan"),
        ),
    ),
    (
        "Clocks",
        (
            ("performance_state", "performance state"),
            ("sm_clock_mhz", "SM"),
            ("max_sm_clock_mhz", "SM at most"),
            ("memory_clock_mhz", "memory"),
            ("max_memory_clock_mhz", "memory at most"),
            ("video_clock_mhz", "video"),
            ("throttle_reasons", "throttled now by"),
            ("throttle_seconds", "throttled so far by"),
        ),
    ),
    (
        "Links",
        (
            ("pcie_link_generation", "PCIe generation now"),
            ("pcie_generation", "PCIe generation at most"),
            ("pcie_link_width", "PCIe lanes now"),
            ("pcie_width", "PCIe lanes at most"),
            ("pcie_rx_bytes_per_s", "PCIe received"),
            ("pcie_tx_bytes_per_s", "PCIe sent"),
            ("pcie_replays", "PCIe replays"),
            ("nvlink_active_count", "NVLinks active"),
            ("nvlink_count", "NVLinks in all"),
            ("nvlink_link_bytes_per_s", "a link each way"),
            ("nvlink_rx_bytes_per_s", "NVLink received"),
            ("nvlink_tx_bytes_per_s", "NVLink sent"),
        ),
    ),
    (
        "Health",
        (
            ("ecc_enabled", "ECC"),
            ("ecc_corrected", "ECC corrected"),
            ("ecc_uncorrected", "ECC uncorrected"),
            ("ecc_corrected_lifetime", "ECC corrected, ever"),
            ("ecc_uncorrected_lifetime", "ECC uncorrected, ever"),
            ("remapped_rows_corrected", "rows remapped, corrected"),
            ("remapped_rows_uncorrected", "rows remapped, uncorr."),
            ("row_remapping_pending", "row remapping pending"),
            ("row_remapping_failed", "row remapping failed"),
            ("retired_pages", "retired pages"),
            ("page_retirement_pending", "retirement pending"),
            ("xid_count", "Xid errors seen"),
            ("last_xid", "last Xid error"),
        ),
    ),
)
_LABEL = 25
_NOT_TOLD = ("last_xid",)
"""Fields that are None when there is nothing to tell."""


def detail_rows(gpu: Gpu, now_ns: int, interval_s: float) -> tuple[Row, ...]:
    """Every figure and fact of a GPU; what is not there says why."""
    rows: list[Row] = []
    problem = trouble(gpu, now_ns, interval_s)
    if problem:
        rows += [((f"! {problem}", "hot"),), ()]
    named = set()
    for title, fields in _GROUPS:
        rows.append(((title, "head"),))
        for field, label in fields:
            named.add(field)
            value = _value(gpu, field)
            if value is not None:
                rows.append(_line(label, _text(gpu, field, value)))
            elif field not in _NOT_TOLD:
                reason = gpu.unavailable.get(field, "not told by the driver")
                rows.append(_line(label, f"n/a: {reason}", "dim"))
        if title == "Links":
            rows += topology_rows(gpu)
        rows.append(())
    rows += _instances(gpu)
    others = [(f, why) for f, why in gpu.unavailable.items() if f not in named and f != "device"]
    if others:
        rows.append((("Not available either", "head"),))
        rows += [_line(field, f"n/a: {reason}", "dim") for field, reason in others]
    if gpu.status is not None:
        age = duration(max(0, now_ns - gpu.status.time_ns) // 10**9 * 10**9)
        rows.append(((f"links, energy and health were read {age} ago", "dim"),))
    return tuple(rows)


def topology_rows(gpu: Gpu) -> list[Row]:
    """The ways to other GPUs, those of one kind together."""
    ways: dict[str, list[str]] = {}
    for other, way in sorted(gpu.facts.topology.items()):
        ways.setdefault(way, []).append(str(other))
    return [_line(f"to GPU {', '.join(others)}", way) for way, others in ways.items()]


def instance_rows(gpu: Gpu, width: int) -> list[Row]:
    """A line for each MIG instance, below a header; empty without any."""
    instances = mig_instances(gpu)
    if not instances:
        return []
    columns: list[Column[int]] = [
        Column("MIG", lambda n: str(instances[n][0].index), 0),
        Column("profile", lambda n: instances[n][0].name, 0, right=False),
        Column("SMs", lambda n: quantity(instances[n][0].sm_count), 4),
        Column("SM active", lambda n: percent(instances[n][1].sm_active_percent), 1),
        Column("occupancy", lambda n: percent(instances[n][1].sm_occupancy_percent), 5),
        Column("tensor", lambda n: percent(instances[n][1].tensor_active_percent), 3),
        Column("bandwidth", lambda n: percent(instances[n][1].memory_bandwidth_percent), 2),
        Column("memory", lambda n: _instance_memory(gpu, n), 1),
    ]
    return table_rows(columns, range(len(instances)), width)


def _instance_memory(gpu: Gpu, number: int) -> str:
    facts, sample = mig_instances(gpu)[number]
    total = sample.memory_total_bytes or facts.memory_total_bytes
    used = size(sample.memory_used_bytes)
    return f"{used} of {size(total)}" if total and used != MISSING else used


def _instances(gpu: Gpu) -> Sequence[Row]:
    rows = instance_rows(gpu, 90)
    if not rows:
        return ()
    uuids = [_line(f"{facts.index} {facts.name}", facts.uuid) for facts, _ in mig_instances(gpu)]
    return [(("MIG instances", "head"),), *rows, *uuids, ()]


def _line(label: str, value: str, role: str = "text") -> Row:
    return ((f"{label:<{_LABEL}}", "label"), (value, role))


def _value(gpu: Gpu, field: str) -> object:
    for part in (gpu.sample, gpu.status, gpu.facts):
        value = getattr(part, field, None)
        if value is not None:
            return value
    return None


def _text(gpu: Gpu, field: str, value: object) -> str:
    """A figure with its unit, and what belongs beside it."""
    if field == "throttle_seconds":
        return throttle_times(gpu)
    if field == "peak_memory_bandwidth_bytes_per_s" and isinstance(value, float | int):
        source = gpu.facts.peak_memory_bandwidth_source
        return f"{rate(value)} ({source})" if source else rate(value)
    if field == "last_xid" and gpu.status and gpu.status.last_xid_time_ns is not None:
        when = datetime.fromtimestamp(gpu.status.last_xid_time_ns / 1e9).astimezone()
        return f"{value} at {when:%Y-%m-%d %H:%M:%S}"
    if field == "performance_state":
        return f"P{value}"
    if isinstance(value, bool):
        on = field.endswith(("_enabled", "_mode"))
        return ("on" if value else "off") if on else ("yes" if value else "no")
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "nothing"
    return _figure(field, value) if isinstance(value, int | float) else str(value)


def _figure(field: str, value: float) -> str:
    if field.endswith("_joules"):
        return f"{quantity(value, 'J')} ({quantity(value / 3600, 'Wh')})"
    for suffix, form in (
        ("_percent", percent),
        ("_bytes_per_s", rate),
        ("_bytes", size),
        ("_watts", watts),
        ("_celsius", celsius),
        ("_mhz", lambda number: f"{number:.0f} MHz"),
        ("_bits", lambda number: f"{number:.0f} bits"),
    ):
        if field.endswith(suffix):
            return form(value)
    return f"{value:,}".replace(",", " ")
