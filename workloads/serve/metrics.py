"""The engine's page of metrics, in Prometheus' text format under vLLM's names, so that tools for
vLLM read it. Histograms have vLLM's bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from .requests import Request
from .results import Step

TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip

_NS_PER_S = 1e9


class _Histogram:
    def __init__(self, name: str, bounds_s: Sequence[float]) -> None:
        self.name, self.bounds_s = name, bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, ns: float) -> None:
        seconds = ns / _NS_PER_S
        self.sum_s += seconds
        place = next(
            (place for place, bound in enumerate(self.bounds_s) if seconds <= bound),
            len(self.bounds_s),
        )
        self.counts[place] += 1

    def lines(self, model: str) -> Iterator[str]:
        yield f"# TYPE {self.name} histogram"
        label = f'engine="0",model_name="{model}"'
        total = 0
        for bound, total in zip(
            [*map(str, self.bounds_s), "+Inf"], accumulate(self.counts), strict=True
        ):
            yield f'{self.name}_bucket{{{label},le="{bound}"}} {float(total)}'
        yield f"{self.name}_count{{{label}}} {float(total)}"
        yield f"{self.name}_sum{{{label}}} {self.sum_s!r}"


class Metrics:
    """What the loop counts; `page` may be asked for in another thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._gauges = dict.fromkeys(
            ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), 0.0
        )
        self._counters = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "num_preemptions", "request_success"), 0
        )
        self._ttft = _Histogram("vllm:time_to_first_token_seconds", TTFT_BOUNDS_S)
        self._itl = _Histogram("vllm:inter_token_latency_seconds", TOKEN_BOUNDS_S)
        self._tpot = _Histogram("vllm:request_time_per_output_token_seconds", TOKEN_BOUNDS_S)
        self._e2e = _Histogram("vllm:e2e_request_latency_seconds", REQUEST_BOUNDS_S)
        self._queue = _Histogram("vllm:request_queue_time_seconds", REQUEST_BOUNDS_S)

    def stand(self, running: int, waiting: int, kv_percent: float) -> None:
        """How things stand now."""
        with self._lock:
            self._gauges["num_requests_running"] = running
            self._gauges["num_requests_waiting"] = waiting
            self._gauges["kv_cache_usage_perc"] = kv_percent / 100

    def count(self, step: Step, writing: Sequence[Request], preemptions: int) -> None:
        """A step, the requests for which it wrote a token, and all preemptions so far."""
        self.stand(step.running, step.waiting, step.kv_percent)
        with self._lock:
            counters = self._counters
            counters["generation_tokens"] += len(writing)
            counters["num_preemptions"] = preemptions
            for request in writing:
                written = request.written_ns
                if len(written) == 1:
                    counters["prompt_tokens"] += request.prompt
                    self._ttft.observe(written[0] - request.arrival_ns)
                    self._queue.observe((request.begun_ns or written[0]) - request.arrival_ns)
                for before, after in pairwise(written[-2:]):
                    self._itl.observe(after - before)
                if request.is_done:
                    counters["request_success"] += 1
                    self._e2e.observe(written[-1] - request.arrival_ns)
                    if len(written) > 1:
                        self._tpot.observe((written[-1] - written[0]) / (len(written) - 1))

    def page(self) -> str:
        """The page as it is now."""
        label = f'engine="0",model_name="{self._model}"'
        with self._lock:
            lines = []
            for name, value in self._gauges.items():
                lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{label}}} {value}"]
            for name, count in self._counters.items():
                more = ',finished_reason="length"' if name == "request_success" else ""
                lines += [
                    f"# TYPE vllm:{name}_total counter",
                    f"vllm:{name}_total{{{label}{more}}} {float(count)}",
                ]
            for histogram in (self._ttft, self._itl, self._tpot, self._e2e, self._queue):
                lines += histogram.lines(self._model)
        return "\n".join(lines) + "\n"
