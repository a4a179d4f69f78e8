"""One GPU read through NVML and GPM: every value of a tick, or the reason why it is missing. `gpus`
reads each device in a thread of its own. The device's MIG instances are read here too, because
their values come from the same calls, and so are the processes on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputui.collect import memory_bytes
from gputui.collect.nvml import (
    GPU_IS_LOST,
    DriverError,
    GpuProcess,
    Handle,
    ProcessUse,
    profile,
)
from gputui.collect.nvml.bindings import DriverLibrary, GpuMemory
from gputui.collect.nvml.reading import (
    FIELDS,
    HOST_MEMORY,
    INSTANCE_FIELDS,
    SAMPLE_FIELDS,
    CounterRate,
    DeviceReading,
    Fields,
    GpmReader,
    GpmReading,
    SlowReading,
    Xids,
    calls_named,
    read_energy,
    read_facts,
    read_pcie,
    read_status,
)
from gputui.model.cards import throttle_reasons
from gputui.model.events import GpuFacts, GpuSample, MigFacts, MigSample

# Taking turns, where reading every GPU in one tick would be too slow.

LEAST_AGE_NS = 1_900_000_000
"""The driver looks back two seconds: reading sooner adds little. Less a tick's jitter."""

MOST_AGE_NS = 8_000_000_000
"""An older value is refreshed at any cost, or not shown."""

# Ticks in which every member has had a turn, at one tick per second or slower.
_ROUND = 4

# With few members a round is then shorter than _ROUND ticks, which costs nothing.
_LEAST_SHARE = 2


