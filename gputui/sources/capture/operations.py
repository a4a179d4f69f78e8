"""GPU operations: which call launched them, in which range, and what they add up to."""

from __future__ import annotations

import numpy as np

from gputui.capture.layout import SLOT, RecordKind
from gputui.events import (
    Distribution,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    RangeKernels,
)
from gputui.naming import short_name
from gputui.sources.capture.arrays import (
    Bools,
    Int64s,
    KeyTable,
    Slots,
    UInt32s,
    durations_ns,
    grouped,
    join,
    pick,
    stack,
    times_ns,
)
from gputui.sources.capture.calls import Calls
from gputui.sources.capture.correlation import NO_CALL
from gputui.sources.capture.gputime import Beside, Launched
from gputui.sources.capture.held import HeldKernels
from gputui.sources.capture.instances import Finalised, Instances
from gputui.sources.capture.launches import Launches
from gputui.sources.capture.names import MEMORY_KINDS, MEMSET, copy_name, demangle
from gputui.sources.capture.nodes import Nodes
from gputui.sources.capture.numbering import OTHER_KERNELS, Numbering
from gputui.sources.capture.rangekernels import NO_KERNEL, KernelsOfRanges
from gputui.sources.capture.shapes import Shapes
from gputui.sources.capture.streams import Streams
from gputui.sources.capture.strings import Strings
from gputui.sources.trace import TraceSink

ORPHAN_NS = 30_000_000_000
MAX_ORPHANS = 500_000
"""Operations whose call has not arrived wait this long, or until this many others wait."""

MAX_KERNEL_NAMES = 20_000
MAX_DEVICE = 255
"""Device numbers over this are taken for it."""

MAX_THREADS = 4095
"""Launching threads that are told apart."""

_MEMSET_CODE = 255
_GRAPH_KEY = 1 << 33

