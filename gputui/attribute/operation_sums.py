"""Sums of GPU operations: kernels, copies and memsets by place, and launches by thread and call.

For `operations`, which fills them. Sums by range alone are in `range_deltas`, busy time of devices
and streams in `streams`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from gputui.attribute import Bools, Int64s, KeyTable, Slots, UInt32s, durations_ns
from gputui.attribute.calls import CudaCalls
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import ValueSums, grouped
from gputui.attribute.range_stacks import Nodes
from gputui.model.events import (
    LAUNCH_UNKNOWN,
    Distribution,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
)
from gputui.model.naming import COPY_KINDS, MEMORY_KINDS, MEMSET, copy_name
from gputui.model.sketch import EXACT_VALUES
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
