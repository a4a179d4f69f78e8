"""Statistics that merge: exact where they say so, within 1 % where not, whatever the split."""

from __future__ import annotations

import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gputui.attribute.distributions
from gputui.attribute.distributions import (
    ValueSums,
    bucket_middles,
    coarse_distributions,
    distributions,
    in_buckets,
)
from gputui.model.events import Distribution
from gputui.model.events.distributions import (
    COARSE,
    EXACT_VALUES,
    FINE,
    Accumulator,
    Totals,
    encoded_values,
)
from tests.events_for_tests import times

durations = st.lists(st.integers(0, 10**13), min_size=1, max_size=300)


def accumulate(parts: list[list[int]]) -> Accumulator:
    return Accumulator.merged(times(*part) for part in parts)


@given(durations)
def test_one_array_gives_the_statistics_of_its_values(values: list[int]) -> None:
    found = accumulate([values])
    assert found.count == len(values)
    assert found.total == sum(values)
    assert (found.minimum, found.maximum) == (min(values), max(values))
    assert found.average == pytest.approx(statistics.fmean(values))
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    assert found.deviation == pytest.approx(deviation, rel=1e-6, abs=1e-3)
    median = statistics.median(values)
    if found.exact:
        assert found.median == median
    else:
        assert found.median == pytest.approx(median, rel=0.01)


@given(st.lists(durations, min_size=1, max_size=6))
def test_any_split_gives_the_same_sums(parts: list[list[int]]) -> None:
    whole = [value for part in parts for value in part]
    merged, single = accumulate(parts), accumulate([whole])
    assert (merged.count, merged.total) == (single.count, single.total)
    assert (merged.minimum, merged.maximum) == (single.minimum, single.maximum)
    assert merged.deviation == pytest.approx(single.deviation, rel=1e-6, abs=1e-3)
    assert merged.median == pytest.approx(single.median, rel=0.02)


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=200)


