"""Times a person may type."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.units import clock_text, parse_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        (" 2.5 ", 2.5),
        ("90s", 90.0),
        ("1:30", 90.0),
        ("1:02:03.5", 3723.5),
        ("1m30s", 90.0),
        ("2h", 7200.0),
        ("50%", 200.0),
        ("+10", 110.0),
        ("-10s", 90.0),
        ("-1:00", 40.0),
        ("-5m", 0.0),
    ],
)
def test_times_from_the_beginning_and_from_here(text: str, seconds: float) -> None:
    assert parse_moment(text, position_s=100.0, length_s=400.0) == seconds


@pytest.mark.parametrize(
    "text", ["", "  ", "x", "1:2:3:4", "+", "-", "1e9", "nan", "10 minutes", "s"]
)
def test_what_is_no_time_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^give a time like [^\n]*$"):
        parse_moment(text, 0.0, 10.0)


@given(st.text(max_size=30) | st.from_regex(r"[+-]?[0-9hms:.% ]{1,12}", fullmatch=True))
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_moment(text, 5.0, 10.0) >= 0.0


@given(st.integers(0, 10**6))
def test_a_clock_reads_back(tenths: int) -> None:
    seconds = tenths / 10
    text = clock_text(seconds)
    assert abs(parse_moment(text, 0.0, 0.0) - seconds) < (0.11 if seconds < 3600 else 1.0)
