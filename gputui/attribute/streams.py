"""Launch latency, queues and gaps: how operations follow their calls, and each other."""

from __future__ import annotations

import numpy as np

from gputui.attribute import (
    LONGEST_NS,
    Covered,
    Holes,
    Int64s,
    KeyTable,
    Ran,
    UInt32s,
    Unions,
    join,
    sorted_columns,
)
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import coarse_distributions
from gputui.model.events import (
    OTHER_STREAMS,
    DeviceDelta,
    Distribution,
    StreamDelta,
    ThreadLaunches,
)

MAX_STREAMS = 500
"""Streams per process counted separately; the rest of each device's are combined."""

# MAX_STREAMS and one for each device's others fit; the thread is above.
_ORIGIN_BITS = 16
STREAM = (1 << _ORIGIN_BITS) - 1
"""The bits of an origin that number its stream, of whatever device."""


class Streams:
    """Remembers the streams of a process, and up to when each stream and its device were
    covered.
    """

    def __init__(self, holes: Holes) -> None:
        """`holes` are where nothing is known of the devices: no idle time."""
        self._holes = holes
        self._table = KeyTable(MAX_STREAMS)
        self._streams: list[tuple[int, int]] = []
        self._others: dict[int, int] = {}
        self._devices = Unions()
        self._covered = Unions()
        self._latencies: list[tuple[Int64s, Int64s, Int64s]] = []
        self._ran: list[Ran] = []

    def origins(self, devices: Int64s, streams: UInt32s, threads: UInt32s) -> Int64s:
        """The `origins` of `Ran`: the number of each operation's stream, and its launching
        thread.
        """
        keys = devices << 32 | streams

        def define(key: int, _first: int) -> int:
            self._streams.append((key >> 32, key & 0xFFFF_FFFF))
            return len(self._streams) - 1

        numbers = self._table.lookup(keys, define, lambda: -1)
        missing = numbers < 0
        if missing.any():
            for device in np.unique(devices[missing]).tolist():
                numbers[missing & (devices == device)] = self._other(device)
        return threads.astype(np.int64) << _ORIGIN_BITS | numbers

    def _other(self, device: int) -> int:
        if device not in self._others:
            self._others[device] = len(self._streams)
            self._streams.append((device, OTHER_STREAMS))
        return self._others[device]

    def add(
        self, origins: Int64s, starts_ns: Int64s, called_ns: Int64s, returned_ns: Int64s
    ) -> None:
        """Add the first kernel of each launch, and when its call began and ended."""
        self._latencies.append(
            (
                origins & STREAM,
                np.clip(starts_ns - called_ns, 0, LONGEST_NS),
                np.clip(starts_ns - returned_ns, 0, LONGEST_NS),
            )
        )

    def add_busy(self, ran: Ran) -> None:
        """Add operations that ran, whether their calls have arrived or not; in any order."""
        self._ran.append(ran)

    def collect_parts(self, collection: Collection) -> DeltaParts:
        pieces, self._ran = self._ran, []
        ran = Ran(*sorted_columns(pieces, (np.int64,) * 4))
        latencies, self._latencies = self._latencies, []
        if not len(ran.starts_ns):
            return {}
        starts, ends, devices = ran.starts_ns, ran.ends_ns, ran.devices
        streams = ran.origins & STREAM
        by_device = self._devices.add(devices, starts, ends)
        by_stream = self._covered.add(streams, starts, ends)
        keys = join([part[0] for part in latencies], np.int64)
        latency = coarse_distributions(keys, join([part[1] for part in latencies], np.int64))
        queue = coarse_distributions(keys, join([part[2] for part in latencies], np.int64))
        idle = self._idle(streams, starts, by_stream)
        rows = zip(by_stream.keys.tolist(), by_stream.counts.tolist(),
                   by_stream.busy_ns.tolist(), strict=True)  # fmt: skip
        names = self._streams
        idle_devices = self._idle(devices, starts, by_device)
        return {
            "devices": self._device_deltas(collection.process, by_device, by_stream, idle_devices),
            "streams": tuple(
                StreamDelta(
                    device=names[stream][0],
                    stream=names[stream][1],
                    operations=count,
                    busy_ns=busy_ns,
                    latency=latency.get(stream),
                    queue=queue.get(stream),
                    idle=idle.get(stream),
                )
                for stream, count, busy_ns in rows
            ),
        }

    def _idle(self, keys: Int64s, starts: Int64s, covered: Covered) -> dict[int, Distribution]:
        rows, gaps_ns = covered.gap_rows, covered.gaps_ns
        is_known = ~self._holes.touch(starts[rows] - gaps_ns, starts[rows])
        return coarse_distributions(keys[rows[is_known]], gaps_ns[is_known])

    def _device_deltas(
        self, process: int, by_device: Covered, by_stream: Covered, idle: dict[int, Distribution]
    ) -> tuple[DeviceDelta, ...]:
        device_of = np.array([self._streams[stream][0] for stream in by_stream.keys.tolist()])
        on_streams = np.bincount(device_of, by_stream.busy_ns, int(by_device.keys.max()) + 1)
        return tuple(
            DeviceDelta(
                process=process,
                device=device,
                busy_ns=busy_ns,
                operations=count,
                first_start_ns=first_ns,
                last_end_ns=last_ns,
                idle=idle.get(device),
                overlap_ns=max(0, int(on_streams[device]) - busy_ns),
            )
            for device, busy_ns, count, first_ns, last_ns in zip(
                by_device.keys.tolist(),
                by_device.busy_ns.tolist(),
                by_device.counts.tolist(),
                by_device.first_ns.tolist(),
                by_device.last_ns.tolist(),
                strict=True,
            )
        )


