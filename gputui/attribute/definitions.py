"""What a program names and numbers: threads, resources, kernels, launch shapes, marks; and what a
Python program says itself that it does.

For `traced_process`, which reports each definition before the first delta that refers to it.
Ranges, which form a tree, are in `range_stacks`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from math import prod
from typing import Literal

import numpy as np

from gputui.attribute import MAX_LABEL, Attributes, Strings
from gputui.attribute.accounting import Accounting
from gputui.attribute.arrays import Int64s, KeyTable, Slots, times_ns
from gputui.attribute.collection import Collection, DeltaParts, TraceSink
from gputui.attribute.range_deltas import KernelsOfRanges
from gputui.base.sanitize import sanitize
from gputui.model.events import (
    NO_PAYLOAD,
    OTHER_KERNELS,
    DeviceDefined,
    GarbageCollections,
    KernelDefined,
    LaunchShape,
    LineCalls,
    Mark,
    MarkDefined,
    MarkDelta,
    Payload,
    ResourceNamed,
    ShapeLaunches,
    ThreadNamed,
    payload_of,
)
from gputui.model.hub import Geometry, Numbering
from gputui.model.merge import merge
from gputui.model.naming import demangle, short_name
from gputui.ring import NAMED_BY_SYSTEM, UNKNOWN_DEVICE, RecordKind, Resource, payload_types

# --- Thread names: from the program through NVTX, or from the system.

MAX_THREADS = 4096
"""Threads of a process whose names are kept."""

ASKED_AT_ONCE = 64
"""Threads whose system name is read in one tick, in turn: it can change."""


class ThreadNames:
    """The names of one process's threads. `ask` returns the system's name of a thread, or None,
    `ask_priority` its priority."""

    def __init__(
        self,
        process: int,
        strings: Strings,
        ask: Callable[[int], str | None] | None,
        ask_priority: Callable[[int], int | None] | None = None,
    ) -> None:
        self._process = process
        self._strings = strings
        self._ask = ask
        self._ask_priority = ask_priority
        self._names: dict[int, tuple[str, Literal["nvtx", "system"]]] = {}
        self._seen: dict[int, None] = {}
        self._changed: set[int] = set()

    def define(self, records: Slots) -> None:
        """Add THREAD_NAME records: the program's name wins over the system's."""
        columns = records["thread"].tolist(), records["name"].tolist(), records["sub"].tolist()
        for thread, number, sub in zip(*columns, strict=True):
            before = self._names.get(thread)
            if before is None and len(self._names) >= MAX_THREADS:
                continue
            name = self._strings.label(number)
            if sub != NAMED_BY_SYSTEM:
                self._name(thread, name, "nvtx")
                self._seen.pop(thread, None)
            elif before is None or before[1] == "system":
                self._name(thread, name, "system")

    def see(self, threads: Iterable[int]) -> None:
        """Register threads that did something, so that the system is asked for their names."""
        for thread in threads:
            before = self._names.get(thread)
            if (before is None or before[1] == "system") and len(self._seen) < MAX_THREADS:
                self._seen.setdefault(thread)

    def collect(self, now_ns: int) -> list[ThreadNamed]:
        if self._ask is not None:
            for thread in list(self._seen)[:ASKED_AT_ONCE]:
                self._seen[thread] = self._seen.pop(thread)  # until the turn is over
                if name := self._ask(thread):
                    self._name(thread, sanitize(name, MAX_LABEL), "system")
        named = [
            ThreadNamed(
                time_ns=now_ns,
                process=self._process,
                thread=thread,
                name=self._names[thread][0],
                source=self._names[thread][1],
                priority=self._ask_priority(thread) if self._ask_priority else None,
            )
            for thread in sorted(self._changed)
        ]
        self._changed.clear()
        return named

    def _name(self, thread: int, name: str, source: Literal["nvtx", "system"]) -> None:
        if self._names.get(thread) != (name, source):
            self._names[thread] = name, source
            self._changed.add(thread)


# --- The names a program gives its CUDA devices, contexts and streams, and what its devices are.

MAX_RESOURCES = 4096
"""Resources of a process whose names are kept."""

_KINDS: dict[int, Literal["device", "context", "stream"]] = {
    Resource.DEVICE: "device",
    Resource.CONTEXT: "context",
    Resource.STREAM: "stream",
}


class Resources:
    """The names of one process's resources."""

    def __init__(self, process: int, strings: Strings) -> None:
        self._process = process
        self._strings = strings
        self._known: dict[tuple[int, int, int], str] = {}
        self._changed: dict[tuple[int, int, int], None] = {}
        self._devices: dict[int, int] = {}
        self._new_devices: dict[int, int] = {}

    def define(self, records: Slots) -> None:
        """Add RESOURCE_NAME records; a resource's newest name wins."""
        for record in records:
            key = int(record["sub"]), int(record["a"]), int(record["b"])
            if key[0] in _KINDS and (key in self._known or len(self._known) < MAX_RESOURCES):
                self._known[key] = self._strings.label(int(record["name"]))
                self._changed[key] = None

    def define_devices(self, records: Slots) -> None:
        """Add DEVICE records: each attach brings them again."""
        for record in records:
            device, l2_bytes = int(record["a"]), int(record["value"])
            if self._devices.get(device) != l2_bytes and len(self._devices) < MAX_RESOURCES:
                # Said once a device by the library, from a thread of ours: NVML does not tell it.
                self._devices[device] = self._new_devices[device] = l2_bytes

    def collect(self, now_ns: int) -> list[DeviceDefined | ResourceNamed]:
        """Devices that are new, names that are new or changed."""
        changed, self._changed = self._changed, {}
        devices, self._new_devices = self._new_devices, {}
        devices_and_names: list[DeviceDefined | ResourceNamed] = [
            DeviceDefined(
                time_ns=now_ns, process=self._process, device=device, l2_cache_bytes=l2_bytes
            )
            for device, l2_bytes in devices.items()
        ]
        return devices_and_names + [
            ResourceNamed(
                time_ns=now_ns,
                process=self._process,
                kind=_KINDS[kind],
                number=number,
                device=None if device == UNKNOWN_DEVICE else device,
                name=self._known[kind, number, device],
            )
            for kind, number, device in changed
        ]


