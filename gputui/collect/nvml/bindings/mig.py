"""MIG: the instances a GPU is divided into."""

from __future__ import annotations

import re
from typing import NamedTuple

from gputui.collect.nvml.bindings.calls import Calls, DriverError, Handle


class MigAttributes(NamedTuple):
    """The resources of an instance."""

    sm_count: int
    memory_total_bytes: int


class MigCalls(Calls):
    """Instances have handles of their own; name, UUID and memory are read as for a GPU."""

    def mig_handles(self, handle: Handle) -> dict[int, Handle]:
        """The instances, by the driver's index; the numbers may have gaps."""
        found = {}
        for index in range(int(self._call("nvmlDeviceGetMaxMigDeviceCount", handle))):
            try:
                found[index] = Handle(
                    self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                )
            except DriverError:
                continue
        return found

    def gpu_instance_id(self, instance: Handle) -> int:
        return int(self._call("nvmlDeviceGetGpuInstanceId", instance))

    def compute_instance_id(self, instance: Handle) -> int:
        return int(self._call("nvmlDeviceGetComputeInstanceId", instance))

    def mig_attributes(self, instance: Handle) -> MigAttributes:
        answer = self._call("nvmlDeviceGetAttributes_v2", instance)
        return MigAttributes(int(answer.multiprocessorCount), int(answer.memorySizeMB) * 1024**2)


def profile(name: str) -> str:
    """The profile in an instance's name: "1g.18gb" of "NVIDIA H200 MIG 1g.18gb"."""
    match = re.search(r"\bMIG (\S+)$", name)
    return match[1] if match else name
