"""Where ranges were on the GPU: on each stream, from the first operation that an instance launched
to the end of the last, as Kineto writes its annotations.

Calls of a thread reach a stream in their order, so what an instance launched there is a run of the
thread's calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gputui.store.trace import TraceKind
from gputui.store.trace.layout import Int64s, Slots, UInt32s


class Placed(NamedTuple):
    """An instance on a stream. `number` counts the trace's instances from 1."""

    number: int
    range: int
    device: int
    stream: int
    start_ns: int
    end_ns: int
    payload_kind: int
    payload: int


_CALL = np.dtype([("correlation", "u4"), ("thread", "i8"), ("start", "i8")])
_OPERATION = np.dtype(
    [("correlation", "u4"), ("device", "i8"), ("stream", "i8"), ("start", "i8"), ("end", "i8")]
)
_INSTANCE = np.dtype(
    [("range", "i8"), ("start", "i8"), ("end", "i8"), ("source_kind", "u1"), ("bytes", "u8")]
)


class OnStreams:
    """Collects what the first pass over a trace sees; then places the instances."""

    def __init__(self) -> None:
        self._calls: list[Slots] = []
        self._operations: list[Slots] = []
        self._instances: list[Slots] = []

    def add(self, records: Slots) -> None:
        """Add records of one process."""
        kinds = records["kind"]
        on_gpu = (kinds >= TraceKind.KERNEL) & (kinds != TraceKind.MARK)
        for rows, kept, where in (
            (self._calls, _CALL, kinds == TraceKind.CALL),
            (self._operations, _OPERATION, on_gpu & (records["start"] > 0)),
            (self._instances, _INSTANCE, kinds == TraceKind.RANGE),
        ):
            taken = np.zeros(int(np.count_nonzero(where)), kept)
            for name in kept.names or ():
                taken[name] = records[name][where]
            rows.append(taken)

    def placed(self, joined: UInt32s, threads: dict[int, int]) -> Iterator[Placed]:
        """The instances of the ranges in `threads` (range → the thread it is of), with what calls
        with a correlation in `joined` launched."""
        calls = np.concatenate([np.zeros(0, _CALL), *self._calls])
        operations = np.concatenate([np.zeros(0, _OPERATION), *self._operations])
        instances = np.concatenate([np.zeros(0, _INSTANCE), *self._instances])
        numbers = np.arange(1, len(instances) + 1)
        calls = calls[np.isin(calls["correlation"], joined)]
        calls = calls[np.argsort(calls["correlation"], kind="stable")]
        if not len(calls):
            return
        at = np.searchsorted(calls["correlation"], operations["correlation"])
        at = np.minimum(at, len(calls) - 1)
        has_call = calls["correlation"][at] == operations["correlation"]
        operations, calls = operations[has_call], calls[at[has_call]]
        known = np.array([threads.get(of, -1) for of in instances["range"].tolist()], np.int64)
        for thread in np.unique(calls["thread"]).tolist():
            of = known == thread
            theirs = calls["thread"] == thread
            for device, stream in _distinct(operations[theirs]):
                there = theirs & (operations["device"] == device) & (operations["stream"] == stream)
                yield from _placed(
                    device, stream, instances[of], numbers[of], operations[there],
                    calls["start"][there],
                )  # fmt: skip


def _distinct(operations: Slots) -> list[tuple[int, int]]:
    keys = np.unique(operations["device"] << 32 | operations["stream"])
    return [(key >> 32, key & 0xFFFF_FFFF) for key in keys.tolist()]


def _placed(
    device: int, stream: int, instances: Slots, numbers: Int64s, operations: Slots, called: Int64s
) -> Iterator[Placed]:
    order = np.argsort(called, kind="stable")
    called, starts, ends = called[order], operations["start"][order], operations["end"][order]
    first = np.searchsorted(called, instances["start"], side="left")
    after = np.searchsorted(called, instances["end"], side="right")
    some = np.flatnonzero(after > first)
    chosen = instances[some]
    columns = (
        numbers[some], chosen["range"], starts[first[some]], ends[after[some] - 1],
        chosen["source_kind"], chosen["bytes"],
    )  # fmt: skip
    for number, node, start_ns, end_ns, kind, payload in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield Placed(number, node, device, stream, start_ns, end_ns, kind, payload)
