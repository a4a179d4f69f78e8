"""How many warps of a kernel an SM can hold, and what keeps it from more.

Theoretical: from the launch and the limits of the chip, as NVIDIA's occupancy calculator has it.
What was reached, a profiler of kernels measures (`ncu`).
"""

from __future__ import annotations

from typing import NamedTuple

_WARP = 32
_REGISTERS = 65_536
"""Of an SM, from compute capability 7.0 to 12.0."""
_REGISTER_UNIT = 256
"""Registers are given to a warp in such portions, and to four warps at a time."""
_WARP_UNIT = 4


class _Limits(NamedTuple):
    """Of an SM. `reserved_bytes` of shared memory CUDA takes for itself in each block."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = 1024


_KIB = 1024
_LIMITS = {
    "7.0": _Limits(64, 32, 96 * _KIB, 256, 0),
    "7.5": _Limits(32, 16, 64 * _KIB, 256, 0),
    "8.0": _Limits(64, 32, 164 * _KIB),
    "8.6": _Limits(48, 16, 100 * _KIB),
    "8.7": _Limits(48, 16, 164 * _KIB),
    "8.9": _Limits(48, 24, 100 * _KIB),
    "9.0": _Limits(64, 32, 228 * _KIB),
    "10.0": _Limits(64, 32, 228 * _KIB),
    "10.3": _Limits(64, 32, 228 * _KIB),
    "12.0": _Limits(48, 24, 100 * _KIB),
}
"""CUDA C++ Programming Guide, technical specifications per compute capability."""


class Occupancy(NamedTuple):
    """Of the warps that an SM can hold; `limiter` is what allows the fewest blocks."""

    percent: float
    blocks: int
    limiter: str


def occupancy(capability: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """Of blocks of so many threads, registers a thread and bytes of shared memory.

    None for a compute capability whose limits are not known, and for a block that no SM can hold.
    """
    limits = _LIMITS.get(capability)
    if limits is None or threads < 1:
        return None
    warps = -(-threads // _WARP)
    most = {"blocks": limits.blocks, "warps": limits.warps // warps}
    if registers > 0:
        of_warp = _up(registers * _WARP, _REGISTER_UNIT)
        most["registers"] = _REGISTERS // of_warp // _WARP_UNIT * _WARP_UNIT // warps
    of_block = _up(max(0, shared_bytes) + limits.reserved_bytes, limits.shared_unit)
    if of_block:
        most["shared memory"] = limits.shared_bytes // of_block
    limiter = min(most, key=lambda name: most[name])
    if not most[limiter]:
        return None
    percent = 100.0 * most[limiter] * warps / limits.warps
    return Occupancy(percent, most[limiter], "nothing" if percent == 100.0 else limiter)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
