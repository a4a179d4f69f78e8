"""The machine's readings over a time: during a run, or while there was none."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gputui.model.events import ProcessSample
from gputui.state.batch_means import BatchMeans
from gputui.state.integral import Integral

PROCESSES = 1000
"""Processes kept, the first seen: a recording of weeks may see any number."""

KINDS = 256
"""Kinds of trouble kept; their names come from outside."""

_Key = TypeVar("_Key")


class Growth(msgspec.Struct):
    """A driver counter at its first and its newest reading."""

    first: float
    first_ns: int
    last: float
    last_ns: int

    @property
    def amount(self) -> float | None:
        """How much it grew; None if it was read once, or went back, as after a reload of the
        driver.
        """
        if self.last_ns <= self.first_ns or self.last < self.first:
            return None
        return self.last - self.first


class Trouble(msgspec.Struct):
    """Something that happened to a GPU: how often, first and last when."""

    count: int
    first_ns: int
    last_ns: int


class Occupant(msgspec.Struct):
    """A process on a GPU. `newest` is how it was last seen, between `first_ns` and `last_ns`."""

    newest: ProcessSample
    first_ns: int
    last_ns: int
    peak_memory_bytes: int | None = None
    use: BatchMeans = msgspec.field(default_factory=BatchMeans)
    """Its `sm_percent`."""


class Readings(msgspec.Struct):
    """Figures of the GPUs and the host over time; fields are those of GpuSample and HostSample."""

    samples: int = 0
    first_ns: int = 0
    last_ns: int = 0
    gpu_spreads: dict[tuple[int, str], BatchMeans] = {}
    host_spreads: dict[str, BatchMeans] = {}
    throttle_samples: dict[tuple[int, str], int] = {}
    throttle_seconds: dict[tuple[int, str], Growth] = {}
    """(GPU, reason) → the driver's counter."""
    energy_joules: dict[int, Integral] = {}
    """GPU → the driver's counter."""
    gpu_integrals: dict[tuple[int, str], Integral] = {}
    """The fields of `gpu_spreads` over time, for what a part of it came to."""
    troubles: dict[tuple[int, str], Trouble] = {}
    """(GPU, what) → how often."""
    occupants: dict[tuple[int, int | None, int], Occupant] = {}
    """(pid, start time, GPU) → the process."""

    @property
    def duration_ns(self) -> int:
        """From the first sample to the newest."""
        return max(0, self.last_ns - self.first_ns)

    def at(self, time_ns: int) -> None:
        """Add a sample."""
        if not self.samples:
            self.first_ns = time_ns
        self.samples += 1
        self.last_ns = max(self.last_ns, time_ns)

    def suffered(self, gpu: int, what: str, time_ns: int, times: int = 1) -> None:
        """Count something that happened to a GPU."""
        known = self.troubles.get((gpu, what))
        if known is not None:
            known.count += times
            known.last_ns = time_ns
        elif len(self.troubles) < KINDS:
            self.troubles[gpu, what] = Trouble(times, time_ns, time_ns)

    def occupied(self, process: ProcessSample, time_ns: int) -> None:
        """Count a process seen on a GPU."""
        key = process.pid, process.start_time_ns, process.gpu
        known = self.occupants.get(key)
        if known is None:
            if len(self.occupants) >= PROCESSES:
                return
            known = self.occupants[key] = Occupant(process, time_ns, time_ns)
        known.newest = process
        known.last_ns = time_ns
        if process.gpu_memory_bytes is not None:
            known.peak_memory_bytes = max(known.peak_memory_bytes or 0, process.gpu_memory_bytes)
        if process.sm_percent is not None:
            known.use.add(process.sm_percent)


def spread(spreads: dict[_Key, BatchMeans], key: _Key, value: float | None) -> None:
    """Add a value of a field, if there is one."""
    if value is not None:
        known = spreads.get(key)
        if known is None:
            known = spreads[key] = BatchMeans()
        known.add(value)


def grown(counters: dict[_Key, Growth], key: _Key, value: float | None, time_ns: int) -> None:
    """Add a reading of a counter, if there is one."""
    if value is None:
        return
    known = counters.get(key)
    if known is None:
        counters[key] = Growth(value, time_ns, value, time_ns)
    else:
        known.last = value
        known.last_ns = max(known.last_ns, time_ns)
