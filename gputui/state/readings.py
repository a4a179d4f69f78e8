"""What is read of the machine: GPUs with their newest figures and samples, alerts that they raised,
the processes on them, and the serving engines beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputui.model.events import (
    Alert,
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostSample,
    LatencyDelta,
    MigSample,
    ProcessSample,
    ServerSample,
)
from gputui.model.metrics import Metric, metrics_of, spread_fields
from gputui.state.history import Samples
from gputui.state.series import BatchMeans, FigureSeries, Integral, Series

# One alert that was raised. What folds it is in `fold`.


class AlertSpan(msgspec.Struct):
    """One alert: `since_ns` the first reading over the limit, `until_ns` the first that is not any
    more, None while it lasts."""

    raised: Alert
    since_ns: int
    worst: float
    until_ns: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether it is not over."""
        return self.until_ns is None


# One GPU as views see it.


def gpu_metrics() -> Mapping[str, Metric]:
    """Every figure and fact of a GPU by its field, as `Gpu.figure` finds it."""
    return metrics_of(GpuSample, GpuStatus, GpuFacts)


def mig_metrics() -> Mapping[str, Metric]:
    """The figures of a MIG instance: those of its GPU's fields by the same names."""
    of_gpu = metrics_of(GpuSample)
    return {field: of_gpu[field] for field in MigSample.__struct_fields__ if field in of_gpu}


class Gpu(msgspec.Struct):
    """One GPU: its facts, its state, its samples."""

    facts: GpuFacts
    status: GpuStatus | None = None
    """What is read seldom; its own `time_ns` gives its age."""
    sample_ns: int = 0
    """When the card last answered: if it hangs, this stays while time goes on."""
    energy: tuple[int, float] | None = None
    """When the energy counter was last read, and the joules it showed."""
    unavailable: dict[str, str] = {}
    samples: Samples[GpuSample] = msgspec.field(default_factory=lambda: Samples.empty(GpuSample))

    @property
    def sample(self) -> GpuSample | None:
        """The newest sample, None before the first."""
        return self.samples.newest

    def figure(self, field: str) -> Any:
        """The newest value of a field of GpuSample, GpuStatus or GpuFacts, None for none."""
        for part in (self.sample, self.status, self.facts):
            value = getattr(part, field, None)
            if value is not None:
                return value
        return None


# The machine's readings over a time: during a run, or while there was none.

PROCESSES = 1000
"""Processes kept, the first seen: a recording of weeks may see any number."""

KINDS = 256
"""Kinds of trouble kept; their names come from outside."""

_gpu_figures = attrgetter(*spread_fields(GpuSample))
_host_figures = attrgetter(*spread_fields(HostSample))

# The driver's counter → the figure whose integral it is.
_COUNTED = {metric.total: field for field, metric in metrics_of(GpuSample).items() if metric.total}

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
    """The process's share of the GPU's SMs, `sm_percent`."""
    cpu: BatchMeans = msgspec.field(default_factory=BatchMeans)
    """The process's CPU time in percent of one core, `cpu_percent`."""


