"""A share reads the same on the screen, in the summary and in every table for people."""

from __future__ import annotations

from pathlib import Path

from gputui.model.units import percent
from gputui.playback.loading import load
from gputui.report.phases import phase_rows
from gputui.report.statistics import category_rows, kernel_rows
from gputui.report.tables.phases import CATEGORIES, PHASES

DEMO = Path(__file__).parents[2] / "gputui" / "demo.gputui"


def test_shares_are_rounded_once() -> None:
    loaded = load(str(DEMO))
    session, run = loaded.session, loaded.run
    shares = [percent(share) for *_, share in category_rows(kernel_rows(session, run))]
    table = CATEGORIES.table(session, run)
    assert [table.columns[0].text(row) for row in table.rows] == shares
    phases = PHASES.table(session, run)
    share = PHASES.column("share_percent")
    assert [share.text(row) for row in phases.rows] == [
        percent(row.share_percent) for row in phase_rows(run)
    ]
