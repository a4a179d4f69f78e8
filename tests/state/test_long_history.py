"""A day in bounded memory: what was seen stays true, and old days go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import HostSample
from gputui.state.history import LongHistory, Stretches

SECOND_NS = 1_000_000_000


def host(value: float | None) -> HostSample:
    """A sample with one figure."""
    return HostSample(cpu_percent=value)


STRETCH_NS = 15 * SECOND_NS
FIELD = "cpu_percent"


@given(st.lists(st.none() | st.floats(0, 100, width=32), min_size=1, max_size=300))
def test_every_level_keeps_extremes_and_the_mean(values: list[float | None]) -> None:
    history = LongHistory.empty((FIELD,))
    for second, value in enumerate(values):
        history.add(second * SECOND_NS, host(value))
    history.add(10_000 * SECOND_NS, host(None))
    known = [value for value in values if value is not None]
    for level in history.levels:
        stretches = list(level.figures(FIELD, 0, 10_000 * SECOND_NS))
        assert bool(stretches) == bool(known)
        if known:
            assert min(low for _, low, _, _, _ in stretches) == min(known)
            assert max(high for _, _, _, high, _ in stretches) == max(known)
            assert sum(count for *_, count in stretches) == len(known)
            total = sum(mean * count for _, _, mean, _, count in stretches)
            assert total / len(known) == pytest.approx(sum(known) / len(known), 1e-5, 1e-5)


def test_a_stretch_is_told_once_it_is_whole() -> None:
    level = LongHistory.empty((FIELD,)).levels[0]
    level.add(0, {FIELD: 5.0})
    level.add(STRETCH_NS - 2, {FIELD: 5.0})
    assert level.end_ns == 0
    level.add(STRETCH_NS, {FIELD: 7.0})
    assert level.end_ns == STRETCH_NS
    assert list(level.means(FIELD)) == [(STRETCH_NS // 2 - 1, 5.0)]


def test_a_stretch_that_began_late_says_nothing_of_the_time_before() -> None:
    history = LongHistory.empty((FIELD,))
    began_ns = 299 * SECOND_NS
    for second in range(299, 700):
        history.add(second * SECOND_NS, host(1.0))
    for level in history.levels:
        assert all(time_ns >= began_ns for time_ns, _ in level.means(FIELD))


def test_a_day_is_kept_and_no_more_than_a_little_longer() -> None:
    history = LongHistory.empty((FIELD,))
    for number in range(3 * 24 * 240):
        history.add(number * STRETCH_NS, host(1.0))
    kept_ns = [level.stretch_ns * sum(1 for _ in level.means(FIELD)) for level in history.levels]
    assert kept_ns[0] == 4 * 3600 * SECOND_NS
    assert 24 * 3600 * SECOND_NS <= kept_ns[1] <= 25 * 3600 * SECOND_NS


def test_least_mean_and_most_are_told_apart_for_each_field() -> None:
    level = Stretches.newest(("a", "b"), STRETCH_NS, 10)
    for value in (1.0, 2.0, 9.0):
        level.add(5, {"a": value, "b": -value})
    level.add(STRETCH_NS, {"b": 3.0})
    level.add(2 * STRETCH_NS, {})
    assert list(level.means("a")) == [(STRETCH_NS, None), (5, 4.0)]
    assert list(level.means("b")) == [(STRETCH_NS, 3.0), (5, -4.0)]
    whole = (0, 2 * STRETCH_NS)
    assert list(level.figures("a", *whole)) == [(0, 1.0, 4.0, 9.0, 3)]
    assert list(level.figures("b", *whole)) == [
        (STRETCH_NS, 3.0, 3.0, 3.0, 1),
        (0, -9.0, -4.0, -1.0, 3),
    ]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 4, [3, 2, 1, 0]),
        (1, 3, [2, 1]),
        (0.5, 3, [2, 1]),
        (1, 2.9, [1]),
        (3, 4, [3]),
        (4, 9, []),
    ],
)
def test_stretches_lie_whole_between_two_moments(
    start: float, end: float, found: list[int]
) -> None:
    level = Stretches.newest((FIELD,), STRETCH_NS, 10)
    for number in range(5):
        level.add(number * STRETCH_NS, {FIELD: float(number)})
    between = level.figures(FIELD, int(start * STRETCH_NS), int(end * STRETCH_NS))
    assert [begun_ns // STRETCH_NS for begun_ns, *_ in between] == found


def test_a_stretch_lies_where_its_samples_were_whatever_came_before() -> None:
    level = Stretches.newest((FIELD,), 10, 10)
    for time_ns in (1000, 1004, 1020):
        level.add(time_ns, {FIELD: 1.0})
    assert list(level.means(FIELD)) == [(1002, 1.0)]
    assert level.end_ns == 1010
