"""A share reads the same on the screen, in the summary and in every table for people."""

from __future__ import annotations

from pathlib import Path

from gputui.model.units import percent
from gputui.playback.loading import load
from gputui.render.text_tables import shown_cell
from gputui.report.phases import phase_rows
from gputui.report.statistics import category_rows, kernel_rows
from gputui.report.summary_tables import categories_table, phases_table

DEMO = Path(__file__).parents[2] / "gputui" / "demo.gputui"


def test_shares_are_rounded_once() -> None:
    loaded = load(str(DEMO))
    session, run = loaded.session, loaded.run
    shares = [percent(share) for *_, share in category_rows(kernel_rows(session, run))]
    table = categories_table(session, run)
    assert [shown_cell(table.columns[0], row[0]) for row in table.rows] == shares
    phases = phases_table(session, run)
    at = next(n for n, column in enumerate(phases.columns) if column.header == "Share (%)")
    assert [shown_cell(phases.columns[at], row[at]) for row in phases.rows] == [
        percent(row.share_percent) for row in phase_rows(run)
    ]
