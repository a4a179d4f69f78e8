"""One GPU read through NVML and GPM: every value, or the reason why it is missing."""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.collect.host import memory_bytes
from gputui.collect.nvml.bindings import GPU_IS_LOST, DriverError, Handle, Library, Memory
from gputui.collect.nvml.facts import HOST_MEMORY, read_facts
from gputui.collect.nvml.gpm import FIELDS, GpmReader, GpmReading
from gputui.collect.nvml.mig import Instances
from gputui.collect.nvml.occupants import OccupantReader
from gputui.collect.nvml.rates import CounterRate
from gputui.collect.nvml.reading import SAMPLE_FIELDS, DeviceReading, Fields, calls_named
from gputui.collect.nvml.status import SlowReading, Xids, read_energy, read_pcie, read_status
from gputui.model.events import GpuFacts, GpuSample, MigSample
from gputui.model.throttling import throttle_reasons

_PCIE = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
_TICK_CALLS = calls_named(field for field in SAMPLE_FIELDS if field not in FIELDS)
_SECOND_READING = "measured from the second reading on"


class Device:
    """One GPU. `read_slowly` runs in a thread of its own, everything else in the GPU's worker."""

    def __init__(self, library: Library, index: int, instance: str | None = None) -> None:
        """`instance` is the UUID of the only MIG instance to show, of any GPU; None means all."""
        self.index = index
        self.slow = SlowReading(None)
        """The newest result of the slow calls, set by whoever runs them."""
        self._library = library
        self._only = instance
        self._handle: Handle | None = None
        self._facts: GpuFacts | None = None
        self._facts_reasons: dict[str, str] = {}
        self._gpm: GpmReader | None = None
        self._gpm_reason = ""
        self._instances: Instances | None = None
        self._xids: Xids | None = None
        self._occupants = OccupantReader()
        self._nvlink = {name: CounterRate() for name in _NVLINK}

    @property
    def handle(self) -> Handle | None:
        """The driver's handle; None before the GPU could be opened."""
        return self._handle if self._facts is not None else None

    @property
    def needs_pcie(self) -> bool:
        """Whether PCIe rates need the slow calls, because there is no GPM."""
        return self._facts is not None and not self._facts.gpm_supported

    @property
    def xid_count(self) -> int:
        """Xid errors so far, including those not in a status yet."""
        return 0 if self._xids is None else self._xids.count

    def open(self) -> GpuFacts:
        """The static facts. Raises `DriverError` if the GPU cannot be reached."""
        if self._facts is None:
            self._handle = self._library.handle(self.index)
            self._facts = self._read_facts(self._handle)
        return self._facts

    def warm(self) -> None:
        """Make the driver prepare the counters; call while nothing else calls it."""
        if self._gpm is not None and not (self._facts is not None and self._facts.mig_enabled):
            self._gpm.warm()
        if self._instances is not None:
            self._instances.warm()

    def poll(self, processes: bool, process_use: bool) -> DeviceReading:
        """One reading; with `processes`, also who is on the GPU and their last measured use, which
        `process_use` measures anew.
        """
        try:
            facts = self.open()
            assert self._handle is not None
            return self._read(self._handle, facts, processes, process_use)
        except DriverError as error:
            return DeviceReading.without(self.index, error.reason, self._facts_reasons)

    def read_slowly(self, status: bool, energy: bool) -> SlowReading:
        """The calls that take milliseconds: PCIe rates if needed and, if requested, the energy
        counter or the status, which has it too.
        """
        if self._handle is None or self._facts is None or self._xids is None:
            return self.slow
        pcie, pcie_reasons = self.slow.pcie, self.slow.pcie_reasons
        reasons = self.slow.reasons
        told = None
        try:
            fields = Fields(self._facts.mig_enabled)
            counted = None
            if energy or status:
                counted = read_energy(self._library, self._handle, self.index, fields)
            if self.needs_pcie:
                pcie, pcie_reasons = read_pcie(self._library, self._handle)
            if status:
                told, reasons = read_status(
                    self._library, self._handle, self._facts, self._xids, counted, fields
                )
            return SlowReading(told, counted, reasons, pcie, pcie_reasons)
        except DriverError as error:
            if status:
                reasons = {"status": error.reason}
            return SlowReading(None, None, reasons, {}, {})

    def read_energy(self) -> SlowReading:
        """The last results of the slow calls, with the energy counter as it is now."""
        if self._handle is None:
            return self.slow
        try:
            energy = read_energy(self._library, self._handle, self.index, Fields())
        except DriverError:
            energy = None  # the next tick says what is wrong
        return msgspec.structs.replace(self.slow, status=None, energy=energy)

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()
        if self._instances is not None:
            self._instances.close()
        if self._xids is not None:
            self._xids.close()

    def _read_facts(self, handle: Handle) -> GpuFacts:
        library = self._library
        try:
            self._gpm = GpmReader(library, handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            self._gpm_reason = f"GPM counters: {error.reason}"
        supported = self._gpm is not None and self._gpm.supported
        facts, self._facts_reasons = read_facts(library, handle, self.index, supported)
        if facts.mig_enabled:
            try:
                self._instances = Instances(library, handle, self._only)
                facts = msgspec.structs.replace(facts, mig_instances=self._instances.facts)
            except DriverError as error:
                if error.code == GPU_IS_LOST:
                    raise
                self._facts_reasons["mig_instances"] = error.reason
        self._xids = Xids(library, handle)
        return facts

    def _read(
        self, handle: Handle, facts: GpuFacts, processes: bool, process_use: bool
    ) -> DeviceReading:
        library = self._library
        fields = Fields(facts.mig_enabled)
        read = fields.read
        fields.reasons.update(self._facts_reasons | self.slow.reasons)
        assert self._xids is not None
        self._xids.poll()
        memory = self._read_memory(handle, facts, fields)
        bits = read("throttle_reasons", library.clock_event_bits, handle)
        instant, memory_celsius = self._read_sensors(handle, fields)
        gpm = self._read_counters(handle, facts, fields)
        bandwidth = gpm.values.get("memory_bandwidth_percent")
        peak = facts.peak_memory_bandwidth_bytes_per_s
        if bandwidth is None:
            fields.reasons["memory_bandwidth_bytes_per_s"] = gpm.reasons["memory_bandwidth_percent"]
        elif peak is None:
            fields.reasons["memory_bandwidth_bytes_per_s"] = "the peak is unknown"
        figures: dict[str, Any] = {
            name: read(name, getattr(library, name), handle) for name in _TICK_CALLS
        } | gpm.values
        sample = GpuSample(
            index=self.index,
            memory_used_bytes=None if memory is None else memory.used,
            memory_reserved_bytes=None if memory is None else memory.reserved,
            memory_total_bytes=None if memory is None else memory.total,
            memory_bandwidth_bytes_per_s=(
                None if bandwidth is None or peak is None else bandwidth / 100 * peak
            ),
            power_instant_watts=instant,
            memory_temperature_celsius=memory_celsius,
            throttle_reasons=None if bits is None else throttle_reasons(bits),
            mig_instances=self._read_instances(fields),
            **figures,
        )
        instances = self._instances.handles if self._instances is not None else {}
        if not processes:
            if process_use:
                self._occupants.measure(library, handle, mig=bool(instances))
            return DeviceReading(sample, fields.reasons)
        told = self._occupants.list(library, handle, instances, measure=process_use)
        return DeviceReading(sample, fields.reasons, told.processes, told.use, told.reasons)

    def _read_memory(self, handle: Handle, facts: GpuFacts, fields: Fields) -> Memory | None:
        if facts.memory_kind == "unified":
            fields.reasons["memory_reserved_bytes"] = HOST_MEMORY
            return Memory(*memory_bytes(), None)
        memory = fields.read("memory_used_bytes", self._library.memory, handle)
        if memory is None:
            for name in ("memory_total_bytes", "memory_reserved_bytes"):
                fields.reasons[name] = fields.reasons["memory_used_bytes"]
        elif memory.reserved is None:
            fields.reasons["memory_reserved_bytes"] = (
                "this driver counts it as used memory: a newer driver is needed"
            )
        return memory

    def _read_sensors(self, handle: Handle, fields: Fields) -> tuple[float | None, float | None]:
        names = ("power_instant_watts", "memory_temperature_celsius")
        both = fields.read(names[0], self._library.instant_power_and_memory_temperature, handle)
        if both is None:
            fields.reasons[names[1]] = fields.reasons[names[0]]
            return None, None
        instant, celsius = both
        return fields.take(names[0], instant), fields.take(names[1], celsius)

    def _read_instances(self, fields: Fields) -> tuple[MigSample, ...]:
        return () if self._instances is None else self._instances.read(fields.reasons)

    def _read_counters(self, handle: Handle, facts: GpuFacts, fields: Fields) -> GpmReading:
        """GPM's values; on a GPU without GPM, link rates from elsewhere."""
        gpm = self._read_gpm(fields)
        if not facts.gpm_supported:
            gpm = GpmReading(dict(gpm.values), dict(gpm.reasons))
            self._take_pcie(gpm)
            self._count_nvlink(handle, facts, fields, gpm)
        fields.reasons.update(gpm.reasons)
        return gpm

    def _take_pcie(self, gpm: GpmReading) -> None:
        for name in _PCIE:
            if name in self.slow.pcie:
                gpm.values[name] = self.slow.pcie[name]
                del gpm.reasons[name]
            else:
                gpm.reasons[name] = self.slow.pcie_reasons.get(name, _SECOND_READING)

    def _count_nvlink(
        self, handle: Handle, facts: GpuFacts, fields: Fields, gpm: GpmReading
    ) -> None:
        if not facts.nvlink_count:
            gpm.reasons.update(dict.fromkeys(_NVLINK, "this GPU has no NVLink"))
            return
        try:
            counted = self._library.nvlink_bytes(handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            gpm.reasons.update(dict.fromkeys(_NVLINK, fields.reason(error)))
            return
        for name, value in zip(_NVLINK, counted, strict=True):
            rate = self._nvlink[name].update(value)
            if rate is None:
                gpm.reasons[name] = _SECOND_READING
            else:
                gpm.values[name] = rate
                del gpm.reasons[name]

    def _read_gpm(self, fields: Fields) -> GpmReading:
        if self._gpm is None:
            return GpmReading.without(self._gpm_reason)
        try:
            return self._gpm.read()
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            return GpmReading.without(f"GPM counters: {fields.reason(error)}")
