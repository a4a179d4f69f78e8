"""What is known of a serving engine: its newest figures, and sums and latencies since gputui reads
it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gputui.model.events import LatencyDelta, ServerSample
from gputui.state.history import Samples

MOST_SERVERS = 16
MOST_BUCKETS = 400
"""Of one latency: engines have 20 to 40; a page whose bounds change at each reading has no end."""

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
        """None before the second reading."""
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
    """Of these, those in which a request ran or waited."""
    stuck_seconds: float = 0.0
    """Those in which requests waited."""

    def add(self, sample: ServerSample) -> None:
        """Add a reading."""
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
        """Of what was looked for in the prefix cache; None where nothing was."""
        queries = self.sums.get("prefix_queries")
        return 100.0 * self.sums.get("prefix_hits", 0) / queries if queries else None

    @property
    def request_shares(self) -> tuple[float, dict[str, float]] | None:
        """Where a request's time goes, by the histograms' means: all of it in seconds, and the
        shares in the queue, until the first token, and until the last. None where the engine does
        not tell these. Requests that wait still are in none of them."""
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
        """Those with an observation, in the order in which tables show them."""
        for name in LATENCIES:
            latency = self.latencies.get(name)
            if latency is not None and latency.count:
                yield name, latency