class Sharing(msgspec.Struct):
    """What other processes used of a GPU at readings that show a process of the run at work there.
    At other readings the driver's figures are of times before."""

    readings: int = 0
    percent: float = 0.0
    """The sum of their `sm_percent`."""

    @property
    def share(self) -> float:
        """The share of the time that the others used, 0 to 1."""
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
    host: FigureSeries = msgspec.field(default_factory=lambda: FigureSeries.for_samples(HostSample))
    gpus: dict[int, FigureSeries] = {}
    throttle_samples: dict[tuple[int, str], int] = {}
    throttle_seconds: dict[tuple[int, str], Growth] = {}
    """(GPU, reason) → the driver's counter."""
    power_limits_watts: dict[int, float] = {}
    """GPU → the highest limit in force."""
    troubles: dict[tuple[int, str], Trouble] = {}
    """(GPU, what) → how often."""
    occupants: dict[tuple[int, int | None, int], Occupant] = {}
    """(pid, start time, GPU) → the process."""
    sharing: dict[int, Sharing] = {}
    """By GPU, what other processes used while the run's processes were at work."""

    def series(self, gpu: int, field: str) -> Series | None:
        """A figure of a GPU, a field of GpuSample; None if it was never read."""
        figures = self.gpus.get(gpu)
        return None if figures is None else figures.get(field)

    def gpu_series(self) -> Iterator[tuple[int, str, Series]]:
        """(GPU, field, series) of each figure with samples, in this order."""
        for gpu, figures in sorted(self.gpus.items()):
            for field, series in figures.sampled():
                yield gpu, field, series

    @property
    def duration_ns(self) -> int:
        """The time from the first sample to the newest."""
        return max(0, self.last_ns - self.first_ns)

    def count_sample(self, time_ns: int) -> None:
        """Count a sample of the machine taken at `time_ns`."""
        if not self.samples:
            self.first_ns = time_ns
        self.samples += 1
        self.last_ns = max(self.last_ns, time_ns)

    def read_host(self, sample: HostSample, time_ns: int) -> None:
        """Add a sample of the host."""
        self.host.add(time_ns, _host_figures(sample))

    def read(self, sample: GpuSample, time_ns: int) -> None:
        """Add a sample of a GPU."""
        self._of_gpu(sample.index).add(time_ns, _gpu_figures(sample))
        limit = sample.power_limit_watts
        if limit is not None and limit > self.power_limits_watts.get(sample.index, 0.0):
            self.power_limits_watts[sample.index] = limit

    def count(self, gpu: int, counter: str, time_ns: int, total: float) -> None:
        """Add a reading of a counter of the driver, a field of GpuStatus that a figure names as its
        total."""
        self._of_gpu(gpu).count(_COUNTED[counter], time_ns, total)

    def counter(self, gpu: int, counter: str) -> Integral | None:
        """The readings of a counter; None if there was none."""
        figures = self.gpus.get(gpu)
        return None if figures is None else figures.counter(_COUNTED[counter])

    def _of_gpu(self, gpu: int) -> FigureSeries:
        figures = self.gpus.get(gpu)
        if figures is None:
            figures = self.gpus[gpu] = FigureSeries.for_samples(GpuSample)
        return figures

    def forget_earlier_use(self) -> None:
        """Leave out how full the GPUs were so far, and what slowed them down. Energy, power and
        activity stay: they are figures of all the time."""
        for figures in self.gpus.values():
            figures.forget("memory_used_bytes")
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
        trouble = self.troubles.get((gpu, what))
        if trouble is not None:
            trouble.count += times
            trouble.last_ns = time_ns
        elif len(self.troubles) < KINDS:
            self.troubles[gpu, what] = Trouble(times, time_ns, time_ns)

    def occupied(self, process: ProcessSample, time_ns: int) -> None:
        """Count a process seen on a GPU."""
        key = process.pid, process.start_time_ns, process.gpu
        occupant = self.occupants.get(key)
        if occupant is None:
            if len(self.occupants) >= PROCESSES:
                return
            occupant = self.occupants[key] = Occupant(process, time_ns, time_ns)
        occupant.newest = process
        occupant.last_ns = time_ns
        if process.gpu_memory_bytes is not None:
            occupant.peak_memory_bytes = max(
                occupant.peak_memory_bytes or 0, process.gpu_memory_bytes
            )
        if process.sm_percent is not None:
            occupant.use.add(process.sm_percent)
        if process.cpu_percent is not None:
            occupant.cpu.add(process.cpu_percent)

    def share(self, processes: Sequence[ProcessSample], own: Set[int]) -> None:
        """Count what was used of each GPU at one reading by processes other than a run's `own`."""
        used: dict[int, tuple[float, float]] = {}
        for process in processes:
            if process.sm_percent is not None:
                mine, others = used.get(process.gpu, (0.0, 0.0))
                if process.pid in own:
                    mine += process.sm_percent
                else:
                    # Only at readings that show the program at work: 5 of 49 programs that had an
                    # H100 to themselves shared it.
                    others += process.sm_percent
                used[process.gpu] = mine, others
        for gpu, (mine, others) in used.items():
            if mine >= AT_WORK:
                sharing = self.sharing.setdefault(gpu, Sharing())
                sharing.readings += 1
                sharing.percent += others


def add_growth(counters: dict[_Key, Growth], key: _Key, value: float | None, time_ns: int) -> None:
    """Add a reading of a counter, if there is one."""
    if value is None:
        return
    growth = counters.get(key)
    if growth is None:
        counters[key] = Growth(value, time_ns, value, time_ns)
    else:
        growth.last = value
        growth.last_ns = max(growth.last_ns, time_ns)


# --- What is known of a serving engine: its newest figures, and sums and latencies since gputui
# reads it.

MOST_SERVERS = 16
MOST_BUCKETS = 400
"""The most buckets of one latency. Engines have 20 to 40; a page whose bounds changed at each
reading would fill the memory."""

SUMMED = (
    "input_tokens", "output_tokens", "requests_completed", "preemptions", "prefix_queries",
    "prefix_hits",
)  # fmt: skip
GAUGES = ("requests_running", "requests_waiting", "kv_cache_percent")
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")


class Bucket(NamedTuple):
    """The bucket of a histogram in which a quantile lies: above `low_s`, up to `high_s`, infinity
    for the last."""

    low_s: float
    high_s: float


