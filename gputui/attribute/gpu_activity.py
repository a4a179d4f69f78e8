"""GPU operations: which call launched them, in which range, and their sums."""

from __future__ import annotations

import numpy as np

from gputui.attribute.accounting.account import Accounting
from gputui.attribute.api_calls import Calls
from gputui.attribute.arrays import (
    Bools,
    Int64s,
    Slots,
    durations_ns,
    join,
    pick,
    stack,
    times_ns,
)
from gputui.attribute.correlation import NO_CALL
from gputui.attribute.gpu_time import Launched, SecondaryOperations
from gputui.attribute.instances import Finalised, Instances
from gputui.attribute.kernel_names import KernelNames
from gputui.attribute.launches import Launches
from gputui.attribute.numbering import Numbering
from gputui.attribute.operation_sums import KernelSums, MemorySums, place_keys
from gputui.attribute.range_kernels import NO_KERNEL, KernelsOfRanges
from gputui.attribute.range_tree import Nodes
from gputui.attribute.shapes import Shapes
from gputui.attribute.startend_kernels import StartEndKernels
from gputui.attribute.streams import Streams
from gputui.attribute.strings import Strings
from gputui.attribute.trace_sink import TraceSink
from gputui.model.events import (
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    RangeKernels,
)
from gputui.ring.layout import SLOT, RecordKind

ORPHAN_NS = 30_000_000_000
MAX_ORPHANS = 500_000
"""Operations whose call has not arrived wait this long, or until this many others wait."""

MAX_DEVICE = 255
"""Higher device numbers are clamped to this."""


