"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.analysis import formats


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
        (125e9, "2m05s"),
        (11_220e9, "3h07m"),
    ],
)
def test_durations(ns: float | None, text: str) -> None:
    assert formats.duration(ns) == text


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
    assert formats.size(count) == text


def test_rates_and_counts_are_decimal() -> None:
    assert formats.rate(4.81e12) == "4.81 TB/s"
    assert formats.count(12_345) == "12.3 k"
    assert formats.count(950) == "950"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 %"),
        (0.001, "<0.01 %"),
        (0.5, "0.50 %"),
        (3.42, "3.4 %"),
        (97.3, "97 %"),
    ],
)
def test_a_tiny_share_is_not_shown_as_none(value: float | None, text: str) -> None:
    assert formats.percent(value) == text


@given(st.integers(0, 10**18))
def test_every_figure_is_short_and_keeps_its_magnitude(value: int) -> None:
    for show in (formats.duration, formats.size, formats.quantity):
        assert 1 <= len(show(value)) <= 10
    if value:
        assert not formats.quantity(value).startswith("0.00")


@pytest.mark.parametrize(
    "show", [formats.duration, formats.size, formats.quantity, formats.percent]
)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_a_damaged_recording_adds_up_to_is_no_figure(
    show: Callable[[float], str], value: float
) -> None:
    assert show(value) == "n/a"
