"""What the reader of one process passes on to the trace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gputui.attribute.instances import Finalised
from gputui.ring.layout import RecordKind, payload_types
from gputui.store.trace import TRACE, Bools, Int64s, Slots, TraceKind, TraceWriter

_OPERATIONS = np.zeros(256, np.uint8)
_OPERATIONS[RecordKind.KERNEL] = TraceKind.KERNEL
_OPERATIONS[RecordKind.MEMCPY] = TraceKind.COPY
_OPERATIONS[RecordKind.MEMSET] = TraceKind.SET
_OPERATIONS[RecordKind.GRAPH] = TraceKind.GRAPH


class TraceSink:
    """Turns one process's attributed records into trace records.

    `nodes` are the process's own numbers of range nodes; `number_of` maps them to the session's.
    """

    def __init__(self, writer: TraceWriter, process: int, number_of: Callable[[], Int64s]) -> None:
        self._writer = writer
        self._process = process
        self._number_of = number_of
        self._names = np.zeros(1, np.int64)

    def ranges(self, finalised: Finalised) -> None:
        """Add complete instances, and where each lay on the GPU."""
        records = self._records(finalised.nodes, finalised.starts_ns, finalised.ends_ns)
        records["kind"] = TraceKind.RANGE
        records["thread"] = finalised.end_threads
        records["sub"] = finalised.unended
        records["bytes"] = finalised.payloads
        records["source_kind"] = finalised.payload_types
        self._writer.append(records)
        ran = finalised.last_ns >= finalised.first_ns
        records = self._records(
            finalised.nodes[ran], finalised.first_ns[ran], finalised.last_ns[ran]
        )
        records["kind"] = TraceKind.PROJECTION
        self._writer.append(records)

    def marks(self, slots: Slots, times_ns: Int64s, numbers: Int64s) -> None:
        """Add marks as they were in the ring, with the number of each one's definition."""
        records = self._records(np.zeros(len(slots), np.int64), times_ns, times_ns)
        records["kind"] = TraceKind.MARK
        records["name"] = numbers
        records["thread"] = slots["thread"]
        records["source_kind"] = payload_types(slots)
        records["bytes"] = slots["end"]
        self._writer.append(records)

    def calls(self, calls: Slots, names: list[str]) -> None:
        """Add calls as the window keeps them; their `name` is an index of `names`."""
        records = self._records(calls["node"].astype(np.int64), calls["start"], calls["end"])
        while len(self._names) < len(names):
            number = self._writer.name(names[len(self._names)])
            self._names = np.append(self._names, number)
        records["kind"] = TraceKind.CALL
        records["name"] = self._names[calls["name"]]
        records["inherited"] = calls["inherited"]
        records["correlation"] = calls["correlation"]
        records["thread"] = calls["thread"]
        self._writer.append(records)

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
        self._writer.append(records)

    def _records(self, nodes: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Slots:
        records = np.zeros(len(nodes), TRACE)
        records["start"] = starts_ns
        records["end"] = ends_ns
        records["process"] = self._process
        records["range"] = self._number_of()[nodes]
        return records


def _times(clock: npt.NDArray[np.uint64]) -> Int64s:
    return np.minimum(clock, np.uint64(1 << 62)).astype(np.int64)
