"""The real sampler on a GPU of ours, and what its samples say of the kernels that ran there."""

from __future__ import annotations

import select
import time

import numpy as np
import pytest

from gputui.counters.counted_run import CountedOperations, CountedProcess, RunCounters
from gputui.model.events import GpuCounters
from tests.counters.schedule import RATES, A, B, kernels_between

PHASES = {A: 7, B: 8}
SECONDS = 3.2


def operations(start_ns: int, end_ns: int) -> CountedOperations:
    starts, ends, kernels = kernels_between(start_ns, end_ns)
    zeros = np.zeros(len(starts), np.int64)
    ranges = np.where(kernels == A, PHASES[A], PHASES[B])
    return CountedOperations(zeros, starts, ends, kernels, zeros + 3, ranges)


def never(starts, _ends):
    return np.zeros(len(starts), np.bool_)


def counted(seconds: float = SECONDS, is_unknown=never, interval_ns=500_000) -> GpuCounters:
    """The last event of a run of so long, with all operations of the time."""
    counters = RunCounters(interval_ns)
    last = None
    try:
        done_ns = time.time_ns()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            select.select(counters.samplers, [], [], 1.0)
            now_ns = time.time_ns()
            counters.add(1, 0, operations(done_ns, now_ns), str)
            done_ns = now_ns
            users = [CountedProcess(1, now_ns, is_unknown)]
            last = next(iter(counters.collect(now_ns, users)), last)
        counters.add(1, 0, operations(done_ns, time.time_ns() + 10**9), str)
        users = [CountedProcess(1, None, is_unknown)]
        [last] = counters.collect(time.time_ns(), users, ended=True)
    finally:
        counters.close()
    assert isinstance(last, GpuCounters)
    return last


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("offset_us", [0, -40])
def test_two_kernels_far_shorter_than_a_sample_are_told_apart(monkeypatch, offset_us):
    monkeypatch.setenv("FAKE_CUPTI", f"offset {1000 * offset_us}")
    event = counted()
    assert event.unavailable_reason is None
    assert event.chip == "GH100"
    assert abs(event.clock_offset_ns + 1000 * offset_us) < 3000
    assert {row.kernel for row in event.kernels} == {A, B}
    assert {row.range for row in event.phases} == set(PHASES.values())
    for row in event.kernels:
        assert row.shape == 3
        assert row.alone_ns == row.time_ns
        for counter, of_kernel in RATES.items():
            place = event.counters.index(counter)
            error = row.errors[place]
            largest = max(of_kernel.values())
            assert row.rates[place] == pytest.approx(of_kernel[row.kernel], abs=0.05 * largest)
            assert error < 0.05 * largest
