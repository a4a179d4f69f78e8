"""Numbers of processes, ranges, marks, kernels and launch shapes: one set per session, shared by
its runs.
"""

from __future__ import annotations

import threading

from gputui.model.events import MAX_KERNELS, MAX_SHAPES, OTHER_KERNELS

Geometry = tuple[int, int, int, int, int, int, int, int, int]
"""Grid x y z, block x y z, registers per thread, static and dynamic shared bytes per block."""


class Numbering:
    """Assigns numbers from 1. Shared by the readers of a session, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes = 0
        self._ranges = 0
        self._marks = 0
        self._kernels: dict[str, int] = {}
        self._shapes: dict[tuple[int, Geometry], int] = {}

    def process(self) -> int:
        """A number for a process that was attached or imported."""
        with self._lock:
            self._processes += 1
            return self._processes

    def range(self) -> int:
        """A number for a node of a process's range tree."""
        with self._lock:
            self._ranges += 1
            return self._ranges

    def mark(self) -> int:
        """A number for a mark's domain and name."""
        with self._lock:
            self._marks += 1
            return self._marks

    def kernel(self, mangled: str) -> tuple[int, str, bool]:
        """The number of a kernel name, the name it is stored under, and whether that is new."""
        with self._lock:
            if mangled not in self._kernels and len(self._kernels) >= MAX_KERNELS:
                mangled = OTHER_KERNELS
            number_before = self._kernels.get(mangled)
            if number_before is not None:
                return number_before, mangled, False
            number = len(self._kernels) + 1
            self._kernels[mangled] = number
            return number, mangled, True

    def shape(self, kernel: int, geometry: Geometry) -> tuple[int, bool]:
        """The number of a kernel's launch shape and whether that is new; 0 if the table is full."""
        with self._lock:
            number_before = self._shapes.get((kernel, geometry))
            if number_before is not None:
                return number_before, False
            if len(self._shapes) >= MAX_SHAPES:
                return 0, False
            number = len(self._shapes) + 1
            self._shapes[kernel, geometry] = number
            return number, True
