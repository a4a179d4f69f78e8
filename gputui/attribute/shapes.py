"""Launch shapes of one process (grids, blocks, registers, shared memory) and their launches."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from gputui.attribute.arrays import Int64s, Slots
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.numbering import Geometry, Numbering
from gputui.model.events import LaunchShape, ShapeLaunches

MOST = 1 << 16
"""Shapes per process: the library numbers fewer, from 1."""

_UNKNOWN, _UNNUMBERED = 0, -1
_LOW = 0xFFFF_FFFF


class Shapes:
    """Resolves the ring's shape numbers, and counts their launches.

    A shape gets its session number when one of its kernels is first seen: only then is the kernel's
    own number certain.
    """

    def __init__(self, numbering: Numbering, threads: Callable[[int, int], None]) -> None:
        """`threads` is given each of the ring's numbers, and how many threads that shape has."""
        self._numbering = numbering
        self._define_threads = threads
        self._geometries: dict[int, Geometry] = {}
        self._numbers = np.zeros(1, np.int64)
        self._launches = np.zeros(1, np.int64)
        self.defined: list[LaunchShape] = []

    def define(self, records: Slots) -> None:
        """Add LAUNCH_SHAPE records."""
        for record in records:
            number = int(record["d"])
            if not 0 < number < MOST:
                continue
            start, end, value = int(record["start"]), int(record["end"]), int(record["value"])
            self._geometries[number] = (
                start & _LOW, start >> 32, end & _LOW, end >> 32, value & _LOW, value >> 32,
                int(record["a"]), int(record["b"]), int(record["c"]),
            )  # fmt: skip
            if number >= len(self._numbers):
                more = np.zeros(number + 1 - len(self._numbers), np.int64)
                self._numbers = np.append(self._numbers, more)
                self._launches = np.append(self._launches, more)
            self._define_threads(number, min(prod(self._geometries[number][:6]), 1 << 62))
            self._numbers[number] = _UNNUMBERED

    def count(self, records: Slots, kernels: Int64s, now_ns: int) -> Int64s:
        """The session's number of each kernel's shape, 0 if unknown. Counts its launches."""
        ids = np.where(records["d"] < len(self._numbers), records["d"], 0).astype(np.int64)
        numbers = self._numbers[ids]
        if (numbers == _UNNUMBERED).any():
            for first in np.unique(ids[numbers == _UNNUMBERED]).tolist():
                kernel = int(kernels[np.argmax(ids == first)])
                self._numbers[first] = self._number(kernel, self._geometries[first], now_ns)
            numbers = self._numbers[ids]
        self._launches += np.bincount(ids, minlength=len(self._launches))
        return numbers

    def collect_parts(self, _: Collection) -> DeltaParts:
        seen = np.flatnonzero((self._launches > 0) & (self._numbers > _UNKNOWN))
        launches = tuple(
            ShapeLaunches(number, count)
            for number, count in zip(
                self._numbers[seen].tolist(), self._launches[seen].tolist(), strict=True
            )
        )
        self._launches[:] = 0
        return {"shapes": launches}

    def _number(self, kernel: int, geometry: Geometry, now_ns: int) -> int:
        number, is_new = self._numbering.shape(kernel, geometry)
        if is_new:
            self.defined.append(
                LaunchShape(
                    time_ns=now_ns,
                    shape=number,
                    kernel=kernel,
                    grid=geometry[:3],
                    block=geometry[3:6],
                    registers_per_thread=geometry[6],
                    static_shared_bytes=geometry[7],
                    dynamic_shared_bytes=geometry[8],
                )
            )
        return number
