"""What one collection of a process covers, how the parts that its collectors return become the
fields of one CaptureDelta, and what the reader passes on: to the trace, and of single steps to the
recording.

For `traced_process`, which runs the collectors, and for every collector. It is a module of its own
because collectors must not import the process that runs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from gputui.attribute import LaunchedOperations
from gputui.attribute.distributions import DELTA_VALUES
from gputui.attribute.instances import Finalised
from gputui.attribute.range_stacks import Nodes
from gputui.model.events import StepLanes, StepOperations
from gputui.ring import RecordKind, payload_types
from gputui.ring.reader import RingHealth
from gputui.store.trace import TRACE, Bools, Int64s, Slots, TraceKind, TraceWriter, pack

# --- Single operations, calls and ranges of some of the steps that are kept in parts.
#
# For `traced_process`. Records are held only while a step is due, so that a program whose steps
# were kept for now costs the reader nothing here.

MOST_HELD = 100_000
"""Records held at most, of 64 bytes, while a step is awaited: the newest."""

MOST_OF_A_KIND = 20_000
"""Operations, calls and ranges of a step that are kept: the first of each, the longest ranges."""

EARLY_NS = 10_000_000_000
"""So long a step is kept at each collection: a run of seconds, of which the first steps are others
than most, has some that say something."""

LEAST_PAUSE_NS, MOST_PAUSE_NS = 2_000_000_000, 60_000_000_000
"""Between two kept steps after that, at least and at most, where `BYTES_A_SECOND` allows it: in
between a quarter of the time that the process has been seen."""

FIRST_BYTES, BYTES_A_SECOND = 256 << 10, 250
"""What kept steps may take of a recording, packed: at once, and on average after that."""

AWAITED_NS = 10_000_000_000
"""If no step ends for this long, records are no longer held until the next pause is over."""

SETTLING = 2
"""Collections after which the ranges of a step are complete: they wait for what they launched."""

_KEPT_OPERATIONS = (TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET, TraceKind.GRAPH)
_WANTED = (TraceKind.RANGE, TraceKind.CALL, *_KEPT_OPERATIONS)


@dataclass(slots=True, eq=False)
class _Settling:
    """A step that waits for its ranges to become complete."""

    step: StepLanes
    first_ns: int
    """When the first of its operations was launched: from then on ranges belong to it."""
    operations: Slots
    calls: Slots
    left_out: int
    ranges: list[Slots]
    collections: int = SETTLING
    """How many more collections the step waits for its ranges."""


class KeptOperations:
    """Keeps some steps of a process with all of their operations. It is given records as a writer
    of trace records is (TraceSink), as long as it `is_open`."""

    def __init__(self) -> None:
        self._parts: deque[Slots] = deque()
        self._new: list[Slots] = []
        """The records since the last collection."""
        self._held = 0
        self._names: dict[str, int] = {}
        self._began_ns = 0
        self._due_ns = 0
        self._open_ns: int | None = 0
        """Since when records are taken, or when a step was last kept; None while none are taken."""
        self._known_ns = 0
        """The time from which every record is held: older records were dropped."""
        self._spent = 0
        self._settling: list[_Settling] = []

    @property
    def is_open(self) -> bool:
        """Whether records are wanted now. In the pause after a kept step they are not."""
        return self._open_ns is not None

    def name(self, text: str) -> int:
        """The number of a call's name."""
        return self._names.setdefault(text, len(self._names) + 1)

    def append(self, records: Slots) -> None:
        """Hold records, operations or such of one kind; beyond the limit the oldest are let go."""
        if not len(records) or records["kind"][0] not in _WANTED:
            return
        self._parts.append(records)
        self._new.append(records)
        self._held += len(records)
        while self._held > MOST_HELD and len(self._parts) > 1:
            first = self._parts.popleft()
            self._held -= len(first)
            if first["kind"][0] in _KEPT_OPERATIONS:
                self._known_ns = max(self._known_ns, int(first["end"].max()))

    def collect(self, steps: Sequence[StepLanes], now_ns: int, ended: bool) -> list[StepOperations]:
        """The steps whose operations are complete now. Of `steps`, which were kept in parts in this
        collection with a usual one last, some are chosen; their operations are returned some
        collections later."""
        if not self._began_ns:
            self._began_ns = self._open_ns = now_ns
        if self._open_ns is None:
            if now_ns >= self._due_ns and not ended:
                self._open_ns = self._known_ns = now_ns
            return []
        if now_ns >= self._due_ns or ended:
            self._begin(steps, now_ns)
        ranges = [part for part in self._new if part["kind"][0] == TraceKind.RANGE]
        self._new = []
        for each in self._settling:
            each.ranges.append(_within(ranges, each.first_ns, _end_ns(each.step)))
            each.collections -= 1
        done = [each for each in self._settling if ended or each.collections < 0]
        self._settling = [each for each in self._settling if each not in done]
        names = {number: text for text, number in self._names.items()}
        kept = [_settled(each, names, now_ns) for each in done]
        self._spent += sum(len(event.packed) for event in kept)
        if kept:
            self._wait(now_ns)
        elif now_ns >= self._due_ns and now_ns - self._open_ns > AWAITED_NS:
            self._wait(now_ns, at_least_ns=LEAST_PAUSE_NS)
        if not self._settling and now_ns < self._due_ns:
            self._parts.clear()
            self._held, self._open_ns = 0, None
        return kept

    def _begin(self, steps: Sequence[StepLanes], now_ns: int) -> None:
        whole = [step for step in steps if step.start_ns >= self._known_ns]
        if not whole:
            return
        chosen = {id(step): step for step in (whole[-1], max(whole, key=_length_ns))}
        held = list(self._parts)
        begun = [each for step in chosen.values() if (each := _begun(step, held)) is not None]
        if begun:
            self._settling += begun
            self._open_ns = now_ns
            self._wait(now_ns)

    def _wait(self, now_ns: int, at_least_ns: int = 0) -> None:
        """Decides until when no further step is kept."""
        seen_ns = now_ns - self._began_ns
        if seen_ns >= EARLY_NS:
            # Steps of a set-up are small: those of the loop after a minute of compiling still come.
            share_ns = seen_ns // 4 if self._spent >= FIRST_BYTES // 4 else 0
            at_least_ns = min(max(LEAST_PAUSE_NS, share_ns), MOST_PAUSE_NS)
        allowed_ns = (self._spent - FIRST_BYTES) * 1_000_000_000 // BYTES_A_SECOND
        self._due_ns = max(now_ns + at_least_ns, self._began_ns + allowed_ns)


