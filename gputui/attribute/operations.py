"""GPU operations: checked, joined with the calls that launched them, and passed on to the sums.

For `traced_process`. The sums themselves are in `operation_sums`, `range_deltas`, `streams` and
`accounting`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gputui.attribute import (
    NO_KERNEL,
    LaunchedOperations,
    Ran,
    TimedOperations,
    are_kernels,
    move_by_themselves,
    timed_operations,
)
from gputui.attribute.accounting import Accounting
from gputui.attribute.arrays import (
    Bools,
    Int64s,
    Slots,
    UInt32s,
    durations_ns,
    pick,
    sorted_columns,
    stack,
    take_rows,
    times_ns,
)
from gputui.attribute.calls import NO_CALL, CudaCalls, MatchedCalls
from gputui.attribute.collection import Collection, Collector, DeltaParts, TraceSink
from gputui.attribute.definitions import KernelNames, Shapes
from gputui.attribute.graph_nodes import GraphNodes
from gputui.attribute.instances import RangeInstances
from gputui.attribute.operation_sums import KernelSums, LaunchSums, MemorySums, Streams, place_keys
from gputui.attribute.range_deltas import GpuTime, StartEndKernels
from gputui.counters import CountedOperations
from gputui.ring import SLOT, RecordKind

# --- Which times of operations can be meant.
#
# CUPTI reports 0 for a time that it could not take. Of operations that a program leaves behind
# when it ends, queued or half done, it reports times that no clock of the machine ever showed:
# centuries ago, or ahead (of FP64 products left on an H100). One of these made all time before it
# idle.

MARGIN_NS = 3_600_000_000_000
"""Nothing is meant that began so long before the process's first call, or ended so long after it
was read; clocks may be set."""


class PlausibleTimes:
    """Finds operations with impossible times, such as before the first call of the process."""

    def __init__(self) -> None:
        self._earliest_ns = 0
        self._wrong = 0

    def collect_parts(self, _: Collection) -> DeltaParts:
        """How many operations had impossible times. Operations without times do not count."""
        wrong, self._wrong = self._wrong, 0
        return {"wrong_times": wrong}

    def check_times(self, operations: Slots, new_calls: Slots, now_ns: int) -> Slots:
        """The operations, which came after these calls and were read at `now_ns`, with times of 0
        where the times are impossible."""
        if not self._earliest_ns and len(new_calls):
            self._earliest_ns = max(1, int(new_calls["start"].min()) - MARGIN_NS)
        latest_ns = np.uint64(now_ns + MARGIN_NS)
        wrong = operations["start"] < np.uint64(self._earliest_ns)
        # Neither to those whose start alone lies ahead: one kernel left queued cost the last delta
        # and its verdict.
        wrong |= (operations["start"] > latest_ns) | (operations["end"] > latest_ns)
        if wrong.any():
            self._wrong += int(np.count_nonzero(operations["start"][wrong]))
            operations = operations.copy()
            operations["start"][wrong] = operations["end"][wrong] = 0
        return operations


# --- Operations whose call has not arrived.
#
# Which range they belong to waits for the call; that a device was busy does not.

# CUPTI guarantees no order among its records (its guide, 2.3): the record of a call may come in a
# later buffer than those of what it launched.
WAIT_NS = 30_000_000_000
MAX_WAITING = 500_000
"""Operations wait for their call this long, or until this many others wait."""


class WaitingOperations:
    """Operations that wait for their call: their records, when each was read, whether it was
    already counted as having run (`ran`), and whether its time was accounted for (`accounted`)."""

    def __init__(self) -> None:
        self.records = np.empty(0, SLOT)
        self._read_ns: Int64s = np.empty(0, np.int64)
        self.ran: Bools = np.empty(0, np.bool_)
        self.accounted: Bools = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, records: Slots, ran: Bools, accounted: Bools, now_ns: int) -> None:
        """Add operations, and what was counted of them."""
        self.records = stack((self.records, records))
        self._read_ns = np.append(self._read_ns, np.full(len(records), now_ns))
        self.ran = np.append(self.ran, ran)
        self.accounted = np.append(self.accounted, accounted)

    def remove(self, chosen: Bools) -> tuple[Slots, Bools, Bools]:
        """Removes the chosen operations, and returns their records and what was counted of them."""
        removed = pick(self.records, chosen), self.ran[chosen], self.accounted[chosen]
        kept = ~chosen
        self.records, self._read_ns = pick(self.records, kept), self._read_ns[kept]
        self.ran, self.accounted = self.ran[kept], self.accounted[kept]
        return removed

    def answered(self, correlations: UInt32s) -> Bools:
        """Which of the waiting operations have their call among these correlation ids."""
        return np.isin(self.records["correlation"], correlations)

    def late(self, now_ns: int) -> Bools:
        """Which operations have waited long enough, or are too many."""
        late: Bools = self._read_ns < now_ns - WAIT_NS
        late[: max(0, len(late) - MAX_WAITING)] = True
        return late

    def begun(self, until_ns: int | None) -> Bools:
        """Which operations began up to a time before which every call has arrived; all of them if
        that is None, when nothing more will come."""
        if until_ns is None:
            return np.ones(len(self), np.bool_)
        begun: Bools = times_ns(self.records["start"]) <= until_ns
        return begun


# --- Operations whose correlation id names a call that cannot have launched them.
#
# CUPTI 13.0 was seen (H100) to give every call and kernel of a program the same id, for good, once
# it had been switched on and off in it several times.

CLOCKS_NS = 1_000_000
"""The most that CUPTI is taken to be wrong by where it puts a GPU's times on the CPU's clock."""

FEW = 50
"""Wrong calls in one batch that are no alarm: a clock that was set causes as many."""


class WrongCalls:
    """Finds operations whose correlation id names a call that cannot have launched them."""

    def __init__(self, calls: CudaCalls) -> None:
        self._calls = calls
        self._count = 0
        self.since_ns: int | None = None
        """When most operations began to have a wrong call; None while few have."""

    def among(self, records: Slots, matched: MatchedCalls) -> Bools:
        """Which operations have an impossible call: one that was made after they began, or one that
        launches a single kernel and already has it."""
        began = times_ns(records["start"])
        later = (began > 0) & (matched.calls["start"] > began + CLOCKS_NS)
        again = ~matched.first & (records["kind"] == RecordKind.KERNEL)
        again &= self._calls.single_launches[matched.calls["name"]]
        wrong: Bools = matched.is_known & (later | again)
        if wrong.any():
            self._count += (count := int(np.count_nonzero(wrong)))
            if self.since_ns is None and count > max(FEW, len(records) // 2):
                self.since_ns = int(began[wrong].min())
        return wrong

    def collect_parts(self, _: Collection) -> DeltaParts:
        """How many operations named a call that cannot have launched them."""
        count, self._count = self._count, 0
        return {"contradicted": count}


# --- GPU operations: which call launched them, in which range, and their sums.


class GpuOperations:
    """The kernels, copies, memsets and graph launches of one process."""

    def __init__(
        self,
        instances: RangeInstances,
        calls: CudaCalls,
        names: KernelNames,
        streams: Streams,
        accounting: Accounting,
        graph_nodes: GraphNodes,
        gpu_time: GpuTime,
        shapes: Shapes,
        trace: TraceSink,
        counted: Callable[[CountedOperations], None] | None,
    ) -> None:
        self._streams = streams
        self._graph_nodes = graph_nodes
        self._accounting = accounting
        self._instances = instances
        self._calls = calls
        self._names = names
        self._gpu_time = gpu_time
        self._trace = trace
        self._counted = counted
        self._waiting = WaitingOperations()
        self._launched: list[LaunchedOperations] = []
        self._unattributed = 0
        self.shapes = shapes
        self.times = PlausibleTimes()
        self.wrong_calls = WrongCalls(calls)
        self.kernel_sums = KernelSums("kernels")
        self.secondary_sums = KernelSums("secondary_domain_kernels")
        self.memory_sums = MemorySums()
        self.launches = LaunchSums(calls)
        self.range_kernels = names.range_kernels
        self.start_end_kernels = StartEndKernels(instances, self.range_kernels)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What sums up operations, and the operations themselves."""
        return (
            self,
            self.times,
            self.wrong_calls,
            self.kernel_sums,
            self.secondary_sums,
            self.memory_sums,
            self.launches,
            self.shapes,
            self.range_kernels,
            self.start_end_kernels,
        )

    def feed(self, records: Slots, new_calls: Slots, now_ns: int) -> None:
        """Add the operations of a batch, after its calls."""
        waiting = self._waiting
        records = self.times.check_times(records, new_calls, now_ns)
        counted = np.zeros(len(records), np.bool_)
        ran, accounted = counted, counted
        expired = None
        if len(waiting):
            arrived = waiting.remove(waiting.answered(new_calls["correlation"]))
            expired = waiting.remove(waiting.late(now_ns))
            records = stack((arrived[0], records))
            ran = np.concatenate((arrived[1], ran))
            accounted = np.concatenate((arrived[2], accounted))
        if len(records):
            correlations = np.ascontiguousarray(records["correlation"])
            matched = self._calls.window.find(correlations)
            self._calls.answer(matched.answered)
            calls, first, kept = matched.calls, matched.first, matched.is_known
            if not kept.all():
                lost = ~kept
                waiting.add(pick(records, lost), ran[lost], accounted[lost], now_ns)
            wrong = self.wrong_calls.among(records, matched)
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
        """Counts the time of operations that wait for their call: all of them ran. Those that began
        up to `until_ns`, before which every call has arrived, are accounted for without a call."""
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
            operations = timed_operations(records, calls, kernels, nothing)
            self._measure(records, calls, operations, waiting.ran[chosen], ~due[chosen])
            waiting.ran |= chosen
            waiting.accounted |= due

    def give_up_waiting(self, now_ns: int) -> None:
        """Nothing more will arrive: count what still waits for its call."""
        self._give_up(*self._waiting.remove(self._waiting.begun(None)), now_ns)

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
        kernels = np.full(len(records), NO_KERNEL)
        operations = timed_operations(records, calls, kernels, first)
        starts, ends, devices = operations.starts, operations.ends, operations.devices
        durations = durations_ns(starts, ends)
        nodes, inherited = operations.nodes, calls["inherited"]
        phases = self._graph_nodes.phases(records, nodes, operations.threads, now_ns)
        replayed = (records["e"] != 0) & (phases == nodes)
        places = place_keys(phases, devices, inherited)
        is_kernel = are_kernels(records)
        shapes = np.zeros(len(records), np.int64)
        kernel_rows: slice | Int64s = slice(None)
        ran_kernels, made = records, calls
        if not is_kernel.all():
            memory, kernel_rows = ~is_kernel, np.flatnonzero(is_kernel)
            self.memory_sums.add(places[memory], pick(records, memory), durations[memory])
            ran_kernels, made = pick(records, kernel_rows), pick(calls, kernel_rows)
        if len(ran_kernels):
            chosen, took = self._names.numbers(ran_kernels, now_ns), durations[kernel_rows]
            kernels[kernel_rows], shapes[kernel_rows] = (
                chosen,
                self.shapes.count(ran_kernels, chosen, now_ns),
            )
            self.kernel_sums.add_launched(
                places[kernel_rows], chosen, took, made, replayed[kernel_rows]
            )
            self.launches.add(made, devices[kernel_rows], chosen, starts[kernel_rows], took)
        if self._trace.is_open:
            self._trace.operations(records, nodes, phases, inherited, is_kernel, kernels, shapes)
        if self._counted is not None:
            self._counted(
                CountedOperations(
                    operations.devices,
                    starts,
                    ends,
                    np.where(is_kernel, kernels, 0),
                    shapes,
                    phases,
                )
            )
        # An operation without a time is counted, but has no place.
        operations = operations._replace(nodes=phases)
        if not starts.all():
            chosen = np.flatnonzero(starts)
            records, calls, operations = (
                pick(records, chosen),
                pick(calls, chosen),
                operations.pick(chosen),
            )
            ran, accounted = ran[chosen], accounted[chosen]
        self._measure(records, calls, operations, ran, accounted)
        instances = calls["instance"].copy()
        self._launched.append(
            LaunchedOperations(operations.starts, operations.ends, operations.nodes, instances)
        )
        direct = np.flatnonzero(~calls["inherited"] & (instances >= 0))
        own = take_rows(instances, direct)
        self._instances.add_operations(
            own,
            take_rows(operations.starts, direct),
            take_rows(operations.ends, direct),
            take_rows(operations.first, direct),
        )
        self.range_kernels.add(own, take_rows(operations.kernels, direct))
        self._keep_secondary(calls["sequence"], operations)

    def _measure(
        self,
        records: Slots,
        calls: Slots,
        operations: TimedOperations,
        ran: Bools,
        accounted: Bools,
    ) -> None:
        """Count when devices were busy, and account for it; not again what was counted already."""
        origins = self._streams.origins(operations.devices, operations.streams, operations.threads)
        launches = np.flatnonzero(operations.first & (operations.kernels != NO_KERNEL))
        self._streams.add(
            origins.take(launches),
            operations.starts.take(launches),
            operations.called_ns.take(launches),
            operations.returned_ns.take(launches),
        )
        new = slice(None) if not ran.any() else np.flatnonzero(~ran)
        self._streams.add_busy(
            Ran(operations.starts[new], operations.ends[new], operations.devices[new], origins[new])
        )
        if accounted.any():
            new = np.flatnonzero(~accounted)
            records, calls, operations = pick(records, new), pick(calls, new), operations.pick(new)
            origins = origins.take(new)
        self._accounting.add_operations(records, calls, operations, origins)

    def _keep_secondary(
        self,
        sequences: Int64s,
        operations: TimedOperations,
    ) -> None:
        if not len(self._calls.secondary):
            return
        secondary, rows = self._calls.secondary.around(sequences)
        if not len(secondary):
            return
        instances, nodes = secondary["instance"].copy(), secondary["node"].copy()
        operations = operations.pick(rows)
        self._instances.add_operations(
            instances, operations.starts, operations.ends, operations.first
        )
        self._gpu_time.add_secondary(nodes, operations.starts, operations.ends)
        kernel, devices = operations.kernels, operations.devices
        is_kernel = kernel != NO_KERNEL
        durations = durations_ns(operations.starts, operations.ends)
        of_start_end = is_kernel & secondary["start_end"]
        if of_start_end.any():
            self.start_end_kernels.add(
                instances[of_start_end],
                kernel[of_start_end],
                devices[of_start_end],
                durations[of_start_end],
                secondary["only_start_end"][of_start_end],
                secondary["repeated"][of_start_end],
            )
        stacked = is_kernel & ~secondary["start_end"]
        self.range_kernels.add(instances[stacked], kernel[stacked])
        places = place_keys(nodes, devices, np.zeros(len(rows), np.bool_))
        self.secondary_sums.add(places[stacked], kernel[stacked], durations[stacked])

    def gather(self) -> None:
        """Count which instances launched which kernel: call before any are finalised."""
        self.start_end_kernels.gather()
        self.range_kernels.gather()

    def take_launched(self) -> LaunchedOperations:
        """All operations since the last call, sorted by start."""
        launched, self._launched = self._launched, []
        return LaunchedOperations(*sorted_columns(launched, (np.int64,) * 4))

    def collect_parts(self, _: Collection) -> DeltaParts:
        """How many operations were counted without a call."""
        unattributed, self._unattributed = self._unattributed, 0
        return {"unattributed": unattributed}
