"""A share reads the same on the screen, in the summary and in every table for people."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gputui.model.units import percent
from gputui.playback.opening import load
from gputui.report.phases import phase_rows
from gputui.report.schema import rounded
from gputui.report.statistics import category_rows
from gputui.report.tables.phases import CATEGORIES, PHASES

MEDIUM = Path(__file__).parents[1] / "data" / "h200-medium.gputui"


def test_shares_are_rounded_once() -> None:
    loaded = load(str(MEDIUM))
    session, run = loaded.session, loaded.run
    shares = [percent(share) for *_, share in category_rows(session, run)]
    table = CATEGORIES.table(session, run)
    assert [table.columns[0].text(row) for row in table.rows] == shares
    phases = PHASES.table(session, run)
    share = PHASES.column("share_percent")
    assert [share.text(row) for row in phases.rows] == [
        "" if row.share_percent is None else percent(row.share_percent) for row in phase_rows(run)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.25, 0.3), (-0.25, -0.3), (1e15 + 0.5, 1e15 + 0.5), (2.0**53, 2.0**53), (1e30, 1e30),
     (-1e300, -1e300), (math.inf, math.inf)],
)  # fmt: skip
def test_figures_of_any_size_are_rounded(value: float, expected: float) -> None:
    """A crafted recording may hold deviations that no machine has."""
    assert rounded(value, 1) == expected
