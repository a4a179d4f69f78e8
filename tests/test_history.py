"""A day in bounded memory: what was seen stays true, and old days go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.events import HostSample
from gputui.history import STRETCH_NS, STRETCHES, LongHistory

SECOND_NS = 1_000_000_000


def host(value: float | None) -> HostSample:
    """A sample with one figure."""
    return HostSample(cpu_percent=value)


@given(st.lists(st.none() | st.floats(0, 100, width=32), min_size=1, max_size=200))
def test_stretches_keep_extremes_and_the_mean(values: list[float | None]) -> None:
    history = LongHistory(("cpu_percent",))
    for second, value in enumerate(values):
        history.add(second * SECOND_NS, host(value))
    history.add(10_000 * SECOND_NS, host(None))
    known = [value for value in values if value is not None]
    stretches = list(history.stretches("cpu_percent", 0, 10_000 * SECOND_NS))
    if not known:
        assert not stretches
        return
    assert min(low for low, _, _, _ in stretches) == min(known)
    assert max(high for _, _, high, _ in stretches) == max(known)
    assert sum(count for *_, count in stretches) == len(known)
    total = sum(mean * count for _, mean, _, count in stretches)
    assert total / len(known) == pytest.approx(sum(known) / len(known), rel=1e-5, abs=1e-5)


def test_a_stretch_is_told_once_it_is_whole() -> None:
    history = LongHistory(("cpu_percent",))
    history.add(0, host(5.0))
    assert history.end_ns == 0
    history.add(STRETCH_NS, host(7.0))
    assert history.end_ns == STRETCH_NS
    assert list(history.means("cpu_percent")) == [(STRETCH_NS // 2, 5.0)]


def test_no_more_than_a_day_is_kept() -> None:
    history = LongHistory(("cpu_percent",))
    for number in range(STRETCHES + 100):
        history.add(number * STRETCH_NS, host(1.0))
    assert sum(1 for _ in history.means("cpu_percent")) == STRETCHES