class Turns:
    """Members in turn, the one that waited longest first."""

    def __init__(self, members: Sequence[int]) -> None:
        self._share = max(_LEAST_SHARE, -(-len(members) // _ROUND))
        self._asked_ns: dict[int, int | None] = dict.fromkeys(members)

    def next_turn(self, now_ns: int) -> frozenset[int]:
        """Whose turn it is at this tick: a share of the members, plus all not read for
        `MOST_AGE_NS` (at first, everyone). Nobody twice within `LEAST_AGE_NS`.
        """
        waited = {
            member: MOST_AGE_NS + 1 if asked_ns is None else now_ns - asked_ns
            for member, asked_ns in self._asked_ns.items()
        }
        order = sorted(waited, key=lambda member: -waited[member])
        chosen = frozenset(
            member
            for place, member in enumerate(order)
            if waited[member] > MOST_AGE_NS
            or (place < self._share and waited[member] >= LEAST_AGE_NS)
        )
        self._asked_ns.update(dict.fromkeys(chosen, now_ns))
        return chosen


# The MIG instances of one GPU: memory from the driver, use from GPM's counters.


class _Instance(msgspec.Struct, frozen=True):
    facts: MigFacts
    handle: Handle


class Instances:
    """Used from the GPU's own thread. Close it.

    The driver counts per GPU instance: compute instances sharing one have the same values.
    """

    def __init__(self, library: DriverLibrary, gpu: Handle, only: str | None) -> None:
        """`only` is a UUID; if it is not on this GPU, all are taken. Raises `DriverError` if the
        driver cannot list the instances.
        """
        self._library = library
        self._readers: dict[int, GpmReader | str] = {}
        every = [
            _Instance(self._facts(index, handle), handle)
            for index, handle in library.mig_handles(gpu).items()
        ]
        chosen = [instance for instance in every if instance.facts.uuid == only]
        self._instances = chosen or every
        for instance in self._instances:
            number = instance.facts.gpu_instance_id
            if number not in self._readers:
                self._readers[number] = self._reader(gpu, number)

    @property
    def facts(self) -> tuple[MigFacts, ...]:
        return tuple(instance.facts for instance in self._instances)

    @property
    def handles(self) -> dict[int, Handle]:
        return {each.facts.gpu_instance_id: each.handle for each in self._instances}

    def warm(self) -> None:
        """Prepare each instance's counters: see `GpmReader.warm`."""
        for reader in self._readers.values():
            if isinstance(reader, GpmReader):
                reader.warm()

    def read(self, reasons: dict[str, str]) -> tuple[MigSample, ...]:
        """A sample of each; why values are missing goes into `reasons`."""
        counters = {number: self._read_counters(number) for number in self._readers}
        return tuple(
            self._sample(instance, counters[instance.facts.gpu_instance_id], reasons)
            for instance in self._instances
        )

    def close(self) -> None:
        """Free the counters' samples. Raises `DriverError` if the driver refuses."""
        for reader in self._readers.values():
            if isinstance(reader, GpmReader):
                reader.close()

    def _facts(self, index: int, handle: Handle) -> MigFacts:
        library, fields = self._library, Fields()
        attributes = fields.read("attributes", library.mig_attributes, handle)
        return MigFacts(
            index=index,
            uuid=fields.read("uuid", library.uuid, handle) or "",
            name=profile(fields.read("name", library.name, handle) or f"MIG {index}"),
            gpu_instance_id=library.gpu_instance_id(handle),
            compute_instance_id=fields.read("compute", library.compute_instance_id, handle),
            sm_count=None if attributes is None else attributes.sm_count,
            memory_total_bytes=None if attributes is None else attributes.memory_total_bytes,
        )

    def _reader(self, gpu: Handle, number: int) -> GpmReader | str:
        try:
            return GpmReader(self._library, gpu, number)
        except DriverError as error:
            return f"GPM counters: {error.reason}"

    def _read_counters(self, number: int) -> GpmReading:
        reader = self._readers[number]
        if isinstance(reader, str):
            return GpmReading.without(reader, INSTANCE_FIELDS)
        try:
            return reader.read()
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            return GpmReading.without(f"GPM counters: {error.reason}", INSTANCE_FIELDS)

    def _sample(
        self, instance: _Instance, counters: GpmReading, reasons: dict[str, str]
    ) -> MigSample:
        index, fields = instance.facts.index, Fields()
        memory = fields.read("memory_used_bytes", self._library.memory, instance.handle)
        for name, reason in (fields.reasons | counters.reasons).items():
            reasons[f"mig.{index}.{name}"] = reason
        return MigSample(
            index=index,
            memory_used_bytes=None if memory is None else memory.used,
            memory_reserved_bytes=None if memory is None else memory.reserved,
            memory_total_bytes=None if memory is None else memory.total,
            **counters.values,
        )


# The processes on one GPU, as the driver lists them.

_IDLE = ProcessUse(0.0, 0.0, 0.0, 0.0)


class Occupants(msgspec.Struct, frozen=True):
    """`processes` is None if the driver will not list them, `use` if it will not measure.

    `use` covers the processes present when it was measured, with zeros for idle ones. Reason keys
    are `processes` and `processes.FIELD`.
    """

    processes: tuple[GpuProcess, ...] | None
    use: dict[int, ProcessUse] | None
    reasons: dict[str, str]


class OccupantReader:
    """Lists the processes on one GPU, and caches their last measured use, which is read seldom."""

    def __init__(self) -> None:
        self._use: dict[int, ProcessUse] | None = None
        self._use_reason: str | None = None
        self._use_ns = 0
        self._listed: frozenset[int] = frozenset()
        self._is_free = False
        """Whether the driver listed them, and there were none."""

    def measure(self, library: DriverLibrary, handle: Handle, *, mig: bool) -> None:
        """Measure the use of the processes listed so far, if any (1.4 to 2.7 ms). Raises
        `DriverError` only if the GPU is lost.
        """
        if self._is_free:
            self._use, self._use_ns = {}, time.monotonic_ns()
            return
        fields = Fields(mig)
        use = fields.read("use", library.process_use, handle)
        self._use_reason = fields.reasons.get("use")
        # Not in the answer means idle.
        self._use = None if use is None else dict.fromkeys(self._listed, _IDLE) | use
        self._use_ns = time.monotonic_ns()

    def list(
        self,
        library: DriverLibrary,
        handle: Handle,
        instances: Mapping[int, Handle],
        *,
        measure: bool,
    ) -> Occupants:
        """List the GPU's processes; if refused, those of its MIG `instances`, by GPU instance id.

        Includes their newest use, which `measure` updates.
        """
        fields = Fields(bool(instances))
        listed = fields.read("processes", library.processes, handle)
        if listed is None and instances:
            listed = _of_instances(library, instances)
            if listed is not None:
                del fields.reasons["processes"]
        self._listed = frozenset(process.pid for process in listed or ())
        self._is_free = listed is not None and not listed
        if measure:
            self.measure(library, handle, mig=bool(instances))
        is_old = time.monotonic_ns() - self._use_ns > MOST_AGE_NS
        use = {} if is_old and self._use_reason is None else self._use
        if self._use_reason is not None:
            for name in ("sm_percent", "memory_bandwidth_percent"):
                fields.reasons[f"processes.{name}"] = self._use_reason
        return Occupants(None if listed is None else tuple(listed), use, fields.reasons)


def _of_instances(
    library: DriverLibrary, instances: Mapping[int, Handle]
) -> list[GpuProcess] | None:
    processes: list[GpuProcess] = []
    asked = False
    for number, handle in instances.items():
        try:
            for process in library.processes(handle):
                processes.append(
                    GpuProcess(
                        process.pid,
                        process.memory_bytes,
                        process.kind,
                        number,
                        process.compute_instance_id,
                    )
                )
            asked = True
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
    return processes if asked else None


# One GPU read through NVML and GPM: every value, or the reason why it is missing.

_PCIE = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")

_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")

# A figure with a call of its own is read by the method named after its field, so that a new one is
# that method and its declaration.
_TICK_CALLS = calls_named(field for field in SAMPLE_FIELDS if field not in FIELDS)

_SECOND_READING = "measured from the second reading on"


class Device:
    """One GPU. `read_slowly` runs in a thread of its own, everything else in the GPU's worker."""

    def __init__(self, library: DriverLibrary, index: int, instance: str | None = None) -> None:
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
        """The Xid errors so far, including those that no status contains yet."""
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
        gpu_status = None
        try:
            fields = Fields(self._facts.mig_enabled)
            counted = None
            if energy or status:
                # Once where the status is due too: reading the counter twice was a tenth of an idle
                # screen's CPU.
                counted = read_energy(self._library, self._handle, self.index, fields)
            if self.needs_pcie:
                pcie, pcie_reasons = read_pcie(self._library, self._handle)
            if status:
                gpu_status, reasons = read_status(
                    self._library, self._handle, self._facts, self._xids, counted, fields
                )
            return SlowReading(gpu_status, counted, reasons, pcie, pcie_reasons)
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
        listed = self._occupants.list(library, handle, instances, measure=process_use)
        return DeviceReading(sample, fields.reasons, listed.processes, listed.use, listed.reasons)

    def _read_memory(self, handle: Handle, facts: GpuFacts, fields: Fields) -> GpuMemory | None:
        if facts.memory_kind == "unified":
            fields.reasons["memory_reserved_bytes"] = HOST_MEMORY
            return GpuMemory(*memory_bytes(), None)
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
        return fields.keep(names[0], instant), fields.keep(names[1], celsius)

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
