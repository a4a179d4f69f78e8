"""Where a workload computes: the requested device, its memory, its precision."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from .declaration import FigureValue
from .errors import CannotRun, OutOfMemory

NO_MEMORY_COUNT = "torch counts memory only on CUDA devices"

# Ampere: the first compute capability with TF32 tensor cores (CUDA C++ Programming Guide).
_TF32_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Precision:
    """The type of the tensors, and what the matrix units actually compute in."""

    dtype: torch.dtype
    effective: str


def find_device(asked: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:N"; "auto" is CUDA if available.

    Raises CannotRun if CUDA is requested but unavailable.
    """
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "the driver shows no GPU" if torch.version.cuda else "it was built without CUDA"
        raise CannotRun(
            f"device: {asked} is not available: torch {torch.__version__} sees no CUDA device "
            f"({why}); use --device cpu"
        )
    index = int(asked.removeprefix("cuda:")) if ":" in asked else 0
    count = torch.cuda.device_count()
    if index >= count:
        raise CannotRun(f"device: {asked} is not available: torch sees cuda:0 to cuda:{count - 1}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """The device's common name: "NVIDIA H200", "CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def free_bytes(device: torch.device) -> int:
    """Memory available to an allocation now: free on the GPU, or available on the host."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return free
    return int(psutil.virtual_memory().available)


def synchronize(device: torch.device) -> None:
    """Wait for all work submitted to the device. The CPU's is done on submission."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_precision(name: str, device: torch.device) -> Precision:
    """Make `name` (fp32, tf32, bf16, fp16) the process's precision and say what that means.

    fp32 is IEEE single precision: torch may otherwise run fp32 matrix products in TF32, which keeps
    10 of the 23 bits. Raises CannotRun for tf32 if the device has none.
    """
    if name == "tf32":
        if device.type == "cpu" or torch.cuda.get_device_capability(device) < _TF32_CAPABILITY:
            raise CannotRun(
                f"precision: tf32 needs a GPU of compute capability 8.0 or later; {device} "
                "has no TF32; use fp32"
            )
        torch.set_float32_matmul_precision("high")
        return Precision(torch.float32, "fp32 (tf32)")
    torch.set_float32_matmul_precision("highest")
    match name:
        case "bf16":
            return Precision(torch.bfloat16, "bf16")
        case "fp16":
            return Precision(torch.float16, "fp16")
        case _:
            return Precision(torch.float32, "fp32 (ieee)")


@contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Turn a failed allocation, on the GPU or on the host, into OutOfMemory with one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(_what_was_tried(str(error) or "the host has no more")) from error


def _what_was_tried(message: str) -> str:
    """What was requested and what was free, without torch's own advice."""
    line = " ".join(message.split())
    sentences = re.split(r"(?<=\.) (?=[A-Z])", line)
    attempts = [number for number, text in enumerate(sentences) if "ried to allocate" in text]
    first = attempts[0] if attempts else 0
    return " ".join(sentences[first : first + 2])[:400]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation, on the GPU or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def release_memory(device: torch.device) -> None:
    """Release unreferenced memory, so that the next row starts like the first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> tuple[dict[str, FigureValue], dict[str, str]]:
    """Peak memory allocated and reserved, as figures, and the reasons for those that are None."""
    if device.type == "cuda":
        return {
            "peak_memory_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "peak_memory_reserved_bytes": torch.cuda.max_memory_reserved(device),
        }, {}
    peaks = ("peak_memory_allocated_bytes", "peak_memory_reserved_bytes")
    return dict.fromkeys(peaks), dict.fromkeys(peaks, NO_MEMORY_COUNT)