def _settled(step_kept: _Settling, names: Mapping[int, str], now_ns: int) -> StepOperations:
    ranges = np.concatenate(step_kept.ranges)
    order = np.argsort(ranges["start"] - ranges["end"], kind="stable")
    chosen = ranges[order[:MOST_OF_A_KIND]]
    left_out = step_kept.left_out + len(ranges) - len(chosen)
    records = np.concatenate((step_kept.operations, step_kept.calls, chosen))
    return pack(replace(step_kept.step, time_ns=now_ns), records, names, left_out)


def _length_ns(step: StepLanes) -> int:
    return step.duration_ns


def _end_ns(step: StepLanes) -> int:
    return step.start_ns + step.duration_ns


def _within(batches: Sequence[Slots], first_ns: int, end_ns: int) -> Slots:
    """Records that went on between two moments; most batches lie beside them."""
    inside = [np.zeros(0, TRACE)]
    for part in batches:
        touches = (part["start"] < end_ns) & (part["end"] > first_ns)
        if touches.any():
            inside.append(part[touches])
    return np.concatenate(inside)


def _begun(step: StepLanes, batches: Sequence[Slots]) -> _Settling | None:
    """A step with its operations and their calls, which are here when it has been kept."""
    of_devices = [part for part in batches if part["kind"][0] in _KEPT_OPERATIONS]
    of_threads = [part for part in batches if part["kind"][0] == TraceKind.CALL]
    operations = _within(of_devices, step.start_ns, _end_ns(step))
    if not len(operations):
        return None
    launched = np.unique(operations["correlation"][operations["correlation"] > 0])
    launches = [np.zeros(0, TRACE)]
    for part in of_threads:
        is_launch = np.isin(part["correlation"], launched)
        if is_launch.any():
            launches.append(part[is_launch])
    calls = np.concatenate(launches)
    others = _within(of_threads, step.start_ns, _end_ns(step))
    calls = np.concatenate((calls, others[~np.isin(others["correlation"], launched)]))
    left_out = sum(max(0, len(some) - MOST_OF_A_KIND) for some in (operations, calls))
    operations = operations[np.argsort(operations["start"], kind="stable")]
    first_ns = min([step.start_ns, *calls["start"].tolist()])
    return _Settling(
        step, first_ns, operations[:MOST_OF_A_KIND], calls[:MOST_OF_A_KIND], left_out, []
    )


