"""A program without ranges: the screen shows where each step goes all the same."""

from __future__ import annotations

import pytest

from gputui.tui.shell.views import TABS
from gputui.tui.views.kernels import KernelsView
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


async def test_enter_on_copies_leads_to_the_copies(show: Show) -> None:
    """It led to the largest matmul, which is no evidence of a copy."""
    async with show([recorded(DATA / "faults" / "launch.gputui.gz")], (120, 40)) as shown:
        await shown.press("2", "end")
        assert "─ busy › pinned copies ─" in shown.text
        await shown.press("enter")
        assert shown.app.main.current == "kernels"
        assert "Memory operations" in shown.text
        view = shown.app.main.view
        assert isinstance(view, KernelsView)
        assert view.tab == 2
        assert str(view.cursor.key).startswith("[CUDA memcpy ")
        assert "─ [CUDA memcpy " in shown.text  # what is known of it
        view.show_item(next(iter(view.model.session.kernel_names.values())).name)
        assert view.tab == 0


@pytest.mark.parametrize("kind", ["faults/launch", "h200-serve"])
async def test_each_view_draws_itself_without_room(show: Show, kind: str) -> None:
    """Between a new size and its layout a view is drawn smaller than the least that the screen
    asks for: that ended the screen in one of 30 games of a monkey over the demo."""
    async with show([recorded(DATA / f"{kind}.gputui.gz")], (120, 40)) as shown:
        for name in TABS:
            await shown.app.main.action_view(name)
            await shown.settle()
            for width in (0, 1, 7, 20, 37, 59):
                for height in (0, 1, 2, 9):
                    shown.app.main.view.rows(width, height)
