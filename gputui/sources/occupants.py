"""Who is on one GPU, by the driver's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputui.sources.library import (
    GPU_IS_LOST,
    DriverError,
    GpuProcess,
    Handle,
    Library,
    ProcessUse,
)
from gputui.sources.reading import Fields


@dataclass(frozen=True, slots=True)
class Occupants:
    """`processes` is None when the driver will not list, `use` when it will not measure.

    Reason keys are `processes` and `processes.FIELD`.
    """

    processes: tuple[GpuProcess, ...] | None
    use: dict[int, ProcessUse] | None
    reasons: dict[str, str]


def list_occupants(library: Library, handle: Handle, instances: Mapping[int, Handle]) -> Occupants:
    """Asks the GPU; where that is refused, each of its MIG `instances`, by GPU instance id."""
    fields = Fields(bool(instances))
    listed = fields.read("processes", library.processes, handle)
    if listed is None and instances:
        listed = _of_instances(library, instances)
        if listed is not None:
            del fields.reasons["processes"]
    use = fields.read("processes.sm_percent", library.process_use, handle)
    if use is None:
        reason = fields.reasons["processes.sm_percent"]
        fields.reasons["processes.memory_bandwidth_percent"] = reason
    return Occupants(None if listed is None else tuple(listed), use, fields.reasons)


def _of_instances(library: Library, instances: Mapping[int, Handle]) -> list[GpuProcess] | None:
    found: list[GpuProcess] = []
    asked = False
    for number, handle in instances.items():
        try:
            for process in library.processes(handle):
                found.append(
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
    return found if asked else None
