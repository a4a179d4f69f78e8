"""The figures of a GPU over a time: whoever reads one changes nothing for the others."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import GpuSample
from gputui.state.series import MOST_WAITING, FigureSeries, Series
from tests.events_for_tests import at

FIELDS = ("power_watts", "sm_active_percent", "temperature_celsius")


def filled(
    rows: list[tuple[float | None, ...]], reads: dict[int, str] | None = None
) -> FigureSeries:
    """A sample a second, every tenth out of order; `reads` asks for a figure after a sample."""
    figures = FigureSeries(FIELDS, ("power_watts",))
    for number, row in enumerate(rows):
        figures.add(at(number - 3 if number % 10 == 9 else number), row)
        if reads and number in reads:
            figures.get(reads[number])
    return figures


value = st.none() | st.floats(0, 1e4)


@given(
    st.lists(st.tuples(value, value, value), min_size=1, max_size=2 * MOST_WAITING),
    st.dictionaries(st.integers(0, 2 * MOST_WAITING), st.sampled_from(FIELDS)),
)
def test_a_reader_changes_no_digit(
    rows: list[tuple[float | None, ...]], reads: dict[int, str]
) -> None:
    assert dict(filled(rows, reads).sampled()) == dict(filled(rows).sampled())


def test_a_saved_state_continues_where_it_was() -> None:
    dice = random.Random(3)
    rows: list[tuple[float | None, ...]] = [
        tuple(dice.uniform(0, 9) for _ in FIELDS) for _ in range(700)
    ]
    first = filled(rows[:300], {280: "power_watts"})
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=FigureSeries)
    for figures in (first, saved):
        for number, row in enumerate(rows[300:], 300):
            figures.add(at(number), row)
    assert dict(saved.sampled()) == dict(first.sampled())


def test_the_mean_of_power_is_its_counted_energy_over_the_time() -> None:
    figures = FigureSeries.for_samples(GpuSample)
    row = tuple(100.0 if field in FIELDS else None for field in figures.fields)
    for second in range(11):
        figures.add(at(second), row)
    figures.count("power_watts", at(0), 1000.0)
    figures.count("power_watts", at(10), 3000.0)
    power, active = figures.get("power_watts"), figures.get("sm_active_percent")
    assert power is not None
    assert active is not None
    assert power.mean_of_all((at(0), at(10))) == pytest.approx(200.0)  # the counter's
    assert power.average == 100.0  # the samples'
    assert active.mean((at(2), at(5)), (at(7), at(8))) == pytest.approx(100.0)
    assert active.mean((at(2), at(5)), None) is None
    assert active.mean((at(2), at(2))) is None
    assert [field for field, _ in figures.sampled()] == sorted(FIELDS)


def test_a_figure_of_which_only_the_counter_was_read_has_no_samples() -> None:
    figures = FigureSeries.for_samples(GpuSample)
    figures.count("power_watts", at(0), 1000.0)
    figures.count("power_watts", at(10), 3000.0)
    power = figures.get("power_watts")
    assert isinstance(power, Series)
    assert power.mean((at(0), at(5))) == pytest.approx(200.0)
    assert (power.count, power.average) == (0, None)
    assert list(figures.sampled()) == []
