"""The memory hierarchy, a level at a time: each read or copied by itself, past the caches above it.

The GPU's caches are read by a kernel of our own that goes over the same bytes again and again: a
pass of PyTorch's over a few MiB ends before its launch is paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..declaration import FigureValue
from ..devices import free_bytes, synchronize
from ..link import link_bytes_per_s, nvlink_bytes_per_s
from ..place import Place
from ..rows import Unsupported
from ..timing import measure, repeat

MIB = 2**20

SHARED, L2, HBM = "shared memory", "L2 cache", "HBM"
HOST, PCIE_TO, PCIE_FROM, NVLINK = "host DRAM", "PCIe to the GPU", "PCIe to the host", "NVLink"
GPU_LEVELS = (SHARED, L2, HBM, NVLINK, HOST, PCIE_TO, PCIE_FROM)
"""From the fastest to the slowest on a card with NVLink and PCIe (SXM)."""

_PASSES = 10
_HOST_PASSES = 7
# That a kernel reads of a cache: 10 ms at 6 TB/s, so that its launch is nothing beside it.
_ROUNDS_BYTES = 64 * 2**30

_LINK_BYTES = 256 * MIB
_HBM_BYTES = 2048 * MIB
# Arrays of host DRAM are so many times the largest host cache.
_BEYOND_CACHE = 8

_LEAST_HOST_BYTES = 256 * MIB
_MOST_HOST_BYTES = 2048 * MIB

_THREADS = 1024
# Of a block: two blocks of 1,024 threads fill an SM of any card since Volta.
_SHARED_BYTES = 32 * 1024

_SOURCE = """
extern "C" __global__ void read_global(const float4 *data, float *out, long long count, int rounds)
{
    float4 sum = {0, 0, 0, 0};
    long long step = (long long)gridDim.x * blockDim.x;
    for (int round = 0; round < rounds; ++round)
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            float4 v;
            /* Past the L1 cache; volatile, or the rounds would be one. */
            asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(data + i));
            sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
        }
    if (sum.x + sum.y + sum.z + sum.w == -1.0f)
        *out = sum.x;
}

