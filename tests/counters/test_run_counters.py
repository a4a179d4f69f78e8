"""The real sampler on a GPU of ours, and what its samples say of the kernels that ran there."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

import numpy as np
import pytest

from gputui.counters import (
    OTHERS_USE_IT,
    CountedOperations,
    CountedProcess,
    RunCounters,
    SampleSums,
)
from gputui.counters.sampler import CLOSED
from gputui.counters.separation import Operations
from gputui.model.events import AnyEvent, GpuCounters, SampledCounters
from tests.counters.schedule import RATES, A, B, kernels_between
from tests.counters.test_separation import counted as counted_amounts

PHASES = {A: 7, B: 8}
SECONDS = 2.5


def operations(start_ns: int, end_ns: int, traced: Sequence[int] = (A, B)) -> CountedOperations:
    starts, ends, kernels = kernels_between(start_ns, end_ns)
    is_traced = np.isin(kernels, traced)
    starts, ends, kernels = starts[is_traced], ends[is_traced], kernels[is_traced]
    zeros = np.zeros(len(starts), np.int64)
    ranges = np.where(kernels == A, PHASES[A], PHASES[B])
    return CountedOperations(zeros, starts, ends, kernels, zeros + 3, ranges)


def never(starts, _ends):
    return np.zeros(len(starts), np.bool_)


def gathered(events: list[AnyEvent], kept: list[SampledCounters] | None) -> GpuCounters | None:
    """The figures among some events."""
    if kept is not None:
        kept += [event for event in events if isinstance(event, SampledCounters)]
    return next((event for event in events if isinstance(event, GpuCounters)), None)


def counted(
    is_unknown=never,
    traced: Sequence[int] = (A, B),
    kept: list[SampledCounters] | None = None,
    before: CountedOperations | None = None,
) -> GpuCounters:
    """The last event of a run of some seconds, with the traced operations of the time, and those
    of a time `before` without samples; samples one by one go to `kept`."""
    counters = RunCounters(keeps_samples=kept is not None)
    last = None
    try:
        if before is not None:
            counters.add(1, 0, before, str)
        done_ns = time.time_ns()
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            select.select(counters.samplers, [], [], 1.0)
            now_ns = time.time_ns()
            counters.add(1, 0, operations(done_ns, now_ns, traced), str)
            done_ns = now_ns
            users = [CountedProcess(1, now_ns, is_unknown)]
            last = gathered(counters.collect(now_ns, users), kept) or last
        counters.add(1, 0, operations(done_ns, time.time_ns() + 10**9, traced), str)
        users = [CountedProcess(1, None, is_unknown)]
        last = gathered(counters.collect(time.time_ns(), users, ended=True), kept)
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
            unit = 1.0 if counter.endswith("_percent") else event.amounts_per_s
            rate, error = unit * row.rates[place], unit * row.errors[place]
            largest = max(of_kernel.values())
            assert rate == pytest.approx(of_kernel[row.kernel], abs=0.05 * largest)
            # Beyond the 3 % by which an amount may differ among others.
            assert error - 0.03 * rate < 0.05 * largest


@pytest.mark.usefixtures("gpu")
def test_amounts_are_of_all_operations_not_of_those_in_samples(monkeypatch):
    """Where others of a kernel took longer for as many bytes, as once a GPU has become hot; shares
    of cycles are as they were."""
    monkeypatch.setenv("FAKE_CUPTI", "offset 0")
    starts = 10**18 + np.arange(200_000) * 50_000
    zeros = np.zeros(len(starts), np.int64)
    slow = CountedOperations(zeros, starts, starts + 30_000, zeros + A, zeros + 3, zeros)
    event = counted(before=slow)
    [row] = [row for row in event.kernels if row.kernel == A]
    rates = dict(zip(event.counters, row.rates, strict=True))
    # 25 µs in the samples, 30 before: ten times as many.
    assert 0.78 < rates["memory_read_bytes"] * event.amounts_per_s / 900e9 < 0.9
    assert rates["tensor_active_percent"] == pytest.approx(80, abs=5)


@pytest.mark.usefixtures("gpu")
def test_times_that_are_not_known_are_left_out(monkeypatch):
    """As between windows of tracing."""
    monkeypatch.setenv("FAKE_CUPTI", "offset 0")

    def is_odd(starts, _ends):
        return starts // 10_000_000 % 2 == 1

    event = counted(is_odd)
    assert event.unavailable_reason is None
    assert event.unused_samples > event.samples / 2
    place = event.counters.index("tensor_active_percent")
    rates = {row.kernel: row.rates[place] for row in event.kernels}
    assert rates == {A: pytest.approx(80, abs=2), B: pytest.approx(0, abs=2)}


@pytest.mark.usefixtures("gpu")
def test_samples_one_by_one_are_events_where_they_are_asked_for(monkeypatch):
    """On the kernels' clock."""
    monkeypatch.setenv("FAKE_CUPTI", "offset -40000")
    kept: list[SampledCounters] = []
    event = counted(kept=kept)
    assert sum(len(each.starts_ns) for each in kept) == event.samples + event.unused_samples
    for each in kept:
        assert each.counters == event.counters
        assert set(each.lengths_ns) == {200_000}
        place = each.counters.index("tensor_active_percent")
        for before_ns, row in zip(each.starts_ns[:50], each.values, strict=False):
            start_ns = each.time_ns - before_ns
            starts, ends, kernels = kernels_between(start_ns - 10**6, start_ns + 10**6)
            of_a = kernels == A
            ran = np.minimum(ends[of_a], start_ns + 200_000) - np.maximum(starts[of_a], start_ns)
            assert row[place] == pytest.approx(80 * ran.clip(0).sum() / 200_000, abs=2)


