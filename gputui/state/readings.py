"""The machine's readings over a time: during a run, or while there was none."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import compress
from operator import attrgetter
from typing import TypeVar

import msgspec

from gputui.model.events import GpuSample, ProcessSample
from gputui.model.metrics import spread_fields
from gputui.state.batch_means import BatchMeans
from gputui.state.integral import Integral

PROCESSES = 1000
"""Processes kept, the first seen: a recording of weeks may see any number."""

KINDS = 256
"""Kinds of trouble kept; their names come from outside."""

MOST_WAITING = 256
"""Samples of a GPU that wait to be added."""

_GPU_FIELDS = spread_fields(GpuSample)
_gpu_figures = attrgetter(*_GPU_FIELDS)

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


class Sharing(msgspec.Struct):
    """What other processes used of a GPU at readings that show a run's own at work there: what the
    driver says of those before is of other times."""

    readings: int = 0
    percent: float = 0.0
    """The sum of their `sm_percent`."""

    @property
    def share(self) -> float:
        """Of the time, 0 to 1."""
        return min(1.0, self.percent / (100.0 * self.readings)) if self.readings else 0.0


AT_WORK = 5.0
"""Percent of the time from which a process is at work on a GPU: one that only sets up shows 1."""


THROTTLED = "throttled: "
"""How the name of a trouble begins, before its reason."""


class Readings(msgspec.Struct):
    """Figures of the GPUs and the host over time; fields are those of GpuSample and HostSample."""

    samples: int = 0
    first_ns: int = 0
    last_ns: int = 0
    host_spreads: dict[str, BatchMeans] = {}
    throttle_samples: dict[tuple[int, str], int] = {}
    throttle_seconds: dict[tuple[int, str], Growth] = {}
    """(GPU, reason) → the driver's counter."""
    energy_joules: dict[int, Integral] = {}
    """GPU → the driver's counter."""
    power_limits_watts: dict[int, float] = {}
    """GPU → the highest limit in force."""
    troubles: dict[tuple[int, str], Trouble] = {}
    """(GPU, what) → how often."""
    occupants: dict[tuple[int, int | None, int], Occupant] = {}
    """(pid, start time, GPU) → the process."""
    sharing: dict[int, Sharing] = {}
    """GPU → what others used of it while the run's processes did."""
    _gpu_spreads: dict[tuple[int, str], BatchMeans] = {}
    _gpu_integrals: dict[tuple[int, str], Integral] = {}
    _waiting: dict[int, tuple[list[int], list[tuple[float | None, ...]]]] = {}
    """GPU → times and fields of its newest samples: added a column at a time, for hours of many
    GPUs are opened in as long as this takes."""

    @property
    def gpu_spreads(self) -> dict[tuple[int, str], BatchMeans]:
        """(GPU, field) → its values."""
        self._merge()
        return self._gpu_spreads

    @property
    def gpu_integrals(self) -> dict[tuple[int, str], Integral]:
        """The fields of `gpu_spreads` over time, for what a part of it came to."""
        self._merge()
        return self._gpu_integrals

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

    def read(self, figures: GpuSample, time_ns: int) -> None:
        """Add a sample of a GPU."""
        times_ns, samples = self._waiting.setdefault(figures.index, ([], []))
        if len(times_ns) >= MOST_WAITING or (times_ns and time_ns <= times_ns[-1]):
            self._merge()
            times_ns, samples = self._waiting[figures.index] = [], []
        times_ns.append(time_ns)
        samples.append(_gpu_figures(figures))
        limit = figures.power_limit_watts
        if limit is not None and limit > self.power_limits_watts.get(figures.index, 0.0):
            self.power_limits_watts[figures.index] = limit

    def _merge(self) -> None:
        for gpu, (times_ns, samples) in self._waiting.items():
            for field, column in zip(_GPU_FIELDS, zip(*samples, strict=True), strict=True):
                key, at_ns, values = (gpu, field), times_ns, column
                if None in column:
                    read = [value is not None for value in column]
                    at_ns, values = list(compress(times_ns, read)), tuple(compress(column, read))
                if values:
                    self._gpu_spreads.setdefault(key, BatchMeans()).extend(values)
                    self._gpu_integrals.setdefault(key, Integral()).add_rates(at_ns, values)
        self._waiting = {}

    def forget_earlier_use(self) -> None:
        """Leave out how full the GPUs were so far, and what slowed them down. Energy, power and
        activity stay: they are figures of all the time."""
        self._merge()
        for figures in (self._gpu_spreads, self._gpu_integrals):
            for key in [key for key in figures if key[1] == "memory_used_bytes"]:
                del figures[key]
        self.throttle_samples = {}
        for counter in self.throttle_seconds.values():
            counter.first, counter.first_ns = counter.last, counter.last_ns
        self.troubles = {
            key: trouble
            for key, trouble in self.troubles.items()
            if not key[1].startswith(THROTTLED)
        }

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

    def share(self, processes: Sequence[ProcessSample], own: Set[int]) -> None:
        """Count what was used of each GPU at one reading by processes other than a run's `own`."""
        used: dict[int, tuple[float, float]] = {}
        for process in processes:
            if process.sm_percent is not None:
                mine, others = used.get(process.gpu, (0.0, 0.0))
                if process.pid in own:
                    mine += process.sm_percent
                else:
                    others += process.sm_percent
                used[process.gpu] = mine, others
        for gpu, (mine, others) in used.items():
            if mine >= AT_WORK:
                known = self.sharing.setdefault(gpu, Sharing())
                known.readings += 1
                known.percent += others


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
