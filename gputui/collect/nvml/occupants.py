"""The processes on one GPU, as the driver lists them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from gputui.collect.nvml.bindings import (
    GPU_IS_LOST,
    DriverError,
    GpuProcess,
    Handle,
    Library,
    ProcessUse,
)
from gputui.collect.nvml.reading import Fields
from gputui.collect.nvml.turns import MOST_AGE_NS

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

    def measure(self, library: Library, handle: Handle, *, mig: bool) -> None:
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
        self, library: Library, handle: Handle, instances: Mapping[int, Handle], *, measure: bool
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
