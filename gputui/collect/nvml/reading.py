"""Reading one GPU: at each tick, every few seconds, once; values, and the reason for each that is
missing.

For `device`, which has one of each kind for its GPU. Counters become rates here, and hardware
counters (GPM) shares of their peak.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gputui.collect.nvml import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    DriverError,
    GpmSample,
    GpuProcess,
    Handle,
    ProcessUse,
)
from gputui.collect.nvml.bindings import DriverLibrary, XidWatch
from gputui.model.events import GpuEnergy, GpuFacts, GpuSample, GpuStatus

# Rates from monotonic counters.


class CounterRate:
    """Units per second between two readings of one counter."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def update(self, value: int, now_ns: int | None = None) -> float | None:
        """The rate since the previous reading; None for the first, and if the counter went back (it
        wrapped or was reset, so the difference is unknown).
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        before, self._last = self._last, (value, now_ns)
        if before is None or value < before[0] or now_ns <= before[1]:
            return None
        return (value - before[0]) * 1e9 / (now_ns - before[1])


# One reading of a GPU: values, and the reason for each that is missing.

T = TypeVar("T")

DEVICE = "device"
"""The key of a reason that holds for the whole card."""

SAMPLE_FIELDS = tuple(
    name for name in GpuSample.__struct_fields__ if name not in ("index", "mig_instances")
)

STATUS_FIELDS = tuple(
    name for name in GpuStatus.__struct_fields__ if name not in ("time_ns", "gpu")
)


def calls_named(fields: Iterable[str]) -> tuple[str, ...]:
    """The fields that a call of the library is named after: it reads them and nothing else."""
    return tuple(field for field in fields if hasattr(DriverLibrary, field))


# Some drivers return 64 one bits for "unknown"; no event can hold that.
_TOO_MUCH = 1 << 63


class DeviceReading(msgspec.Struct, frozen=True):
    """One GPU at one tick. `processes` is None if they could not be listed, or were not requested.
    `process_use` has every process that was present when it was measured.

    `reasons` says why fields are None, `process_reasons` the same for the processes' fields.
    """

    sample: GpuSample
    reasons: dict[str, str]
    processes: tuple[GpuProcess, ...] | None = None
    process_use: dict[int, ProcessUse] | None = None
    # Structs, not dataclasses, in all that the first frame imports: 35 of these cost 1 to 5 ms
    # each, a tenth of that as Structs.
    process_reasons: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def without(cls, index: int, reason: str, more: dict[str, str] | None = None) -> DeviceReading:
        """A card without any value, for one reason."""
        reasons = (more or {}) | dict.fromkeys((DEVICE, *SAMPLE_FIELDS), reason)
        return cls(GpuSample(index=index), reasons, process_reasons={"processes": reason})


class Fields:
    """Reads fields one by one and keeps the reason of each that failed."""

    def __init__(self, mig: bool | None = None) -> None:
        self.reasons: dict[str, str] = {}
        self._mig = mig

    def read(
        self, name: str, call: Callable[[Handle], T | DriverError], handle: Handle
    ) -> T | None:
        """The field's value or None. Raises `DriverError` only if the GPU is lost."""
        try:
            value = call(handle)
        except DriverError as error:
            value = error
        return self.keep(name, value)

    def keep(self, name: str, value: T | DriverError) -> T | None:
        """The value, or None if it is an error, whose reason is kept.

        Raises the error if the GPU is lost.
        """
        if isinstance(value, int) and value >= _TOO_MUCH:
            value = DriverError(999, "the driver's answer makes no sense")
        if not isinstance(value, DriverError):
            return value
        if value.code == GPU_IS_LOST:
            raise value
        self.reasons[name] = self.reason(value)
        return None

    def reason(self, error: DriverError) -> str:
        """The error in words, naming MIG if that is the cause."""
        on_mig = self._mig and error.code == NOT_SUPPORTED
        return "not supported while MIG is on" if on_mig else error.reason


# What is read of a GPU every few seconds, in a thread of its own because it may be slow.

_MARGIN = "temperature_margin_celsius"
_STATUS_CALLS = calls_named(
    field for field in STATUS_FIELDS if field not in (_MARGIN, "energy_joules")
)
# A failing GPU may report faster than it is polled: the rest is read next time.
_XIDS_AT_ONCE = 64