# --- Kernel names, and each one's number in this session.

# Of one process: further ones count as OTHER_KERNELS, so that a program that compiles kernels
# without end stays bounded.
MAX_KERNEL_NAMES = 20_000

_GRAPH = int(RecordKind.GRAPH)  # NumPy compares with an enum three times as slowly
# Added to a graph's number, to distinguish it from kernel names in the same table.
_GRAPH_KEY = 1 << 33


class KernelNames:
    """Numbers the kernels of one process by name. `defined` has the names that are new to the
    session."""

    def __init__(
        self,
        strings: Strings,
        numbering: Numbering,
        range_kernels: KernelsOfRanges,
        accounting: Accounting,
    ) -> None:
        self._strings = strings
        self._numbering = numbering
        self.range_kernels = range_kernels
        self._accounting = accounting
        self._known = KeyTable(MAX_KERNEL_NAMES)
        self.defined: list[KernelDefined] = []

    def numbers(self, records: Slots, now_ns: int) -> Int64s:
        keys = np.where(
            records["kind"] == _GRAPH,
            records["e"].astype(np.int64) | _GRAPH_KEY,
            records["name"].astype(np.int64),
        )

        def define(key: int, _first: int) -> int:
            if key & _GRAPH_KEY:
                return self._define(f"[CUDA graph {key & 0xFFFFFFFF}]", now_ns)
            return self._define(self._strings.raw(key), now_ns)

        return self._known.lookup(keys, define, lambda: self._define(OTHER_KERNELS, now_ns))

    def _define(self, mangled: str, now_ns: int) -> int:
        number, mangled, is_new = self._numbering.kernel(mangled)
        name = demangle(mangled)
        self.range_kernels.define(number, short_name(name))
        self._accounting.define_kernel(number, name)
        if is_new:
            self.defined.append(
                KernelDefined(time_ns=now_ns, kernel=number, name=name, mangled=mangled)
            )
        return number


# --- Launch shapes of one process (grids, blocks, registers, shared memory) and their launches.

MOST = 1 << 16
"""Shapes per process: the library numbers fewer, from 1."""

_UNKNOWN, _UNNUMBERED = 0, -1
# A record has three 64-bit fields for the six sizes of a grid and a block: two in each.
_LOW = 0xFFFF_FFFF


