"""Sums of GPU operations: kernels, copies and memsets by place, and launches by thread and call.

For `operations`, which fills them; and Streams: busy and idle time of devices and streams, launch
latency and queues. Sums by range alone are in `range_deltas`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from gputui.attribute import ORIGIN_BITS, STREAM, Ran
from gputui.attribute.arrays import (
    LONGEST_NS,
    Bools,
    Covered,
    Holes,
    Int64s,
    KeyTable,
    Slots,
    UInt32s,
    Unions,
    durations_ns,
    join,
    sorted_columns,
)
from gputui.attribute.calls import CudaCalls
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import ValueSums, coarse_distributions, grouped
from gputui.attribute.range_stacks import Nodes
from gputui.model.events import (
    LAUNCH_UNKNOWN,
    OTHER_STREAMS,
    DeviceDelta,
    Distribution,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    StreamDelta,
)
from gputui.model.events.distributions import EXACT_VALUES
from gputui.model.naming import COPY_KINDS, MEMORY_KINDS, MEMSET, copy_name
from gputui.ring import RecordKind

# --- Sums of kernels, copies and memsets by range, device and whether the range was inherited.

MAX_THREADS = 4095
"""Launching threads whose kernels outside ranges are counted separately."""

# CUPTI's kinds of copies are small numbers (CUpti_ActivityMemcpyKind ends at 13), so this is none.
_MEMSET_CODE = 255
_MOST_BYTES = np.uint64(1 << 50)

# A row's key: node | thread | inherited | device | kernel or memory code.
_DEVICE_SHIFT = 24
_INHERITED_SHIFT = 32
_THREAD_SHIFT = 33
_NODE_SHIFT = 45
_THREAD_MASK = (1 << (_NODE_SHIFT - _THREAD_SHIFT)) - 1


def place_keys(nodes: Int64s, devices: Int64s, inherited: Bools) -> Int64s:
    """The key part common to both sums; `devices` are under 256."""
    return (
        nodes << _NODE_SHIFT
        | inherited.astype(np.int64) << _INHERITED_SHIFT
        | devices << _DEVICE_SHIFT
    )


def _ranges(nodes: Nodes, node: int) -> dict[str, int]:
    """`range` and `captured` of a delta."""
    launched_in = int(nodes.launched_in[node])
    captured = int(nodes.number[node]) if launched_in != node else 0
    return {"range": int(nodes.number[launched_in]), "captured": captured}


class KernelSums:
    """Adds up the kernels of one process and their durations, for one field of CaptureDelta."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._times = ValueSums()
        self._replayed: Counter[int] = Counter()
        self._threads = KeyTable(MAX_THREADS)
        self._thread_ids = [0]

    def add(self, places: Int64s, kernels: Int64s, durations: Int64s) -> None:
        """Adds kernels without regard to the thread that launched them. `places` are as
        `place_keys` makes them."""
        self._times.add(places | kernels, durations)

    def add_launched(
        self, places: Int64s, kernels: Int64s, durations: Int64s, calls: Slots, replayed: Bools
    ) -> None:
        """Adds kernels with the calls that launched them. Outside every range, each thread has a
        sum of its own. `replayed` marks the kernels of CUDA graphs that count where their graph was
        launched."""
        outside = calls["outside"]
        if outside.any():
            places = places.copy()
            places[outside] |= self._thread_numbers(calls["thread"][outside]) << _THREAD_SHIFT
        self.add(places, kernels, durations)
        if replayed.any():
            keys, counts = np.unique((places | kernels)[replayed], return_counts=True)
            self._replayed.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))

    def _thread_numbers(self, threads: UInt32s) -> Int64s:
        def define(thread: int, _first: int) -> int:
            # No thread has id 0: it is that of a call that never arrived.
            self._thread_ids.append(thread or LAUNCH_UNKNOWN)
            return len(self._thread_ids) - 1

        return self._threads.lookup(threads.astype(np.int64), define, lambda: 0)

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Kernels by place and name."""
        if not collection.due:
            return {}
        replayed = dict(self._replayed)
        self._replayed.clear()
        deltas = tuple(
            KernelDelta(
                process=collection.process,
                **_ranges(collection.nodes, key >> _NODE_SHIFT),
                kernel=key & 0xFFFFFF,
                device=key >> _DEVICE_SHIFT & 0xFF,
                inherited=bool(key >> _INHERITED_SHIFT & 1),
                thread=self._thread_ids[key >> _THREAD_SHIFT & _THREAD_MASK],
                time=time,
                replayed=replayed.get(key, 0),
            )
            for key, time in self._times.drain(collection.exact_values)
        )
        return {self._field: deltas}


class MemorySums:
    """Copies and memsets of one process, their durations and sizes."""

    def __init__(self) -> None:
        self._times = ValueSums()
        self._sizes = ValueSums()

    def add(self, places: Int64s, records: Slots, durations: Int64s) -> None:
        """Add records of copies and memsets."""
        keys = places | _memory_code(records)
        self._times.add(keys, durations)
        self._sizes.add(keys, np.minimum(records["value"], _MOST_BYTES).astype(np.int64))

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Copies and memsets by place and kind."""
        if not collection.due:
            return {}
        deltas = tuple(
            MemoryOperationDelta(
                process=collection.process,
                device=place >> _DEVICE_SHIFT & 0xFF,
                inherited=bool(place >> _INHERITED_SHIFT & 1),
                **sums | _ranges(collection.nodes, place >> _NODE_SHIFT),
            )
            for place, sums in self.drain(collection.exact_values)
        )
        return {"memory_operations": deltas}

    def drain(self, exact_limit: int = EXACT_VALUES) -> Iterator[tuple[int, dict[str, Any]]]:
        """What was added since the last call: places, and what a MemoryOperationDelta says of each
        kind of operation there."""
        times, sizes = self._times.drain(exact_limit), self._sizes.drain(exact_limit)
        for (key, time), (_, size) in zip(times, sizes, strict=True):
            yield (
                key,
                {
                    "operation": _operation_name(key >> 16 & 0xFF),
                    "source_kind": MEMORY_KINDS.get(key >> 8 & 0xFF),
                    "destination_kind": MEMORY_KINDS.get(key & 0xFF),
                    "time": time,
                    "size": size,
                },
            )


