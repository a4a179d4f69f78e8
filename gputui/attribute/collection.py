"""What one collection of a process covers, and how the parts that its collectors return become the
fields of one CaptureDelta.

For `traced_process`, which runs the collectors, and for every collector. It is a module of its own
because collectors must not import the process that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gputui.attribute.distributions import DELTA_VALUES
from gputui.attribute.instances import Finalised
from gputui.attribute.kept_operations import KeptOperations
from gputui.attribute.range_stacks import Nodes
from gputui.attribute.records import LaunchedOperations
from gputui.ring.layout import RecordKind, payload_types
from gputui.ring.reader import RingHealth
from gputui.store.trace import TRACE, Bools, Int64s, Slots, TraceKind, TraceWriter

DeltaParts = dict[str, Any]
"""Fields of a CaptureDelta by name: tuples of rows, or numbers to add."""


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection of one process: everything since the collection before.

    `until_ns` is the moment before which everything that had ended has arrived; None at the end of
    the process, when everything has. From `known_until_ns` on it is not known which ranges launched
    what; None while it is. `ring` is what was added to the ring's counters, `unread` the records
    left in it, `unplaced` the range records that found no place in the tree so far. `due` says
    whether sums that only tables show are wanted: where nobody looks before the end, at the end.
    """

    process: int
    nodes: Nodes
    now_ns: int
    ended: bool
    until_ns: int | None
    finalised: Finalised
    launched: LaunchedOperations
    known_until_ns: int | None
    ring: RingHealth
    unread: int
    unplaced: int
    due: bool = True
    exact_values: int = DELTA_VALUES
    """How many different values a distribution gives as they are, of more their buckets."""


class Collector(Protocol):
    """Sums up one kind of fact about a process between collections."""

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """What is new since the collection before, by the field of CaptureDelta it goes to."""
        ...


def merge_parts(collected: Iterable[DeltaParts]) -> DeltaParts:
    """The parts of several collectors in one; what goes to the same field is added up in order."""
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
    """Whether anything happened, or became known of what happened before."""
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
        """Of names of calls, by writer."""

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