DeltaParts = dict[str, Any]
"""Fields of a CaptureDelta by name: tuples of rows, or numbers to add."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What collectors need to know when a process is collected: everything since the collection
    before.

    `until_ns`: everything that had ended before this time has arrived; None at the end of the
    process, when everything has. `settled_ns`: each range that was over before this time, with
    everything that it launched, is in `finalised` or was in an earlier one. `known_until_ns`: from
    this time on it is not known which ranges launched what; None if it always is.

    `ring` is what was added to the ring's counters, `unread` how many records are left in the ring,
    `unplaced` how many range records have found no place in the tree so far. `due` says whether
    sums that only tables show are wanted in this collection; if nobody looks at them before the
    end, they are wanted only there.
    """

    process: int
    nodes: Nodes
    now_ns: int
    ended: bool
    until_ns: int | None
    settled_ns: int | None
    finalised: Finalised
    launched: LaunchedOperations
    known_until_ns: int | None
    ring: RingHealth
    unread: int
    unplaced: int
    due: bool = True
    exact_values: int = DELTA_VALUES
    """The most different values that a distribution gives exactly; one with more gives buckets."""


class Collector(Protocol):
    """Sums up one kind of fact about a process between collections."""

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """What is new since the last collection, by the field of CaptureDelta to which it
        belongs."""
        ...


def merge_parts(collected: Iterable[DeltaParts]) -> DeltaParts:
    """The parts of several collectors in one dictionary; parts for the same field are added up in
    order."""
    merged: DeltaParts = {}
    for fields in collected:
        for name, value in fields.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged


# Fields that a process has, too, in which nothing happens.
_SILENT = {
    "open_ranges", "standing_ppm", "callback_ns", "traced_ns", "paused_ns", "reader_cpu_ns",
    "core_run_ns", "core_wait_ns", "core_watched_ns",
}  # fmt: skip


def has_news(fields: DeltaParts) -> bool:
    """Whether the fields show that anything happened, or that more became known of earlier
    events."""
    return any(value for name, value in fields.items() if name not in _SILENT)


# --- What the reader of one process passes on to the trace.

_OPERATIONS = np.zeros(256, np.uint8)
_OPERATIONS[RecordKind.KERNEL] = TraceKind.KERNEL
_OPERATIONS[RecordKind.MEMCPY] = TraceKind.COPY
_OPERATIONS[RecordKind.MEMSET] = TraceKind.SET
_OPERATIONS[RecordKind.GRAPH] = TraceKind.GRAPH