def _operation_name(code: int) -> str:
    return MEMSET if code == _MEMSET_CODE else copy_name(code)


def _memory_code(records: Slots) -> Int64s:
    is_copy = records["kind"] == RecordKind.MEMCPY
    kind = np.where(records["sub"] <= max(COPY_KINDS), records["sub"], 0)
    source = np.where(is_copy & (records["source_kind"] <= 7), records["source_kind"], 0)
    destination = np.where(records["destination_kind"] <= 7, records["destination_kind"], 0)
    code = np.where(is_copy, kind, _MEMSET_CODE).astype(np.int64)
    return code << 16 | source.astype(np.int64) << 8 | destination


# --- Launches from call to the kernel's end: time in the call, in the queue, and running.

_DTYPE = np.dtype([
    ("thread", "u4"), ("name", "u4"), ("place", "i8"), ("total", "i8"), ("call", "i8"),
    ("queue", "i8"), ("kernel", "i8"),
])  # fmt: skip
# MAX_KERNELS (100,000) fits with room to spare; the device is above.
_KERNEL_BITS = 24
# A launch's key: thread (its index among launching threads) | call | device | kernel.
_NAME_SHIFT = 32
_LAUNCH_THREAD_SHIFT = 48
_PLACE_MASK = (1 << _NAME_SHIFT) - 1
_NAME_MASK = (1 << (_LAUNCH_THREAD_SHIFT - _NAME_SHIFT)) - 1

LAUNCHES_NS = 10_000_000_000
LAUNCHES_KEPT = 200_000
"""Launches, which only the summary shows, are reported this often, or when there are so many."""

EXACT_LAUNCHES = 50_000
FEW_VALUES = 32
"""How many distinct times are sent exactly after so many launches: each launch has four
distributions, and no two calls take equally long.
"""


