"""Rates of operations out of counts of a whole GPU, against counts made of known rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.counters.separation import (
    MOST_COLUMNS,
    NOTHING_RAN,
    OTHERS,
    CounterSamples,
    Operations,
    Separation,
    fit_clock,
    joined_samples,
    overlaps,
    solve_nonnegative,
)

KINDS = 8


def program(seed: int, seconds: float = 0.6) -> tuple[Operations, np.ndarray]:
    """Kernels of 5 to 60 µs in a loop of 11, in times that vary, and the rate of each kind."""
    rng = np.random.default_rng(seed)
    lengths, rates = rng.uniform(5_000, 60_000, KINDS), rng.uniform(100, 3000, KINDS)
    keys = np.tile(np.array([0, 1, 2, 3, 1, 4, 5, 2, 6, 7, 0]), round(seconds * 4000))
    took = lengths[keys] * rng.normal(1, 0.15, len(keys)).clip(0.5)
    starts = np.cumsum(took + rng.exponential(2000, len(keys))) - took
    inside = starts < seconds * 1e9
    starts, took, keys = starts[inside], took[inside], keys[inside]
    return Operations(starts.astype(int), (starts + took).astype(int), keys), rates


def counted(
    operations: Operations, rates: np.ndarray, interval_ns: int, noise: float
) -> CounterSamples:
    """What a counter counts in each interval: the difference of its integral over time."""
    rng = np.random.default_rng(1)
    of_operation = rates[operations.keys]
    moments = np.concatenate((operations.starts_ns, operations.ends_ns))
    steps = np.concatenate((of_operation, -of_operation))
    order = np.argsort(moments)
    moments, slopes = moments[order], np.cumsum(steps[order])
    integral = np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(moments))))
    edges = np.arange(0, int(operations.ends_ns.max()), interval_ns)
    amounts = np.diff(np.interp(edges, moments, integral))
    amounts *= rng.normal(1, noise, len(amounts))
    return CounterSamples(edges[:-1], edges[1:], np.stack((amounts, amounts / 7), 1))


@pytest.mark.parametrize("interval_us", [100, 200])
def test_rates_are_found_and_their_intervals_hold(interval_us):
    held = []
    for seed in range(6):
        operations, true = program(seed)
        separation = Separation(2)
        samples = counted(operations, true, 1000 * interval_us, 0.01)
        half = len(samples.starts_ns) // 2
        separation.add(samples.pick(slice(half)), operations)
        separation.add(samples.pick(slice(half, None)), operations)
        found = separation.rates()
        for key, rate, error in zip(found.keys, found.rates, found.errors, strict=True):
            if key >= 0:
                assert rate[0] == pytest.approx(true[key], rel=0.1, abs=30)
                assert rate[1] == pytest.approx(rate[0] / 7)
                held.append(abs(rate[0] - true[key]) <= error[0])
        assert found.rates[found.keys == NOTHING_RAN][0] == pytest.approx(0, abs=30)
    assert np.mean(held) >= 0.9


def test_what_each_launch_moves_is_told_however_long_it_takes():
    """The one counter by time, the other by launch, of which each moves as much."""
    operations, true = program(3)
    took = operations.ends_ns - operations.starts_ns
    usual = np.bincount(operations.keys, took) / np.bincount(operations.keys)
    every = operations._replace(keys=np.arange(len(took)))
    moved = counted(every, (true * usual)[operations.keys] / took, 200_000, 0.0)
    by_time = counted(operations, true, 200_000, 0.0)
    amounts = np.stack((by_time.amounts[:, 0], moved.amounts[:, 0]), 1)
    separation = Separation(2, [False, True])
    separation.add(by_time._replace(amounts=amounts), operations)
    rates = separation.rates()
    for key, of_key in zip(rates.keys.tolist(), rates.rates, strict=True):
        if key >= 0:
            assert of_key == pytest.approx(true[key], rel=0.005)


def test_two_that_always_run_together_are_not_told_apart():
    starts = np.arange(0, 10**9, 100_000)
    pair = np.concatenate((starts, starts + 20_000))
    operations = Operations(pair, pair + 20_000, np.repeat([0, 1], len(starts)))
    samples = counted(operations, np.array([1000.0, 3000.0]), 200_000, 0.02)
    separation = Separation(2)
    separation.add(samples, operations)
    found = separation.rates()
    assert (found.errors[found.keys >= 0, 0] > 500).all()


def test_a_time_that_is_off_is_in_the_interval_of_short_operations():
    operations, true = program(3)
    separation = Separation(2)
    separation.add(counted(operations, true, 200_000, 0.01).moved(150), operations)
    found = separation.rates()
    told = found.keys >= 0
    off = np.abs(found.rates[told, 0] - true[found.keys[told]])
    assert (off <= found.errors[told, 0]).mean() >= 0.9


@given(st.integers(0, 2**32), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_no_rate_is_negative_and_none_fits_better(seed, columns):
    """By the conditions of Kuhn and Tucker: nowhere does a small change that is allowed explain
    more."""
    rng = np.random.default_rng(seed)
    ran = rng.random((60, columns)) * rng.uniform(0.1, 100, columns)
    counts = ran @ rng.normal(0.3, 1, (columns, 2)) + rng.normal(0, 0.1, (60, 2))
    rates = solve_nonnegative(ran.T @ ran, ran.T @ counts)
    assert (rates >= 0).all()
    slope = ran.T @ (counts - ran @ rates)
    scale = 1e-5 * np.sqrt((ran**2).sum(0))[:, None] * np.sqrt((counts**2).sum(0))
    assert (slope <= scale).all()
    assert (np.abs(slope[rates > 0]) <= np.broadcast_to(scale, slope.shape)[rates > 0]).all()


def test_few_samples_say_nothing():
    operations, true = program(0, 0.05)
    separation = Separation(2)
    separation.add(counted(operations, true, 200_000, 0.01), operations)
    assert np.isinf(separation.rates().errors).all()
    assert Separation(2).rates().rates.sum() == 0


def test_of_many_kinds_those_with_little_time_become_one():
    """Memory is bounded, and the sums of what is kept stay what they were."""
    operations, true = program(5)
    samples = counted(operations, true, 200_000, 0.0)
    many, few = Separation(2), Separation(2)
    few.add(samples, operations)
    many.add(samples, operations)
    for batch in range(20):
        nothing = CounterSamples(samples.starts_ns[:1] - 10**9, samples.ends_ns[:1] - 10**9,
                          np.zeros((1, 2)))  # fmt: skip
        keys = np.arange(1000 * (batch + 1), 1000 * (batch + 1) + 20)
        start = nothing.starts_ns[0] + np.arange(20) * 10
        many.add(nothing, Operations(start, start + 5, keys))
        assert len(many.rates().keys) <= MOST_COLUMNS
    found, expected = many.rates(), few.rates()
    assert len(found.keys) == len(expected.keys) == KINDS + 2
    assert found.time_ns[found.keys == OTHERS][0] > 0
    for key in range(KINDS):
        assert found.rates[found.keys == key][0] == pytest.approx(
            expected.rates[expected.keys == key][0], rel=1e-3
        )


def test_a_kind_that_had_little_time_is_told_once_it_has_much():
    """Of 140 kinds in each burst most are one; another phase has few of them."""
    rng = np.random.default_rng(0)
    separation = Separation(2)
    for burst in range(40):
        starts = burst * 10**9 + np.arange(1400) * 35_000
        keys = rng.permutation(np.arange(1400) % (140 if burst < 4 else 3))
        ran = Operations(starts, starts + rng.integers(5_000, 30_000, 1400), keys)
        rates = 1000.0 + 5 * np.arange(140)
        samples = counted(ran, rates, 200_000, 0.0)
        separation.add(samples.pick(samples.starts_ns >= starts[0]), ran)
    found = separation.rates()
    for key in range(3):
        assert found.rates[found.keys == key, 0] == pytest.approx([rates[key]], rel=0.05)


@pytest.mark.parametrize("off_ns", [0, 2_500, -60_000, 700_000])
def test_the_clocks_offset_is_found(off_ns):
    operations, true = program(2)
    fit = fit_clock(counted(operations, true, 200_000, 0.01).moved(-off_ns), operations)
    assert fit is not None
    assert fit.offset_ns == pytest.approx(off_ns, abs=400)
    assert fit.explained > 0.9
    near = fit_clock(
        counted(operations, true, 200_000, 0.01).moved(-off_ns), operations, off_ns + 5000
    )
    assert near is not None
    assert near.offset_ns == pytest.approx(off_ns, abs=400)


@pytest.mark.parametrize("so_far_ns", [0, 3_000])
def test_offsets_that_fit_as_well_by_chance_are_not_taken(so_far_ns):
    """Of products of 1.65 ms, one after the other, one of 51 µs was, of a program that was loading
    one of 21 (H200)."""
    starts = np.arange(0, 300_000_000, 1_650_000)
    products = Operations(starts, starts + 1_640_000, np.zeros(len(starts), int))
    samples = counted(products, np.array([900.0]), 200_000, 0.005)
    assert fit_clock(samples, products, so_far_ns).offset_ns == so_far_ns
    operations, true = program(2, 0.002)
    ran = counted(operations, true, 200_000, 0.02)
    first_ns = 200_000 * np.arange(-1500, 0)
    idle = np.random.default_rng(3).normal(0, 0.02 * ran.amounts.std(), (1500, 2))
    loading = joined_samples([CounterSamples(first_ns, first_ns + 200_000, idle), ran], 2)
    assert fit_clock(loading, operations, so_far_ns).offset_ns == so_far_ns


def test_kernels_that_are_less_busy_towards_their_end_do_not_move_the_clock():
    """Of attention and products one after the other, 0.3 to 13 ms long, offsets of 45 to 119 µs
    were taken (H200): the gaps seemed to explain it."""
    starts = np.arange(0, 300_000_000, 936_000)
    edges = np.sort(np.concatenate((starts, starts + 815_000)))
    parts = Operations(
        edges, edges + np.tile([815_000, 120_000], len(starts)), np.tile([0, 1], len(starts))
    )
    products = Operations(starts, starts + 935_000, np.zeros(len(starts), int))
    samples = counted(parts, np.array([900.0, 400.0]), 200_000, 0.005)
    fit = fit_clock(samples, products)
    assert fit is None or fit.offset_ns == 0


def test_operations_that_explain_nothing_have_no_offset():
    operations, true = program(2)
    samples = counted(operations, true, 200_000, 0.01)
    noise = np.random.default_rng(0).uniform(0, 1e8, samples.amounts.shape)
    assert fit_clock(samples._replace(amounts=noise), operations) is None
    assert fit_clock(samples.pick(slice(20)), operations) is None
    nothing = operations.pick(slice(0))
    assert fit_clock(samples, nothing) is None


_MOMENTS = st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True).map(sorted)


@settings(max_examples=150, deadline=None)
@given(
    edges=_MOMENTS,
    gaps=st.lists(st.booleans(), min_size=11, max_size=11),
    spans=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 2)), max_size=8
    ),
)
def test_overlaps_are_what_counting_moments_gives(edges, gaps, spans):
    """Nanosecond by nanosecond."""
    pieces = [
        (start, end)
        for start, end, is_gap in zip(edges, edges[1:], gaps, strict=False)
        if not is_gap
    ]
    if not pieces:
        return
    starts, ends = (np.array(column) for column in zip(*pieces, strict=True))
    samples = CounterSamples(starts, ends, np.zeros((len(starts), 1)))
    spans = sorted(spans)
    begins = np.array([start for start, _, _ in spans], np.int64)
    stops = np.array([start + length for start, length, _ in spans], np.int64)
    columns = np.array([column + 2 for _, _, column in spans], np.int64)
    durations, alone = overlaps(samples, begins, stops, columns, 5)
    expected, expected_alone = np.zeros((len(starts), 5)), np.zeros(5)
    for row, (start, end) in enumerate(pieces):
        for moment in range(start, end):
            running = [
                column
                for begin, stop, column in zip(begins, stops, columns, strict=True)
                if begin <= moment < stop
            ]
            for column in running:
                expected[row, column] += 1
            if len(running) == 1:
                expected_alone[running[0]] += 1
            if not running:
                expected[row, 0] += 1
    assert durations.tolist() == expected.tolist()
    assert alone.tolist() == expected_alone.tolist()
