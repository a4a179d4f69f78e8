"""Figures as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "n/a"),
        (0, "0 ns"),
        (950, "950 ns"),
        (999.6, "1.00 µs"),
        (12_345, "12.3 µs"),
        (1_234_567, "1.23 ms"),
        (45.6e9, "45.6 s"),
        (99.94e9, "99.9 s"),
        (100e9, "1m40s"),
        (125e9, "2m05s"),
        (3599.4e9, "59m59s"),
        (3599.6e9, "1h00m"),
        (3600e9, "1h00m"),
        (11_220e9, "3h07m"),
        (-125e9, "-2m05s"),
        (-11_220e9, "-3h07m"),
    ],
)
def test_durations(ns: float | None, text: str) -> None:
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.00 KiB"),
        (150_754_820_096, "140 GiB"),
    ],
)
def test_sizes_are_binary(count: int | None, text: str) -> None:
    assert units.size(count) == text


def test_rates_and_counts_are_decimal() -> None:
    assert units.rate(4.81e12) == "4.81 TB/s"
    assert units.count(12_345) == "12.3 k"
    assert units.count(950) == "950"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 %"),
        (0.001, "<0.01 %"),
        (0.01, "0.01 %"),
        (0.5, "0.50 %"),
        (0.994, "0.99 %"),
        (0.995, "1.0 %"),
        (3.42, "3.4 %"),
        (9.94, "9.9 %"),
        (9.95, "10 %"),
        (97.3, "97 %"),
    ],
)
def test_a_tiny_share_is_not_shown_as_none(value: float | None, text: str) -> None:
    assert units.percent(value) == text


UNITS = {
    units.duration: {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9},
    units.size: {"B": 1} | {f"{u}iB": 1024.0 ** (n + 1) for n, u in enumerate("KMGTP")},
    units.quantity: {"": 1} | {u: 1000.0 ** (n + 1) for n, u in enumerate("kMGTP")},
    units.percent: {"%": 1},
}


@pytest.mark.parametrize(
    ("show", "least", "most"),
    [
        (units.duration, 1.0, 99e9),
        (units.size, 1.0, 9e17),
        (units.quantity, 1.0, 9e17),
        (units.percent, 1.0, 1e6),
    ],
)
@given(data=st.data())
def test_what_is_shown_is_the_figure_to_three_digits(
    show: Callable[[float], str], least: float, most: float, data: st.DataObject
) -> None:
    exponent = data.draw(st.floats(math.log(least), math.log(most)))
    value = math.exp(exponent)
    number, _, unit = show(value).partition(" ")
    shown = float(number) * UNITS[show][unit]
    digits = 0.05 if show is units.percent else 0.0051
    assert shown == pytest.approx(value, rel=digits, abs=0.51 if value < 1000 else 0)
    assert float(number) < 1000 or show is units.percent
    assert show(-value) == f"-{show(value)}"


@given(st.integers(100, 10**7))
def test_long_times_are_right_to_half_their_last_unit(seconds: int) -> None:
    shown = units.duration(seconds * 1e9)
    numbers = [int(number) for number in re.findall(r"[0-9]+", shown)]
    first, second = numbers
    assert second < 60
    if shown.endswith("s"):
        assert first < 60
        assert first * 60 + second == seconds
    else:
        assert abs(first * 3600 + second * 60 - seconds) <= 30


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (999.4, "999"),
     (999.5, "1.00 k"), (0.25, "0.25"), (12, "12"), (9.99e17, "999 P"), (2e18, "2000 P")],
)  # fmt: skip
def test_quantities_at_the_ends_of_their_digits(value: float, text: str) -> None:
    assert units.quantity(value) == text


@given(st.integers(0, 10**18))
def test_every_figure_is_short_and_keeps_its_magnitude(value: int) -> None:
    for show in (units.duration, units.size, units.quantity):
        assert 1 <= len(show(value)) <= 10
    if value:
        assert not units.quantity(value).startswith("0.00")


@pytest.mark.parametrize("show", [units.duration, units.size, units.quantity, units.percent])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_a_damaged_recording_adds_up_to_is_no_figure(
    show: Callable[[float], str], value: float
) -> None:
    assert show(value) == "n/a"


def test_energy_has_three_digits_however_small() -> None:
    assert [units.joules(value) for value in (0.00204, 0.25, 0.0995, 0.0, 1020.0, None)] == [
        "2.04 mJ", "0.25 J", "0.10 J", "0 J", "1.02 kJ", "n/a",
    ]  # fmt: skip