# A row's key: node | thread | inherited | device | kernel or memory code.
_DEVICE_SHIFT = 24
_INHERITED_SHIFT = 32
_THREAD_SHIFT = 33
_NODE_SHIFT = 45
_THREAD_MASK = (1 << (_NODE_SHIFT - _THREAD_SHIFT)) - 1


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
    ) -> None:
        self._process = process
        self._streams = streams
        self._nodes = nodes
        self._instances = instances
        self._calls = calls
        self._strings = strings
        self._numbering = numbering
        self._kernels = KeyTable(MAX_KERNEL_NAMES)
        self._orphans = np.empty(0, SLOT)
        self._orphaned_ns = np.empty(0, np.int64)
        self._kernel_rows: list[tuple[Int64s, Int64s]] = []
        self._memory_rows: list[tuple[Int64s, Int64s, Int64s]] = []
        self._beside_rows: list[tuple[Int64s, Int64s]] = []
        self._threads = KeyTable(MAX_THREADS)
        self._thread_ids = [0]
        self._launches = Launches(process, calls)
        self.shapes = Shapes(numbering)
        self._range_kernels = KernelsOfRanges(nodes, instances)
        self._held = HeldKernels(process, nodes, instances, self._range_kernels)
        self._launched: list[Launched] = []
        self._beside: list[Beside] = []
        self.trace: TraceSink | None = None
        self.defined: list[KernelDefined] = []
        self.unattributed = 0
        self.pending = 0
        """Operations not yet collected."""

    def feed(self, records: Slots, new_calls: Slots, now_ns: int) -> None:
        """Take in the operations of a batch, after its calls."""
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
        """Nothing more will come: count what still waits for its call."""
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
        rows = (
            nodes << _NODE_SHIFT
            | inherited.astype(np.int64) << _INHERITED_SHIFT
            | devices << _DEVICE_SHIFT
        )
        is_kernel = (kinds == RecordKind.KERNEL) | (kinds == RecordKind.GRAPH)
        kernels = np.full(len(records), NO_KERNEL)
        shapes = np.zeros(len(records), np.int64)
        if is_kernel.all():
            kernels = self._kernel_numbers(records, now_ns)
            shapes = self.shapes.count(records, kernels, now_ns)
            self._keep_kernels(rows, kernels, durations, calls)
            self._launches.add(calls, devices, kernels, starts, durations)
        else:
            kernels[is_kernel] = self._kernel_numbers(pick(records, is_kernel), now_ns)
            memory = ~is_kernel
            self._memory_rows.append(
                (
                    rows[memory] | _memory_code(pick(records, memory)),
                    durations[memory],
                    np.minimum(records["value"][memory], np.uint64(1 << 50)).astype(np.int64),
                )
            )
            if is_kernel.any():
                made = pick(calls, is_kernel)
                of = kernels[is_kernel]
                shapes[is_kernel] = self.shapes.count(pick(records, is_kernel), of, now_ns)
                took = durations[is_kernel]
                self._keep_kernels(rows[is_kernel], of, took, made)
                self._launches.add(made, devices[is_kernel], of, starts[is_kernel], took)
        if self.trace is not None:
            self.trace.operations(records, nodes, inherited, is_kernel, kernels, shapes)
        # CUPTI gives 0 for a time it could not take: such an operation is counted, not placed.
        timed = starts > 0
        origins = self._streams.origins(devices, records["b"], calls["thread"])
        launches = first & is_kernel & timed
        self._streams.add(origins[launches], starts[launches], pick(calls, launches))
        if not timed.all():
            starts, ends, devices, nodes = starts[timed], ends[timed], devices[timed], nodes[timed]
            inherited, calls, kernels = inherited[timed], pick(calls, timed), kernels[timed]
            origins, first = origins[timed], first[timed]
        instances = calls["instance"].copy()
        self._launched.append(Launched(starts, ends, devices, nodes, instances, inherited, origins))
        direct = ~inherited & (instances >= 0)
        self._instances.add_operations(
            instances[direct], starts[direct], ends[direct], first[direct]
        )
        self._range_kernels.add(instances[direct], kernels[direct])
        self._keep_beside(calls["sequence"], starts, ends, devices, kernels, first)

    def _keep_kernels(self, rows: Int64s, kernels: Int64s, durations: Int64s, calls: Slots) -> None:
        keys = rows | kernels
        outside = calls["outside"]
        if outside.any():
            keys[outside] |= self._thread_numbers(calls["thread"][outside]) << _THREAD_SHIFT
        self._kernel_rows.append((keys, durations))

    def _thread_numbers(self, threads: UInt32s) -> Int64s:
        def define(thread: int, _first: int) -> int:
            self._thread_ids.append(thread)
            return len(self._thread_ids) - 1

        return self._threads.lookup(threads.astype(np.int64), define, lambda: 0)

    def _keep_beside(
        self,
        sequences: Int64s,
        starts: Int64s,
        ends: Int64s,
        devices: Int64s,
        kernels: Int64s,
        first: Bools,
    ) -> None:
        if not len(self._calls.others):
            return
        beside, rows = self._calls.beside(sequences)
        if not len(beside):
            return
        instances, nodes = beside["instance"].copy(), beside["node"].copy()
        self._instances.add_operations(instances, starts[rows], ends[rows], first[rows])
        self._beside.append((nodes, starts[rows], ends[rows]))
        kernel = kernels[rows]
        is_kernel = kernel != NO_KERNEL
        durations = durations_ns(starts[rows], ends[rows])
        held = is_kernel & beside["start_end"]
        if held.any():
            self._held.add(
                instances[held],
                kernel[held],
                devices[rows][held],
                durations[held],
                beside["alone"][held],
                beside["repeated"][held],
            )
        told = is_kernel & ~beside["start_end"]
        self._range_kernels.add(instances[told], kernel[told])
        keys = nodes << _NODE_SHIFT | devices[rows] << _DEVICE_SHIFT | kernel
        self._beside_rows.append((keys[told], durations[told]))

    # --- what it adds up to

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

    def take_beside(self) -> list[Beside]:
        """The same of further domains: node, start and end, in no order."""
        beside, self._beside = self._beside, []
        return beside

    def kernels(self) -> tuple[KernelDelta, ...]:
        """Kernels since the last call."""
        rows, self._kernel_rows = self._kernel_rows, []
        return self._kernel_deltas(rows)

    def range_kernels(self) -> tuple[RangeKernels, ...]:
        """Which instances launched which kernel for the first time; before they are finalised."""
        self._held.gather()
        return self._range_kernels.collect()

    def kernels_beside(
        self, finalised: Finalised
    ) -> tuple[tuple[KernelDelta, ...], tuple[RangeKernels, ...]]:
        """The same kernels in the further domains that were open too, and in the Start/End ranges
        that are complete, with how many of these launched each."""
        rows, self._beside_rows = self._beside_rows, []
        held, instances = self._held.release(finalised)
        return (*self._kernel_deltas(rows), *held), instances

    @property
    def launched(self) -> int:
        """How many launches wait to be collected."""
        return len(self._launches)

    def launches(self) -> tuple[LaunchDelta, ...]:
        """Launches since the last call."""
        return self._launches.collect()

    def _kernel_deltas(self, rows: list[tuple[Int64s, Int64s]]) -> tuple[KernelDelta, ...]:
        keys = join([keys for keys, _ in rows], np.int64)
        durations = join([durations for _, durations in rows], np.int64)
        return tuple(
            KernelDelta(
                process=self._process,
                range=int(self._nodes.number[key >> _NODE_SHIFT]),
                kernel=key & 0xFFFFFF,
                device=key >> _DEVICE_SHIFT & 0xFF,
                inherited=bool(key >> _INHERITED_SHIFT & 1),
                thread=self._thread_ids[key >> _THREAD_SHIFT & _THREAD_MASK],
                time=time,
            )
            for key, time in grouped(keys, durations)
        )

    def memory_operations(self) -> tuple[MemoryOperationDelta, ...]:
        """Copies and memsets since the last call."""
        rows, self._memory_rows = self._memory_rows, []
        keys = join([row[0] for row in rows], np.int64)
        times = grouped(keys, join([row[1] for row in rows], np.int64))
        sizes = grouped(keys, join([row[2] for row in rows], np.int64))
        return tuple(
            self._memory_delta(key, time, size)
            for (key, time), (_, size) in zip(times, sizes, strict=True)
        )

    def _memory_delta(
        self, key: int, time: Distribution, size: Distribution
    ) -> MemoryOperationDelta:
        code = key >> 16 & 0xFF
        return MemoryOperationDelta(
            process=self._process,
            range=int(self._nodes.number[key >> _NODE_SHIFT]),
            operation=MEMSET if code == _MEMSET_CODE else copy_name(code),
            device=key >> _DEVICE_SHIFT & 0xFF,
            source_kind=MEMORY_KINDS.get(key >> 8 & 0xFF),
            destination_kind=MEMORY_KINDS.get(key & 0xFF),
            inherited=bool(key >> _INHERITED_SHIFT & 1),
            time=time,
            size=size,
        )

    def _kernel_numbers(self, records: Slots, now_ns: int) -> Int64s:
        keys = np.where(
            records["kind"] == RecordKind.GRAPH,
            records["e"].astype(np.int64) | _GRAPH_KEY,
            records["name"].astype(np.int64),
        )

        def define(key: int, _first: int) -> int:
            if key & _GRAPH_KEY:
                return self._define(f"[CUDA graph {key & 0xFFFFFFFF}]", now_ns)
            return self._define(self._strings.raw(key), now_ns)

        return self._kernels.lookup(keys, define, lambda: self._define(OTHER_KERNELS, now_ns))

    def _define(self, mangled: str, now_ns: int) -> int:
        number, mangled, is_new = self._numbering.kernel(mangled)
        name = demangle(mangled)
        self._range_kernels.define(number, short_name(name))
        if is_new:
            self.defined.append(
                KernelDefined(time_ns=now_ns, kernel=number, name=name, mangled=mangled)
            )
        return number


def _memory_code(records: Slots) -> Int64s:
    is_copy = records["kind"] == RecordKind.MEMCPY
    kind = np.where(records["sub"] <= 10, records["sub"], 0)
    source = np.where(is_copy & (records["source_kind"] <= 7), records["source_kind"], 0)
    destination = np.where(records["destination_kind"] <= 7, records["destination_kind"], 0)
    code = np.where(is_copy, kind, _MEMSET_CODE).astype(np.int64)
    return code << 16 | source.astype(np.int64) << 8 | destination
