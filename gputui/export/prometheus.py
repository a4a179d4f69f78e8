"""A session as Prometheus metrics, in base units.

Shares are ratios from 0 to 1, clocks are in hertz. What is missing is left out, never 0; that a
GPU does not answer is told by `gputui_gpu_up`. Counters are the driver's own, or the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gputui.analysis.phases import phase_rows
from gputui.session import Gpu, Run, Session

_PERCENT = 0.01
_MHZ = 1e6

_SAMPLE: tuple[tuple[str, str, float, str], ...] = (
    ("utilization_percent", "utilization_ratio", _PERCENT, "Time in which a kernel ran"),
    ("memory_used_bytes", "memory_used_bytes", 1, "Memory in use, without what is reserved"),
    ("memory_reserved_bytes", "memory_reserved_bytes", 1, "Memory the driver keeps"),
    ("memory_total_bytes", "memory_total_bytes", 1, "Memory there is"),
    ("memory_bandwidth_percent", "memory_bandwidth_ratio", _PERCENT, "DRAM bandwidth used (GPM)"),
    (
        "memory_bandwidth_bytes_per_s",
        "memory_bandwidth_bytes_per_second",
        1,
        "DRAM traffic: the share times the peak",
    ),
    ("sm_active_percent", "sm_active_ratio", _PERCENT, "Cycles in which an SM had a warp"),
    ("sm_occupancy_percent", "sm_occupancy_ratio", _PERCENT, "Warps of those an SM can hold"),
    ("tensor_active_percent", "tensor_active_ratio", _PERCENT, "Cycles of the tensor pipes"),
    ("fp16_active_percent", "fp16_active_ratio", _PERCENT, "Cycles of the FP16 pipe"),
    ("fp32_active_percent", "fp32_active_ratio", _PERCENT, "Cycles of the FP32 pipe"),
    ("fp64_active_percent", "fp64_active_ratio", _PERCENT, "Cycles of the FP64 pipe"),
    ("integer_active_percent", "integer_active_ratio", _PERCENT, "Cycles of the integer pipe"),
    ("power_watts", "power_watts", 1, "Power, averaged over a second"),
    ("power_instant_watts", "power_instant_watts", 1, "Power now"),
    ("power_limit_watts", "power_limit_watts", 1, "Power limit in force"),
    ("temperature_celsius", "temperature_celsius", 1, "Temperature of the GPU"),
    ("memory_temperature_celsius", "memory_temperature_celsius", 1, "Temperature of the memory"),
    ("performance_state", "performance_state", 1, "0 is the fastest"),
    ("sm_clock_mhz", "sm_clock_hertz", _MHZ, "Clock of the SMs"),
    ("memory_clock_mhz", "memory_clock_hertz", _MHZ, "Clock of the memory"),
    ("video_clock_mhz", "video_clock_hertz", _MHZ, "Clock of the video engines"),
    ("encoder_percent", "encoder_ratio", _PERCENT, "Use of the video encoder"),
    ("decoder_percent", "decoder_ratio", _PERCENT, "Use of the video decoder"),
    ("pcie_rx_bytes_per_s", "pcie_rx_bytes_per_second", 1, "Into the GPU over PCIe"),
    ("pcie_tx_bytes_per_s", "pcie_tx_bytes_per_second", 1, "Out of the GPU over PCIe"),
    ("nvlink_rx_bytes_per_s", "nvlink_rx_bytes_per_second", 1, "Into the GPU over NVLink"),
    ("nvlink_tx_bytes_per_s", "nvlink_tx_bytes_per_second", 1, "Out of the GPU over NVLink"),
)
"""Field of a sample, metric, factor to the base unit, help."""

_STATUS: tuple[tuple[str, str, float, str], ...] = (
    ("temperature_margin_celsius", "temperature_margin_celsius", 1, "Degrees left to slowdown"),
    ("fan_percent", "fan_ratio", _PERCENT, "Fan speed"),
    ("pcie_link_generation", "pcie_link_generation", 1, "Generation of the PCIe link now"),
    ("pcie_link_width", "pcie_link_lanes", 1, "Lanes of the PCIe link now"),
    ("nvlink_active_count", "nvlink_active_links", 1, "NVLinks that are up"),
    ("bar1_used_bytes", "bar1_used_bytes", 1, "BAR1 in use"),
    ("ecc_enabled", "ecc_enabled", 1, "1 when memory errors are corrected"),
    ("retired_pages", "retired_pages", 1, "Pages of memory taken out of use"),
    ("row_remapping_pending", "row_remapping_pending", 1, "1 when a reset is needed to remap"),
    ("row_remapping_failed", "row_remapping_failed", 1, "1 when rows could not be remapped"),
)


class _Families:
    """Metric families by name, each made when its first figure comes."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def gauge(self, name: str, help_text: str, labels: dict[str, str], value: float) -> None:
        self._add(GaugeMetricFamily, name, help_text, labels, value)

    def counter(self, name: str, help_text: str, labels: dict[str, str], value: float) -> None:
        """`name` without the `_total` that is added to it."""
        self._add(CounterMetricFamily, name, help_text, labels, value)

    def _add(
        self,
        kind: Callable[..., Any],
        name: str,
        help_text: str,
        labels: dict[str, str],
        value: float,
    ) -> None:
        name = f"gputui_{name}"
        if name not in self._families:
            self._families[name] = kind(name, help_text, labels=tuple(labels))
        self._families[name].add_metric(tuple(labels.values()), float(value))

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def metrics(session: Session) -> Iterator[Metric]:
    """Everything the session knows now."""
    families = _Families()
    _host(families, session)
    for _, gpu in sorted(session.gpus.items()):
        _gpu(families, gpu)
    _processes(families, session)
    run = session.run
    if run is not None:
        _run(families, run)
        _phases(families, run)
    yield from families


