"""Single operations of a kept step, packed small enough for a journal, and as records of a trace.

A row is 46 bytes (`_ROW`). Those of one step are alike byte by byte rather than row by row, so the
first bytes of all rows come first, then the second ones: zlib makes 5 to 9 bytes of a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.model.events import ReferredTo, StepLanes, StepOperations
from gputui.store.trace import TRACE, Slots, TraceKind

_ROW = np.dtype(
    [("start", "<i8"), ("duration", "<u8"), ("bytes", "<u8"), ("correlation", "<u4"),
     ("thread", "<u4"), ("stream", "<u4"), ("range", "<u2"), ("name", "<u2"), ("device", "<u2"),
     ("sub", "<u1"), ("kind", "<u1"), ("destination_kind", "<u1"), ("source_kind", "<u1")]
)  # fmt: skip
"""`start` from that of the row before, of the first one from that of the step. `range`, `name` of
calls and kernels, and `bytes` of kernels are places in `refers`, 0 for none; `bytes` of copies,
`thread` of calls; the rest is as in a trace."""

_SAME = ("correlation", "stream", "device", "sub", "kind", "destination_kind", "source_kind")
_MEMORY = (TraceKind.COPY, TraceKind.SET)

_LATEST_NS = 4_102_444_800_000_000_000
"""Of a moment of a recording: those of hostile files are brought below it."""


def pack(step: StepLanes, records: Slots, call_names: Mapping[int, str],
         left_out: int) -> StepOperations:  # fmt: skip
    """A step's records (gputui.store.trace.TRACE) as an event, in the order of their starts."""
    records = records[np.argsort(records["start"], kind="stable")]
    rows = np.zeros(len(records), _ROW)
    for name in _SAME:
        rows[name] = records[name]
    starts = records["start"]
    rows["start"] = np.diff(starts, prepend=step.start_ns)
    rows["duration"] = np.maximum(0, records["end"] - starts)
    refers: list[ReferredTo] = []

    def refer(column: str, of: npt.NDArray[np.bool_], numbers: Any,
              made: Callable[[int], ReferredTo]) -> None:  # fmt: skip
        every, places = np.unique(numbers[of], return_inverse=True)
        given = np.zeros(len(every), np.uint16)
        for place, number in enumerate(every.tolist()):
            if number and len(refers) < 0xFFFF:
                refers.append(made(number))
                given[place] = len(refers)
        rows[column][of] = given[places.reshape(-1)]

    kinds = records["kind"]
    is_kernel = np.isin(kinds, (TraceKind.KERNEL, TraceKind.GRAPH))
    is_call, is_memory = kinds == TraceKind.CALL, np.isin(kinds, _MEMORY)
    rows["bytes"][is_memory] = records["bytes"][is_memory]
    rows["thread"][is_call] = records["thread"][is_call]
    everything = np.ones(len(records), np.bool_)
    refer("range", everything, records["range"], lambda number: ReferredTo(range=number))
    refer("name", is_kernel, records["name"], lambda number: ReferredTo(kernel=number))
    refer("bytes", is_kernel, records["bytes"], lambda number: ReferredTo(shape=number))
    refer("name", is_call, records["name"],
          lambda number: ReferredTo(call=call_names.get(number, "?")[:200]))  # fmt: skip
    by_byte = rows.view(np.uint8).reshape(len(rows), _ROW.itemsize).T
    return StepOperations(
        time_ns=step.time_ns,
        process=step.process,
        start_ns=step.start_ns,
        duration_ns=step.duration_ns,
        records=len(rows),
        left_out=left_out,
        refers=tuple(refers),
        packed=zlib.compress(by_byte.tobytes(), 6),
    )


class KeptTrace:
    """Some kept steps as what a reader of a trace gives. Recordings are untrusted: of what is not
    as `pack` makes it, nothing is read."""

    def __init__(self, steps: Sequence[StepOperations]) -> None:
        self.call_names: dict[int, str] = {}
        parts = [self._unpacked(step) for step in steps]
        every = np.concatenate([np.zeros(0, TRACE), *parts])
        # A call that launched operations of two steps was kept with both.
        self._records = np.unique(every) if len(parts) > 1 else every

    def __len__(self) -> int:
        return len(self._records)

    def portions(self) -> Iterator[Slots]:
        """The records of all steps, at once: there are few beside those of a trace."""
        yield self._records

    def _unpacked(self, step: StepOperations) -> Slots:
        size = step.records * _ROW.itemsize
        try:
            unpacked = zlib.decompressobj().decompress(step.packed, size + 1)
        except zlib.error:
            return np.zeros(0, TRACE)
        if len(unpacked) != size:
            return np.zeros(0, TRACE)
        by_byte = np.frombuffer(unpacked, np.uint8).reshape(_ROW.itemsize, step.records)
        rows = np.ascontiguousarray(by_byte.T).view(_ROW).reshape(-1)
        records = np.zeros(len(rows), TRACE)
        for name in (*_SAME, "bytes", "thread"):
            records[name] = rows[name]
        steps = np.clip(rows["start"], -(_LATEST_NS >> 16), _LATEST_NS >> 16)
        starts = np.clip(step.start_ns + np.cumsum(steps), 1, _LATEST_NS)
        records["start"] = starts
        records["end"] = starts + np.minimum(rows["duration"], _LATEST_NS).astype(np.int64)
        records["process"] = step.process
        names = self._call_numbers(step)
        kinds = rows["kind"]
        is_kernel = np.isin(kinds, (TraceKind.KERNEL, TraceKind.GRAPH))
        for column, of, numbers in (
            ("range", np.ones(len(rows), np.bool_), [each.range for each in step.refers]),
            ("name", is_kernel, [each.kernel for each in step.refers]),
            ("bytes", is_kernel, [each.shape for each in step.refers]),
            ("name", kinds == TraceKind.CALL, names),
        ):
            # Numbers are the session's; those of a hostile file may be any.
            table = np.array([0, *((number or 0) & 0xFFFFFFFF for number in numbers)], np.int64)
            places = rows[column][of].astype(np.int64)
            records[column][of] = table[np.where(places < len(table), places, 0)]
        return records

    def _call_numbers(self, step: StepOperations) -> list[int | None]:
        """The number of each call's name in `call_names`, in the order of `refers`."""
        numbers: list[int | None] = []
        given = {name: number for number, name in self.call_names.items()}
        for each in step.refers:
            if each.call is not None and each.call not in given:
                given[each.call] = len(given) + 1
                self.call_names[len(given)] = each.call
            numbers.append(None if each.call is None else given[each.call])
        return numbers