class Shapes:
    """Resolves the ring's shape numbers, and counts their launches.

    A shape gets its session number when one of its kernels is first seen: only then is the kernel's
    own number certain.
    """

    def __init__(self, numbering: Numbering, threads: Callable[[int, int], None]) -> None:
        """`threads` is given each of the ring's numbers, and how many threads that shape has."""
        self._numbering = numbering
        self._define_threads = threads
        self._geometries: dict[int, Geometry] = {}
        self._numbers = np.zeros(1, np.int64)
        self._launches = np.zeros(1, np.int64)
        self.defined: list[LaunchShape] = []

    def define(self, records: Slots) -> None:
        """Add LAUNCH_SHAPE records, each the geometry behind one of the ring's numbers."""
        for record in records:
            number = int(record["d"])
            if not 0 < number < MOST:
                continue
            start, end, value = int(record["start"]), int(record["end"]), int(record["value"])
            self._geometries[number] = (
                start & _LOW, start >> 32, end & _LOW, end >> 32, value & _LOW, value >> 32,
                int(record["a"]), int(record["b"]), int(record["c"]),
            )  # fmt: skip
            if number >= len(self._numbers):
                more = np.zeros(number + 1 - len(self._numbers), np.int64)
                self._numbers = np.append(self._numbers, more)
                self._launches = np.append(self._launches, more)
            self._define_threads(number, min(prod(self._geometries[number][:6]), 1 << 62))
            self._numbers[number] = _UNNUMBERED

    def count(self, records: Slots, kernels: Int64s, now_ns: int) -> Int64s:
        """The session's number of each kernel's shape, 0 if unknown. Counts its launches."""
        ids = np.where(records["d"] < len(self._numbers), records["d"], 0).astype(np.int64)
        numbers = self._numbers[ids]
        if (numbers == _UNNUMBERED).any():
            for first in np.unique(ids[numbers == _UNNUMBERED]).tolist():
                kernel = int(kernels[np.argmax(ids == first)])
                self._numbers[first] = self._number(kernel, self._geometries[first], now_ns)
            numbers = self._numbers[ids]
        self._launches += np.bincount(ids, minlength=len(self._launches))
        return numbers

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """How many kernels of each shape finished."""
        if not collection.due:
            return {}
        seen = np.flatnonzero((self._launches > 0) & (self._numbers > _UNKNOWN))
        launches = tuple(
            ShapeLaunches(number, count)
            for number, count in zip(
                self._numbers[seen].tolist(), self._launches[seen].tolist(), strict=True
            )
        )
        self._launches[:] = 0
        return {"shapes": launches}

    def _number(self, kernel: int, geometry: Geometry, now_ns: int) -> int:
        number, is_new = self._numbering.shape(kernel, geometry)
        if is_new:
            self.defined.append(
                LaunchShape(
                    time_ns=now_ns,
                    shape=number,
                    kernel=kernel,
                    grid=geometry[:3],
                    block=geometry[3:6],
                    registers_per_thread=geometry[6],
                    static_shared_bytes=geometry[7],
                    dynamic_shared_bytes=geometry[8],
                )
            )
        return number


# --- NVTX marks of one process: all are counted, the newest kept.

MARKS_KEPT = 1000
"""Marks kept per tick; of more, the newest stay."""

MAX_NAMES = 10_000
"""Distinct marks per process; any further ones share the name "(other marks)"."""

OTHER_MARKS = "(other marks)"

# The domain and the name of a mark.
_Key = tuple[str, str]