def _host(families: _Families, session: Session) -> None:
    if session.header:
        told = session.header
        labels = {
            "version": told.gputui_version,
            "driver_version": told.driver_version or "",
            "cuda_driver_version": told.cuda_driver_version or "",
        }
        families.gauge("build_info", "Versions", labels, 1)
    families.counter("samples", "Samples taken", {}, session.samples)
    if session.own_cpu_percent is not None:
        own = session.own_cpu_percent * _PERCENT
        families.gauge("own_cpu_ratio", "What gputui itself uses of one core", {}, own)
    host = session.host
    if host is None:
        return
    for value, name, text in (
        (None if host.cpu_percent is None else host.cpu_percent * _PERCENT, "cpu_ratio", "CPU use"),
        (host.memory_used_bytes, "memory_used_bytes", "Host memory in use"),
        (host.swap_used_bytes, "swap_used_bytes", "Swap in use"),
        (host.load_1m, "load1", "Load average of a minute"),
    ):
        if value is not None:
            families.gauge(f"host_{name}", text, {}, value)


def _gpu(families: _Families, gpu: Gpu) -> None:
    facts = gpu.facts
    labels = {"gpu": str(facts.index), "uuid": facts.uuid}
    up = gpu.sample is not None and "device" not in gpu.unavailable
    families.gauge("gpu_up", "1 when the GPU answered", labels, up)
    about = {
        "name": facts.name,
        "pci_bus_id": facts.pci_bus_id or "",
        "compute_capability": facts.compute_capability or "",
    }
    families.gauge("gpu_info", "What the GPU is", labels | about, 1)
    if facts.peak_memory_bandwidth_bytes_per_s is not None:
        peak = facts.peak_memory_bandwidth_bytes_per_s
        families.gauge("gpu_memory_bandwidth_peak_bytes_per_second", "DRAM peak", labels, peak)
    if gpu.sample_ns:
        families.gauge(
            "gpu_sample_timestamp_seconds", "When it answered last", labels, gpu.sample_ns / 1e9
        )
    if gpu.sample is not None:
        for field, name, factor, text in _SAMPLE:
            value = getattr(gpu.sample, field)
            if value is not None:
                families.gauge(f"gpu_{name}", text, labels, value * factor)
        for reason in gpu.sample.throttle_reasons or ():
            families.gauge("gpu_throttled", "Why it is slowed now", labels | {"reason": reason}, 1)
    _instances(families, gpu, labels)
    _status(families, gpu, labels)


