"""How many instances of each range launched each kernel, in themselves or in what is inside."""

from __future__ import annotations

import numpy as np

from gputui.events import RangeKernels
from gputui.sources.capture.arrays import Int64s, distinct, join
from gputui.sources.capture.instances import Instances
from gputui.sources.capture.nodes import Nodes

NO_KERNEL = -1
"""Stands for an operation that is none."""

_KERNEL_BITS = 24
_KERNEL_MASK = (1 << _KERNEL_BITS) - 1


class KernelsOfRanges:
    """Remembers, for the instances that are not finalised, the kernels already counted."""

    def __init__(self, nodes: Nodes, instances: Instances) -> None:
        self._nodes = nodes
        self._instances = instances
        self._new: list[Int64s] = []
        self._known = np.empty(0, np.int64)
        self._generations = np.empty(0, np.int64)

    def add(self, ids: Int64s, kernels: Int64s) -> None:
        """Kernels, each launched in the instance beside it."""
        wanted = (kernels != NO_KERNEL) & self._instances.alive(ids)
        if wanted.any():
            keys = self._instances.rows(ids[wanted]) << _KERNEL_BITS | kernels[wanted]
            self._new.append(distinct(keys))

    def collect(self) -> tuple[RangeKernels, ...]:
        """The first times since the last call. To be asked before instances are finalised."""
        self._forget_released()
        rows = join(self._new, np.int64)
        self._new = []
        found: list[Int64s] = []
        while len(rows):
            rows = distinct(rows)
            # What an instance launched before was counted in those around it then.
            rows = rows[~np.isin(rows, self._known, assume_unique=True)]
            found.append(rows)
            self._known = np.concatenate((self._known, rows))
            parents = self._instances.parent[rows >> _KERNEL_BITS]
            alive = self._instances.alive(parents)
            kernels = rows[alive] & _KERNEL_MASK
            rows = self._instances.rows(parents[alive]) << _KERNEL_BITS | kernels
        self._remember()
        fresh = join(found, np.int64)
        if not len(fresh):
            return ()
        nodes = self._instances.node[fresh >> _KERNEL_BITS]
        keys, counts = np.unique(nodes << _KERNEL_BITS | fresh & _KERNEL_MASK, return_counts=True)
        return tuple(
            RangeKernels(number, kernel, count)
            for number, kernel, count in zip(
                self._nodes.number[keys >> _KERNEL_BITS].tolist(),
                (keys & _KERNEL_MASK).tolist(),
                counts.tolist(),
                strict=True,
            )
        )

    def _forget_released(self) -> None:
        rows = self._known >> _KERNEL_BITS
        self._known = self._known[self._instances.generation[rows] == self._generations]

    def _remember(self) -> None:
        self._generations = self._instances.generation[self._known >> _KERNEL_BITS]
