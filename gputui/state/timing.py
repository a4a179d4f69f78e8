"""How a run's work followed its launches: what the session keeps of streams, gaps and threads."""

from __future__ import annotations

import msgspec

from gputui.model.events import DeviceDelta, RangeLeaf, StreamDelta, ThreadLaunches
from gputui.model.leaves import LEAVES, leaf_of_number
from gputui.state.history import History
from gputui.state.tables import Table

QUEUE_MOMENTS = 1024
"""Deltas whose time in the queue is kept, the newest: 17 minutes at one a second."""


class GpuTiming(msgspec.Struct):
    """Of one run."""

    devices: Table[DeviceDelta] = {}
    range_leaves: Table[RangeLeaf] = {}
    streams: Table[StreamDelta] = {}
    launching_threads: Table[ThreadLaunches] = {}
    queue: History[tuple[int, int, int]] = msgspec.field(
        default_factory=lambda: History(tuple[int, int, int], QUEUE_MOMENTS)
    )
    """(process, launches, time they were queued) of each delta that had launches."""

    def idle_by_range(
        self, process: int | None = None, device: int | None = None
    ) -> dict[int, int]:
        """Range → ns in which a device idled for it, of a process or all; 0 is outside every
        range."""
        found: dict[int, int] = {}
        for time in self.range_leaves.values():
            if (
                LEAVES[leaf_of_number(time.leaf)].is_idle
                and process in (None, time.process)
                and device in (None, time.device)
            ):
                found[time.range] = found.get(time.range, 0) + time.ns
        return found
