"""Kernels of Start/End ranges, kept with the instance until it is known whether they count."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, join
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import grouped
from gputui.attribute.instances import Instances
from gputui.attribute.range_kernels import KernelsOfRanges
from gputui.model.events import KernelDelta, RangeKernels
from gputui.model.sketch import Accumulator

MAX_HELD = 200_000
"""Sums kept per process: instances times the kernels of each."""

_KERNEL_BITS = 24
_DEVICE_SHIFT, _ONLY_SHIFT, _REPEATED_SHIFT, _ROW_SHIFT = 24, 32, 33, 34


@dataclass(slots=True)
class _Sum:
    time: Accumulator = field(default_factory=Accumulator)
    repeats: int = 0


class StartEndKernels:
    """What the open Start/End ranges of one process launched."""

    def __init__(self, instances: Instances, kernels: KernelsOfRanges) -> None:
        self._kernels = kernels
        self._instances = instances
        self._parts: list[tuple[Int64s, Int64s]] = []
        self._of_instances: dict[int, dict[tuple[int, int, bool], _Sum]] = {}
        self._count = 0
        self.lost = 0
        """Kernels that found no room."""

    def add(
        self,
        ids: Int64s,
        kernels: Int64s,
        devices: Int64s,
        durations: Int64s,
        only_start_end: Bools,
        repeated: Bools,
    ) -> None:
        """Add kernels with the instance that launched each. `only_start_end`: inside no other kind
        of range, and this is the first; `repeated`: inside an earlier instance of the same node.
        """
        alive = self._instances.alive(ids)
        keys = (
            self._instances.rows(ids) << _ROW_SHIFT
            | repeated.astype(np.int64) << _REPEATED_SHIFT
            | only_start_end.astype(np.int64) << _ONLY_SHIFT
            | devices << _DEVICE_SHIFT
            | kernels
        )
        self._parts.append((keys[alive], durations[alive]))

    def gather(self) -> None:
        """Sum up new kernels; call before instances are finalised."""
        parts, self._parts = self._parts, []
        keys = join([part[0] for part in parts], np.int64)
        durations = join([part[1] for part in parts], np.int64)
        for key, time in grouped(keys, durations):
            of_instance = self._of_instances.setdefault(key >> _ROW_SHIFT, {})
            name = (
                key & ((1 << _KERNEL_BITS) - 1),
                key >> _DEVICE_SHIFT & 0xFF,
                bool(key >> _ONLY_SHIFT & 1),
            )
            if name not in of_instance:
                if self._count >= MAX_HELD:
                    self.lost += time.count
                    continue
                self._count += 1
                of_instance[name] = _Sum()
            of_instance[name].time.add(time)
            if key >> _REPEATED_SHIFT & 1:
                of_instance[name].repeats += time.count

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """The kernels of completed instances, and how many of these launched each.

        What was launched only inside a range that another thread ended is outside every range; if
        inside several such ranges, the first decides.
        """
        finalised, tree = collection.finalised, collection.nodes
        sums: dict[tuple[int, int, int, int], _Sum] = defaultdict(_Sum)
        instances: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for at in np.flatnonzero(finalised.start_end).tolist():
            of_instance = self._of_instances.pop(int(finalised.ids[at]) & Instances.ROW, {})
            self._count -= len(of_instance)
            node = int(finalised.nodes[at])
            elsewhere = bool(finalised.elsewhere[at])
            launched = set()
            for (kernel, device, only_start_end), part in of_instance.items():
                if elsewhere and not only_start_end:
                    continue
                place = (0, tree.thread[node]) if elsewhere else (node, 0)
                into = sums[*place, kernel, device]
                into.time.add(part.time)
                into.repeats += part.repeats
                if not elsewhere:
                    launched.add(kernel)
            bases: set[int] = set()
            for kernel in sorted(launched):
                base = self._kernels.base(kernel)
                entry = instances[node, kernel]
                entry[0] += 1
                entry[1] += base in bases
                bases.add(base)
        kernels = tuple(
            KernelDelta(
                process=collection.process,
                range=int(tree.number[node]),
                kernel=kernel,
                device=device,
                thread=thread,
                time=part.time.freeze(),
                repeats=part.repeats,
            )
            for (node, thread, kernel, device), part in sums.items()
        )
        launches = tuple(
            RangeKernels(int(tree.number[node]), kernel, *counts)
            for (node, kernel), counts in instances.items()
        )
        return {"secondary_domain_kernels": kernels, "range_kernels": launches}
