"""A program without ranges: the screen shows where each step goes all the same."""

from __future__ import annotations

import pytest

from tests.conftest import DATA
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_phases_and_summary_show_where_each_step_goes(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([recorded(DATA / "faults" / "sync.gputui.gz")], size) as shown:
        await shown.press("4")
        assert "the program opened no NVTX range" in shown.text
        assert "Where each step goes" in shown.text
        [line] = [line for line in shown.lines if line.strip().startswith("idle   sync")]
        assert "29 %" in line
        await shown.press("1", "1")
        assert "Where each step goes" in shown.text
        await shown.press("2", "end", "left")
        assert "nothing to close in this line" in shown.lines[-1]