extern "C" __global__ void read_shared(float *out, int rounds)
{
    __shared__ float4 data[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x)
        data[i] = make_float4(i, 1, 2, 3);
    __syncthreads();
    unsigned base = (unsigned)__cvta_generic_to_shared(data);
    float4 sum = {0, 0, 0, 0};
    for (int round = 0; round < rounds; ++round)
        for (int part = 0; part < 2; ++part) {
            float4 v;
            unsigned place = base + 16 * ((threadIdx.x + 1024 * part) & 2047);
            /* Volatile for the assembler, too: it takes what no store changes out of the loop. */
            asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(place));
            sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
        }
    if (sum.x + sum.y + sum.z + sum.w == -1.0f)
        *out = sum.x;
}
"""


class Levels:
    """Measures one level after the other on `place`; a level it lacks raises Unsupported."""

    def __init__(self, place: Place, largest_bytes: int) -> None:
        """No array is larger than `largest_bytes`."""
        self.place, self._largest = place, largest_bytes
        self._kernels: dict[str, Callable[..., None]] = {}
        if place.on_gpu:
            properties = torch.cuda.get_device_properties(place.device)
            self._sms, self._l2 = properties.multi_processor_count, properties.L2_cache_size

    @property
    def names(self) -> tuple[str, ...]:
        """The levels to measure, the fastest first."""
        return GPU_LEVELS if self.place.on_gpu else (HOST,)

    def measure(self, name: str) -> dict[str, FigureValue]:
        """`array_bytes`, `pass_ms`, `bytes_per_s` and `how` of a level, and `peak_bytes_per_s`
        where it is known.
        """
        match name:
            case "shared memory":
                return self._shared()
            case "L2 cache":
                # A quarter: H100's L2 is in two halves, and an SM's data may be kept in both.
                return self._read(self._l2 // 4 // MIB * MIB, "our kernel reads it again and again")
            case "HBM":
                size = min(_HBM_BYTES, self._largest, free_bytes(self.place.device) // 4)
                if size < 4 * self._l2:
                    raise Unsupported("largest is less than four times the L2 cache")
                figures = self._read(size, "our kernel reads an array larger than the L2 cache")
                return figures | {"peak_bytes_per_s": self.place.bytes_per_s}
            case "NVLink":
                return self._peer()
            case "host DRAM":
                return self._host()
            case _:
                return self._link(to_gpu=name == PCIE_TO)

    def _kernel(self, name: str) -> Callable[..., None]:
        if name not in self._kernels:
            build = getattr(torch.cuda, "_compile_kernel", None)
            if build is None:
                raise Unsupported("needs a torch that compiles kernels at run time (2.11 does)")
            try:
                self._kernels[name] = build(_SOURCE, name)
            except (RuntimeError, OSError) as error:
                line = " ".join(str(error).split())[:200]
                raise Unsupported(f"NVRTC cannot compile the kernel: {line}") from None
        return self._kernels[name]

    def _read(self, size: int, how: str) -> dict[str, FigureValue]:
        kernel, device = self._kernel("read_global"), self.place.device
        data = torch.ones(size // 4, device=device)
        out = torch.zeros(1, device=device)
        rounds = max(1, min(10_000, _ROUNDS_BYTES // size))
        grid = (2 * self._sms, 1, 1)

        def once() -> None:
            kernel(grid, (_THREADS, 1, 1), (data, out, size // 16, rounds))

        return self._timed(once, size, size * rounds, how)

    def _shared(self) -> dict[str, FigureValue]:
        kernel = self._kernel("read_shared")
        out = torch.zeros(1, device=self.place.device)
        blocks = 2 * self._sms
        rounds = 8 * _ROUNDS_BYTES // (blocks * _SHARED_BYTES)

        def once() -> None:
            kernel((blocks, 1, 1), (_THREADS, 1, 1), (out, rounds))

        how = "our kernel reads it, two blocks of 1,024 threads an SM"
        return self._timed(once, _SHARED_BYTES, blocks * _SHARED_BYTES * rounds, how)

    def _link(self, *, to_gpu: bool) -> dict[str, FigureValue]:
        host = torch.ones(_LINK_BYTES // 4, pin_memory=True)
        device = torch.ones(_LINK_BYTES // 4, device=self.place.device)
        source, target = (host, device) if to_gpu else (device, host)

        def once() -> Tensor:
            return target.copy_(source, non_blocking=True)

        figures = self._timed(once, _LINK_BYTES, _LINK_BYTES, "a copy of pinned memory")
        return figures | {"peak_bytes_per_s": link_bytes_per_s(self.place.device)}

    def _peer(self) -> dict[str, FigureValue]:
        device = self.place.device
        others = [number for number in range(torch.cuda.device_count()) if number != device.index]
        others = [
            number for number in others if torch.cuda.can_device_access_peer(device.index, number)
        ]
        if not others:
            raise Unsupported("no other GPU that this one reaches directly is visible")
        source = torch.ones(_LINK_BYTES // 4, device=device)
        target = torch.empty_like(source, device=torch.device("cuda", others[0]))

        def once() -> Tensor:
            return target.copy_(source, non_blocking=True)

        how = f"a copy to GPU {others[0]}, one direction; through PCIe where they have no NVLink"
        figures = self._timed(once, _LINK_BYTES, _LINK_BYTES, how)
        return figures | {"peak_bytes_per_s": nvlink_bytes_per_s(self.place.name)}

    def _host(self) -> dict[str, FigureValue]:
        size = min(
            max(_LEAST_HOST_BYTES, _BEYOND_CACHE * host_cache_bytes()),
            _MOST_HOST_BYTES,
            self._largest,
            free_bytes(torch.device("cpu")) // 4,
        )
        # Read only, as HBM is above: a copy reads what it overwrites, too, which nobody counts.
        # Each thread writes its part first, so that it lies in the memory next to that thread.
        source = torch.empty(size // 4).fill_(1.0)
        repeat(source.sum, 1, torch.device("cpu"))
        pass_ms = measure(source.sum, torch.device("cpu"), _HOST_PASSES).percentile(50)
        threads = torch.get_num_threads()
        return {
            "array_bytes": size,
            "pass_ms": pass_ms,
            "bytes_per_s": size / pass_ms * 1e3,
            "how": f"{threads} threads read an array past the host's caches",
        }

    def _timed(
        self, once: Callable[[], object], array_bytes: int, moved_bytes: int, how: str
    ) -> dict[str, FigureValue]:
        repeat(once, 2, self.place.device)
        pass_ms = measure(once, self.place.device, _PASSES).percentile(50)
        synchronize(self.place.device)
        return {
            "array_bytes": array_bytes,
            "pass_ms": pass_ms,
            "bytes_per_s": moved_bytes / pass_ms * 1e3,
            "how": how,
        }


def host_cache_bytes() -> int:
    """The largest cache of the first CPU core as Linux tells it; 0 where it does not."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes)


def level_of(array_bytes: int, arrays: int, l2_bytes: int | None) -> str:
    """Where a pass over `arrays` arrays finds its bytes: a cache that holds all of them, memory
    where they are many times larger; between the two, both.
    """
    cache, name, memory = (
        (host_cache_bytes(), "host cache", HOST) if l2_bytes is None else (l2_bytes, L2, HBM)
    )
    whole = array_bytes * arrays
    if cache and whole <= cache // 2:
        return name
    return memory if not cache or whole >= 4 * cache else f"{name} and {memory}"
