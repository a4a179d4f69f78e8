"""One GPU read through NVML and GPM: every figure, or the reason why it is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gputui.events import GpuFacts, GpuSample
from gputui.sources.gpm import GpmReader, GpmReading
from gputui.sources.library import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    DriverError,
    GpuProcess,
    Handle,
    Library,
)

T = TypeVar("T")

DEVICE = "device"
"""The key of a reason that holds for the whole card."""

_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name != "index")

_CORES_PER_SM = {
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2", "8.6", "8.7", "8.9"), 128),
    **dict.fromkeys(("9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
}
"""FP32 cores of one SM by compute capability (CUDA C++ Programming Guide, throughput table)."""

_THROTTLES = (
    (0x002, "clocks set by the user"),
    (0x004, "power cap"),
    (0x010, "sync boost"),
    (0x020, "thermal slowdown (software)"),
    (0x040, "thermal slowdown (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clock setting"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
_IDLE = 0x001
_HARDWARE_SLOWDOWN = 0x008
"""nvml.h, nvmlClocksEventReasons; the two hardware ones (0x40, 0x80) come with 0x8 set."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The driver's mask in words. Idle is no throttle; a bit that is not known is shown as one."""
    words = [word for bit, word in _THROTTLES if bits & bit]
    if bits & _HARDWARE_SLOWDOWN and not bits & (0x040 | 0x080):
        words.append("hardware slowdown")
    known = _IDLE | _HARDWARE_SLOWDOWN | sum(bit for bit, _ in _THROTTLES)
    if rest := bits & ~known:
        words.append(f"unknown reason {rest:#x}")
    return tuple(words)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one GPU said at one tick. `processes` is None when it could not tell, or not asked.

    `reasons` says why fields are None, `process_reasons` the same of the processes' fields.
    """

    sample: GpuSample
    reasons: dict[str, str]
    processes: tuple[GpuProcess, ...] | None = None
    process_sm_percent: dict[int, float] | None = None
    process_reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def without(cls, index: int, reason: str, more: dict[str, str] | None = None) -> DeviceReading:
        """A card that tells nothing, for one reason."""
        reasons = (more or {}) | dict.fromkeys((DEVICE, *_FIELDS), reason)
        return cls(GpuSample(index=index), reasons, process_reasons={"processes": reason})


class _Fields:
    """Reads fields one by one and keeps the reason of each that failed."""

    def __init__(self, mig: bool | None) -> None:
        self.reasons: dict[str, str] = {}
        self._mig = mig

    def read(self, name: str, call: Callable[[Handle], T], handle: Handle) -> T | None:
        """The field's value or None. Raises `DriverError` only when the GPU is lost."""
        try:
            return call(handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            self.reasons[name] = self.reason(error)
            return None

    def reason(self, error: DriverError) -> str:
        """The error in words, with MIG named where it is what stands in the way."""
        on_mig = self._mig and error.code == NOT_SUPPORTED
        return "not supported while MIG is on" if on_mig else error.reason


class Device:
    """One GPU. Everything here runs in that GPU's worker thread."""

    def __init__(self, library: Library, index: int) -> None:
        self.index = index
        self._library = library
        self._handle: Handle | None = None
        self._facts: GpuFacts | None = None
        self._facts_reasons: dict[str, str] = {}
        self._gpm: GpmReader | None = None
        self._gpm_reason = ""

    def open(self) -> GpuFacts:
        """The static facts. Raises `DriverError` when the GPU cannot be reached."""
        if self._facts is None:
            self._handle = self._library.handle(self.index)
            self._facts = self._read_facts(self._handle)
        return self._facts

    def poll(self, processes: bool) -> DeviceReading:
        """One reading; with `processes`, also who is on the GPU."""
        try:
            facts = self.open()
            assert self._handle is not None
            return self._read(self._handle, facts, processes)
        except DriverError as error:
            return DeviceReading.without(self.index, error.reason, self._facts_reasons)

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def _read_facts(self, handle: Handle) -> GpuFacts:
        library = self._library
        fields = _Fields(None)
        capability = fields.read("compute_capability", library.compute_capability, handle)
        cores = fields.read("sm_count", library.core_count, handle)
        per_sm = _CORES_PER_SM.get(capability or "")
        if cores is not None and per_sm is None:
            fields.reasons["sm_count"] = f"cores of one SM not known for {capability}"
        memory = fields.read("memory_total_bytes", library.memory, handle)
        width = fields.read("memory_bus_width_bits", library.memory_bus_width_bits, handle)
        clock = fields.read("max_memory_clock_mhz", library.max_memory_clock_mhz, handle)
        peak = None
        if width is not None and clock is not None:
            # Two transfers a clock; a bus of `width` bits moves width/8 bytes a transfer.
            peak = 2 * clock * 1e6 * width / 8
        else:
            fields.reasons["peak_memory_bandwidth_bytes_per_s"] = (
                "needs the memory clock and the bus width"
            )
        try:
            self._gpm = GpmReader(library, handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            self._gpm_reason = f"GPM counters: {error.reason}"
        facts = GpuFacts(
            index=self.index,
            uuid=fields.read("uuid", library.uuid, handle) or "",
            name=fields.read("name", library.name, handle) or f"GPU {self.index}",
            pci_bus_id=fields.read("pci_bus_id", library.pci_bus_id, handle),
            compute_capability=capability,
            sm_count=cores // per_sm if cores is not None and per_sm is not None else None,
            memory_total_bytes=None if memory is None else memory.total,
            memory_bus_width_bits=width,
            max_sm_clock_mhz=fields.read("max_sm_clock_mhz", library.max_sm_clock_mhz, handle),
            max_memory_clock_mhz=clock,
            peak_memory_bandwidth_bytes_per_s=peak,
            peak_memory_bandwidth_source=(
                None if peak is None else f"2 × {clock} MHz × {width} bit from NVML"
            ),
            power_limit_watts=fields.read("power_limit_watts", library.power_limit_watts, handle),
            temperature_slowdown_celsius=fields.read(
                "temperature_slowdown_celsius", library.slowdown_celsius, handle
            ),
            pcie_generation=fields.read("pcie_generation", library.max_pcie_generation, handle),
            pcie_width=fields.read("pcie_width", library.max_pcie_width, handle),
            gpm_supported=self._gpm is not None and self._gpm.supported,
            mig_enabled=fields.read("mig_enabled", library.mig_enabled, handle),
        )
        shared = set(_FIELDS)
        self._facts_reasons = {k: v for k, v in fields.reasons.items() if k not in shared}
        return facts

    def _read(self, handle: Handle, facts: GpuFacts, processes: bool) -> DeviceReading:
        library = self._library
        fields = _Fields(facts.mig_enabled)
        fields.reasons.update(self._facts_reasons)
        memory = fields.read("memory_used_bytes", library.memory, handle)
        if memory is None:
            for name in ("memory_total_bytes", "memory_reserved_bytes"):
                fields.reasons[name] = fields.reasons["memory_used_bytes"]
        elif memory.reserved is None:
            fields.reasons["memory_reserved_bytes"] = (
                "this driver counts it as used memory: a newer one is needed"
            )
        bits = fields.read("throttle_reasons", library.clock_event_bits, handle)
        gpm = self._read_gpm(fields)
        fields.reasons.update(gpm.reasons)
        bandwidth = gpm.values.get("memory_bandwidth_percent")
        peak = facts.peak_memory_bandwidth_bytes_per_s
        if bandwidth is None:
            fields.reasons["memory_bandwidth_bytes_per_s"] = gpm.reasons["memory_bandwidth_percent"]
        elif peak is None:
            fields.reasons["memory_bandwidth_bytes_per_s"] = "the peak is not known"
        sample = GpuSample(
            index=self.index,
            utilization_percent=fields.read(
                "utilization_percent", library.utilization_percent, handle
            ),
            memory_used_bytes=None if memory is None else memory.used,
            memory_reserved_bytes=None if memory is None else memory.reserved,
            memory_total_bytes=None if memory is None else memory.total,
            memory_bandwidth_percent=bandwidth,
            memory_bandwidth_bytes_per_s=(
                None if bandwidth is None or peak is None else bandwidth / 100 * peak
            ),
            sm_active_percent=gpm.values.get("sm_active_percent"),
            sm_occupancy_percent=gpm.values.get("sm_occupancy_percent"),
            tensor_active_percent=gpm.values.get("tensor_active_percent"),
            power_watts=fields.read("power_watts", library.power_watts, handle),
            power_limit_watts=fields.read("power_limit_watts", library.power_limit_watts, handle),
            temperature_celsius=fields.read(
                "temperature_celsius", library.temperature_celsius, handle
            ),
            sm_clock_mhz=fields.read("sm_clock_mhz", library.sm_clock_mhz, handle),
            memory_clock_mhz=fields.read("memory_clock_mhz", library.memory_clock_mhz, handle),
            pcie_rx_bytes_per_s=gpm.values.get("pcie_rx_bytes_per_s"),
            pcie_tx_bytes_per_s=gpm.values.get("pcie_tx_bytes_per_s"),
            nvlink_rx_bytes_per_s=gpm.values.get("nvlink_rx_bytes_per_s"),
            nvlink_tx_bytes_per_s=gpm.values.get("nvlink_tx_bytes_per_s"),
            throttle_reasons=None if bits is None else throttle_reasons(bits),
        )
        if not processes:
            return DeviceReading(sample, fields.reasons)
        return self._with_processes(handle, sample, fields, _Fields(facts.mig_enabled))

    def _read_gpm(self, fields: _Fields) -> GpmReading:
        if self._gpm is None:
            return GpmReading.without(self._gpm_reason)
        try:
            return self._gpm.read()
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            return GpmReading.without(f"GPM counters: {fields.reason(error)}")

    def _with_processes(
        self, handle: Handle, sample: GpuSample, fields: _Fields, process_fields: _Fields
    ) -> DeviceReading:
        listed = process_fields.read("processes", self._library.processes, handle)
        busy = process_fields.read("processes.sm_percent", self._library.process_sm_percent, handle)
        return DeviceReading(
            sample,
            fields.reasons,
            processes=None if listed is None else tuple(listed),
            process_sm_percent=busy,
            process_reasons=process_fields.reasons,
        )
