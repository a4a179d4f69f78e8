"""The processes on a GPU, and how much of it each uses."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from gputui.collect.nvml.bindings.calls import NOT_FOUND, Calls, DriverError, Handle

_WINDOW_US = 2_000_000
_NO_INSTANCE = 0xFFFFFFFF

Kind = Literal["C", "G", "C+G"]


class GpuProcess(NamedTuple):
    """A process on a GPU, as the driver lists it; `memory_bytes` is None if the driver does not
    say.
    """

    pid: int
    memory_bytes: int | None
    kind: Kind = "C"
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class ProcessUse(NamedTuple):
    """A process's recent use of a GPU, in percent of the time."""

    sm: float
    memory_bandwidth: float
    encoder: float
    decoder: float


class ProcessCalls(Calls):
    """Calls that take tens of microseconds to milliseconds."""

    def processes(self, handle: Handle) -> list[GpuProcess]:
        """Processes with a compute or graphics context, once each (per MIG instance)."""
        found: dict[tuple[int, int | None, int | None], GpuProcess] = {}
        supported = False
        failure: DriverError | None = None
        kinds: tuple[tuple[str, Kind], ...] = (("Compute", "C"), ("Graphics", "G"))
        for name, kind in kinds:
            call = f"nvmlDeviceGet{name}RunningProcesses"
            try:
                listed = self._newest(f"{call}_v3", f"{call}_v2", handle)
                supported = True
            except DriverError as error:
                failure = failure or error
                continue
            for entry in listed:
                memory = None if entry.usedGpuMemory is None else int(entry.usedGpuMemory)
                key = (
                    int(entry.pid),
                    _instance(entry.gpuInstanceId),
                    _instance(entry.computeInstanceId),
                )
                known = found.get(key)
                both: Kind = kind
                if known is not None:
                    both = kind if known.kind == kind else "C+G"
                    if (known.memory_bytes or 0) >= (memory or 0):
                        memory = known.memory_bytes
                found[key] = GpuProcess(key[0], memory, both, key[1], key[2])
        if failure is not None and not supported:
            raise failure
        return list(found.values())

    def process_use(self, handle: Handle) -> dict[int, ProcessUse]:
        """Use of the GPU by pid: the newest sample of each from the last two seconds.

        The driver samples at most a second apart, and only active processes (nvml.h,
        nvmlDeviceGetProcessUtilization), so a missing pid was idle.
        """
        since_us = time.time_ns() // 1000 - _WINDOW_US
        try:
            samples = self._call("nvmlDeviceGetProcessUtilization", handle, since_us)
        except DriverError as error:
            # NOT_FOUND, and success with an empty list (raised as code 0), mean no sample.
            if error.code in (NOT_FOUND, 0):
                return {}
            raise
        newest: dict[int, tuple[int, ProcessUse]] = {}
        for sample in samples:
            pid, stamp = int(sample.pid), int(sample.timeStamp)
            use = ProcessUse(
                float(sample.smUtil),
                float(sample.memUtil),
                float(sample.encUtil),
                float(sample.decUtil),
            )
            if max(use) <= 100 and (pid not in newest or stamp > newest[pid][0]):
                newest[pid] = (stamp, use)
        return {pid: use for pid, (_, use) in newest.items()}


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
