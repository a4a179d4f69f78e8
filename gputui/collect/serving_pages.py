"""An engine's page of metrics, in Prometheus' text format, in one vocabulary.

The page is foreign: only lines with known names are parsed, by prometheus_client, and figures that
are none are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gputui.base.sanitize import sanitize
from gputui.model.events import LatencyDelta, ServerSample


class Engine(NamedTuple):
    """How one engine calls things. Names are as its page has them, but with "_" for ":", which
    newer SGLang and collectors write. Of several names of a gauge or histogram the first that is
    there counts, newer ones first; those in a tuple inside are added up where all are there.
    """

    name: str
    prefix: str
    source: str
    """Repository and file where they are declared."""
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str | tuple[str, ...], ...]]
    histograms: Mapping[str, tuple[str, ...]]


ENGINES: tuple[Engine, ...] = (
    Engine(
        "vLLM", "vllm_", "vllm-project/vllm: vllm/v1/metrics/loggers.py",
        gauges={
            "requests_running": ("vllm_num_requests_running",),
            "requests_waiting": ("vllm_num_requests_waiting",),
            "kv_cache_ratio": ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"),
        },
        counters={
            "input_tokens": ("vllm_prompt_tokens_total",),
            "output_tokens": ("vllm_generation_tokens_total",),
            "requests_completed": ("vllm_request_success_total",),
            "preemptions": ("vllm_num_preemptions_total",),
            "prefix_queries": ("vllm_prefix_cache_queries_total",
                               "vllm_gpu_prefix_cache_queries_total"),
            "prefix_hits": ("vllm_prefix_cache_hits_total", "vllm_gpu_prefix_cache_hits_total"),
        },
        histograms={
            "ttft": ("vllm_time_to_first_token_seconds",),
            "tpot": ("vllm_request_time_per_output_token_seconds",),
            # What was called so first had one observation for each gap.
            "itl": ("vllm_inter_token_latency_seconds", "vllm_time_per_output_token_seconds"),
            "e2e": ("vllm_e2e_request_latency_seconds",),
            "queue": ("vllm_request_queue_time_seconds",),
        },
    ),
    Engine(
        "SGLang", "sglang_",
        "sgl-project/sglang: python/sglang/srt/observability/metrics_collector.py",
        gauges={
            "requests_running": ("sglang_num_running_reqs",),
            "requests_waiting": ("sglang_num_queue_reqs",),
            "kv_cache_ratio": ("sglang_token_usage",),
        },
        counters={
            "input_tokens": ("sglang_prompt_tokens_total",),
            "output_tokens": ("sglang_generation_tokens_total",),
            "requests_completed": ("sglang_num_requests_total",),
            "preemptions": ("sglang_num_retracted_requests_total",),
            "prefix_queries": ("sglang_prompt_tokens_total",),
            "prefix_hits": ("sglang_cached_tokens_total",),
        },
        histograms={
            "ttft": ("sglang_time_to_first_token_seconds",),
            "tpot": ("sglang_request_time_per_output_token_seconds",
                     "sglang_time_per_output_token_seconds"),
            "itl": ("sglang_inter_token_latency_seconds",),
            "e2e": ("sglang_e2e_request_latency_seconds",),
            "queue": ("sglang_queue_time_seconds",),
        },
    ),
    Engine(
        "TensorRT-LLM", "trtllm_", "NVIDIA/TensorRT-LLM: tensorrt_llm/metrics/collector.py",
        gauges={
            "requests_running": ("trtllm_num_requests_running", "trtllm_num_active_requests"),
            "requests_waiting": ("trtllm_num_requests_waiting", "trtllm_server_queue_length"),
            "kv_cache_ratio": ("trtllm_kv_cache_utilization",),
        },
        counters={
            "input_tokens": ("trtllm_prompt_tokens_total",),
            "output_tokens": ("trtllm_generation_tokens_total",),
            "requests_completed": ("trtllm_request_success_total",),
            "prefix_queries": (("trtllm_kv_cache_reused_blocks_total",
                                "trtllm_kv_cache_missed_blocks_total"),),
            "prefix_hits": ("trtllm_kv_cache_reused_blocks_total",),
        },
        histograms={
            "ttft": ("trtllm_time_to_first_token_seconds",),
            "tpot": ("trtllm_time_per_output_token_seconds",),
            "e2e": ("trtllm_e2e_request_latency_seconds",),
            "queue": ("trtllm_request_queue_time_seconds",),
        },
    ),
    Engine(
        "TGI", "tgi_", "huggingface/text-generation-inference: router/src",
        gauges={
            "requests_running": ("tgi_batch_current_size",),
            "requests_waiting": ("tgi_queue_size",),
        },
        counters={
            "input_tokens": ("tgi_request_input_length_sum",),
            "output_tokens": ("tgi_request_generated_tokens_sum",),
            "requests_completed": ("tgi_request_success", "tgi_request_success_total"),
        },
        histograms={
            "tpot": ("tgi_request_mean_time_per_token_duration",),
            "e2e": ("tgi_request_duration",),
            "queue": ("tgi_request_queue_duration",),
        },
    ),
    Engine(
        "llama.cpp", "llamacpp_", "ggml-org/llama.cpp: tools/server/server-task.cpp",
        gauges={
            "requests_running": ("llamacpp_requests_processing",),
            "requests_waiting": ("llamacpp_requests_deferred",),
            "kv_cache_ratio": ("llamacpp_kv_cache_usage_ratio",),
        },
        counters={
            # Newer ones count apart what the cache had.
            "input_tokens": (("llamacpp_prompt_tokens_total",
                              "llamacpp_prompt_tokens_cached_total"),
                             "llamacpp_prompt_tokens_total"),
            "prefix_queries": (("llamacpp_prompt_tokens_total",
                                "llamacpp_prompt_tokens_cached_total"),),
            "prefix_hits": ("llamacpp_prompt_tokens_cached_total",),
            "output_tokens": ("llamacpp_tokens_predicted_total",),
            # Of all tokens and the seconds for them: the mean gap, without a distribution.
            "itl_sum": ("llamacpp_tokens_predicted_seconds_total",),
            "itl_count": ("llamacpp_tokens_predicted_total",),
        },
        histograms={},
    ),
)  # fmt: skip
"""Dynamo's workers have the names of the engine that they run."""

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
COUNTED = (
    "input_tokens", "output_tokens", "requests_completed", "preemptions", "prefix_queries",
    "prefix_hits",
)  # fmt: skip

