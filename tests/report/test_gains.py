"""Gains: the page about them is current, and what it says of the fitted pairs holds."""

from __future__ import annotations

from tests.report.gains import FOLDER, PAGE, page, pairs, row_of


def test_the_page_of_gains_is_current() -> None:
    """If it is not: `python -m tests.report.gains`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_recording_is_of_a_pair() -> None:
    assert {path.name for path in FOLDER.glob("*.gz")} == {
        f"{pair.name}.gputui.gz" for pair in pairs()
    }


def test_faults_of_the_workload_gain_what_is_said() -> None:
    """All of them, and none is said to gain what nobody could tell apart."""
    for pair in pairs():
        if pair.group == "workload":
            _, gain, _ = row_of(pair)
            assert gain is not None, pair.name
            assert gain.low <= pair.measured <= gain.high, pair.name
