"""How many instances of each range launched each kernel, directly or in inner ranges."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s, distinct, join
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import Instances
from gputui.attribute.records import NO_KERNEL
from gputui.model.events import RangeKernels

_KERNEL_BITS = 24
_KERNEL_MASK = (1 << _KERNEL_BITS) - 1


class KernelsOfRanges:
    """Remembers the kernels already counted for instances not finalised yet."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._new: list[Int64s] = []
        self._counted: tuple[list[int], ...] = ()
        """Nodes, kernels, instances, and of these the repeated ones, as `gather` found them."""
        self._known = np.empty(0, np.int64)
        self._generations = np.empty(0, np.int64)
        self._names: dict[str, int] = {}
        self._bases = np.zeros(256, np.int64)

    def define(self, kernel: int, base: str) -> None:
        """Register a kernel and its base name, which others may share."""
        if kernel >= len(self._bases):
            more = np.zeros(max(kernel + 1, 2 * len(self._bases)), np.int64)
            more[: len(self._bases)] = self._bases
            self._bases = more
        self._bases[kernel] = self._names.setdefault(base, kernel)

    def base(self, kernel: int) -> int:
        """The first kernel with the same base name."""
        return int(self._bases[kernel])

    def add(self, ids: Int64s, kernels: Int64s) -> None:
        """Add kernels with the instance that launched each."""
        wanted = (kernels != NO_KERNEL) & self._instances.alive(ids)
        if wanted.any():
            keys = self._instances.rows(ids[wanted]) << _KERNEL_BITS | kernels[wanted]
            self._new.append(distinct(keys))

    def gather(self) -> None:
        """Count first launches: call before instances are finalised, whose ranges around them are
        unknown afterwards."""
        self._forget_released()
        before = self._known
        rows = join(self._new, np.int64)
        self._new = []
        found: list[Int64s] = []
        while len(rows):
            rows = distinct(rows)
            # Kernels an instance launched before were counted in its enclosing ranges then.
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
            return
        nodes = self._instances.node[fresh >> _KERNEL_BITS]
        keys, inverse, counts = np.unique(
            nodes << _KERNEL_BITS | fresh & _KERNEL_MASK, return_inverse=True, return_counts=True
        )
        bases = self._with_bases(fresh)
        repeats = np.ones(len(fresh), np.int64)
        new, first = np.unique(bases, return_index=True)
        repeats[first] = np.isin(new, self._with_bases(before))
        repeated = np.bincount(inverse, repeats, len(keys)).astype(np.int64)
        self._counted = (
            (keys >> _KERNEL_BITS).tolist(),
            (keys & _KERNEL_MASK).tolist(),
            counts.tolist(),
            repeated.tolist(),
        )

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """How many instances launched which kernel for the first time, as `gather` counted."""
        counted, self._counted = self._counted, ()
        if not counted:
            return {}
        nodes, *others = counted
        numbers = collection.nodes.number[nodes].tolist()
        return {
            "range_kernels": tuple(RangeKernels(*row) for row in zip(numbers, *others, strict=True))
        }

    def _with_bases(self, keys: Int64s) -> Int64s:
        """Each kernel replaced by the first one with the same base name."""
        bases: Int64s = keys & ~_KERNEL_MASK | self._bases[keys & _KERNEL_MASK]
        return bases

    def _forget_released(self) -> None:
        rows = self._known >> _KERNEL_BITS
        self._known = self._known[self._instances.generation[rows] == self._generations]

    def _remember(self) -> None:
        self._generations = self._instances.generation[self._known >> _KERNEL_BITS]