class TraceSink:
    """Turns one process's attributed records into trace records, for the file beside a recording
    and for the steps whose operations are kept, where either is wanted.

    `nodes` are the process's own numbers of range nodes; `number_of` maps them to the session's.
    """

    def __init__(
        self,
        trace: TraceWriter | None,
        kept: KeptOperations | None,
        process: int,
        number_of: Callable[[], Int64s],
    ) -> None:
        self._writers = [writer for writer in (trace, kept) if writer is not None]
        self._process = process
        self._number_of = number_of
        self._numbers = [np.zeros(1, np.int64) for _ in self._writers]
        """For each writer, the numbers of the names of calls."""

    @property
    def is_open(self) -> bool:
        """Whether records are wanted now."""
        return any(writer.is_open for writer in self._writers)

    def ranges(self, finalised: Finalised) -> None:
        """Add complete instances, and where each lay on the GPU."""
        records = self._records(finalised.nodes, finalised.starts_ns, finalised.ends_ns)
        records["kind"] = TraceKind.RANGE
        records["thread"] = finalised.end_threads
        records["sub"] = finalised.unended
        records["bytes"] = finalised.payloads
        records["source_kind"] = finalised.payload_types
        self._append(records)
        ran = finalised.last_ns >= finalised.first_ns
        records = self._records(
            finalised.nodes[ran], finalised.first_ns[ran], finalised.last_ns[ran]
        )
        records["kind"] = TraceKind.PROJECTION
        self._append(records)

    def marks(self, slots: Slots, times_ns: Int64s, numbers: Int64s) -> None:
        """Add marks as they were in the ring, with the number of each one's definition."""
        records = self._records(np.zeros(len(slots), np.int64), times_ns, times_ns)
        records["kind"] = TraceKind.MARK
        records["name"] = numbers
        records["thread"] = slots["thread"]
        records["source_kind"] = payload_types(slots)
        records["bytes"] = slots["end"]
        self._append(records)

    def calls(self, calls: Slots, names: list[str]) -> None:
        """Add calls as the window keeps them; their `name` is an index of `names`."""
        records = self._records(calls["node"].astype(np.int64), calls["start"], calls["end"])
        records["kind"] = TraceKind.CALL
        records["inherited"] = calls["inherited"]
        records["correlation"] = calls["correlation"]
        records["thread"] = calls["thread"]
        records["bytes"], records["sub"] = calls["result"], calls["has_result"]
        for place, writer in enumerate(self._writers):
            numbers = self._numbers[place]
            if new := [writer.name(name) for name in names[len(numbers) :]]:
                numbers = self._numbers[place] = np.append(numbers, new)
            records["name"] = numbers[calls["name"]]
            if writer.is_open:
                writer.append(records.copy() if place + 1 < len(self._writers) else records)

    def operations(
        self,
        slots: Slots,
        nodes: Int64s,
        phases: Int64s,
        inherited: Bools,
        is_kernel: Bools,
        kernels: Int64s,
        shapes: Int64s,
    ) -> None:
        """Add GPU operations as they were in the ring, with the range that launched each and the
        phase in which it counts.

        `kernels` and `shapes` are the numbers of kernels and of their launch shapes; they are
        ignored for other operations.
        """
        records = self._records(nodes, _times(slots["start"]), _times(slots["end"]))
        records["kind"] = _OPERATIONS[slots["kind"]]
        records["inherited"] = inherited
        records["name"][is_kernel] = kernels[is_kernel]
        records["bytes"][is_kernel] = shapes[is_kernel]
        for ours, theirs in (
            ("correlation", "correlation"), ("device", "a"), ("stream", "b"), ("context", "c"),
            ("graph", "e"),
        ):  # fmt: skip
            records[ours] = slots[theirs]
        captured = phases != nodes
        records["thread"][captured] = self._number_of()[phases[captured]]
        memory = ~is_kernel
        for ours, theirs in (
            ("bytes", "value"), ("sub", "sub"), ("source_kind", "source_kind"),
            ("destination_kind", "destination_kind"),
        ):  # fmt: skip
            records[ours][memory] = slots[theirs][memory]
        self._append(records)

    def _append(self, records: Slots) -> None:
        for writer in self._writers:
            if writer.is_open:
                writer.append(records)

    def _records(self, nodes: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Slots:
        records = np.zeros(len(nodes), TRACE)
        records["start"] = starts_ns
        records["end"] = ends_ns
        records["process"] = self._process
        records["range"] = self._number_of()[nodes]
        return records


def _times(clock: npt.NDArray[np.uint64]) -> Int64s:
    return np.minimum(clock, np.uint64(1 << 62)).astype(np.int64)
