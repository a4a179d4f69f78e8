"""The host of the GPUs, its processes and its servers, and the sampler's tick."""

from typing import Annotated, Literal

from msgspec import Meta

from gputui.model.events.base import Amount, Event, GpuIndex, Integer, Moment, Record
from gputui.model.events.gpu import GpuFacts, GpuSample
from gputui.model.metrics import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    LOAD_AVERAGE,
    PER_SECOND,
    PERCENT,
    SECONDS,
    Chart,
    Metric,
)

# An argument a line would make three times as many.
# fmt: off


class HostFacts(Record, frozen=True, kw_only=True):
    """The host of the GPUs."""

    hostname: str
    system: str
    cpu_model: str | None = None
    cpu_count: Integer
    memory_total_bytes: Integer


class Header(Event, frozen=True, kw_only=True, tag="header"):
    """The first event of every session, and the first line of every journal.

    `monotonic_ns` is CLOCK_MONOTONIC read at `time_ns`: an anchor that distinguishes a stepped wall
    clock from a pause.
    """

    defines = True
    repeated_for = ()

    schema: Integer
    gputui_version: str
    python_version: str
    monotonic_ns: Integer
    arguments: tuple[str, ...] = ()
    interval_s: float
    host: HostFacts
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_unavailable_reason: str | None = None


class HostSample(Record, frozen=True, kw_only=True):
    """The host at one moment."""

    cpu_percent: Annotated[float | None, Metric(
        "CPU", "CPU use", PERCENT, "/proc/stat", title="CPU", chart=Chart(10), spread=True,
        prometheus="cpu_ratio",
    )] = None
    memory_used_bytes: Annotated[Integer | None, Metric(
        "memory", "Host memory in use", BYTES, "/proc/meminfo", title="Memory used",
        chart=Chart(20, "memory"), spread=True, prometheus="memory_used_bytes",
    )] = None
    load_1m: Annotated[float | None, Metric(
        "load", "Load average of a minute", LOAD_AVERAGE, "os.getloadavg", prometheus="load1",
    )] = None
    swap_used_bytes: Annotated[Integer | None, Metric(
        "swap", "Swap in use", BYTES, "/proc/meminfo", prometheus="swap_used_bytes",
    )] = None
    infiniband_sent_bytes_per_s: Annotated[float | None, Metric(
        "InfiniBand sent", "Sent by all its ports; none on a host without InfiniBand", BYTES_PER_S,
        "/sys/class/infiniband", prometheus="infiniband_sent_bytes_per_second",
    )] = None
    infiniband_received_bytes_per_s: Annotated[float | None, Metric(
        "InfiniBand received", "Received by all its ports; none on a host without InfiniBand",
        BYTES_PER_S, "/sys/class/infiniband", prometheus="infiniband_received_bytes_per_second",
    )] = None


class ProcessSample(Record, frozen=True, kw_only=True):
    """One process on one GPU, as the driver and the host see it.

    A process is identified by its pid and its `start_time_ns`, because pids are reused. `kind` is
    the driver's: C is compute, G graphics. `gpu_instance_id` is the MIG instance it is on.
    """

    pid: Integer
    gpu: GpuIndex
    user: str | None = None
    command: str | None = None
    gpu_memory_bytes: Annotated[Integer | None, Metric(
        "GPU memory", "GPU memory of a process", BYTES, "nvmlDeviceGetComputeRunningProcesses",
        prometheus="gpu_memory_bytes",
    )] = None
    sm_percent: Annotated[float | None, Metric(
        "SM", "Its use of the SMs", PERCENT, "nvmlDeviceGetProcessUtilization",
        prometheus="sm_ratio",
    )] = None
    cpu_percent: Annotated[float | None, Metric(
        "CPU", "Its use of one core", PERCENT, "psutil.Process.cpu_times",
    )] = None
    host_memory_bytes: Annotated[Integer | None, Metric(
        "memory", "Its memory of the host's", BYTES, "psutil.Process.memory_info",
    )] = None
    kind: Literal["C", "G", "C+G"] | None = None
    memory_bandwidth_percent: Annotated[float | None, Metric(
        "memory bandwidth", "Of the DRAM", PERCENT, "nvmlDeviceGetProcessUtilization",
        prometheus="memory_bandwidth_ratio",
    )] = None
    encoder_percent: Annotated[float | None, Metric(
        "encoder", "Its use of the video encoder", PERCENT, "nvmlDeviceGetProcessUtilization",
    )] = None
    decoder_percent: Annotated[float | None, Metric(
        "decoder", "Its use of the video decoder", PERCENT, "nvmlDeviceGetProcessUtilization",
    )] = None
    start_time_ns: Moment | None = None
    parent_pid: Integer | None = None
    gpu_instance_id: Integer | None = None
    compute_instance_id: Integer | None = None


class LauncherSample(Record, frozen=True, kw_only=True):
    """An ancestor of GPU processes that is not on a GPU itself: an inner node of the process
    tree.
    """

    pid: Integer
    parent_pid: Integer | None = None
    start_time_ns: Moment
    user: str | None = None
    command: str | None = None


class MachineSample(Event, frozen=True, kw_only=True, tag="sample"):
    """One tick of the sampler. `processes` and `launchers` are None if this tick did not read them.

    `own_cpu_percent` is gputui's own use of one core since the last tick.
    """

    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] | None = None
    own_cpu_percent: Annotated[float | None, Metric(
        "gputui", "What gputui itself uses of one core", PERCENT, "time.process_time_ns",
        prometheus="own_cpu_ratio",
    )] = None
    recorded_bytes: Amount | None = None
    """Size of the recording on disk when this tick was read; None if there is none."""
    traced_bytes: Amount | None = None
    """Size of the trace beside it."""
    launchers: tuple[LauncherSample, ...] = ()
    clock_set_ns: Integer | None = None
    """How far the wall clock was set since the last tick, forward if positive: times before and
    after it are of two clocks. None where it was not."""


class HostUnavailable(Event, frozen=True, kw_only=True, tag="host_unavailable"):
    """Why host fields, or whole kinds of readings (`processes`), are None. Replaces earlier
    reasons.

    `processes.FIELD` is why that field is None for some process; `sampler` is why sampling ended.
    """

    repeated_for = ()

    reasons: dict[str, str]


class ClockCompared(Event, frozen=True, kw_only=True, tag="clock_compared"):
    """How far this host's clock was ahead of the clock of host `by`, which copied the recording:
    `offset_ns`, wrong by at most `error_ns`, which is half of the quickest round trip. `host` names
    this host where recordings of several hosts are together. No time is corrected by it."""

    by: str
    offset_ns: Integer
    error_ns: Amount
    host: str | None = None


class ClockRead(Event, frozen=True, kw_only=True, tag="clock_read"):
    """The answer of another host to the question for its time, which was asked at `asked_ns` by the
    clock of who asked. Only on the way from one host to another, never in a file.
    """

    asked_ns: Moment


# --- What a serving engine says of itself on its page of metrics.

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