class Operations:
    """The kernels, copies, memsets and graph launches of one process."""

    def __init__(
        self,
        process: int,
        nodes: Nodes,
        instances: Instances,
        calls: Calls,
        strings: Strings,
        numbering: Numbering,
        streams: Streams,
        accounting: Accounting,
    ) -> None:
        self._streams = streams
        self._accounting = accounting
        self._instances = instances
        self._calls = calls
        self._orphans = np.empty(0, SLOT)
        self._orphaned_ns = np.empty(0, np.int64)
        self._kernel_sums = KernelSums(process, nodes)
        self._secondary_sums = KernelSums(process, nodes)
        self._memory_sums = MemorySums(process, nodes)
        self._launches = Launches(process, calls)
        self.shapes = Shapes(numbering)
        self._range_kernels = KernelsOfRanges(nodes, instances)
        self._names = KernelNames(strings, numbering, self._range_kernels, accounting)
        self._start_end_kernels = StartEndKernels(process, nodes, instances, self._range_kernels)
        self._launched: list[Launched] = []
        self._secondary: list[SecondaryOperations] = []
        self.trace: TraceSink | None = None
        self.unattributed = 0
        self.pending = 0
        """Operations not collected yet."""

    @property
    def defined(self) -> list[KernelDefined]:
        """New kernels to report; the caller clears the list."""
        return self._names.defined

    def feed(self, records: Slots, new_calls: Slots, now_ns: int) -> None:
        """Add the operations of a batch, after its calls."""
        expired = np.empty(0, SLOT)
        if len(self._orphans):
            answered = np.isin(self._orphans["correlation"], new_calls["correlation"])
            records = stack((pick(self._orphans, answered), records))
            late = ~answered & (self._orphaned_ns < now_ns - ORPHAN_NS)
            late[: max(0, len(late) - MAX_ORPHANS)] |= ~answered[: max(0, len(late) - MAX_ORPHANS)]
            expired = pick(self._orphans, late)
            kept = ~answered & ~late
            self._orphans = pick(self._orphans, kept)
            self._orphaned_ns = self._orphaned_ns[kept]
        if len(records):
            correlations = np.ascontiguousarray(records["correlation"])
            found = self._calls.window.find(correlations)
            self._calls.answer(found.answered)
            calls, first = found.calls, found.first
            if not found.found.all():
                lost = pick(records, ~found.found)
                self._orphans = stack((self._orphans, lost))
                self._orphaned_ns = np.append(self._orphaned_ns, np.full(len(lost), now_ns))
                records, calls = pick(records, found.found), pick(calls, found.found)
                first = first[found.found]
            self._keep(records, calls, first, now_ns)
        self._give_up(expired, now_ns)

    def give_up_orphans(self, now_ns: int) -> None:
        """Nothing more will arrive: count what still waits for its call."""
        self._give_up(self._orphans, now_ns)
        self._orphans, self._orphaned_ns = np.empty(0, SLOT), np.empty(0, np.int64)

    def _give_up(self, records: Slots, now_ns: int) -> None:
        if len(records):
            self.unattributed += len(records)
            nothing = np.zeros(len(records), np.bool_)
            self._keep(records, np.repeat(NO_CALL, len(records)), nothing, now_ns)

    def _keep(self, records: Slots, calls: Slots, first: Bools, now_ns: int) -> None:
        if not len(records):
            return
        self.pending += len(records)
        kinds = records["kind"]
        starts = times_ns(records["start"])
        ends = np.maximum(starts, times_ns(records["end"]))
        durations = durations_ns(starts, ends)
        devices = np.minimum(records["a"], MAX_DEVICE).astype(np.int64)
        nodes = calls["node"].astype(np.int64)
        inherited = calls["inherited"]
        places = place_keys(nodes, devices, inherited)
        is_kernel = (kinds == RecordKind.KERNEL) | (kinds == RecordKind.GRAPH)
        kernels = np.full(len(records), NO_KERNEL)
        shapes = np.zeros(len(records), np.int64)
        if is_kernel.all():
            kernels = self._names.numbers(records, now_ns)
            shapes = self.shapes.count(records, kernels, now_ns)
            self._kernel_sums.add_launched(places, kernels, durations, calls)
            self._launches.add(calls, devices, kernels, starts, durations)
        else:
            kernels[is_kernel] = self._names.numbers(pick(records, is_kernel), now_ns)
            memory = ~is_kernel
            self._memory_sums.add(places[memory], pick(records, memory), durations[memory])
            if is_kernel.any():
                made = pick(calls, is_kernel)
                of = kernels[is_kernel]
                shapes[is_kernel] = self.shapes.count(pick(records, is_kernel), of, now_ns)
                took = durations[is_kernel]
                self._kernel_sums.add_launched(places[is_kernel], of, took, made)
                self._launches.add(made, devices[is_kernel], of, starts[is_kernel], took)
        if self.trace is not None:
            self.trace.operations(records, nodes, inherited, is_kernel, kernels, shapes)
        # CUPTI reports 0 for a time it could not take: count such an operation, but do not place
        # it.
        timed = starts > 0
        origins = self._streams.origins(devices, records["b"], calls["thread"])
        if not timed.all():
            records, calls, is_kernel = pick(records, timed), pick(calls, timed), is_kernel[timed]
            starts, ends, devices, nodes = starts[timed], ends[timed], devices[timed], nodes[timed]
            inherited, kernels = inherited[timed], kernels[timed]
            origins, first = origins[timed], first[timed]
        launches = first & is_kernel
        self._streams.add(origins[launches], starts[launches], pick(calls, launches))
        threads = self.shapes.threads(records)
        self._accounting.add_operations(
            records, calls, kernels, devices, starts, ends, first, threads
        )
        instances = calls["instance"].copy()
        self._launched.append(Launched(starts, ends, devices, nodes, instances, inherited, origins))
        direct = ~inherited & (instances >= 0)
        self._instances.add_operations(
            instances[direct], starts[direct], ends[direct], first[direct]
        )
        self._range_kernels.add(instances[direct], kernels[direct])
        self._keep_secondary(calls["sequence"], starts, ends, devices, kernels, first)

    def _keep_secondary(
        self,
        sequences: Int64s,
        starts: Int64s,
        ends: Int64s,
        devices: Int64s,
        kernels: Int64s,
        first: Bools,
    ) -> None:
        if not len(self._calls.secondary):
            return
        secondary, rows = self._calls.secondary_of(sequences)
        if not len(secondary):
            return
        instances, nodes = secondary["instance"].copy(), secondary["node"].copy()
        self._instances.add_operations(instances, starts[rows], ends[rows], first[rows])
        self._secondary.append((nodes, starts[rows], ends[rows]))
        kernel = kernels[rows]
        is_kernel = kernel != NO_KERNEL
        durations = durations_ns(starts[rows], ends[rows])
        of_start_end = is_kernel & secondary["start_end"]
        if of_start_end.any():
            self._start_end_kernels.add(
                instances[of_start_end],
                kernel[of_start_end],
                devices[rows][of_start_end],
                durations[of_start_end],
                secondary["only_start_end"][of_start_end],
                secondary["repeated"][of_start_end],
            )
        stacked = is_kernel & ~secondary["start_end"]
        self._range_kernels.add(instances[stacked], kernel[stacked])
        places = place_keys(nodes, devices[rows], np.zeros(len(rows), np.bool_))
        self._secondary_sums.add(places[stacked], kernel[stacked], durations[stacked])

    # --- sums

    def take_launched(self) -> Launched:
        """All operations since the last call, sorted by start."""
        parts, self._launched = self._launched, []
        self.pending = 0
        columns = [
            join([getattr(part, name) for part in parts], kind)
            for name, kind in (
                ("starts_ns", np.int64), ("ends_ns", np.int64), ("devices", np.int64),
                ("nodes", np.int64), ("instances", np.int64), ("inherited", np.bool_),
                ("origins", np.int64),
            )
        ]  # fmt: skip
        order = np.argsort(columns[0], kind="stable")
        return Launched(*(column[order] for column in columns))

    def take_secondary(self) -> list[SecondaryOperations]:
        """The same for other domains: node, start and end, in no particular order."""
        secondary, self._secondary = self._secondary, []
        return secondary

    def kernels(self) -> tuple[KernelDelta, ...]:
        return self._kernel_sums.collect()

    def range_kernels(self) -> tuple[RangeKernels, ...]:
        """Which instances launched which kernel for the first time; call before they are
        finalised.
        """
        self._start_end_kernels.gather()
        return self._range_kernels.collect()

    def secondary_domain_kernels(
        self, finalised: Finalised
    ) -> tuple[tuple[KernelDelta, ...], tuple[RangeKernels, ...]]:
        """The same kernels in the other open domains, and in completed Start/End ranges, with how
        many of these launched each.
        """
        of_start_end, instances = self._start_end_kernels.release(finalised)
        return (*self._secondary_sums.collect(), *of_start_end), instances

    @property
    def launched(self) -> int:
        """How many launches wait to be collected."""
        return len(self._launches)

    def launches(self) -> tuple[LaunchDelta, ...]:
        return self._launches.collect()

    def memory_operations(self) -> tuple[MemoryOperationDelta, ...]:
        return self._memory_sums.collect()