class Xids:
    """Counts the Xid errors of one GPU since creation. Used from one thread; free it."""

    def __init__(self, library: DriverLibrary, handle: Handle) -> None:
        self._library = library
        self._watch: XidWatch | None = None
        self.reason: str | None = None
        self.count = 0
        self.last: int | None = None
        self.last_ns: int | None = None
        try:
            self._watch = library.xid_watch(handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            self.reason = error.reason

    def poll(self) -> None:
        """Counts the events that have arrived. Never waits."""
        if self._watch is None:
            return
        try:
            for _ in range(_XIDS_AT_ONCE):
                xid = self._library.next_xid(self._watch)
                if xid is None:
                    return
                self.last_ns, self.last = time.time_ns(), xid
                self.count += 1
        except DriverError as error:
            # The card already shows what is wrong; listening on would only repeat it.
            self.reason = error.reason
            self.close()

    def close(self) -> None:
        """Stop listening for the driver's Xid errors."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._library.xid_free(watch)


class SlowReading(msgspec.Struct, frozen=True):
    """Results of the slow calls. `status` is None if it was not due, or the GPU is lost; `energy`
    if the GPU has no counter.
    """

    status: GpuStatus | None
    energy: GpuEnergy | None = None
    reasons: dict[str, str] = msgspec.field(default_factory=dict)
    pcie: dict[str, float] = msgspec.field(default_factory=dict)
    pcie_reasons: dict[str, str] = msgspec.field(default_factory=dict)


def read_pcie(library: DriverLibrary, handle: Handle) -> tuple[dict[str, float], dict[str, str]]:
    """PCIe rates by field, or why not. Each direction takes 20 ms; GPM gives both for free."""
    values, fields = {}, Fields()
    for name, call in (
        ("pcie_rx_bytes_per_s", library.pcie_rx_bytes_per_s),
        ("pcie_tx_bytes_per_s", library.pcie_tx_bytes_per_s),
    ):
        value = fields.read(name, call, handle)
        if value is not None:
            values[name] = value
    return values, fields.reasons


def read_energy(
    library: DriverLibrary, handle: Handle, gpu: int, fields: Fields
) -> GpuEnergy | None:
    """The energy counter; None where there is none, which `fields` then says. It takes 3 to 34 ms:
    the moment is the middle of the call. Raises `DriverError` for a lost GPU.
    """
    before_ns = time.time_ns()
    joules = fields.read("energy_joules", library.energy_joules, handle)
    if joules is None:
        return None
    return GpuEnergy(time_ns=(before_ns + time.time_ns()) // 2, gpu=gpu, joules=joules)


def read_status(
    library: DriverLibrary,
    handle: Handle,
    facts: GpuFacts,
    xids: Xids,
    energy: GpuEnergy | None,
    fields: Fields,
) -> tuple[GpuStatus, dict[str, str]]:
    """The status with the `energy` just read into `fields`, and why fields are missing. Raises
    `DriverError` for a lost GPU."""
    read = fields.read
    rows = read("remapped_rows_corrected", library.remapped_rows, handle)
    if rows is None:
        reason = fields.reasons["remapped_rows_corrected"]
        for name in ("remapped_rows_uncorrected", "row_remapping_pending", "row_remapping_failed"):
            fields.reasons[name] = reason
    if xids.reason is not None:
        fields.reasons["xid_count"] = xids.reason
    figures: dict[str, Any] = {
        name: read(name, getattr(library, name), handle) for name in _STATUS_CALLS
    }
    status = GpuStatus(
        time_ns=time.time_ns(),
        gpu=facts.index,
        energy_joules=None if energy is None else energy.joules,
        # Read with the status: the margin and the fan together took a millisecond of each tick.
        temperature_margin_celsius=_margin(library, handle, facts, fields),
        remapped_rows_corrected=None if rows is None else rows.corrected,
        remapped_rows_uncorrected=None if rows is None else rows.uncorrected,
        row_remapping_pending=None if rows is None else rows.pending,
        row_remapping_failed=None if rows is None else rows.failed,
        xid_count=None if xids.reason is not None else xids.count,
        last_xid=xids.last,
        last_xid_time_ns=xids.last_ns,
        **figures,
    )
    return status, fields.reasons


def _margin(
    library: DriverLibrary, handle: Handle, facts: GpuFacts, fields: Fields
) -> float | None:
    """The driver's own margin, or else the distance to the slowdown threshold."""
    margin = fields.read(_MARGIN, library.temperature_margin_celsius, handle)
    threshold = facts.temperature_slowdown_celsius
    if margin is not None or threshold is None:
        return margin
    celsius = fields.read(_MARGIN, library.temperature_celsius, handle)
    if celsius is None:
        return None
    del fields.reasons[_MARGIN]
    return threshold - celsius


# What does not change while a GPU runs: its make and its limits. Read once, when the driver has
# started.

# FP32 cores of one SM by compute capability (CUDA C++ Programming Guide, throughput table).
_CORES_PER_SM = {
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2", "8.6", "8.7", "8.9"), 128),
    **dict.fromkeys(("9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
}

HOST_MEMORY = "this chip shares the host's memory"


def read_facts(
    library: DriverLibrary, handle: Handle, index: int, gpm_supported: bool
) -> tuple[GpuFacts, dict[str, str]]:
    """The facts, and the reason for each that is missing. Raises `DriverError` for a lost GPU."""
    fields = Fields()
    capability = fields.read("compute_capability", library.compute_capability, handle)
    cores = fields.read("sm_count", library.core_count, handle)
    per_sm = _CORES_PER_SM.get(capability or "")
    if cores is not None and per_sm is None:
        fields.reasons["sm_count"] = f"cores per SM unknown for {capability}"
    mig = fields.read("mig_enabled", library.mig_enabled, handle)
    unified = not mig and not library.has_memory(handle)
    memory = None if unified else fields.read("memory_total_bytes", library.memory, handle)
    width = fields.read("memory_bus_width_bits", library.memory_bus_width_bits, handle)
    clock = fields.read("max_memory_clock_mhz", library.max_memory_clock_mhz, handle)
    peak = None
    if width is not None and clock is not None:
        # Two transfers per clock; a bus of `width` bits moves width/8 bytes per transfer.
        peak = 2 * clock * 1e6 * width / 8
    else:
        fields.reasons["peak_memory_bandwidth_bytes_per_s"] = (
            "needs the memory clock and the bus width"
        )
    limits = fields.read("power_limit_minimum_watts", library.power_limit_range_watts, handle)
    if limits is None:
        fields.reasons["power_limit_maximum_watts"] = fields.reasons["power_limit_minimum_watts"]
    facts = GpuFacts(
        index=index,
        uuid=fields.read("uuid", library.uuid, handle) or "",
        name=fields.read("name", library.name, handle) or f"GPU {index}",
        architecture=fields.read("architecture", library.architecture, handle),
        vbios_version=fields.read("vbios_version", library.vbios_version, handle),
        pci_bus_id=fields.read("pci_bus_id", library.pci_bus_id, handle),
        compute_capability=capability,
        sm_count=cores // per_sm if cores is not None and per_sm is not None else None,
        memory_kind="unified" if unified else "device",
        memory_total_bytes=None if memory is None else memory.total,
        memory_bus_width_bits=width,
        bar1_total_bytes=fields.read("bar1_total_bytes", library.bar1_total_bytes, handle),
        max_sm_clock_mhz=fields.read("max_sm_clock_mhz", library.max_sm_clock_mhz, handle),
        max_memory_clock_mhz=clock,
        peak_memory_bandwidth_bytes_per_s=peak,
        peak_memory_bandwidth_source=(
            None if peak is None else f"2 × {clock} MHz × {width} bit from NVML"
        ),
        power_limit_watts=fields.read("power_limit_watts", library.power_limit_watts, handle),
        power_limit_default_watts=fields.read(
            "power_limit_default_watts", library.power_limit_default_watts, handle
        ),
        power_limit_minimum_watts=None if limits is None else limits[0],
        power_limit_maximum_watts=None if limits is None else limits[1],
        temperature_slowdown_celsius=fields.read(
            "temperature_slowdown_celsius", library.slowdown_celsius, handle
        ),
        temperature_shutdown_celsius=fields.read(
            "temperature_shutdown_celsius", library.shutdown_celsius, handle
        ),
        memory_temperature_maximum_celsius=fields.read(
            "memory_temperature_maximum_celsius", library.memory_maximum_celsius, handle
        ),
        pcie_generation=fields.read("pcie_generation", library.max_pcie_generation, handle),
        pcie_width=fields.read("pcie_width", library.max_pcie_width, handle),
        nvlink_count=(links := fields.read("nvlink_count", library.nvlink_count, handle)),
        nvlink_link_bytes_per_s=(
            fields.read("nvlink_link_bytes_per_s", library.nvlink_link_bytes_per_s, handle)
            if links
            else None
        ),
        gpm_supported=gpm_supported,
        mig_enabled=mig,
    )
    reasons = {name: reason for name, reason in fields.reasons.items() if name not in SAMPLE_FIELDS}
    if unified:
        reasons["memory_total_bytes"] = HOST_MEMORY
    return facts, reasons


# How the GPUs of one machine are connected, in the terms of `nvidia-smi topo -m`.


def read_topology(
    library: DriverLibrary, handles: Mapping[int, Handle]
) -> dict[int, dict[int, str]]:
    """For each GPU, its connection to each other one. What the driver does not say is left out."""
    ways: dict[int, dict[int, str]] = {index: {} for index in handles}
    links = {index: _active_links(library, handle) for index, handle in handles.items()}
    for first, handle in handles.items():
        for second, other in handles.items():
            if first >= second:
                continue
            if way := _way(library, handle, other, links[first], links[second]):
                ways[first][second] = ways[second][first] = way
    return ways


def _active_links(library: DriverLibrary, handle: Handle) -> int:
    try:
        return library.nvlink_active_count(handle)
    except DriverError:
        return 0


def _way(
    library: DriverLibrary, first: Handle, second: Handle, links: int, others: int
) -> str | None:
    try:
        if links and others and library.has_nvlink_between(first, second):
            # Links end at the other GPU or, on machines with NVSwitch, all of them at switches.
            direct = library.nvlinks_to(first, library.pci_bus_id(second))
            return f"NV{direct or min(links, others)}"
    except DriverError:
        pass
    try:
        return library.common_ancestor(first, second)
    except DriverError:
        return None


# GPM: the hardware counters of Hopper and later GPUs, read without root and without a daemon. A
# metric is the share of cycles between two samples, so the first reading has none. Samples
# closer than 100 ms give zeros and NaN on Hopper (NVIDIA's documented minimum, also measured),
# so a faster caller gets the previous values again.


MINIMUM_WINDOW_NS = 100_000_000
# A tick that comes this much too early waits: at 100 ms per tick, every second one is early.
_JITTER_NS = 15_000_000

_MIB = 1024 * 1024

METRICS: dict[str, tuple[int, float]] = {
    "sm_active_percent": (2, 1),
    "sm_occupancy_percent": (3, 1),
    "tensor_active_percent": (5, 1),
    "memory_bandwidth_percent": (10, 1),
    "integer_active_percent": (4, 1),
    "fp64_active_percent": (11, 1),
    "fp32_active_percent": (12, 1),
    "fp16_active_percent": (13, 1),
    "pcie_tx_bytes_per_s": (20, _MIB),
    "pcie_rx_bytes_per_s": (21, _MIB),
    "nvlink_rx_bytes_per_s": (60, _MIB),
    "nvlink_tx_bytes_per_s": (61, _MIB),
}
"""Field → NVML's metric id (nvml.h, nvmlGpmMetricId_t) and factor to the field's unit.

Id 1 (graphics activity) is left out: it takes 1.9 ms per call, all these together 0.06.
"""

FIELDS = tuple(METRICS)
INSTANCE_FIELDS = FIELDS[:4]
"""The metrics of a MIG instance."""

# Every driver with GPM knows the ids up to here; an unknown id makes it refuse the whole query.
_LAST_CORE_METRIC = 13

SUPPORT_NEEDED = "needs the counters (GPM) of a Hopper or later GPU"


class GpmReading(msgspec.Struct, frozen=True):
    """Values by field name, and the reason for each field that has none."""

    values: dict[str, float] = msgspec.field(default_factory=dict)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def without(cls, reason: str, fields: Sequence[str] = FIELDS) -> GpmReading:
        return cls({}, dict.fromkeys(fields, reason))


class GpmReader:
    """Reads one GPU, or the `INSTANCE_FIELDS` of one MIG instance.

    Not to be shared between threads. Close it to free its two samples.
    """

    def __init__(
        self, library: DriverLibrary, handle: Handle, gpu_instance_id: int | None = None
    ) -> None:
        """Raises `DriverError` if the driver cannot say whether the GPU has GPM."""
        self._library = library
        self._handle = handle
        self._instance = gpu_instance_id
        self.fields = FIELDS if gpu_instance_id is None else INSTANCE_FIELDS
        self.supported = library.gpm_supported(handle)
        self._samples: list[GpmSample] = []
        self._sampled_ns: int | None = None
        self._last = self._without("measured from the second reading on")
        if self.supported:
            self._request = library.gpm_request([METRICS[name][0] for name in self.fields])

    def warm(self) -> None:
        """Make the driver initialize its computing state while no other thread uses it.

        Driver 580.159.04 does so at the first query, and crashed one in four programs in which
        other threads were calling it meanwhile (two H200); later queries never crashed.
        """
        if not self.supported:
            return
        with contextlib.suppress(DriverError):
            older, newer = self._allocate()
            self._library.gpm_sample(self._handle, older, self._instance)
            self._library.gpm_sample(self._handle, newer, self._instance)
            self._library.gpm_metrics(self._request, older, newer)

    def read(self) -> GpmReading:
        """The values since the previous sample. May wait some milliseconds to fill the window.

        Raises `DriverError`; the next call then starts over.
        """
        if not self.supported:
            return self._without(SUPPORT_NEEDED)
        if self._sampled_ns is not None:
            early_ns = MINIMUM_WINDOW_NS - (time.monotonic_ns() - self._sampled_ns)
            if early_ns > _JITTER_NS:
                return self._last
            time.sleep(max(0, early_ns) / 1e9)
        try:
            self._last = self._sample()
        except DriverError as error:
            self._sampled_ns = None
            self._last = self._without(error.reason)
            raise
        return self._last

    def close(self) -> None:
        """Free the samples. Raises `DriverError` if the driver refuses."""
        while self._samples:
            self._library.gpm_free(self._samples.pop())

    def _without(self, reason: str) -> GpmReading:
        return GpmReading.without(reason, self.fields)

    def _sample(self) -> GpmReading:
        older, newer = self._allocate()
        if self._sampled_ns is None:
            self._library.gpm_sample(self._handle, older, self._instance)
            self._sampled_ns = time.monotonic_ns()
            return self._without("measured from the second reading on")
        self._library.gpm_sample(self._handle, newer, self._instance)
        self._samples, self._sampled_ns = [newer, older], time.monotonic_ns()
        answers = self._metrics(older, newer)
        reading = GpmReading()
        for name in self.fields:
            metric, factor = METRICS[name]
            answer = answers.get(metric, "unknown to this driver: a newer one is needed")
            if isinstance(answer, str):
                reading.reasons[name] = answer
            else:
                # Cycles and time are counted separately, so a share may exceed 100 %.
                share = name.endswith("_percent")
                reading.values[name] = min(answer, 100.0) if share else answer * factor
        return reading

    def _allocate(self) -> tuple[GpmSample, GpmSample]:
        while len(self._samples) < 2:
            self._samples.append(self._library.gpm_allocate())
        older, newer = self._samples
        return older, newer

    def _metrics(self, older: GpmSample, newer: GpmSample) -> dict[int, float | str]:
        try:
            return self._library.gpm_metrics(self._request, older, newer)
        except DriverError as error:
            core = [i for i in self._request.identifiers if i <= _LAST_CORE_METRIC]
            if error.code != INVALID_ARGUMENT or len(core) == len(self._request.identifiers):
                raise
        request = self._library.gpm_request(core)
        answers = self._library.gpm_metrics(request, older, newer)
        self._request = request
        return answers