class LaunchSums:
    """The launches of one process since the last collection."""

    def __init__(self, calls: CudaCalls) -> None:
        self._calls = calls
        self._parts: list[Slots] = []
        self._reported = 0
        self._collected_ns = 0

    def add(
        self,
        calls: Slots,
        devices: Int64s,
        kernels: Int64s,
        starts_ns: Int64s,
        durations: Int64s,
    ) -> None:
        """Adds kernels with the calls that launched them; kernels whose call is not known are left
        out."""
        part = np.empty(len(calls), _DTYPE)
        part["thread"] = calls["thread"]
        part["name"] = calls["name"]
        part["place"] = devices << _KERNEL_BITS | kernels
        part["call"] = durations_ns(calls["start"], calls["end"])
        part["queue"] = starts_ns - calls["end"]
        part["kernel"] = durations
        ends_ns = np.maximum(calls["end"], starts_ns + durations)
        part["total"] = durations_ns(calls["start"], ends_ns)
        is_complete = (calls["sequence"] >= 0) & (starts_ns > 0)
        self._parts.append(part if is_complete.all() else part[is_complete])

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Launches since they were last reported, if that is LAUNCHES_NS ago, if there are more
        than LAUNCHES_KEPT, or at the end of the process."""
        now_ns = collection.now_ns
        self._collected_ns = self._collected_ns or now_ns
        is_due = now_ns - self._collected_ns >= LAUNCHES_NS
        if not (collection.ended or is_due or sum(map(len, self._parts)) > LAUNCHES_KEPT):
            return {}
        self._collected_ns = now_ns
        launches, self._parts = self._parts, []
        if not any(map(len, launches)):
            return {}
        launched = np.concatenate(launches)
        threads, thread_of = _numbered(launched["thread"])
        keys = (
            thread_of << _LAUNCH_THREAD_SHIFT
            | launched["name"].astype(np.int64) << _NAME_SHIFT
            | launched["place"]
        )
        queued = launched["queue"] > 0
        # A run of few launches keeps exact medians, a long one a small recording.
        limit = FEW_VALUES if self._reported >= EXACT_LAUNCHES else EXACT_VALUES
        self._reported += len(launched)
        queue = dict(grouped(keys[queued], launched["queue"][queued], limit))
        columns = (
            grouped(keys, launched[name].copy(), limit) for name in ("total", "call", "kernel")
        )
        deltas = tuple(
            self._delta(
                collection.process,
                int(threads[key >> _LAUNCH_THREAD_SHIFT]),
                key >> _NAME_SHIFT & _NAME_MASK,
                key & _PLACE_MASK,
                (total, call, running),
                queue.get(key),
            )
            for (key, total), (_, call), (_, running) in zip(*columns, strict=True)
        )
        return {"launches": deltas}

    def _delta(
        self,
        process: int,
        thread: int,
        name: int,
        place: int,
        times: tuple[Distribution, Distribution, Distribution],
        queue: Distribution | None,
    ) -> LaunchDelta:
        total, call, running = times
        return LaunchDelta(
            process=process,
            thread=thread,
            device=place >> _KERNEL_BITS,
            name=self._calls.names[name],
            kernel=place & ((1 << _KERNEL_BITS) - 1),
            total=total,
            call=call,
            queue=queue,
            kernel_time=running,
        )


def _numbered(threads: UInt32s) -> tuple[UInt32s, Int64s]:
    """The distinct threads, and the index of each row's; most programs launch from one."""
    if (threads == threads[0]).all():
        return threads[:1], np.zeros(len(threads), np.int64)
    different, numbers = np.unique(threads, return_inverse=True)
    return different, numbers.astype(np.int64)


# --- How operations follow their calls, and each other: launch latency, queues, gaps, busy time.

MAX_STREAMS = 500
"""Streams per process counted separately; the rest of each device's are combined."""