def _instances(families: _Families, gpu: Gpu, labels: dict[str, str]) -> None:
    profiles = {one.index: one for one in gpu.facts.mig_instances}
    for sample in gpu.sample.mig_instances if gpu.sample else ():
        one = profiles.get(sample.index)
        where = labels | {
            "instance": str(sample.index),
            "profile": one.name if one else "",
            "instance_uuid": one.uuid if one else "",
        }
        for field, name, factor, text in _SAMPLE:
            value = getattr(sample, field, None)
            if value is not None:
                families.gauge(f"mig_{name}", text, where, value * factor)


def _status(families: _Families, gpu: Gpu, labels: dict[str, str]) -> None:
    status = gpu.status
    if status is None:
        return
    for field, name, factor, text in _STATUS:
        value = getattr(status, field)
        if value is not None:
            families.gauge(f"gpu_{name}", text, labels, value * factor)
    for value, name, text in (
        (status.energy_joules, "energy_joules", "Energy since the driver was loaded"),
        (status.pcie_replays, "pcie_replays", "PCIe packets sent again"),
        (status.xid_count, "xid_errors", "Xid errors since gputui began to listen"),
    ):
        if value is not None:
            families.counter(f"gpu_{name}", text, labels, value)
    for kind in ("corrected", "uncorrected"):
        more = labels | {"kind": kind}
        errors = getattr(status, f"ecc_{kind}_lifetime")
        if errors is not None:
            families.counter("gpu_ecc_errors", "Memory errors in all its life", more, errors)
        rows = getattr(status, f"remapped_rows_{kind}")
        if rows is not None:
            families.gauge("gpu_remapped_rows", "Rows of memory replaced", more, rows)
    for reason, seconds in (status.throttle_seconds or {}).items():
        families.counter(
            "gpu_throttle_seconds",
            "Time slowed since the driver was loaded",
            labels | {"reason": reason},
            seconds,
        )


def _processes(families: _Families, session: Session) -> None:
    for process in session.processes:
        labels = {
            "gpu": str(process.gpu),
            "instance": str("" if process.gpu_instance_id is None else process.gpu_instance_id),
            "pid": str(process.pid),
            "user": process.user or "",
        }
        for value, name, text in (
            (process.gpu_memory_bytes, "gpu_memory_bytes", "GPU memory of a process"),
            (_ratio(process.sm_percent), "sm_ratio", "Its use of the SMs"),
            (_ratio(process.memory_bandwidth_percent), "memory_bandwidth_ratio", "Of the DRAM"),
        ):
            if value is not None:
                families.gauge(f"process_{name}", text, labels, value)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent * _PERCENT


def _run(families: _Families, run: Run) -> None:
    labels = {"run": str(run.started.run), "workload": run.started.name}
    families.gauge("run_active", "1 while the program runs", labels, run.is_active)
    families.gauge("run_duration_seconds", "How long it ran", labels, run.duration_ns / 1e9)
    if run.progress is not None:
        more = labels | {"stage": run.progress.stage, "unit": run.progress.unit}
        families.gauge("run_progress", "How far the stage is", more, run.progress.done)
    for name, value in run.metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            more = labels | {"metric": name}
            families.gauge("run_metric", "What the workload reports, in its own unit", more, value)
    for process in run.processes.values():
        rank = process.attached.rank
        more = labels | {
            "pid": str(process.attached.pid),
            "rank": "" if rank is None else str(rank),
        }
        families.counter("capture_records", "Records captured", more, process.records)
        families.counter("capture_dropped_records", "Records lost", more, process.dropped)


def _phases(families: _Families, run: Run) -> None:
    for row in phase_rows(run):
        labels = {
            "run": str(run.started.run),
            "workload": run.started.name,
            "phase": row.path,
            "domain": row.domain,
            "pid": str(row.pid),
            "rank": "" if row.rank is None else str(row.rank),
        }
        for name, text, value in (
            ("instances", "Times the phase was passed through", row.instances),
            ("cpu_seconds", "Time inside it on the launching thread", row.cpu.total / 1e9),
            ("gpu_busy_seconds", "Time the GPU ran its work", row.gpu_busy_ns / 1e9),
            ("kernels", "Kernels it launched", row.kernels),
            ("launches", "CUDA calls that launched them", row.launches),
            ("memcpy_bytes", "Bytes it copied", row.memcpy_bytes),
        ):
            families.counter(f"phase_{name}", text, labels, value)
