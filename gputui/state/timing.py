"""How a run's work followed its launches: what the session keeps of streams, gaps and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from gputui.model.events import CaptureDelta
from gputui.model.sketch import Accumulator

QUEUE_MOMENTS = 1024
"""Deltas whose time in the queue is kept, the newest: 17 minutes at one a second."""


class StreamKey(msgspec.Struct, frozen=True):
    """A stream of a process. `device` is the machine's index; `stream` CUPTI's number."""

    process: int
    device: int
    stream: int


class StreamTimes(msgspec.Struct):
    """As StreamDelta, added up."""

    operations: int = 0
    busy_ns: int = 0
    latency: Accumulator = msgspec.field(default_factory=Accumulator)
    queue: Accumulator = msgspec.field(default_factory=Accumulator)
    idle: Accumulator = msgspec.field(default_factory=Accumulator)


class DeviceUse(msgspec.Struct):
    """One process's use of one device, as DeviceDelta has it, and where it idled."""

    busy_ns: int = 0
    operations: int = 0
    first_start_ns: int | None = None
    last_end_ns: int | None = None
    overlap_ns: int = 0
    idle: Accumulator = msgspec.field(default_factory=Accumulator)
    idle_ranges: dict[int, int] = msgspec.field(default_factory=dict)
    """Range → ns, as IdleRange; 0 is outside every range."""

    @property
    def span_ns(self) -> int:
        """From the first operation's start to the last one's end."""
        if self.first_start_ns is None or self.last_end_ns is None:
            return 0
        return max(0, self.last_end_ns - self.first_start_ns)


class ThreadTimes(msgspec.Struct):
    """Launch calls of one thread, and the time from one to the next."""

    launches: int = 0
    interval: Accumulator = msgspec.field(default_factory=Accumulator)


class GpuTiming(msgspec.Struct):
    """Of one run: by (process, device), by stream, by (process, thread)."""

    devices: dict[tuple[int, int], DeviceUse] = msgspec.field(default_factory=dict)
    streams: dict[StreamKey, StreamTimes] = msgspec.field(default_factory=dict)
    threads: dict[tuple[int, int], ThreadTimes] = msgspec.field(default_factory=dict)
    queue: deque[tuple[int, int, int]] = msgspec.field(
        default_factory=lambda: deque(maxlen=QUEUE_MOMENTS)
    )
    """(process, launches, time they were queued) of each delta that had launches."""

    def add(self, event: CaptureDelta, gpu_of: Callable[[int], int]) -> None:
        """Fold a delta in. `gpu_of` gives the machine's index of the process's device number."""
        process = event.process
        for device in event.devices:
            use = self.devices.setdefault((process, gpu_of(device.device)), DeviceUse())
            use.busy_ns += device.busy_ns
            use.operations += device.operations
            use.overlap_ns += device.overlap_ns
            if use.first_start_ns is None or device.first_start_ns < use.first_start_ns:
                use.first_start_ns = device.first_start_ns
            use.last_end_ns = max(device.last_end_ns, use.last_end_ns or 0)
            if device.idle:
                use.idle.add(device.idle)
        launches = queued_ns = 0
        for stream in event.streams:
            key = StreamKey(process, gpu_of(stream.device), stream.stream)
            times = self.streams.setdefault(key, StreamTimes())
            times.operations += stream.operations
            times.busy_ns += stream.busy_ns
            if stream.latency:
                times.latency.add(stream.latency)
            if stream.idle:
                times.idle.add(stream.idle)
            if stream.queue:
                times.queue.add(stream.queue)
                launches += stream.queue.count
                queued_ns += stream.queue.total
        if launches:
            self.queue.append((process, launches, queued_ns))
        for part in event.launching_threads:
            thread = self.threads.setdefault((process, part.thread), ThreadTimes())
            thread.launches += part.launches
            if part.interval:
                thread.interval.add(part.interval)
        for share in event.idle_ranges:
            use = self.devices.setdefault((process, gpu_of(share.device)), DeviceUse())
            use.idle_ranges[share.range] = use.idle_ranges.get(share.range, 0) + share.idle_ns