MOST_LINES = 20_000
"""The most samples of known names on one page; a page of vLLM with eight ranks has about 4,000 in
all."""

_UNANSWERED = {"abort", "error"}
"""Reasons for which a request ended that vLLM counts among its successes."""

_SHARING = {"tp_rank", "pp_rank", "moe_ep_rank"}
"""Labels of ranks that compute the same requests: SGLang's each count all of them
(--enable-metrics-for-all-schedulers, and each stage of a pipeline). Its gauges also have a series
for each priority beside their sum, whose priority is ""."""

MOST_BUCKETS = 200
_MOST = 2.0**62


class Histogram(msgspec.Struct, frozen=True):
    """Sum and count so far, and the count up to each bound."""

    sum_s: float
    count: float
    cumulative: Mapping[float, float]


class Page(NamedTuple):
    """One reading: gauges and counters by quantity, counters since the engine began."""

    engine: str
    model: str | None
    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]


def read_page(text: str) -> Page | None:
    """What a page of metrics says; None if it has no known engine's names. Raises ValueError for a
    text that is no page of metrics, and ImportError without prometheus_client."""
    engine = _engine_of(text)
    if engine is None:
        return None
    samples = _Samples(engine, text)
    gauges = {
        quantity: value
        for quantity, names in engine.gauges.items()
        # Each data-parallel engine has a cache of its own: the fullest decides.
        if (
            value := samples.first(
                names, max if quantity == "kv_cache_ratio" else sum, is_gauge=True
            )
        )
        is not None
    }
    counters = {
        quantity: value
        for quantity, names in engine.counters.items()
        if (value := samples.first(names, sum)) is not None
    }
    histograms = {
        quantity: histogram
        for quantity, names in engine.histograms.items()
        if (histogram := samples.histogram(names)) is not None
    }
    if "itl_sum" in counters:
        sum_s, count = counters.pop("itl_sum"), counters.pop("itl_count", 0.0)
        histograms["itl"] = Histogram(sum_s, count, {})
    return Page(engine.name, samples.model, gauges, counters, histograms)


def _plain(name: str) -> str:
    return name.replace(":", "_", 1)


def _engine_of(text: str) -> Engine | None:
    lines = [_plain(line[:64]) for line in text.splitlines() if line and not line.startswith("#")]
    return next(
        (engine for engine in ENGINES if any(line.startswith(engine.prefix) for line in lines)),
        None,
    )