class LaunchIntervals:
    """The time between launch calls, per thread."""

    MAX_THREADS = 1024
    """Threads counted; the rest are left out."""

    def __init__(self) -> None:
        self._numbers = KeyTable(self.MAX_THREADS)
        self._threads: list[int] = []
        self._last_ns: list[int] = []
        self._parts: list[tuple[Int64s, Int64s]] = []
        self._counts = np.zeros(self.MAX_THREADS, np.int64)

    def add(self, threads: Int64s, starts_ns: Int64s) -> None:
        if not len(threads):
            return

        def define(thread: int, _first: int) -> int:
            self._threads.append(thread)
            self._last_ns.append(0)
            return len(self._threads) - 1

        numbers = self._numbers.lookup(threads, define, lambda: -1)
        if len(self._threads) > 1 or (starts_ns[1:] < starts_ns[:-1]).any():
            order = np.lexsort((starts_ns, numbers))
            numbers, starts_ns = numbers[order], starts_ns[order]
        first_known = int(np.searchsorted(numbers, 0))
        numbers, starts_ns = numbers[first_known:], starts_ns[first_known:]
        if not len(numbers):
            return
        firsts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        lasts = np.append(firsts[1:], len(numbers)) - 1
        before = np.concatenate(([0], starts_ns[:-1]))
        before[firsts] = [self._last_ns[number] for number in numbers[firsts].tolist()]
        # A thread's calls can be delivered late: such a call has no interval of its own.
        follows = (before > 0) & (starts_ns >= before)
        self._parts.append((numbers[follows], (starts_ns - before)[follows]))
        self._counts += np.bincount(numbers, minlength=self.MAX_THREADS)
        for number, last_ns in zip(numbers[lasts].tolist(), starts_ns[lasts].tolist(), strict=True):
            self._last_ns[number] = max(self._last_ns[number], last_ns)

    def collect_parts(self, _: Collection) -> DeltaParts:
        """Launches of each thread, and the time between them."""
        pieces, self._parts = self._parts, []
        counts, self._counts = self._counts, np.zeros(self.MAX_THREADS, np.int64)
        intervals = coarse_distributions(
            join([part[0] for part in pieces], np.int64),
            np.minimum(join([part[1] for part in pieces], np.int64), LONGEST_NS),
        )
        return {
            "launching_threads": tuple(
                ThreadLaunches(self._threads[number], int(counts[number]), intervals.get(number))
                for number in np.flatnonzero(counts).tolist()
            )
        }
