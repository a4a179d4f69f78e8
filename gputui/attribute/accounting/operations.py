"""Operations of a device as the accounting sees them: when, from which call, under which leaf."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.repetition import cue_of, family
from gputui.attribute.arrays import Bools, Int64s, Slots, pick
from gputui.attribute.range_kernels import NO_KERNEL
from gputui.model.leaves import Leaf, leaf_of_kernel
from gputui.ring.layout import RecordKind

FIRST_KERNEL = 64
"""Numbers of kernel families begin here; below are directions of copies."""

_PAGEABLE = 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class Columns(NamedTuple):
    """Operations, a column a fact. `called_ns` is 0 where the launch is not known; `widths` are
    the threads that a kernel was launched with, 0 where it is no link of a chain; `alike` is
    one number for launches of one kernel in one shape, -1 for copies; `nodes` are the ranges
    around the calls; `goes_on` marks
    the rest of an operation whose beginning is accounted for."""

    starts: Int64s
    ends: Int64s
    called_ns: Int64s
    returned_ns: Int64s
    threads: npt.NDArray[np.uint32]
    streams: npt.NDArray[np.uint32]
    widths: Int64s
    alike: Int64s
    nodes: Int64s
    leaves: npt.NDArray[np.uint8]
    goes_on: Bools

    def pick(self, rows: npt.NDArray[Any]) -> Columns:
        """Some of them: row numbers."""
        return Columns._make(column.take(rows) for column in self)

    @classmethod
    def join(cls, parts: list[Columns]) -> Columns:
        """All of them, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls._make(np.concatenate(column) for column in zip(*parts, strict=True))


class Kernels:
    """What names say, by kernel number: leaf, family, cue, whether a compiler fused it."""

    def __init__(self) -> None:
        self.leaves = np.full(256, Leaf.OTHER, np.uint8)
        self.families = np.zeros(256, np.uint32)
        self.cues = np.zeros(256, np.uint8)
        self.fused = np.zeros(256, np.bool_)
        self._numbers: dict[str, int] = {}

    def define(self, number: int, name: str) -> None:
        """A kernel's demangled name."""
        while number >= len(self.leaves):
            self.leaves = np.concatenate((self.leaves, np.full_like(self.leaves, Leaf.OTHER)))
            self.families = np.concatenate((self.families, np.zeros_like(self.families)))
            self.cues = np.concatenate((self.cues, np.zeros_like(self.cues)))
            self.fused = np.concatenate((self.fused, np.zeros_like(self.fused)))
        self.leaves[number] = leaf_of_kernel(name)
        known = self._numbers.setdefault(family(name), len(self._numbers))
        self.families[number] = FIRST_KERNEL + known
        self.cues[number] = cue_of(name)
        self.fused[number] = name.startswith("triton_")


def columns(
    records: Slots,
    calls: Slots,
    kernels: Int64s,
    starts: Int64s,
    ends: Int64s,
    threads: Int64s,
    known: Kernels,
) -> Columns:
    """Operations with their calls; `kernels` numbers those that are kernels or graphs as a whole,
    which were launched with so many `threads`, and is NO_KERNEL for others."""
    leaves = known.leaves.take(kernels, mode="clip")
    widths = threads
    if known.fused.any():
        widths = np.where(known.fused.take(kernels, mode="clip"), 0, threads)
    alike = kernels << 32 | records["d"]
    others = np.flatnonzero(kernels == NO_KERNEL)
    if len(others):
        leaves[others] = _leaves_of_copies(pick(records, others))
        widths = widths.copy() if widths is threads else widths
        widths[others] = 0
        alike[others] = -1
    called_ns, returned_ns = calls["start"].copy(), calls["end"].copy()
    called_ns[calls["sequence"] < 0] = 0
    return Columns(
        starts,
        ends,
        called_ns,
        returned_ns,
        calls["thread"].astype(np.uint32),
        records["b"].astype(np.uint32),
        widths,
        alike,
        calls["node"].astype(np.int64),
        leaves,
        np.zeros(len(records), np.bool_),
    )


def _leaves_of_copies(records: Slots) -> npt.NDArray[np.uint8]:
    direction = records["sub"]
    over_bus = (records["kind"] == RecordKind.MEMCPY) & (
        (direction == _HOST_TO_DEVICE) | (direction == _DEVICE_TO_HOST)
    )
    pageable = (records["source_kind"] == _PAGEABLE) | (records["destination_kind"] == _PAGEABLE)
    bus = np.where(pageable, np.uint8(Leaf.COPY_PAGEABLE), np.uint8(Leaf.COPY_PINNED))
    return np.where(over_bus, bus, np.uint8(Leaf.COPY_DEVICE))