class _Samples:
    """The samples of an engine's names on a page."""

    def __init__(self, engine: Engine, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        wanted = {
            name
            for names in (*engine.gauges.values(), *engine.counters.values())
            for part in names
            for name in ((part,) if isinstance(part, str) else part)
        } | {
            f"{name}_{part}"
            for names in engine.histograms.values()
            for name in names
            for part in ("sum", "count", "bucket")
        }
        lines = []
        for line in text.splitlines():
            if not line or line.startswith("#") or len(line) > 4096:
                continue
            name = line.split("{", 1)[0].split(" ", 1)[0]
            if _plain(name) in wanted:
                lines.append(line)
        if len(lines) > MOST_LINES:
            raise ValueError(f"more than {MOST_LINES} lines of {engine.name}'s names")
        self.model: str | None = None
        self._values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families("\n".join(lines) + "\n"):
                for sample in family.samples:
                    value = float(sample.value)
                    if not math.isfinite(value) or not 0 <= value <= _MOST:
                        continue
                    self._values.setdefault(_plain(sample.name), []).append((sample.labels, value))
                    model = sample.labels.get("model_name")
                    if model and self.model is None:
                        self.model = sanitize(model, 200)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"not Prometheus' text format: {sanitize(str(error), 120)}") from None

    def first(
        self, names: Sequence[str | tuple[str, ...]], add: Any, *, is_gauge: bool = False
    ) -> float | None:
        for name in names:
            added = (name,) if isinstance(name, str) else name
            values = [self._apart(part, is_gauge=is_gauge) for part in added]
            if all(values):
                return float(add(value for of_part in values for value in of_part))
        return None

    def _apart(self, name: str, *, is_gauge: bool) -> list[float]:
        """Its series that count different requests."""
        samples = [
            sample
            for sample in self._values.get(name, ())
            if sample[0].get("finished_reason") not in _UNANSWERED
        ]
        if is_gauge and any(labels.get("priority") == "" for labels, _ in samples):
            samples = [sample for sample in samples if sample[0].get("priority") == ""]
        apart: dict[frozenset[tuple[str, str]], float] = {}
        for labels, value in samples:
            key = frozenset(item for item in labels.items() if item[0] not in _SHARING)
            apart[key] = max(value, apart.get(key, 0.0))
        return [*apart.values()]

    def histogram(self, names: Iterable[str]) -> Histogram | None:
        for name in names:
            counts = [value for _, value in self._values.get(f"{name}_count", ())]
            if not counts:
                continue
            cumulative: dict[float, float] = {}
            for labels, value in self._values.get(f"{name}_bucket", ()):
                try:
                    bound = float(labels.get("le", ""))
                except ValueError:
                    continue
                if bound >= 0 and (bound in cumulative or len(cumulative) < MOST_BUCKETS):
                    cumulative[bound] = cumulative.get(bound, 0.0) + value
            sums = (value for _, value in self._values.get(f"{name}_sum", ()))
            return Histogram(sum(sums), sum(counts), dict(sorted(cumulative.items())))
        return None


def sample_of(
    page: Page, before: Page | None, interval_s: float, *, time_ns: int, url: str, pid: int | None
) -> ServerSample:
    """A reading as an event, with what was added since the one `before`, `interval_s` earlier.
    A counter that is smaller than before began anew, as after a restart: all that it has is new."""
    added: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    if before is not None and before.engine == page.engine and interval_s > 0:
        for quantity in COUNTED:
            now = page.counters.get(quantity)
            # A counter that appears later, as SGLang's of retractions, was 0.
            if now is not None:
                added[quantity] = round(_grown(now, before.counters.get(quantity, 0.0)))
        for quantity in LATENCIES:
            histogram = page.histograms.get(quantity)
            if histogram is not None:
                added[quantity] = _latency(histogram, before.histograms.get(quantity))
        for direction in ("input", "output"):
            tokens = added.get(f"{direction}_tokens")
            rates[f"{direction}_tokens_per_s"] = None if tokens is None else tokens / interval_s
        # Where an engine tells only one of the two, that one says how long a token takes.
        gaps = added.get("tpot") or added.get("itl")
        rates["tpot_mean_s"] = _mean(gaps)
        rates["ttft_mean_s"] = _mean(added.get("ttft"))
        added["interval_s"] = interval_s
    ratio = page.gauges.get("kv_cache_ratio")
    running, waiting = (page.gauges.get(f"requests_{state}") for state in ("running", "waiting"))
    return ServerSample(
        time_ns=time_ns,
        url=url,
        engine=page.engine,
        pid=pid,
        model=page.model,
        requests_running=None if running is None else round(running),
        requests_waiting=None if waiting is None else round(waiting),
        kv_cache_percent=None if ratio is None else 100.0 * min(1.0, ratio),
        **rates,
        **added,
    )


def _grown(now: float, before: float) -> float:
    return now - before if now >= before else now


def _latency(now: Histogram, before: Histogram | None) -> LatencyDelta:
    if before is None or now.count < before.count or now.sum_s < before.sum_s:
        before = Histogram(0.0, 0.0, {})
    buckets: list[tuple[float, float | None, int]] = []
    below = low = 0.0
    for bound, cumulative in now.cumulative.items():
        up_to = max(below, cumulative - before.cumulative.get(bound, 0.0))
        if count := round(up_to - below):
            buckets.append((low, None if math.isinf(bound) else bound, count))
        below, low = up_to, bound
    return LatencyDelta(
        sum_s=now.sum_s - before.sum_s,
        count=round(now.count - before.count),
        buckets=tuple(buckets),
    )


def _mean(latency: LatencyDelta | None) -> float | None:
    return latency.sum_s / latency.count if latency is not None and latency.count else None
