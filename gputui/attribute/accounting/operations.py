"""Operations of a device as the accounting sees them: when, from which call, under which leaf."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.repetition import cue_of, family
from gputui.attribute.arrays import Bools, Int64s, Slots, pick
from gputui.attribute.records import NO_KERNEL, TimedOperations
from gputui.model.leaves import CHANGES_LAYOUT, Leaf, leaf_of_kernel
from gputui.ring.layout import RecordKind

_MEMCPY = int(RecordKind.MEMCPY)  # NumPy compares with an enum three times as slowly
FIRST_KERNEL = 64
"""Codes of kernels, and of their families, begin here; below are directions of copies."""

_MEMSET = 32
_PAGEABLE = 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class Columns(NamedTuple):
    """Operations, a column a fact. `called_ns` is 0 where the launch is not known; `codes` are
    kernels' numbers, from FIRST_KERNEL on, and below them those of copies; `shapes` are in which
    shape a kernel was launched; `nodes` are the ranges around the calls; `goes_on` marks the rest
    of an operation whose beginning is accounted for."""

    starts: Int64s
    ends: Int64s
    called_ns: Int64s
    returned_ns: Int64s
    threads: npt.NDArray[np.uint32]
    streams: npt.NDArray[np.uint32]
    codes: npt.NDArray[np.uint32]
    shapes: npt.NDArray[np.uint32]
    nodes: Int64s
    leaves: npt.NDArray[np.uint8]
    goes_on: Bools

    @property
    def are_apart(self) -> bool:
        """Whether each begins after the one before has ended."""
        return bool((self.starts[1:] >= self.ends[:-1]).all())

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
    """What names say, by kernel number: leaf, family, cue, whether it is no link of a chain; and by
    the number of a shape, how many threads it has."""

    def __init__(self) -> None:
        self.leaves = np.full(256, Leaf.OTHER, np.uint8)
        self.families = np.zeros(256, np.uint32)
        self.cues = np.zeros(256, np.uint8)
        self.unlinked = np.zeros(256, np.bool_)
        self._numbers: dict[str, int] = {}
        self._threads = np.zeros(1, np.int64)

    def define(self, number: int, name: str) -> None:
        """A kernel's demangled name."""
        while number >= len(self.leaves):
            self.leaves = np.concatenate((self.leaves, np.full_like(self.leaves, Leaf.OTHER)))
            self.families = np.concatenate((self.families, np.zeros_like(self.families)))
            self.cues = np.concatenate((self.cues, np.zeros_like(self.cues)))
            self.unlinked = np.concatenate((self.unlinked, np.zeros_like(self.unlinked)))
        self.leaves[number] = leaf_of_kernel(name)
        known = self._numbers.setdefault(family(name), len(self._numbers))
        self.families[number] = FIRST_KERNEL + known
        self.cues[number] = cue_of(name)
        self.unlinked[number] = name.startswith("triton_") or bool(CHANGES_LAYOUT.search(name))

    def define_shape(self, number: int, threads: int) -> None:
        """With how many threads a kernel of this shape is launched."""
        if number >= len(self._threads):
            more = np.zeros(number + 1 - len(self._threads), np.int64)
            self._threads = np.append(self._threads, more)
        self._threads[number] = threads

    def widths(self, codes: npt.NDArray[np.uint32], shapes: npt.NDArray[np.uint32]) -> Int64s:
        """With how many threads these kernels were launched; 0 where it is not known, where a
        compiler has fused all that it could, and of changes of layout, which have a cure of their
        own."""
        widths = self._threads.take(np.where(shapes < len(self._threads), shapes, 0))
        widths[self.unlinked.take(codes.astype(np.int64) - FIRST_KERNEL, mode="clip")] = 0
        return widths


def columns(
    records: Slots,
    found: TimedOperations,
    known: Kernels,
) -> Columns:
    """Operations as the accounting sees them."""
    kernels = found.kernels
    leaves = known.leaves.take(kernels, mode="clip")
    codes = kernels.astype(np.uint32)
    codes += FIRST_KERNEL
    others = np.flatnonzero(kernels == NO_KERNEL)
    if len(others):
        copied = pick(records, others)
        directions = _COPY_CODES.take(copied["sub"])
        directions[copied["kind"] != _MEMCPY] = _MEMSET
        codes[others] = directions
        pageable = copied["source_kind"] == _PAGEABLE
        pageable |= copied["destination_kind"] == _PAGEABLE
        leaves[others] = _COPY_LEAVES[pageable.view(np.uint8), directions]
    return Columns(
        found.starts,
        found.ends,
        found.called_ns,
        found.returned_ns,
        found.threads,
        found.streams,
        codes,
        records["d"].copy(),
        found.nodes,
        leaves,
        np.zeros(len(records), np.bool_),
    )


_COPY_LEAVES = np.full((2, _MEMSET + 1), Leaf.COPY_DEVICE, np.uint8)
_COPY_LEAVES[0, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PINNED
_COPY_LEAVES[1, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PAGEABLE
"""By whether pageable memory is involved, and by the code."""

_COPY_CODES = np.minimum(np.arange(256), _MEMSET - 1).astype(np.uint8)
"""By a copy's direction."""
