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
    pick,
    sorted_columns,
    stack,
    times_ns,
)
from gputui.attribute.correlation import NO_CALL
from gputui.attribute.gpu_time import Launched, Ran, SecondaryOperations
from gputui.attribute.graph_nodes import GraphNodes
from gputui.attribute.instances import Finalised, Instances
from gputui.attribute.kernel_names import KernelNames
from gputui.attribute.launches import Launches
from gputui.attribute.moments import Moments
from gputui.attribute.numbering import Numbering
from gputui.attribute.operation_sums import KernelSums, MemorySums, place_keys
from gputui.attribute.range_kernels import NO_KERNEL, KernelsOfRanges
from gputui.attribute.range_tree import Nodes
from gputui.attribute.record_parts import are_kernels, move_by_themselves
from gputui.attribute.shapes import Shapes
from gputui.attribute.startend_kernels import StartEndKernels
from gputui.attribute.streams import Streams
from gputui.attribute.strings import Strings
from gputui.attribute.trace_sink import TraceSink
from gputui.attribute.waiting import Waiting
from gputui.attribute.wrong_calls import WrongCalls
from gputui.model.events import (
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    RangeKernels,
)

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
        graph_nodes: GraphNodes,
    ) -> None:
        self._streams = streams
        self._graph_nodes = graph_nodes
        self._accounting = accounting
        self._instances = instances
        self._calls = calls
        self._waiting = Waiting()
        self._moments = Moments()
        self._kernel_sums = KernelSums(process, nodes)
        self._secondary_sums = KernelSums(process, nodes)
        self._memory_sums = MemorySums(process, nodes)
        self._launches = Launches(process, calls)
        self.shapes = Shapes(numbering, accounting.define_shape)
        self._range_kernels = KernelsOfRanges(nodes, instances)
        self._names = KernelNames(strings, numbering, self._range_kernels, accounting)
        self._start_end_kernels = StartEndKernels(process, nodes, instances, self._range_kernels)
        self._launched: list[Launched] = []
        self._ran: list[Ran] = []
        self._secondary: list[SecondaryOperations] = []
        self.trace: TraceSink | None = None
        self._unattributed = 0
        self.wrong_calls = WrongCalls(calls)

    @property
    def defined(self) -> list[KernelDefined]:
        """New kernels to report; the caller clears the list."""
        return self._names.defined

    def feed(self, records: Slots, new_calls: Slots, now_ns: int) -> None:
        """Add the operations of a batch, after its calls."""
        waiting = self._waiting
        records = self._moments.of(records, new_calls, now_ns)
        counted = np.zeros(len(records), np.bool_)
        ran, accounted = counted, counted
        expired = None
        if len(waiting):
            arrived = waiting.take(waiting.answered(new_calls["correlation"]))
            expired = waiting.take(waiting.late(now_ns))
            records = stack((arrived[0], records))
            ran = np.concatenate((arrived[1], ran))
            accounted = np.concatenate((arrived[2], accounted))
        if len(records):
            correlations = np.ascontiguousarray(records["correlation"])
            found = self._calls.window.find(correlations)
            self._calls.answer(found.answered)
            calls, first, kept = found.calls, found.first, found.found
            if not kept.all():
                lost = ~kept
                waiting.add(pick(records, lost), ran[lost], accounted[lost], now_ns)
            wrong = self.wrong_calls.among(records, found)
            if wrong.any():
                self._give_up(pick(records, wrong), ran[wrong], accounted[wrong], now_ns)
                kept = kept & ~wrong
            if not kept.all():
                records, calls = pick(records, kept), pick(calls, kept)
                first, ran, accounted = (part[kept] for part in (first, ran, accounted))
            self._keep(records, calls, first, ran, accounted, now_ns)
        if expired is not None:
            self._give_up(*expired, now_ns)

    def count_waiting(self, until_ns: int | None, now_ns: int) -> None:
        """Count the time of operations that wait for their call: all ran, and those that began up
        to `until_ns`, at which every call had arrived, are accounted for without one."""
        waiting = self._waiting
        if not len(waiting):
            return
        due = ~waiting.accounted & waiting.begun(until_ns)
        chosen = (due | ~waiting.ran) & (waiting.records["start"] > 0)
        if chosen.any():
            records = pick(waiting.records, chosen)
            calls = np.repeat(NO_CALL, len(records))
            nothing = np.zeros(len(records), np.bool_)
            kernels = np.full(len(records), NO_KERNEL)
            is_kernel = are_kernels(records)
            kernels[is_kernel] = self._names.numbers(pick(records, is_kernel), now_ns)
            self._measure(records, calls, kernels, nothing, waiting.ran[chosen], ~due[chosen])
            waiting.ran |= chosen
            waiting.accounted |= due

    def give_up_waiting(self, now_ns: int) -> None:
        """Nothing more will arrive: count what still waits for its call."""
        self._give_up(*self._waiting.take(self._waiting.begun(None)), now_ns)

    def _give_up(self, records: Slots, ran: Bools, accounted: Bools, now_ns: int) -> None:
        if len(records):
            self._unattributed += int(np.count_nonzero(~move_by_themselves(records)))
            nothing = np.zeros(len(records), np.bool_)
            calls = np.repeat(NO_CALL, len(records))
            self._keep(records, calls, nothing, ran, accounted, now_ns)

    def _keep(
        self,
        records: Slots,
        calls: Slots,
        first: Bools,
        ran: Bools,
        accounted: Bools,
        now_ns: int,
    ) -> None:
        """Count operations with their calls; of some the time `ran` or was `accounted` already."""
        if not len(records):
            return
        starts = times_ns(records["start"])
        ends = np.maximum(starts, times_ns(records["end"]))
        durations = durations_ns(starts, ends)
        devices = np.minimum(records["a"], MAX_DEVICE).astype(np.int64)
        nodes = calls["node"].astype(np.int64)
        inherited = calls["inherited"]
        phases = self._graph_nodes.phases(records, nodes, calls["thread"], now_ns)
        calls["node"] = phases  # what is counted from here on, counts there
        replayed = (records["e"] != 0) & (phases == nodes)
        places = place_keys(phases, devices, inherited)
        is_kernel = are_kernels(records)
        kernels = np.full(len(records), NO_KERNEL)
        shapes = np.zeros(len(records), np.int64)
        at: slice | Int64s = slice(None)
        ran_kernels, made = records, calls
        if not is_kernel.all():
            memory, at = ~is_kernel, np.flatnonzero(is_kernel)
            self._memory_sums.add(places[memory], pick(records, memory), durations[memory])
            ran_kernels, made = pick(records, at), pick(calls, at)
        if len(ran_kernels):
            of, took = self._names.numbers(ran_kernels, now_ns), durations[at]
            kernels[at], shapes[at] = of, self.shapes.count(ran_kernels, of, now_ns)
            self._kernel_sums.add_launched(places[at], of, took, made, replayed[at])
            self._launches.add(made, devices[at], of, starts[at], took)
        if self.trace is not None:
            self.trace.operations(records, nodes, phases, inherited, is_kernel, kernels, shapes)
        # An operation without a time is counted, but has no place.
        timed = starts > 0
        if not timed.all():
            records, calls, kernels = pick(records, timed), pick(calls, timed), kernels[timed]
            starts, ends, devices = starts[timed], ends[timed], devices[timed]
            phases = phases[timed]
            inherited, first = inherited[timed], first[timed]
            ran, accounted = ran[timed], accounted[timed]
        self._measure(records, calls, kernels, first, ran, accounted)
        instances = calls["instance"].copy()
        self._launched.append(Launched(starts, ends, phases, instances))
        direct = ~inherited & (instances >= 0)
        self._instances.add_operations(
            instances[direct], starts[direct], ends[direct], first[direct]
        )
        self._range_kernels.add(instances[direct], kernels[direct])
        self._keep_secondary(calls["sequence"], starts, ends, devices, kernels, first)

    def _measure(
        self,
        records: Slots,
        calls: Slots,
        kernels: Int64s,
        first: Bools,
        ran: Bools,
        accounted: Bools,
    ) -> None:
        """Count when devices were busy, and account for it; not again what was counted already."""
        starts = times_ns(records["start"])
        ends = np.maximum(starts, times_ns(records["end"]))
        devices = np.minimum(records["a"], MAX_DEVICE).astype(np.int64)
        origins = self._streams.origins(devices, records["b"], calls["thread"])
        launches = first & (kernels != NO_KERNEL)
        self._streams.add(origins[launches], starts[launches], pick(calls, launches))
        new = slice(None) if not ran.any() else np.flatnonzero(~ran)
        self._ran.append(Ran(starts[new], ends[new], devices[new], origins[new]))
        if accounted.any():
            new = np.flatnonzero(~accounted)
            records, calls = pick(records, new), pick(calls, new)
            kernels, devices, first = kernels[new], devices[new], first[new]
            starts, ends = starts[new], ends[new]
        self._accounting.add_operations(records, calls, kernels, devices, starts, ends, first)

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

    def take_unattributed(self) -> int:
        """Operations counted without a call since the last call."""
        unattributed, self._unattributed = self._unattributed, 0
        return unattributed

    def take_launched(self) -> Launched:
        """All operations since the last call, sorted by start."""
        parts, self._launched = self._launched, []
        return Launched(*sorted_columns(parts, (np.int64,) * 4))

    def take_ran(self) -> Ran:
        """When devices were busy since the last call, whether the calls arrived or not; sorted by
        start."""
        parts, self._ran = self._ran, []
        return Ran(*sorted_columns(parts, (np.int64,) * 4))

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

    def launches(self, now_ns: int, ended: bool) -> tuple[LaunchDelta, ...]:
        return self._launches.collect(now_ns, ended)

    def memory_operations(self) -> tuple[MemoryOperationDelta, ...]:
        return self._memory_sums.collect()
