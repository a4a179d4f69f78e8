"""What must be known about a process's records before the first of them is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputui.render.chrome.streams import OnStreams
from gputui.store.trace import TraceKind, TraceReader
from gputui.store.trace.layout import Bools, UInt32s


@dataclass(frozen=True, slots=True)
class Survey:
    """The first moment and the last, the devices, the correlations shared by a call and an
    operation, ascending, the highest of all correlations, and what ran on the streams.
    """

    first_ns: int
    last_ns: int
    joined: UInt32s
    devices: list[int]
    highest: int
    on_streams: OnStreams

    def is_joined(self, correlations: UInt32s) -> Bools:
        """Which of them are shared by a call and an operation."""
        if not len(self.joined):
            return np.zeros(len(correlations), np.bool_)
        places = np.minimum(np.searchsorted(self.joined, correlations), len(self.joined) - 1)
        joined: Bools = self.joined[places] == correlations
        return joined


def survey(trace: TraceReader, process: int) -> Survey:
    """Read the whole trace for one process."""
    first_ns: int | None = None
    last_ns = 0
    calls: list[UInt32s] = [np.empty(0, np.uint32)]
    operations: list[UInt32s] = [np.empty(0, np.uint32)]
    devices: set[int] = set()
    highest = 0
    on_streams = OnStreams()
    for portion in trace.portions():
        mine = portion[portion["process"] == process]
        if not len(mine):
            continue
        least = int(mine["start"].min())
        first_ns = least if first_ns is None else min(first_ns, least)
        last_ns = max(last_ns, int(mine["end"].max()))
        highest = max(highest, int(mine["correlation"].max()))
        on_streams.add(mine)
        kinds = mine["kind"]
        on_gpu = mine[(kinds >= TraceKind.KERNEL) & (kinds != TraceKind.MARK)]
        calls.append(np.unique(mine["correlation"][kinds == TraceKind.CALL]))
        operations.append(np.unique(on_gpu["correlation"]))
        devices.update(np.unique(on_gpu["device"]).tolist())
    joined = np.intersect1d(np.concatenate(calls), np.concatenate(operations))
    joined = joined[joined > 0]
    return Survey(first_ns or 0, last_ns, joined, sorted(devices), highest, on_streams)


def processes_of(trace: TraceReader) -> list[int]:
    """The processes that have records in the trace."""
    found: set[int] = set()
    for portion in trace.portions():
        found.update(np.unique(portion["process"]).tolist())
    return sorted(found)
