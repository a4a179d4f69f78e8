"""Collectives: what they are called, which of them make ranks wait, how much a link carries."""

from __future__ import annotations

import re

OTHER = "other"

SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have come. From a broadcast, a reduce or a send a rank may
leave early, or wait for one peer only."""

OF_SHARES = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
"""NCCL's message size is one rank's share of these."""

_WORDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast",
    "barrier": "barrier", "reduce": "reduce", "send": "send", "recv": "recv", "scatter": "scatter",
    "gather": "gather",
}  # fmt: skip
_KERNEL = re.compile(r"^(?:void )?nccl[A-Za-z]*Kernel_([A-Za-z]+)")


def kind_of(name: str) -> str:
    """What a range does that bears a collective's name, as NCCL's "ncclAllReduce" or torch's
    "all_reduce"; "other" if it is none."""
    word = re.sub(r"^nccl|^gloo:|[^a-z]", "", name.lower())
    return _WORDS.get(word, OTHER)


def kind_of_kernel(name: str) -> str | None:
    """What a kernel of NCCL does by its demangled name; None if it is none of NCCL's."""
    match = _KERNEL.match(name)
    return kind_of(match[1]) if match else None


def size_class(size_bytes: int) -> int:
    """Powers of two: messages of 2ⁿ up to 2ⁿ⁺¹ bytes are of class n + 1, without a size 0."""
    return max(0, size_bytes).bit_length()


def total_bytes(kind: str, message_bytes: int, ranks: int) -> int:
    """The size that bandwidths refer to (nccl-tests, PERFORMANCE.md), of NCCL's message size."""
    return message_bytes * ranks if kind in OF_SHARES else message_bytes


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes that each rank sends a byte of the total size, with an algorithm of point-to-point
    steps (nccl-tests, PERFORMANCE.md)."""
    if ranks < 2:
        return 0.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in OF_SHARES:
        return (ranks - 1) / ranks
    return 1.0
