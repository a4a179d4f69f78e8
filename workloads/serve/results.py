"""Figures of a serving run, from the moments of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
