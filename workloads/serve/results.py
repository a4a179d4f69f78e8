"""Figures of a serving run, from the moments of its tokens, and the page of metrics over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..declaration import FigureValue, Row
from .requests import Request

_NS_PER_MS = 1e6
_NS_PER_S = 1e9
# Rows of the timeline at most.
_INTERVALS = 60
# Rows of the table of requests at most.
_REQUESTS = 200


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: `end_ns` since the first arrival, and how things stood."""

    kind: str
    begin_ns: int
    end_ns: int
    tokens: int
    written: int
    running: int
    waiting: int
    kv_percent: float


def ttft_ms(request: Request) -> float:
    """From the arrival to the first token."""
    return (request.written_ns[0] - request.arrival_ns) / _NS_PER_MS


def tpot_ms(request: Request) -> float | None:
    """The mean time of a further token; None of a single one."""
    gaps = len(request.written_ns) - 1
    if not gaps:
        return None
    return (request.written_ns[-1] - request.written_ns[0]) / gaps / _NS_PER_MS


def e2e_ms(request: Request) -> float:
    """From the arrival to the last token."""
    return (request.written_ns[-1] - request.arrival_ns) / _NS_PER_MS


def latencies(done: Sequence[Request]) -> dict[str, float | None]:
    """Mean and percentiles over the completed requests; None where there is no value.

    TPOT, ITL and the rest are as vLLM's serving benchmark has them, TTFT with the queue.
    """
    gaps = [
        np.diff(np.asarray(request.written_ns, dtype=np.int64)) / _NS_PER_MS for request in done
    ]
    samples = {
        "ttft": [ttft_ms(request) for request in done],
        "tpot": [tpot for request in done if (tpot := tpot_ms(request)) is not None],
        "itl": np.concatenate(gaps).tolist() if gaps else [],
        "e2e": [e2e_ms(request) for request in done],
    }
    figures: dict[str, float | None] = {}
    for name, values in samples.items():
        figures[f"{name}_mean_ms"] = float(np.mean(values)) if values else None
        for percent in (50, 90, 99):
            label = f"{name}_p{percent}_ms"
            figures[label] = float(np.percentile(values, percent)) if values else None
    return figures


def throughput(
    requests: Sequence[Request], ttft_target_ms: float, tpot_target_ms: float
) -> dict[str, float | int | None]:
    """Rates over the time from the first arrival to the last token written."""
    done = [request for request in requests if request.is_done]
    ends = [request.written_ns[-1] for request in requests if request.written_ns]
    duration_s = max(ends) / _NS_PER_S if ends else None
    good = sum(
        ttft_ms(request) <= ttft_target_ms and (tpot_ms(request) or 0.0) <= tpot_target_ms
        for request in done
    )

    def rate(count: int) -> float | None:
        return count / duration_s if duration_s else None

    return {
        "completed": len(done),
        "duration_s": duration_s,
        "requests_per_s": rate(len(done)),
        "tokens_per_s": rate(sum(len(request.written_ns) for request in requests)),
        "input_tokens_per_s": rate(
            sum(request.prompt for request in requests if request.written_ns)
        ),
        "goodput_per_s": rate(good),
        "goodput_percent": 100 * good / len(done) if done else None,
    }


def step_rows(steps: Sequence[Step]) -> list[Row]:
    """One row for each kind of step (prefill, mixed, decode) with its share of the time."""
    whole_ns = sum(step.end_ns - step.begin_ns for step in steps)
    rows: list[Row] = []
    for kind in ("prefill", "mixed", "decode"):
        of_kind = [step for step in steps if step.kind == kind]
        if of_kind:
            times_ns = [step.end_ns - step.begin_ns for step in of_kind]
            rows.append(
                {
                    "kind": kind,
                    "steps": len(of_kind),
                    "tokens": sum(step.tokens for step in of_kind),
                    "output_tokens": sum(step.written for step in of_kind),
                    "mean_ms": float(np.mean(times_ns)) / _NS_PER_MS,
                    "p99_ms": float(np.percentile(times_ns, 99)) / _NS_PER_MS,
                    "time_percent": 100 * sum(times_ns) / whole_ns,
                }
            )
    return rows


def timeline_rows(steps: Sequence[Step]) -> list[Row]:
    """Equal intervals of time, those without a step left out."""
    if not steps:
        return []
    length_ns = max(1, -(-steps[-1].end_ns // _INTERVALS))
    rows: list[Row] = []
    for number in range(_INTERVALS):
        in_interval = [step for step in steps if (step.end_ns - 1) // length_ns == number]
        if in_interval:
            row: dict[str, FigureValue] = {"time_s": (number + 1) * length_ns / _NS_PER_S}
            for name, values in (
                ("running", [step.running for step in in_interval]),
                ("waiting", [step.waiting for step in in_interval]),
                ("kv_used_percent", [step.kv_percent for step in in_interval]),
                ("step_tokens", [step.tokens for step in in_interval]),
            ):
                row[name] = float(np.mean(values))
            row["tokens_per_s"] = sum(step.written for step in in_interval) / (
                length_ns / _NS_PER_S
            )
            rows.append(row)
    return rows


def request_rows(requests: Sequence[Request]) -> list[Row]:
    """The first requests, one row each; those not reached have no times."""
    rows: list[Row] = []
    for request in requests[:_REQUESTS]:
        begun = request.begun_ns
        rows.append(
            {
                "request": request.number,
                "arrival_s": request.arrival_ns / _NS_PER_S,
                "prompt": request.prompt,
                "output": len(request.written_ns),
                "queue_ms": None if begun is None else (begun - request.arrival_ns) / _NS_PER_MS,
                "ttft_ms": ttft_ms(request) if request.written_ns else None,
                "tpot_ms": tpot_ms(request) if request.is_done else None,
                "e2e_ms": e2e_ms(request) if request.is_done else None,
                "preemptions": request.preemptions,
            }
        )
    return rows


# --- The page of metrics, in Prometheus' text format under vLLM's names, so that tools for vLLM
# read it. Histograms have vLLM's bounds.

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
    """What loop and connections count; `page` may be asked for in any thread."""

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
        """Set the gauges: requests that run and wait, and the share of the KV cache in use."""
        with self._lock:
            self._gauges["num_requests_running"] = running
            self._gauges["num_requests_waiting"] = waiting
            self._gauges["kv_cache_usage_perc"] = kv_percent / 100

    def count_step(self, step: Step, preemptions: int) -> None:
        """How things stand after a step, and all preemptions so far."""
        self.stand(step.running, step.waiting, step.kv_percent)
        with self._lock:
            self._counters["num_preemptions"] = preemptions

    def count_sent(self, request: Request, sent_ns: Sequence[int]) -> None:
        """The moments at which tokens of a request were sent, of which the last is new."""
        since_arrival_ns = sent_ns[-1] - request.arrival_ns
        with self._lock:
            counters = self._counters
            counters["generation_tokens"] += 1
            if len(sent_ns) == 1:
                counters["prompt_tokens"] += request.prompt
                self._ttft.observe(since_arrival_ns)
                self._queue.observe((request.begun_ns or sent_ns[0]) - request.arrival_ns)
            else:
                self._itl.observe(sent_ns[-1] - sent_ns[-2])
            if len(sent_ns) == request.output:
                counters["request_success"] += 1
                self._e2e.observe(since_arrival_ns)
                if len(sent_ns) > 1:
                    self._tpot.observe((sent_ns[-1] - sent_ns[0]) / (len(sent_ns) - 1))

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
