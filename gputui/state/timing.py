"""How a run's work followed its launches: what the session keeps of streams, gaps and threads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputui.model.leaves import LEAVES, leaf_of_number
from gputui.model.sketch import Accumulator
from gputui.state.history import History
from gputui.state.keys import DeviceKey, RangeLeafKey, StreamKey, ThreadKey
from gputui.state.tables import Of

QUEUE_MOMENTS = 1024
"""Deltas whose time in the queue is kept, the newest: 17 minutes at one a second."""


class StreamTimes(msgspec.Struct):
    """As StreamDelta, added up."""

    operations: int = 0
    busy_ns: int = 0
    latency: Accumulator = msgspec.field(default_factory=Accumulator)
    queue: Accumulator = msgspec.field(default_factory=Accumulator)
    idle: Accumulator = msgspec.field(default_factory=Accumulator)


class DeviceUse(msgspec.Struct):
    """One process's use of one device, as DeviceDelta has it."""

    busy_ns: int = 0
    operations: int = 0
    first_start_ns: int | None = None
    last_end_ns: int | None = None
    overlap_ns: int = 0
    idle: Accumulator = msgspec.field(default_factory=Accumulator)

    @property
    def span_ns(self) -> int:
        """From the first operation's start to the last one's end."""
        if self.first_start_ns is None or self.last_end_ns is None:
            return 0
        return max(0, self.last_end_ns - self.first_start_ns)


class LeafNs(msgspec.Struct):
    """Time under one leaf."""

    ns: int = 0


class Stretched(msgspec.Struct):
    """Time of kernels that were compared with their like, and what of it is stretched."""

    compared_ns: int = 0
    stretched_ns: int = 0


class WindowSums(msgspec.Struct):
    """What was seen of a range in windows of tracing, as WindowWork has it."""

    occurrences_ppm: int = 0
    gpu_ns: int = 0


class WindowCosts(msgspec.Struct):
    """What windows of tracing cost, as WindowCost has it."""

    windows: int = 0
    turns: int = 0
    taken_ns: int = 0
    bare_ns: int = 0


class LoopSums(msgspec.Struct):
    """Turns of a loop, as LoopDelta has them."""

    steps: int = 0
    operations: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    step_ns: Accumulator = msgspec.field(default_factory=Accumulator)
    slow_steps: int = 0
    slow_ns: int = 0
    newest: tuple[int, ...] = ()
    waited_ns: int | None = None
    micro_batches: int | None = None

    @property
    def usual_ns(self) -> float:
        """What the turns would take if each were the usual one."""
        return (self.step_ns.median or 0.0) * self.steps


class LaunchedGpuTime(msgspec.Struct):
    """Readings of a line, and the GPU time launched around them."""

    readings: int = 0
    gpu_ns: int = 0


class LineCount(msgspec.Struct):
    """How often a line was seen, and in which function that it calls most of the time."""

    samples: int = 0
    inside: int = 0
    inside_samples: int = 0


class ThreadTimes(msgspec.Struct):
    """Launch calls of one thread, and the time from one to the next."""

    launches: int = 0
    interval: Accumulator = msgspec.field(default_factory=Accumulator)


class GpuTiming(msgspec.Struct):
    """Of one run."""

    devices: Annotated[dict[DeviceKey, DeviceUse], Of("devices")] = {}
    range_leaves: Annotated[dict[RangeLeafKey, LeafNs], Of("range_leaves")] = {}
    streams: Annotated[dict[StreamKey, StreamTimes], Of("streams")] = {}
    threads: Annotated[dict[ThreadKey, ThreadTimes], Of("launching_threads")] = {}
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
        for key, time in self.range_leaves.items():
            if (
                LEAVES[leaf_of_number(key.leaf)].is_idle
                and process in (None, key.process)
                and device in (None, key.device)
            ):
                found[key.range] = found.get(key.range, 0) + time.ns
        return found