@given(st.lists(pairs, min_size=1, max_size=5), st.integers(0, 4))
def test_values_held_back_come_to_what_they_come_to_at_once(
    batches: list[list[tuple[int, int]]], spread: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gputui.attribute.distributions, "HELD_VALUES", 64)
        patched.setattr(gputui.attribute.distributions, "EXACT_VALUES", 100)
        sums = ValueSums()
        for batch in batches:
            keys, values = np.array(batch).T
            sums.add(keys, values // 10**spread)
        held = dict(sums.drain(100))
    keys, values = np.concatenate([np.array(batch) for batch in batches]).T
    at_once = dict(zip(*distributions(keys, values // 10**spread, 100), strict=True))
    assert [*held] == [*at_once]
    for key, expected in at_once.items():
        found = held[key]
        assert found.squares == pytest.approx(expected.squares, rel=1e-9, abs=1e-2)
        without_squares = msgspec.structs.replace(found, squares=expected.squares)
        assert without_squares == expected
    assert not list(sums.drain(100)), "they were drained"


def test_of_too_many_different_values_those_of_the_largest_keys_are_in_buckets() -> None:
    sums = ValueSums()
    keys = np.repeat(np.arange(200), 3000)
    values = 1_000_000 + np.arange(len(keys)) % 3000
    few = np.arange(10) + 1_000_000
    sums.add(np.concatenate((keys, np.full(10, 200))), np.concatenate((values, few)))
    held = dict(sums.drain())
    assert not any(held[key].exact for key in range(200))
    assert held[200].exact
    assert sum(len(distribution.values) for distribution in held.values()) < 10_000
    assert all(held[key].median == pytest.approx(1_001_499.5, rel=0.01) for key in range(200))


def test_the_deviation_is_the_sample_deviation_as_nsys_prints_it() -> None:
    assert accumulate([[334351, 336623, 491302]]).deviation == pytest.approx(89967.0, abs=0.05)
    assert accumulate([[31351], [118503]]).deviation == pytest.approx(61625.8, abs=0.05)
    assert accumulate([[5]]).deviation == 0.0


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert accumulate([[1, 2], [3, 10]]).median == 2.5


def test_an_empty_accumulator_has_no_figures() -> None:
    empty = Accumulator()
    assert empty.average is None
    assert empty.median is None
    assert empty.deviation is None
    assert empty.minimum is None
    assert empty.freeze() == Distribution(0, 0, 0.0, 0, 0, (), True)


def test_many_different_values_become_buckets_and_say_so() -> None:
    values = np.arange(1, EXACT_VALUES * 2, dtype=np.int64) * 1009
    parts = [times(*part) for part in np.array_split(values, 60)]
    assert all(part.exact for part in parts)
    found = Accumulator.merged(parts)
    assert not found.exact
    buckets = found.freeze().values
    assert len(buckets) < 700  # 1.8 % apart from 1 009 to 8 million
    assert sum(1 if step >= 0 else -step - 1 for step in buckets) == len(values)
    assert found.median == pytest.approx(float(np.median(values)), rel=0.01)
    assert found.percentile(99) == pytest.approx(float(np.percentile(values, 99)), rel=0.01)


def test_groups_are_told_apart() -> None:
    keys = np.array([7, 3, 7, 3, 7], np.int64)
    values = np.array([10, 1, 30, 2, 20], np.int64)
    names, found = distributions(keys, values)
    assert names.tolist() == [3, 7]
    assert [part.total for part in found] == [3, 60]
    assert found[1].values == (10, 10, 10)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
            st.integers(-(2**40), 2**40) | st.integers(0, 9),
        ),
        min_size=1,
    )
)
def test_groups_are_what_was_in_them(pairs: list[tuple[int, int]]) -> None:
    keys, values = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    names, found = distributions(keys, values)
    assert names.tolist() == sorted({key for key, _ in pairs})
    for name, part in zip(names.tolist(), found, strict=True):
        members = sorted(value for key, value in pairs if key == name)
        assert (part.count, part.total) == (len(members), sum(members))
        assert (part.minimum, part.maximum) == (members[0], members[-1])


@pytest.mark.parametrize(("different", "exact"), [(256, True), (257, False)])
def test_a_group_travels_in_buckets_once_it_has_too_many_values(
    different: int, exact: bool
) -> None:
    many = np.arange(different, dtype=np.int64) * 100_003
    few = np.array([5, 5, 123_456_789], np.int64)
    keys = np.repeat(np.array([1, 2], np.int64), [len(few), different])
    _, (small, large) = distributions(keys, np.concatenate((few, many)))
    assert (small.exact, small.values) == (True, (5, -2, 123_456_784))  # whatever the others are
    assert large.exact is exact
    kept = set(np.cumsum([step for step in large.values if step >= 0]).tolist())
    assert kept == {FINE.middle(int(value)) if not exact else int(value) for value in many}


def test_no_values_give_no_groups() -> None:
    names, found = distributions(np.empty(0, np.int64), np.empty(0, np.int64))
    assert not len(names)
    assert found == []


@given(st.integers(0, 10**13))
def test_a_bucket_is_the_same_for_a_value_and_for_an_array_of_it(value: int) -> None:
    for buckets, error, rounding in ((FINE, 0.0095, 0.0), (COARSE, 0.048, 0.5)):
        middle = buckets.middle(value)
        assert abs(middle - value) <= error * value + rounding
        assert bucket_middles(np.array([value], np.int64), buckets).tolist() == [middle]
    (coarse,) = coarse_distributions(np.zeros(1, np.int64), np.array([value])).values()
    assert coarse.values == (COARSE.middle(value),)


@given(st.lists(durations, min_size=1, max_size=4))
def test_what_was_summed_up_can_be_written_and_summed_up_again(parts: list[list[int]]) -> None:
    whole = accumulate(parts).freeze()
    assert Accumulator.merged([whole]).freeze() == whole


@given(st.integers(0, 10**13))
def test_a_bucket_lies_in_itself(value: int) -> None:
    middle = FINE.middle(value)
    assert FINE.middle(middle) == middle


@given(st.lists(st.integers(FINE.exact_below, 10**13), min_size=1), durations)
def test_counts_of_buckets_are_the_same_distribution(values: list[int], before: list[int]) -> None:
    """They may come after values that are known one by one."""
    found = in_buckets(np.array(values))
    known = Accumulator.merged([times(*before)] if before else [])
    known.add(found)
    assert (known.count, known.total) == (len(values) + len(before), sum(values) + sum(before))
    assert sum(known.values.values()) == known.count
    alone = Accumulator.merged([found])
    for percent in (0, 50, 99, 100):
        exactly = float(np.percentile(values, percent))
        assert alone.percentile(percent) == pytest.approx(exactly, rel=0.01)
    assert alone.deviation == pytest.approx(np.std(values, ddof=len(values) > 1), rel=0.01)


def test_buckets_beyond_all_numbers_are_no_values() -> None:
    damaged = Distribution(3, 9, 0.0, 1, 5, (), exact=False, buckets=(2**62, 1, 2))
    assert Accumulator.merged([damaged]).median == 5


def test_values_are_written_as_steps_and_repetitions() -> None:
    written = times(500, 532, 532, 532, 596)
    assert written.values == (500, 32, -3, 64)
    assert written.values == encoded_values([(500, 1), (532, 3), (596, 1)])


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), max_size=50), st.booleans())
def test_values_that_lie_give_a_median_within_what_is_claimed(
    values: list[int], exact: bool
) -> None:
    lie = Distribution(9, 90, 0.0, 5, 20, tuple(values), exact)
    found = Accumulator.merged([lie, lie, times(7)])
    assert found.median is not None
    assert 5 <= found.median <= 20


def test_buckets_that_are_none_take_bounded_memory() -> None:
    many = Accumulator()
    for first in range(50):
        many.add(Distribution(8000, 1, 0.0, 1, 10**9, (first * 10**5, *[1] * 7999), False))
    assert len(many.freeze().values) <= 2 * EXACT_VALUES


@pytest.mark.parametrize("lengths", [(3, 40), (3, EXACT_VALUES + 1), (EXACT_VALUES + 1, 3)])
def test_an_accumulator_is_added_as_its_record_is(lengths: tuple[int, int]) -> None:
    parts = [accumulate([[7 * value + 1 for value in range(length)]]) for length in lengths]
    assert Accumulator.merged(parts) == Accumulator.merged(part.freeze() for part in parts)


def test_the_only_one_of_its_key_is_not_copied_and_none_is_changed() -> None:
    one, two, three = (accumulate([[value]]) for value in (1, 2, 3))
    sums: Totals[str] = Totals()
    for key, value in (("a", one), ("b", two), ("b", three)):
        sums.add(key, value)
    assert sums["a"] is one
    assert (sums["b"].total, two.total, three.total) == (5, 2, 3)
