"""The GPUs of this machine through NVML and GPM. This module has how NVML is called, what its
errors mean, and the calls about parts of a GPU: MIG instances, processes and hardware counters
(GPM). `bindings` has the calls about a GPU as a whole, split by pace, and the library of all
calls."""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NewType

from gputui.base import GputuiError
from gputui.base.sanitize import sanitize

Handle = NewType("Handle", object)

# nvmlReturn_t of nvml.h, of which nvidia-ml-py has the names only once it is imported.
INVALID_ARGUMENT = 2

NOT_SUPPORTED = 3

NO_PERMISSION = 4

NOT_FOUND = 6

TIMEOUT = 10

FUNCTION_NOT_FOUND = 13

GPU_IS_LOST = 15

ARGUMENT_VERSION_MISMATCH = 25

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

# nvmlValueType_t → the member of nvmlValue_t that holds it.
_VALUE_OF_TYPE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}


class DriverError(GputuiError):
    """A call that gave no usable answer. `code` is NVML's, 999 for an answer that makes no
    sense.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Calls:
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

    def fields(
        self, handle: Handle, identifiers: Sequence[int | tuple[int, int]]
    ) -> dict[int, int | float | DriverError]:
        """Several driver fields in one call, each with its value or its own error.

        An identifier is a field, or a field and its scope.
        """
        answers: dict[int, int | float | DriverError] = {}
        for entry in self._call("nvmlDeviceGetFieldValues", handle, list(identifiers)):
            code, member = int(entry.nvmlReturn), _VALUE_OF_TYPE.get(int(entry.valueType))
            if code != 0:
                answers[int(entry.fieldId)] = self._error(code)
            elif member is None:
                answers[int(entry.fieldId)] = DriverError(999, "the driver's answer makes no sense")
            else:
                answers[int(entry.fieldId)] = getattr(entry.value, member)
        return answers

    def field(self, handle: Handle, identifier: int) -> int | float:
        """The value of one of NVML's fields. Raises DriverError with the field's own reason."""
        answer = self.fields(handle, [identifier])[identifier]
        if isinstance(answer, DriverError):
            raise answer
        return answer

    def _call(self, name: str, *arguments: object) -> Any:
        function: Callable[..., Any] = getattr(self._nvml, name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise self._error(int(error.value)) from None
        except (UnicodeDecodeError, TypeError, ValueError) as error:
            raise DriverError(999, f"the driver's answer makes no sense: {error}") from error

    def _newest(self, name: str, older: str, *arguments: object) -> Any:
        """`name`'s answer, or `older`'s if the driver does not have `name`."""
        try:
            return self._call(name, *arguments)
        except DriverError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        return self._call(older, *arguments)

    def _error(self, code: int) -> DriverError:
        return DriverError(code, self._reason(code))

    def _reason(self, code: int) -> str:
        if reason := _REASONS.get(code):
            return reason
        words = sanitize(str(self._nvml.NVMLError(code)), 120).rstrip(".")
        return f"NVML answered {words} ({code})"


def start_driver() -> None:
    """Begins to start the driver, which takes a while, and returns at once: `Calls` then waits for
    the rest. The driver stays initialized. If something is wrong, `Calls` reports it."""

    def start() -> None:
        with contextlib.suppress(DriverError):
            Calls()

    threading.Thread(target=start, name="nvml-start", daemon=True).start()


# --- What is within a GPU.

# MIG: the instances a GPU is divided into.


class MigAttributes(NamedTuple):
    """The resources of an instance."""

    sm_count: int
    memory_total_bytes: int


class MigCalls(Calls):
    """Instances have handles of their own; name, UUID and memory are read as for a GPU."""

    def mig_handles(self, handle: Handle) -> dict[int, Handle]:
        """The instances, by the driver's index; the numbers may have gaps."""
        instances = {}
        for index in range(int(self._call("nvmlDeviceGetMaxMigDeviceCount", handle))):
            try:
                instances[index] = Handle(
                    self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                )
            except DriverError:
                continue
        return instances

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


# The processes on a GPU, and how much of it each uses.

_WINDOW_US = 2_000_000

# What the driver answers for a process outside MIG.
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
        by_instance: dict[tuple[int, int | None, int | None], GpuProcess] = {}
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
                listed_before = by_instance.get(key)
                both: Kind = kind
                if listed_before is not None:
                    both = kind if listed_before.kind == kind else "C+G"
                    if (listed_before.memory_bytes or 0) >= (memory or 0):
                        memory = listed_before.memory_bytes
                by_instance[key] = GpuProcess(key[0], memory, both, key[1], key[2])
        if failure is not None and not supported:
            raise failure
        return list(by_instance.values())

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


# GPM: hardware counters, Hopper and later.

GpmSample = NewType("GpmSample", object)

# Held for nvmlGpmMetricsGet only; gpm_metrics says why.
_METRICS_LOCK = threading.Lock()

# Shorter than a tick waits for a GPU.
_LOCK_TIMEOUT_S = 0.3


class GpmRequest:
    """The buffer of a GPM query and its answer; made once, reused each time."""

    def __init__(self, block: Any, identifiers: Sequence[int]) -> None:
        self.block = block
        self.identifiers = tuple(identifiers)


class CounterCalls(Calls):
    """Takes samples, and computes metrics between two of them."""

    def gpm_supported(self, handle: Handle) -> bool:
        return bool(self._call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)

    def gpm_allocate(self) -> GpmSample:
        return GpmSample(self._call("nvmlGpmSampleAlloc"))

    def gpm_free(self, sample: GpmSample) -> None:
        self._call("nvmlGpmSampleFree", sample)

    def gpm_sample(self, handle: Handle, sample: GpmSample, gpu_instance_id: int | None) -> None:
        """A sample of the whole GPU, or of one MIG instance."""
        if gpu_instance_id is None:
            self._call("nvmlGpmSampleGet", handle, sample)
        else:
            self._call("nvmlGpmMigSampleGet", handle, gpu_instance_id, sample)

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
        """By metric id, the value between two samples, or the reason why there is none."""
        block = request.block
        block.sample1, block.sample2 = first, second
        # The driver computes with state shared between threads (see GpmReader.warm). The wait is
        # bounded, so that a GPU whose call hangs costs the others no more than that.
        if not _METRICS_LOCK.acquire(timeout=_LOCK_TIMEOUT_S):
            raise DriverError(999, "the counters of another GPU do not answer")
        try:
            self._call("nvmlGpmMetricsGet", block)
        finally:
            _METRICS_LOCK.release()
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
