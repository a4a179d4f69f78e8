"""What a serving engine says of itself on its page of metrics."""

from typing import Annotated

from msgspec import Meta

from gputui.model.events.base import Amount, Event, Integer, Record
from gputui.model.metrics import COUNT, PER_SECOND, PERCENT, SECONDS, Chart, Metric

# An argument a line would make three times as many.
# fmt: off

Positive = Annotated[float, Meta(ge=0, le=1e18)]


class LatencyDelta(Record, frozen=True, kw_only=True):
    """What was added to a histogram since the last reading. `buckets` has the lower and the upper
    bound of each bucket that grew, in seconds, None for the last, which has no upper one, and by
    how much, not cumulative. There are none of an engine that tells sum and count only.
    """

    sum_s: Positive
    count: Amount
    buckets: tuple[tuple[Positive, Positive | None, Amount], ...] = ()


class ServerSample(Event, frozen=True, kw_only=True, tag="server_sample"):
    """One reading of an engine's page of metrics, at `url`, in one vocabulary for all engines.

    Amounts and histograms are what was added in `interval_s`, since the reading before: of the
    first reading there are none, and a counter that began anew counts from 0. What an engine does
    not tell is None. `unavailable_reason` is why a reading failed; it is then sent once.
    """

    url: str
    engine: str
    pid: Integer | None = None
    """The process that listens there, if gputui looked for it."""
    model: str | None = None
    interval_s: Positive | None = None
    unavailable_reason: str | None = None
    requests_running: Annotated[Amount | None, Metric(
        "running", "Requests that are computed: the batch", COUNT, "the engine's page of metrics",
        title="Requests running", chart=Chart(10), prometheus="requests_running",
    )] = None
    requests_waiting: Annotated[Amount | None, Metric(
        "waiting", "Requests in the queue", COUNT, "the engine's page of metrics",
        title="Requests waiting", chart=Chart(20, "memory"), prometheus="requests_waiting",
    )] = None
    kv_cache_percent: Annotated[float | None, Metric(
        "KV cache", "Of the KV cache in use", PERCENT, "the engine's page of metrics",
        title="KV cache in use", chart=Chart(30, "memory"), prometheus="kv_cache_ratio",
    )] = None
    output_tokens_per_s: Annotated[Positive | None, Metric(
        "tokens out", "Tokens written a second", PER_SECOND, "the engine's page of metrics",
        title="Output tokens a second", chart=Chart(40), prometheus="output_tokens_per_second",
    )] = None
    input_tokens_per_s: Annotated[Positive | None, Metric(
        "tokens in", "Tokens of prompts a second", PER_SECOND, "the engine's page of metrics",
        title="Input tokens a second", chart=Chart(50), prometheus="input_tokens_per_second",
    )] = None
    ttft_mean_s: Annotated[Positive | None, Metric(
        "TTFT", "Time to the first token, mean since the last reading", SECONDS,
        "the engine's page of metrics", title="Time to first token", chart=Chart(60),
        prometheus="ttft_mean_seconds",
    )] = None
    tpot_mean_s: Annotated[Positive | None, Metric(
        "TPOT", "Time of each further token, mean since the last reading", SECONDS,
        "the engine's page of metrics", title="Time per output token", chart=Chart(70),
        prometheus="tpot_mean_seconds",
    )] = None
    input_tokens: Amount | None = None
    output_tokens: Amount | None = None
    requests_completed: Amount | None = None
    preemptions: Amount | None = None
    prefix_queries: Amount | None = None
    """Tokens or blocks of prompts that were looked for in the prefix cache."""
    prefix_hits: Amount | None = None
    ttft: LatencyDelta | None = None
    tpot: LatencyDelta | None = None
    """(latency - TTFT) / (output tokens - 1), a request."""
    itl: LatencyDelta | None = None
    """Gaps between two tokens of a request."""
    e2e: LatencyDelta | None = None
    queue: LatencyDelta | None = None
    """Waiting until the prompt was begun."""