class MarkCounts:
    """Counts marks by domain and name. `newest` are marks to report one by one and `defined` are
    new names; the caller clears both. Every mark goes to `trace` where that is wanted.
    """

    def __init__(
        self, process: int, strings: Strings, numbering: Numbering, trace: TraceSink
    ) -> None:
        self.newest: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self.defined: list[MarkDefined] = []
        self._process = process
        self._strings = strings
        self._numbering = numbering
        self._trace = trace
        self._numbers: dict[_Key, int] = {}
        self._new: dict[_Key, MarkDelta] = {}

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add MARK records, none later than `now_ns`."""
        if not len(records):
            return
        moments = np.minimum(times_ns(records["start"]), now_ns)
        keys = records["a"].astype(np.uint64) << np.uint64(32) | records["name"].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        starts = np.unique(keys[order], return_index=True)[1]
        firsts = np.minimum.reduceat(moments[order], starts)
        lasts = np.maximum.reduceat(moments[order], starts)
        counts = np.diff(starts, append=len(records))
        types = payload_types(records)
        numbers = np.zeros(len(records), np.int64)
        for start, count, first_ns, last_ns in zip(
            starts.tolist(), counts.tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            these = order[start : start + count]
            key = self._key(records[these[0]], now_ns)
            numbers[these] = self._numbers[key]
            valued = these[types[these] != NO_PAYLOAD][-1:]
            payload = [payload_of(int(types[row]), int(records["end"][row])) for row in valued]
            self._add(key, count, first_ns, last_ns, payload[0] if payload else None)
        if self._trace.is_open:
            self._trace.marks(records, moments, numbers)
        kept = slice(-MARKS_KEPT, None)
        for record, time_ns, kind in zip(
            records[kept], moments[kept].tolist(), types[kept].tolist(), strict=True
        ):
            domain, name = self._label(record)
            self.newest.append(
                Mark(
                    time_ns=time_ns,
                    process=self._process,
                    thread=int(record["thread"]),
                    domain=domain,
                    name=name,
                    payload=payload_of(kind, int(record["end"])),
                )
            )

    def collect_parts(self, _: Collection) -> DeltaParts:
        """Marks by domain and name, with how many there were."""
        new, self._new = self._new, {}
        return {"marks": tuple(new.values())}

    def _label(self, record: np.void) -> _Key:
        return self._strings.domain(int(record["a"])), self._strings.label(int(record["name"]))

    def _key(self, record: np.void, now_ns: int) -> _Key:
        """The key of a mark, which is defined if new."""
        attributes = self._strings.range_attributes(record)
        key = self._strings.domain(int(record["a"])), attributes.name
        if key not in self._numbers and len(self._numbers) >= MAX_NAMES:
            key, attributes = ("", OTHER_MARKS), Attributes(OTHER_MARKS)
        if key not in self._numbers:
            self._numbers[key] = number = self._numbering.mark()
            self.defined.append(
                MarkDefined(
                    time_ns=now_ns,
                    mark=number,
                    process=self._process,
                    domain=key[0],
                    name=key[1],
                    color=attributes.color,
                    category=attributes.category,
                    category_id=attributes.category_id,
                )
            )
        return key

    def _add(
        self, key: _Key, count: int, first_ns: int, last_ns: int, payload: Payload | None
    ) -> None:
        before = self._new.get(key)
        new = MarkDelta(*key, count, first_ns, last_ns, payload)
        self._new[key] = new if before is None else merge(before, new)


# --- What a Python program says itself that it does: garbage collections, and calls that copy, wait
# or free, by line. The start-up hook writes it (inject/hook/python_facts) beside the lines that it
# samples.
#
# For `reader`, which reads it, and `traced_process`, which collects it. The file is written by the
# program that is looked at: anything may stand in it.

MOST_PLACES = 2000
"""Lines and calls of a process that are kept apart; further ones are left out."""

_CALL = re.compile(r"[a-z0-9_.]{1,60}")
_SHAPE = re.compile(r"[\w:.,x]{1,120}|-")
_MOST = 1 << 60


class ProgramFacts:
    """Adds up lines of the hook's file until they are collected."""

    def __init__(self) -> None:
        self._collections: dict[tuple[int, int], list[int]] = {}
        self._calls: dict[tuple[int, str], tuple[int, int, str]] = {}
        self._places: set[tuple[int, int | str]] = set()

    def add(self, text: str, has_launched: bool) -> int:
        """Add one line of the file; returns the number of the program's line that it is about, 0 if
        none. Garbage that is collected before anything was launched, as while modules are imported,
        is left out. ValueError where it is none of the lines that the hook writes."""
        kind, name, *fields = text.split(" ")
        if kind == "g":
            generation = int(name)
            line, count, total_ns, longest_ns, objects = (_amount(field) for field in fields)
            if not has_launched or not 0 <= generation <= 2 or not self._has_room(generation, line):
                return 0
            sums = self._collections.setdefault((generation, line), [0, 0, 0, 0])
            sums[0] += count
            sums[1] += total_ns
            sums[2] = max(sums[2], longest_ns)
            sums[3] += objects
            return line
        line, count, moved_bytes = (_amount(field) for field in fields[:3])
        [shape] = fields[3:]
        if not _CALL.fullmatch(name) or not _SHAPE.fullmatch(shape):
            raise ValueError(text)
        if not self._has_room(name, line):
            return 0
        calls, size, _ = self._calls.get((line, name), (0, 0, ""))
        self._calls[line, name] = calls + count, size + moved_bytes, shape
        return line

    def _has_room(self, what: int | str, line: int) -> bool:
        place = line, what
        if place not in self._places and len(self._places) >= MOST_PLACES:
            return False
        self._places.add(place)
        return True

    def collect_parts(self, _collection: Collection) -> DeltaParts:
        """The collections of garbage, and the calls by line, since the last time."""
        collections = tuple(
            GarbageCollections(generation, line, *sums)
            for (generation, line), sums in self._collections.items()
        )
        calls = tuple(
            LineCalls(line, name, count, size, "" if shape == "-" else shape)
            for (line, name), (count, size, shape) in self._calls.items()
        )
        self._collections.clear()
        self._calls.clear()
        return {"garbage_collections": collections, "line_calls": calls}


def _amount(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _MOST:
        raise ValueError(text)
    return value
