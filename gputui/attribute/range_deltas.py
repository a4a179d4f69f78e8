"""What happened in each range since the last collection: times, GPU time, and the kernels launched.

For `traced_process` and `operations`. The sums by kernel, whatever the range, are in
`operation_sums`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from gputui.attribute import NO_KERNEL, LaunchedOperations
from gputui.attribute.arrays import (
    Bools,
    Holes,
    Int64s,
    Unions,
    are_among,
    distinct,
    durations_ns,
    join,
    run_starts,
)
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import ValueSums, grouped
from gputui.attribute.instances import Finalised, RangeInstances
from gputui.attribute.range_stacks import NO_NODE, Nodes
from gputui.model.events import KernelDelta, Payload, RangeDelta, RangeKernels, payload_of
from gputui.model.events.distributions import Accumulator

# --- How long the GPU worked for each range, including the ranges inside it.

SecondaryOperations = tuple[Int64s, Int64s, Int64s]
"""Node, start and end of operations in domains other than the one they count in."""


class GpuTime:
    """Remembers up to which time each range has been covered."""

    def __init__(self) -> None:
        self._ranges = Unions(fills_gaps=True)
        self._secondary: list[SecondaryOperations] = []

    def add_secondary(self, nodes: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> None:
        """Add operations in domains other than the one they count in, in any order."""
        self._secondary.append((nodes, starts_ns, ends_ns))

    def sum_by_node(self, nodes: Nodes, launched: LaunchedOperations) -> tuple[Int64s, Int64s]:
        """Busy time and sum of durations by node. Operations of a node's children count, and
        operations of threads without ranges (autograd's), which nsys's projections leave out."""
        busy_ns = np.zeros(len(nodes), np.int64)
        total_ns = np.zeros(len(nodes), np.int64)
        within = launched.nodes != NO_NODE
        at_nodes = launched.nodes[within]
        starts, ends = launched.starts_ns[within], launched.ends_ns[within]
        secondary, self._secondary = self._secondary, []
        if secondary:
            at_nodes = np.concatenate((at_nodes, *(part[0] for part in secondary)))
            starts = np.concatenate((starts, *(part[1] for part in secondary)))
            ends = np.concatenate((ends, *(part[2] for part in secondary)))
            order = np.argsort(starts, kind="stable")
            at_nodes, starts, ends = at_nodes[order], starts[order], ends[order]
        levels = nodes.level
        deepest = int(levels[at_nodes].max()) if len(at_nodes) else 0
        # From the innermost level outwards, so that all operations of a node are counted together.
        for level in range(deepest, 0, -1):
            here = levels[at_nodes] == level
            here_rows = slice(None) if here.all() else here
            covered = self._ranges.add(at_nodes[here_rows], starts[here_rows], ends[here_rows])
            busy_ns[covered.keys] = covered.busy_ns
            total_ns[covered.keys] = covered.total_ns
            at_nodes[here_rows] = nodes.parent[at_nodes[here_rows]]
        return busy_ns, total_ns


# --- What happened in each range since the last tick.


# Fields of a RangeDelta that are sums, each a column by node.
_SUMS = (
    "gpu_busy_ns", "gpu_total_ns", "projected_range_ns", "gpu_operations", "levels",
    "children_with_work", "incomplete",
)  # fmt: skip


class RangeDeltas:
    """Time and occurrences of each range of one process; `lost` is when records were lost."""

    def __init__(self, instances: RangeInstances, lost: Holes) -> None:
        self._instances = instances
        self._lost = lost
        self.gpu_time = GpuTime()
        self._durations = ValueSums()
        self._projected = ValueSums()
        self._sums = np.zeros((len(_SUMS), 0), np.int64)
        self._payloads: dict[int, Payload | None] = {}

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """One delta for each node where something happened, by its number."""
        self._add(collection)
        if not collection.due:
            return {}
        numbers = collection.nodes.number
        sums, self._sums = self._sums, np.zeros((len(_SUMS), 0), np.int64)
        payloads, self._payloads = self._payloads, {}
        host = dict(self._durations.drain(collection.exact_values))
        projected = dict(self._projected.drain(collection.exact_values))
        # Without anything else, operations and children are not worth a delta.
        kept = [number for number, name in enumerate(_SUMS) if name in _TOLD]
        nodes = {*host, *projected, *payloads, *np.flatnonzero(sums[kept].any(axis=0)).tolist()}
        columns = dict(zip(_SUMS, sums.tolist(), strict=True))
        deltas = tuple(
            RangeDelta(
                range=int(numbers[node]),
                cpu=host.get(node),
                projected=projected.get(node),
                payload=payloads.get(node),
                **{name: column[node] for name, column in columns.items()},
            )
            for node in sorted(nodes)
        )
        return {"ranges": deltas}

    def _add(self, collection: Collection) -> None:
        """Collects, by node, ranges that closed, ranges whose GPU work is known now, and GPU
        time."""
        finalised, count = collection.finalised, len(collection.nodes)
        if count > self._sums.shape[1]:
            more = np.zeros((len(_SUMS), 2 * count), np.int64)
            more[:, : self._sums.shape[1]] = self._sums
            self._sums = more
        sums = dict(zip(_SUMS, self._sums[:, :count], strict=True))
        busy_ns, total_ns = self.gpu_time.sum_by_node(collection.nodes, collection.launched)
        sums["gpu_busy_ns"] += busy_ns
        sums["gpu_total_ns"] += total_ns
        ran = finalised.last_ns >= finalised.first_ns
        nodes = finalised.nodes[ran]
        self._durations.add(*self._instances.take_counted())
        self._projected.add(nodes, (finalised.last_ns - finalised.first_ns)[ran])
        for name, column in (
            ("projected_range_ns", durations_ns(finalised.starts_ns, finalised.ends_ns)),
            ("gpu_operations", finalised.operations),
            ("levels", finalised.depths),
            ("children_with_work", finalised.busy_children),
        ):
            sums[name] += np.bincount(nodes, column[ran], count).astype(np.int64)
        for node, depth in self._instances.nesting.take_levels().items():
            sums["levels"][node] += depth
        # Instances in which records were lost.
        incomplete = self._lost.touch(finalised.starts_ns, finalised.ends_ns)
        sums["incomplete"] += np.bincount(finalised.nodes[incomplete], minlength=count)
        self._payloads |= _newest_payloads(finalised)


# The sums for whose sake a node has a delta.
_TOLD = ("gpu_busy_ns", "gpu_total_ns", "levels", "incomplete")


def _newest_payloads(finalised: Finalised) -> dict[int, Payload | None]:
    """For each node, the payload of the instance that began last."""
    has = np.flatnonzero(finalised.payload_types)
    has = has[np.lexsort((finalised.starts_ns[has], finalised.nodes[has]))]
    nodes = finalised.nodes[has]
    last = has[np.flatnonzero(np.append(nodes[1:] != nodes[:-1], True))] if len(has) else has
    return {
        int(finalised.nodes[row]): payload_of(
            int(finalised.payload_types[row]), int(finalised.payloads[row])
        )
        for row in last
    }


# --- How many instances of each range launched each kernel, directly or in inner ranges.

# A row's key: an instance, or a node | a kernel's number in the session, of which there are at most
# MAX_KERNELS (100,000).
_KERNEL_BITS = 24
_KERNEL_MASK = (1 << _KERNEL_BITS) - 1


class KernelsOfRanges:
    """Remembers the kernels already counted for instances not finalised yet."""

    def __init__(self, instances: RangeInstances) -> None:
        self._instances = instances
        self._new: list[Int64s] = []
        self._counted: list[tuple[Int64s, Int64s, Int64s]] = []
        """Nodes with kernels, instances, and of these the repeated ones, as `gather` found them."""
        self._held = 0
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
        """Adds kernels with the instance that launched each."""
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
        fresh = rows[:0]
        while len(rows):
            rows = distinct(rows)
            # Kernels an instance launched before were counted in its enclosing ranges then.
            rows = rows[~are_among(before, rows)]
            rows = rows[~are_among(fresh, rows)]
            # Two sorted runs, which a stable sort merges: another took 2 % of the reader's time.
            fresh = np.sort(np.concatenate((fresh, rows)), kind="stable")
            parents = self._instances.parent[rows >> _KERNEL_BITS]
            alive = self._instances.alive(parents)
            kernels = rows[alive] & _KERNEL_MASK
            rows = self._instances.rows(parents[alive]) << _KERNEL_BITS | kernels
        self._known = np.concatenate((before, fresh))
        self._known.sort(kind="stable")  # two sorted runs again
        self._remember()
        if not len(fresh):
            return
        nodes = self._instances.node[fresh >> _KERNEL_BITS]
        keys, inverse, counts = np.unique(
            nodes << _KERNEL_BITS | fresh & _KERNEL_MASK, return_inverse=True, return_counts=True
        )
        bases = self._with_bases(fresh)
        repeats = np.ones(len(fresh), np.int64)
        new, first = np.unique(bases, return_index=True)
        repeats[first] = 0
        earlier = self._with_bases(before)
        places = np.searchsorted(new, earlier)
        has_place = np.flatnonzero(places < len(new))
        same = has_place[new[places[has_place]] == earlier[has_place]]
        repeats[first[places[same]]] = 1
        repeated = np.bincount(inverse, repeats, len(keys)).astype(np.int64)
        self._counted.append((keys, counts, repeated))
        self._held += len(keys)
        if self._held > MAX_HELD:
            self._counted = [self._count()]
            self._held = len(self._counted[0][0]) // 2

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """How many instances launched which kernel for the first time, as `gather` counted."""
        if not collection.due or not self._counted:
            return {}
        keys, counts, repeated = self._count()
        self._counted, self._held = [], 0
        rows = zip(
            collection.nodes.number[keys >> _KERNEL_BITS].tolist(),
            (keys & _KERNEL_MASK).tolist(),
            counts.tolist(),
            repeated.tolist(),
            strict=True,
        )
        return {"range_kernels": tuple(RangeKernels(*row) for row in rows)}

    def _count(self) -> tuple[Int64s, Int64s, Int64s]:
        """What was counted, added up by node and kernel."""
        if len(self._counted) == 1:
            return self._counted[0]
        keys, *counted = (np.concatenate(column) for column in zip(*self._counted, strict=True))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = run_starts(keys)
        counts, repeated = (np.add.reduceat(column[order], starts) for column in counted)
        return keys[starts], counts, repeated

    def _with_bases(self, keys: Int64s) -> Int64s:
        """The kernels, each replaced by the first kernel with the same base name."""
        bases: Int64s = keys & ~_KERNEL_MASK | self._bases[keys & _KERNEL_MASK]
        return bases

    def _forget_released(self) -> None:
        rows = self._known >> _KERNEL_BITS
        self._known = self._known[self._instances.generation[rows] == self._generations]

    def _remember(self) -> None:
        self._generations = self._instances.generation[self._known >> _KERNEL_BITS]


# --- Kernels of Start/End ranges, kept with the instance until it is known whether they count.

MAX_HELD = 200_000
"""Sums kept per process: instances times the kernels of each."""

_DEVICE_SHIFT, _ONLY_SHIFT, _REPEATED_SHIFT, _ROW_SHIFT = 24, 32, 33, 34


@dataclass(slots=True)
class _Sum:
    time: Accumulator = field(default_factory=Accumulator)
    repeats: int = 0


class StartEndKernels:
    """What the open Start/End ranges of one process launched."""

    def __init__(self, instances: RangeInstances, kernels: KernelsOfRanges) -> None:
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
        """Adds kernels with the instance that launched each. `only_start_end`: the kernel lies in
        no other kind of range, and this is the first; `repeated`: it also lies in an earlier
        instance of the same node."""
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
        new, self._parts = self._parts, []
        keys = join([part[0] for part in new], np.int64)
        durations = join([part[1] for part in new], np.int64)
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
        for row in np.flatnonzero(finalised.start_end).tolist():
            of_instance = self._of_instances.pop(int(finalised.ids[row]) & RangeInstances.ROW, {})
            self._count -= len(of_instance)
            node = int(finalised.nodes[row])
            elsewhere = bool(finalised.elsewhere[row])
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
