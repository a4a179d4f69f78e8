"""The figures of a run, from the arrival times of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_NS_PER_MS = 1e6
_NS_PER_S = 1e9

ONE_TOKEN = "only one token was written; a gap needs two"


@dataclass(frozen=True)
class Latency:
    """What a reader of the text waits for. Gaps are None if only one token was written.

    The names and formulas are those of vLLM's serving benchmark. There is no server and no queue
    here, so TTFT is only prefill and the first sample. With several sequences a gap is one step,
    which gives each of them a token.
    """

    output_tokens: int
    ttft_ms: float
    tpot_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    latency_ms: float
    tokens_per_s: float

    @classmethod
    def from_times(cls, started_ns: int, arrived_ns: Sequence[int], batch: int) -> Latency:
        """From when the prompt was given and when each token, at least one, arrived."""
        gaps_ns = np.diff(np.asarray(arrived_ns, dtype=np.int64))
        latency_ns = arrived_ns[-1] - started_ns
        has_gaps = len(gaps_ns) > 0
        p50_ns, p99_ns = np.percentile(gaps_ns, (50, 99)) if has_gaps else (0.0, 0.0)
        return cls(
            output_tokens=len(arrived_ns),
            ttft_ms=(arrived_ns[0] - started_ns) / _NS_PER_MS,
            tpot_ms=float(gaps_ns.mean()) / _NS_PER_MS if has_gaps else None,
            itl_p50_ms=float(p50_ns) / _NS_PER_MS if has_gaps else None,
            itl_p99_ms=float(p99_ns) / _NS_PER_MS if has_gaps else None,
            latency_ms=latency_ns / _NS_PER_MS,
            tokens_per_s=batch * len(arrived_ns) * _NS_PER_S / latency_ns,
        )

    def figures(self) -> Mapping[str, int | float | None]:
        """By the names the workload declares."""
        return vars(self)


def recent_pace(arrived_ns: Sequence[int], since_token: int, batch: int) -> dict[str, float]:
    """Tokens per second and the mean gap over the tokens after number `since_token` (from 1)."""
    steps = len(arrived_ns) - since_token
    span_ns = arrived_ns[-1] - arrived_ns[since_token - 1]
    return {
        "itl_ms": span_ns / steps / _NS_PER_MS,
        "tokens_per_s": batch * steps * _NS_PER_S / span_ns,
    }
