"""What a serving engine's own metrics say beside the time tree: requests that wait, a KV cache that
is full, requests that are put back."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model.units import duration
from gputui.report.explain.analysis import Analysis, MachineAnalysis, MachineRule, RunRule
from gputui.report.explain.finding import Finding
from gputui.state.serving import Server

LEAST_READINGS = 3
"""Of a page of metrics, for a figure over time."""

PUT_BACK = 0.01
"""Preemptions for each request that was completed, from which they are a finding: each computes a
prompt again."""

FULL = 95.0
"""Percent of the KV cache from which it is full: the rest is held for requests that grow."""

WAITS = 0.5
"""Share of the readings' time in which requests wait, from which the queue is a finding."""

IDLES = 0.30
"""Share of the GPU's time that is idle, from which waiting requests could have been computed."""


def put_back(analysis: MachineAnalysis) -> Iterator[Finding]:
    """Preemptions: the KV cache is too small for the requests in it."""
    for server in _read(analysis):
        preemptions = server.sums.get("preemptions", 0)
        completed = server.sums.get("requests_completed", 0)
        if not preemptions or preemptions < PUT_BACK * completed:
            continue
        cache = server.gauges.get("kv_cache_percent")
        full = f", and the KV cache was up to {cache.maximum:.0f} % full" if cache else ""
        yield Finding(
            cause="preemptions",
            word="KV CACHE FULL",
            sentence=(
                f"{preemptions:,} requests were put back for want of KV cache, beside "
                f"{completed:,} completed{full}: their prompts are computed again."
            ),
            advice=_CACHE_ADVICE,
            value=preemptions / max(1, completed),
            threshold=PUT_BACK,
            recoverable=preemptions / (preemptions + completed),
            source=f"{server.engine}'s metrics",
            leads=True,
            explains=("kv_cache_full",),
        )


_CACHE_ADVICE = (
    "more memory for the KV cache (vLLM's gpu_memory_utilization, SGLang's mem_fraction_static), "
    "an fp8 KV cache, a shorter max_model_len, fewer requests at once, or more GPUs"
)


def kv_cache_full(analysis: MachineAnalysis) -> Iterator[Finding]:
    """A KV cache that is full most of the time while requests wait."""
    for server in _read(analysis):
        cache = server.gauges.get("kv_cache_percent")
        if cache is None or cache.mean is None or cache.mean < FULL or not _waits(server):
            continue
        waiting = server.gauges["requests_waiting"].mean or 0.0
        running = server.gauges.get("requests_running")
        share = waiting / (waiting + ((running.mean or 0.0) if running is not None else 0.0))
        yield Finding(
            cause="kv_cache_full",
            word="KV CACHE FULL",
            sentence=(
                f"The KV cache is {cache.mean:.0f} % full, and {waiting:.1f} requests wait for it "
                "in the mean."
            ),
            advice=_CACHE_ADVICE,
            value=cache.mean,
            threshold=FULL,
            recoverable=share,
            source=f"{server.engine}'s metrics",
            leads=True,
        )


def queue_beside_idle(analysis: Analysis) -> Iterator[Finding]:
    """Requests wait while the GPU idles and there is room for them: the host is too slow."""
    tree = analysis.tree
    if tree is None:
        return
    idle = tree.share(tree.idle_ns)
    for server in _read(analysis):
        cache = server.gauges.get("kv_cache_percent")
        if idle < IDLES or not _waits(server) or (cache is not None and cache.maximum >= FULL):
            continue
        waiting = server.gauges["requests_waiting"]
        queue = server.latencies.get("queue")
        waited = queue.mean_s if queue is not None else None
        long = f", {duration(round(waited * 1e9))} each" if waited else ""
        yield Finding(
            cause="queue",
            word="REQUESTS WAIT",
            sentence=(
                f"{waiting.mean or 0:.1f} requests wait in the mean{long}, while the GPU idles "
                f"{100 * idle:.0f} % of the time: the engine's host work is what they wait for."
            ),
            advice=(
                "more cores for the engine's processes, CUDA graphs, several scheduler steps at "
                "once, or a larger batch (max_num_seqs)"
            ),
            value=100 * idle,
            threshold=100 * IDLES,
            source=f"{server.engine}'s metrics beside the time tree",
        )


def _read(analysis: MachineAnalysis) -> Iterator[Server]:
    for server in analysis.session.servers.values():
        if server.readings >= LEAST_READINGS:
            yield server


def _waits(server: Server) -> bool:
    return bool(
        server.seconds
        and "requests_waiting" in server.gauges
        and server.stuck_seconds >= WAITS * server.seconds
    )


RULES = (
    MachineRule(17, put_back),
    MachineRule(17, kv_cache_full),
    RunRule(17, queue_beside_idle),
)
