"""Latency figures from the times tokens arrived, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.inference.results import Latency, recent_pace

MS = 1_000_000


def test_figures_follow_their_definitions() -> None:
    latency = Latency.from_times(0, [10 * MS, 12 * MS, 16 * MS, 18 * MS], batch=2)
    assert latency.output_tokens == 4
    assert latency.ttft_ms == 10
    assert latency.latency_ms == 18
    assert latency.tpot_ms == pytest.approx((18 - 10) / 3)
    assert latency.itl_p50_ms == 2
    assert latency.itl_p99_ms == pytest.approx(3.96)
    assert latency.tokens_per_s == pytest.approx(2 * 4 / 0.018)


def test_one_token_has_no_gaps() -> None:
    latency = Latency.from_times(0, [5 * MS], batch=1)
    assert (latency.tpot_ms, latency.itl_p50_ms, latency.itl_p99_ms) == (None, None, None)
    assert latency.ttft_ms == latency.latency_ms == 5


def test_the_recent_pace_looks_back_no_further_than_asked() -> None:
    arrived_ns = [0, 50 * MS, 60 * MS, 70 * MS]
    assert recent_pace(arrived_ns, since_token=2, batch=3) == {
        "itl_ms": 10,
        "tokens_per_s": pytest.approx(300),
    }


@given(st.lists(st.integers(1, 10**10), min_size=2, max_size=50), st.integers(1, 8))
def test_times_are_never_negative_and_agree_with_one_another(gaps: list[int], batch: int) -> None:
    arrived_ns = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    latency = Latency.from_times(0, arrived_ns, batch)
    assert latency.tpot_ms is not None
    assert latency.itl_p50_ms is not None
    assert latency.itl_p99_ms is not None
    assert 0 < latency.itl_p50_ms <= latency.itl_p99_ms
    total = latency.ttft_ms + latency.tpot_ms * (latency.output_tokens - 1)
    assert total == pytest.approx(latency.latency_ms)