@pytest.mark.usefixtures("gpu")
def test_beside_another_program_there_are_no_figures(monkeypatch):
    monkeypatch.setenv("FAKE_CUPTI", "offset 0")
    event = counted(traced=[A])
    assert event.unavailable_reason == OTHERS_USE_IT
    assert event.kernels == event.phases == ()
    assert event.samples > 1000


def test_what_cannot_be_sampled_is_said_once_and_the_run_goes_on(gpu, monkeypatch):  # noqa: ARG001
    monkeypatch.setenv("FAKE_CUPTI", "rights")
    counters = RunCounters()
    now_ns = time.time_ns()
    users = [CountedProcess(1, now_ns, never)]
    counters.add(1, 0, operations(now_ns - 10**9, now_ns), str)
    found = []
    while not found:
        select.select(counters.samplers, [], [], 1.0)
        found = counters.collect(now_ns, users)
    assert [event.unavailable_reason for event in found] == [CLOSED]
    counters.add(1, 0, operations(now_ns, now_ns + 10**9), str)
    assert counters.collect(now_ns + 1, users) == []
    [last] = counters.collect(now_ns + 2, [CountedProcess(1, None, never)], ended=True)
    assert last.unavailable_reason == CLOSED
    counters.close()


def test_a_kernel_that_does_other_things_after_another_one_takes_nothing_from_its_neighbours():
    """As a product whose matrix is in the L2 cache after the one, and is not after the other."""
    rng = np.random.default_rng(5)
    kernels = np.tile([1, 3, 4, 2, 3, 4], 4000)
    took = np.where(kernels == 3, 15_000, 40_000) * rng.normal(1, 0.05, len(kernels))
    moved = np.tile([4e7, 5.2e7, 1e6, 9e7, 1.5e7, 1e6], 4000)
    starts = np.cumsum(took + rng.exponential(2000, len(took))) - took
    ran = Operations(starts.astype(int), (starts + took).astype(int), np.arange(len(took)))
    samples = counted_amounts(ran, moved / took, 200_000, 0.0)
    samples = samples._replace(amounts=samples.amounts[:, :1])
    sums = SampleSums(("memory_read_bytes",), {})
    unknown = np.zeros(len(samples.starts_ns), np.bool_)
    sums.add(samples, unknown, ran._replace(keys=kernels << 32), kernels * 0)
    rates = {row.kernel: row.rates[0] for row in sums.rows()[0]}
    assert rates[1] == pytest.approx(4e7 / 40_000, rel=0.01)
    assert rates[2] == pytest.approx(9e7 / 40_000, rel=0.01)
    assert rates[3] == pytest.approx((5.2e7 + 1.5e7) / 2 / 15_000, rel=0.01)


def test_a_length_that_was_hardly_sampled_widens_the_interval_of_its_kernel():
    """And does not take its figures: kernels that were slower for a moment had none."""
    took = np.concatenate((np.full(250, 500_000.0), np.full(80, 700_000.0)))
    starts = np.cumsum(took + 5_000) - took
    ran = Operations(starts.astype(int), (starts + took).astype(int), np.arange(len(took)))
    samples = counted_amounts(ran, 2e8 / took, 200_000, 0.01)
    samples = samples._replace(amounts=samples.amounts[:, :1])
    sums = SampleSums(("memory_read_bytes",), {})
    unknown = np.zeros(len(samples.starts_ns), np.bool_)
    kernels = np.ones(len(took), np.int64) << 32
    slow = samples.starts_ns >= starts[250]
    unknown[slow] = np.arange(np.count_nonzero(slow)) >= 120
    sums.add(samples, unknown, ran._replace(keys=kernels), kernels * 0)
    [row] = sums.rows()[0]
    assert row.rates[0] == pytest.approx(400, rel=0.05)
    assert row.errors[0] > 0.05 * 400
