"""The driver's management library (NVML) with types: the one place that touches `pynvml`.

Each method is one call. It returns plain numbers and strings in this program's units, or raises
`DriverError` with a reason for people. Handles, samples and requests are opaque objects.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NewType

from gputui.text import clean

Handle = NewType("Handle", object)
GpmSample = NewType("GpmSample", object)

NOT_SUPPORTED = 3
NO_PERMISSION = 4
INVALID_ARGUMENT = 2
NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
ARGUMENT_VERSION_MISMATCH = 25

_PROCESS_WINDOW_US = 2_000_000

_REASONS = {
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission: run as root, or ask the administrator",
    9: "the NVIDIA driver is not loaded: run `sudo modprobe nvidia`, or reboot",
    12: "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    FUNCTION_NOT_FOUND: "unknown to this driver: a newer one is needed",
    GPU_IS_LOST: "the GPU is lost (it fell off the bus): see dmesg for its Xid, then reboot",
    16: "the GPU needs a reset: run `nvidia-smi --gpu-reset` as root, or reboot",
    18: (
        "driver/library version mismatch: the driver was updated while its old kernel module "
        "is still loaded; reboot, or reload the module"
    ),
    21: "the driver has no figure yet",
}


class DriverError(Exception):
    """A call that gave no answer. `code` is NVML's, 999 for an answer that makes no sense."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of GPU memory. `used` leaves `reserved` out, except where `reserved` is None."""

    total: int
    used: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU by the driver's word; `memory_bytes` is None where it will not tell."""

    pid: int
    memory_bytes: int | None


class GpmRequest:
    """The block that one GPM query is asked with and answered in; made once, used each time."""

    def __init__(self, block: Any, identifiers: Sequence[int]) -> None:
        self.block = block
        self.identifiers = tuple(identifiers)