class Streams:
    """Remembers the streams of a process, and up to when each stream and its device were
    covered.
    """

    def __init__(self, holes: Holes) -> None:
        """`holes` are where nothing is known of the devices: no idle time."""
        self._holes = holes
        self._table = KeyTable(MAX_STREAMS)
        self._streams: list[tuple[int, int]] = []
        self._others: dict[int, int] = {}
        self._devices = Unions()
        self._covered = Unions()
        self._latencies: list[tuple[Int64s, Int64s, Int64s]] = []
        self._ran: list[Ran] = []

    def origins(self, devices: Int64s, streams: UInt32s, threads: UInt32s) -> Int64s:
        """The `origins` of `Ran`: the number of each operation's stream, and its launching
        thread.
        """
        keys = devices << 32 | streams

        def define(key: int, _first: int) -> int:
            self._streams.append((key >> 32, key & 0xFFFF_FFFF))
            return len(self._streams) - 1

        numbers = self._table.lookup(keys, define, lambda: -1)
        missing = numbers < 0
        if missing.any():
            for device in np.unique(devices[missing]).tolist():
                numbers[missing & (devices == device)] = self._other(device)
        return threads.astype(np.int64) << ORIGIN_BITS | numbers

    def _other(self, device: int) -> int:
        if device not in self._others:
            self._others[device] = len(self._streams)
            self._streams.append((device, OTHER_STREAMS))
        return self._others[device]

    def add(
        self, origins: Int64s, starts_ns: Int64s, called_ns: Int64s, returned_ns: Int64s
    ) -> None:
        """Add the first kernel of each launch, and when its call began and ended."""
        self._latencies.append(
            (
                origins & STREAM,
                np.clip(starts_ns - called_ns, 0, LONGEST_NS),
                np.clip(starts_ns - returned_ns, 0, LONGEST_NS),
            )
        )

    def add_busy(self, ran: Ran) -> None:
        """Add operations that ran, whether their calls have arrived or not; in any order."""
        self._ran.append(ran)

    def collect_parts(self, collection: Collection) -> DeltaParts:
        pieces, self._ran = self._ran, []
        ran = Ran(*sorted_columns(pieces, (np.int64,) * 4))
        latencies, self._latencies = self._latencies, []
        if not len(ran.starts_ns):
            return {}
        starts, ends, devices = ran.starts_ns, ran.ends_ns, ran.devices
        streams = ran.origins & STREAM
        by_device = self._devices.add(devices, starts, ends)
        by_stream = self._covered.add(streams, starts, ends)
        keys = join([part[0] for part in latencies], np.int64)
        latency = coarse_distributions(keys, join([part[1] for part in latencies], np.int64))
        queue = coarse_distributions(keys, join([part[2] for part in latencies], np.int64))
        idle = self._idle(streams, starts, by_stream)
        rows = zip(by_stream.keys.tolist(), by_stream.counts.tolist(),
                   by_stream.busy_ns.tolist(), strict=True)  # fmt: skip
        names = self._streams
        idle_devices = self._idle(devices, starts, by_device)
        return {
            "devices": self._device_deltas(collection.process, by_device, by_stream, idle_devices),
            "streams": tuple(
                StreamDelta(
                    device=names[stream][0],
                    stream=names[stream][1],
                    operations=count,
                    busy_ns=busy_ns,
                    latency=latency.get(stream),
                    queue=queue.get(stream),
                    idle=idle.get(stream),
                )
                for stream, count, busy_ns in rows
            ),
        }

    def _idle(self, keys: Int64s, starts: Int64s, covered: Covered) -> dict[int, Distribution]:
        rows, gaps_ns = covered.gap_rows, covered.gaps_ns
        is_known = ~self._holes.touch(starts[rows] - gaps_ns, starts[rows])
        return coarse_distributions(keys[rows[is_known]], gaps_ns[is_known])

    def _device_deltas(
        self, process: int, by_device: Covered, by_stream: Covered, idle: dict[int, Distribution]
    ) -> tuple[DeviceDelta, ...]:
        device_of = np.array([self._streams[stream][0] for stream in by_stream.keys.tolist()])
        on_streams = np.bincount(device_of, by_stream.busy_ns, int(by_device.keys.max()) + 1)
        return tuple(
            DeviceDelta(
                process=process,
                device=device,
                busy_ns=busy_ns,
                operations=count,
                first_start_ns=first_ns,
                last_end_ns=last_ns,
                idle=idle.get(device),
                overlap_ns=max(0, int(on_streams[device]) - busy_ns),
            )
            for device, busy_ns, count, first_ns, last_ns in zip(
                by_device.keys.tolist(),
                by_device.busy_ns.tolist(),
                by_device.counts.tolist(),
                by_device.first_ns.tolist(),
                by_device.last_ns.tolist(),
                strict=True,
            )
        )
