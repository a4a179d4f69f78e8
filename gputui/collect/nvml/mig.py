"""The MIG instances of one GPU: memory from the driver, use from GPM's counters."""

from __future__ import annotations

import msgspec

from gputui.collect.nvml.bindings import GPU_IS_LOST, DriverError, Handle, Library
from gputui.collect.nvml.bindings.mig import profile
from gputui.collect.nvml.gpm import INSTANCE_FIELDS, GpmReader, GpmReading
from gputui.collect.nvml.reading import Fields
from gputui.model.events import MigFacts, MigSample


class _Instance(msgspec.Struct, frozen=True):
    facts: MigFacts
    handle: Handle


class Instances:
    """Used from the GPU's own thread. Close it.

    The driver counts per GPU instance: compute instances sharing one have the same values.
    """

    def __init__(self, library: Library, gpu: Handle, only: str | None) -> None:
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