class Library:
    """NVML, loaded and initialized by the constructor. Raises `DriverError`."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise DriverError(
                12, "the Python package nvidia-ml-py is missing: pip install nvidia-ml-py"
            ) from error
        try:
            self._call("nvmlInit")
        except DriverError as error:
            if error.code == NO_PERMISSION:
                raise DriverError(
                    error.code,
                    "no permission to use the NVIDIA driver: this user needs read and write "
                    "access to /dev/nvidiactl and /dev/nvidia*",
                ) from error
            raise

    def shutdown(self) -> None:
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        return clean(str(self._call("nvmlSystemGetDriverVersion")), 80)

    def cuda_driver_version(self) -> str:
        version = int(self._call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def device_count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        return Handle(self._call("nvmlDeviceGetHandleByIndex", index))

    def index_of_uuid(self, uuid: str) -> int:
        """Index of the GPU with this UUID, or of the GPU that holds this MIG instance."""
        handle = self._call("nvmlDeviceGetHandleByUUID", uuid)
        if uuid.startswith("MIG-"):
            handle = self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return int(self._call("nvmlDeviceGetIndex", handle))

    # What does not change.

    def name(self, handle: Handle) -> str:
        return clean(str(self._call("nvmlDeviceGetName", handle)), 96)

    def uuid(self, handle: Handle) -> str:
        return clean(str(self._call("nvmlDeviceGetUUID", handle)), 96)

    def pci_bus_id(self, handle: Handle) -> str:
        return clean(str(self._call("nvmlDeviceGetPciInfo", handle).busId), 32)

    def compute_capability(self, handle: Handle) -> str:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{major}.{minor}"

    def core_count(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetNumGpuCores", handle))

    def memory_bus_width_bits(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMemoryBusWidth", handle))

    def max_sm_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxClockInfo", handle, self._nvml.NVML_CLOCK_SM))

    def max_memory_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxClockInfo", handle, self._nvml.NVML_CLOCK_MEM))

    def slowdown_celsius(self, handle: Handle) -> float:
        threshold = self._nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return float(self._call("nvmlDeviceGetTemperatureThreshold", handle, threshold))

    def max_pcie_generation(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxPcieLinkGeneration", handle))

    def max_pcie_width(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxPcieLinkWidth", handle))

    def mig_enabled(self, handle: Handle) -> bool:
        try:
            return bool(self._call("nvmlDeviceGetMigMode", handle)[0])
        except DriverError as error:
            if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                return False
            raise

    # What a tick reads: microseconds each.

    def utilization_percent(self, handle: Handle) -> float:
        """Share of the driver's last sample window (1/6 to 1 s) in which a kernel ran."""
        return float(self._call("nvmlDeviceGetUtilizationRates", handle).gpu)

    def memory(self, handle: Handle) -> Memory:
        """By the second version of the call, whose figures are nvidia-smi's; else the first."""
        try:
            version = self._nvml.nvmlMemory_v2
            info = self._call("nvmlDeviceGetMemoryInfo", handle, version)
            return Memory(int(info.total), int(info.used), int(info.reserved))
        except DriverError as error:
            if error.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
        info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return Memory(int(info.total), int(info.used), None)

    def power_watts(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetPowerUsage", handle)) / 1000

    def power_limit_watts(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetEnforcedPowerLimit", handle)) / 1000

    def temperature_celsius(self, handle: Handle) -> float:
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return float(
            self._newest("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", handle, sensor)
        )

    def sm_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_MEM))

    def clock_event_bits(self, handle: Handle) -> int:
        """Why the clocks are what they are, as the driver's bit mask."""
        return int(
            self._newest(
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",
                handle,
            )
        )

    # Processes.

    def processes(self, handle: Handle) -> list[GpuProcess]:
        """Processes with a compute or graphics context, once each."""
        found: dict[int, GpuProcess] = {}
        supported = False
        failure: DriverError | None = None
        for kind in ("Compute", "Graphics"):
            call = f"nvmlDeviceGet{kind}RunningProcesses"
            try:
                listed = self._newest(f"{call}_v3", f"{call}_v2", handle)
                supported = True
            except DriverError as error:
                failure = failure or error
                continue
            for entry in listed:
                memory = None if entry.usedGpuMemory is None else int(entry.usedGpuMemory)
                known = found.get(int(entry.pid))
                if known is None or (memory or 0) > (known.memory_bytes or 0):
                    found[int(entry.pid)] = GpuProcess(int(entry.pid), memory)
        if failure is not None and not supported:
            raise failure
        return list(found.values())

    def process_sm_percent(self, handle: Handle) -> dict[int, float]:
        """SM utilization by pid: the newest sample of each of the last two seconds.

        The driver samples at most a second apart, and only processes that did something (nvml.h,
        nvmlDeviceGetProcessUtilization), so a pid that is not there did nothing.
        """
        since_us = time.time_ns() // 1000 - _PROCESS_WINDOW_US
        try:
            samples = self._call("nvmlDeviceGetProcessUtilization", handle, since_us)
        except DriverError as error:
            # NOT_FOUND, and success with nothing in it (raised as code 0), mean no sample.
            if error.code in (NOT_FOUND, 0):
                return {}
            raise
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            pid, stamp, percent = int(sample.pid), int(sample.timeStamp), float(sample.smUtil)
            if percent <= 100 and stamp > newest.get(pid, (0, 0.0))[0]:
                newest[pid] = (stamp, percent)
        return {pid: percent for pid, (_, percent) in newest.items()}

    # GPM: hardware counters, Hopper and later.

    def gpm_supported(self, handle: Handle) -> bool:
        return bool(self._call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)

    def gpm_allocate(self) -> GpmSample:
        return GpmSample(self._call("nvmlGpmSampleAlloc"))

    def gpm_free(self, sample: GpmSample) -> None:
        self._call("nvmlGpmSampleFree", sample)

    def gpm_sample(self, handle: Handle, sample: GpmSample) -> None:
        self._call("nvmlGpmSampleGet", handle, sample)

    def gpm_request(self, identifiers: Sequence[int]) -> GpmRequest:
        block = self._nvml.c_nvmlGpmMetricsGet_t()
        block.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        block.numMetrics = len(identifiers)
        for metric, identifier in zip(block.metrics, identifiers, strict=False):
            metric.metricId = identifier
        return GpmRequest(block, identifiers)

    def gpm_metrics(
        self, request: GpmRequest, first: GpmSample, second: GpmSample
    ) -> dict[int, float | str]:
        """By metric id, the figure between two samples, or the reason why there is none."""
        block = request.block
        block.sample1, block.sample2 = first, second
        self._call("nvmlGpmMetricsGet", block)
        answers: dict[int, float | str] = {}
        for metric, identifier in zip(block.metrics, request.identifiers, strict=False):
            code, value = int(metric.nvmlReturn), float(metric.value)
            if code != 0:
                answers[identifier] = self._reason(code)
            elif not math.isfinite(value):
                answers[identifier] = "the counters gave no figure for this window"
            else:
                answers[identifier] = value
        return answers

    # How a call is made.

    def _call(self, name: str, *arguments: object) -> Any:
        function: Callable[..., Any] = getattr(self._nvml, name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise DriverError(int(error.value), self._reason(int(error.value))) from None
        except (UnicodeDecodeError, TypeError, ValueError) as error:
            raise DriverError(999, f"the driver's answer makes no sense: {error}") from error

    def _newest(self, name: str, older: str, *arguments: object) -> Any:
        """`name`'s answer, or `older`'s where the driver does not have `name`."""
        try:
            return self._call(name, *arguments)
        except DriverError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        return self._call(older, *arguments)

    def _reason(self, code: int) -> str:
        if known := _REASONS.get(code):
            return known
        words = clean(str(self._nvml.NVMLError(code)), 120).rstrip(".")
        return f"NVML answered {words} ({code})"
