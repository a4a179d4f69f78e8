"""What goes to the terminal: nothing when nothing changed, little when little did."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.widgets.canvas import changed_width
from tests.bench.bench_screen import CountingDriver
from tests.tui import scripted


async def _frame(pilot: Pilot[None]) -> None:
    """Messages, then whatever frame they led to."""
    for _ in range(3):
        await pilot.pause(2 / 60)


@pytest.mark.parametrize("key", ["1", "2", "3", "4", "5", "6"])
async def test_unchanged_figures_write_nothing(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.005)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        source.give(scripted.gpu_session(1, quiet=20))
        await pilot.press(key)
        await _frame(pilot)
        before = CountingDriver.sent
        assert before > 0
        source.give([[scripted.no_nvlink(0)]])
        await _frame(pilot)
        assert CountingDriver.sent == before


def test_only_the_changed_part_of_a_row_counts() -> None:
    old = (("label ", "label"), ("12 %", "value"), ("     ", "text"))
    new = (("label ", "label"), ("13 %", "value"), ("     ", "text"))
    assert changed_width(old, new) == 8
    assert changed_width(old, old) == 0