class Latency(msgspec.Struct):
    """A latency since gputui reads it: sum, count, and each bucket's lower bound and count by its
    upper one, infinity for the last."""

    sum_s: float = 0.0
    count: int = 0
    buckets: dict[float, tuple[float, int]] = {}

    def add(self, delta: LatencyDelta) -> None:
        """Add what came since the last reading."""
        self.sum_s += delta.sum_s
        self.count += delta.count
        for low, bound, count in delta.buckets:
            high = math.inf if bound is None else bound
            if high in self.buckets or len(self.buckets) < MOST_BUCKETS:
                self.buckets[high] = low, self.buckets.get(high, (low, 0))[1] + count

    @property
    def mean_s(self) -> float | None:
        """Sum over count: exact, whatever the buckets are; None without any."""
        return self.sum_s / self.count if self.count else None

    def quantile(self, share: float) -> Bucket | None:
        """The bucket in which the `share`-quantile lies: as much as a histogram tells. None without
        buckets. The rank is rounded up, as of the smallest value that so many are not above."""
        total = sum(count for _, count in self.buckets.values())
        below = 0
        for high, (low, count) in sorted(self.buckets.items()):
            below += count
            if below >= share * total:
                return Bucket(low, high)
        return None


class Gauge(msgspec.Struct):
    """A gauge over the time since gputui reads it; its mean is weighted by time."""

    seconds: float = 0.0
    integral: float = 0.0
    maximum: float = 0.0
    first: float | None = None
    newest: float | None = None

    def add(self, value: float, interval_s: float | None) -> None:
        """A reading, which counts for the interval before it."""
        if self.first is None:
            self.first = value
        self.newest = value
        self.maximum = max(self.maximum, value)
        self.seconds += interval_s or 0.0
        self.integral += value * (interval_s or 0.0)

    @property
    def mean(self) -> float | None:
        """Over the time that was read; None before the second reading."""
        return self.integral / self.seconds if self.seconds else None


class Server(msgspec.Struct, eq=False):
    """A serving engine by its page of metrics."""

    url: str
    samples: Samples[ServerSample]
    engine: str = ""
    model: str | None = None
    pid: int | None = None
    readings: int = 0
    seconds: float = 0.0
    """That amounts and latencies are of: from the first reading to the newest."""
    reason: str | None = None
    """Why the newest reading failed."""
    sums: dict[str, int] = {}
    gauges: dict[str, Gauge] = {}
    latencies: dict[str, Latency] = {}
    busy_seconds: float = 0.0
    """The seconds in which a request ran or waited."""
    stuck_seconds: float = 0.0
    """The seconds in which a request waited."""

    def add(self, sample: ServerSample) -> None:
        """Add a reading of the engine's page of metrics."""
        self.engine = sample.engine or self.engine
        self.pid = sample.pid or self.pid
        self.reason = sample.unavailable_reason
        if sample.unavailable_reason is not None:
            return
        self.readings += 1
        self.model = sample.model or self.model
        self.samples.add(sample.time_ns, sample)
        interval_s = sample.interval_s
        self.seconds += interval_s or 0.0
        if sample.requests_running or sample.requests_waiting or sample.output_tokens:
            self.busy_seconds += interval_s or 0.0
        if sample.requests_waiting:
            self.stuck_seconds += interval_s or 0.0
        for name in SUMMED:
            amount = getattr(sample, name)
            if amount is not None:
                self.sums[name] = self.sums.get(name, 0) + amount
        for name in GAUGES:
            value = getattr(sample, name)
            if value is not None:
                self.gauges.setdefault(name, Gauge()).add(value, interval_s)
        for name in LATENCIES:
            delta = getattr(sample, name)
            if delta is not None:
                self.latencies.setdefault(name, Latency()).add(delta)

    @property
    def newest(self) -> ServerSample | None:
        """The newest reading that succeeded."""
        return self.samples.newest

    def rate(self, name: str) -> float | None:
        """An amount a second, over all readings; None where the engine does not tell it."""
        amount = self.sums.get(name)
        return None if amount is None or not self.seconds else amount / self.seconds

    @property
    def prefix_hit_percent(self) -> float | None:
        """The share of looked-up tokens that were in the prefix cache, in percent; None if nothing
        was looked up."""
        queries = self.sums.get("prefix_queries")
        return 100.0 * self.sums.get("prefix_hits", 0) / queries if queries else None

    @property
    def request_shares(self) -> tuple[float, dict[str, float]] | None:
        """Where a request's time goes, by the means of the engine's histograms: the whole time in
        seconds, and the shares of waiting in the queue, of the time until the first token, and of
        the time until the last. None if the engine has no such histograms. Requests that still wait
        are not included."""
        whole, first, queue = (
            latency.mean_s if (latency := self.latencies.get(name)) is not None else None
            for name in ("e2e", "ttft", "queue")
        )
        if not whole or first is None or first > whole:
            return None
        waited = min(queue or 0.0, first)
        shares = {"queue": waited, "prompt": first - waited, "tokens": whole - first}
        if queue is None:
            shares = {"first token": first, "further tokens": whole - first}
        return whole, {name: seconds / whole for name, seconds in shares.items()}

    def known_latencies(self) -> Iterator[tuple[str, Latency]]:
        """The latencies that have an observation, in the order in which tables show them."""
        for name in LATENCIES:
            latency = self.latencies.get(name)
            if latency is not None and latency.count:
                yield name, latency
