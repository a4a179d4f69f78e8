"""A step as a picture: boxes as wide as their time, moved through by keys and clicks."""

from __future__ import annotations

import pytest

from gputui.report.phase_tree import phase_tree
from gputui.tui.widgets.canvas import PHASE_COLORS
from gputui.tui.widgets.tree import phase_colors
from tests.conftest import DATA
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded

SERVE = DATA / "h200-serve.gputui.gz"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_boxes_are_as_wide_as_their_share(show: Show, size: tuple[int, int]) -> None:
    async with show([recorded(SERVE)], size) as shown:
        await shown.press("2", "2")
        assert shown.app.main.current == "icicle"
        view = shown.app.main.view
        shares = {}
        for line in view.drawn:
            if line.startswith(" phase") and "%" in line:
                name, share = line.split()[1], line.split("%")[0].split()[-1]
                shares[name] = float(share.lstrip("<"))
        width = size[0] - 2
        row = next(line for line in view.drawn if "▏decode" in line)
        box = row[row.index("▏decode") + 1 :].partition("▏")[0]
        assert (len(box) + 1) / width * 100 == pytest.approx(shares["decode"], abs=150 / width)
        assert all(len(line) <= size[0] for line in view.drawn)


async def test_a_picture_of_a_part_says_of_what_and_no_box_looks_like_those_around_it(
    show: Show,
) -> None:
    async with show([recorded(SERVE)], (120, 40)) as shown:
        await shown.press("2", "2")
        assert "of 3.79 ms from one to the next ─" in shown.text  # the rest of it waits for work
        assert shown.app.model.run is not None
        colors = phase_colors(shown.app.model.run)
        phases = phase_tree(shown.app.model.run).phases
        step = next(one for one in phases if one.path == "step")
        near = [colors[one.name] for one in (step, *step.children)]
        assert len(set(near)) == min(len(near), PHASE_COLORS)


async def test_arrows_enter_and_escape_go_through_it(show: Show) -> None:
    async with show([recorded(SERVE)], (120, 40)) as shown:
        await shown.press("2", "2", "down")
        view = shown.app.main.view
        assert view.copied == "step;schedule"
        await shown.press("right", "right")
        first = view.copied
        await shown.press("left")
        assert view.copied != first
        await shown.press("up", "down", "enter")
        assert "▏schedule" in view.drawn[1]
        await shown.press("escape")
        assert "▏step" in view.drawn[1]
        await shown.click("▏decode")
        assert view.copied == "step;decode"
        await shown.click("▏decode")  # again: as Enter
        assert "▏decode" in view.drawn[1]
        await shown.press("enter")
        assert shown.app.main.current == "phases"
        await shown.press("escape", "0", "down", "end", "enter")
        assert shown.app.main.current == "time"


async def test_hostile_names_and_runs_without_a_gpu_have_no_picture_or_a_tame_one(
    show: Show,
) -> None:
    for batches in (scripted.hostile_session(), scripted.cpu_session(), [[scripted.header(0)]]):
        async with show(batches, (80, 24)) as shown:
            await shown.press("2", "2", "down", "right", "enter", "up", "escape", "0")
            assert all(len(line) <= 80 for line in shown.app.main.view.drawn)
