"""The timeline of single operations, as a person meets it: a trace of PyTorch's profiler."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gputui.tui.views.operations import OperationsView
from tests.conftest import DATA
from tests.tui.test_replay import Replay, replayed

TRAINING = DATA / "h100-training.json.gz"


KEYS = (
    *("plus", "minus", "g", "l", "up", "down", "left", "right", "home", "end", "pageup"),
    *("pagedown", "comma", "full_stop", "n", "N", "0"),
)


@asynccontextmanager
async def timeline(size: tuple[int, int] = (120, 40)) -> AsyncIterator[Replay]:
    """The view, once every operation is read."""
    async with replayed(size, TRAINING) as replay:
        replay.playback.seek(3600)
        await replay.until(lambda: replay.app.model.run is not None)
        await replay.press("3")
        await replay.until(lambda: "GPU 0 busy" in replay.text)
        yield replay


def window(replay: Replay) -> str:
    found = re.search(r"Timeline  (.*?) of ", replay.text)
    assert found is not None, replay.text
    return found[1]


async def test_lanes_have_names_and_the_cursor_is_explained() -> None:
    async with timeline() as replay:
        for label in ("whole run", "stream 7", "main", "calls"):
            assert f" {label} " in replay.text
        for name in ("ProfilerStep", "backward", "optimizer"):
            assert f"▏{name}" in replay.text
        assert "In this window  GPU time" in replay.text
        assert re.search(r"one of \d+, usually ", replay.text)
        assert re.search(r"launched .* before by cu\w+ on python3", replay.text)
        assert re.search(r"grid \d+×\d+×\d+, block \d+×", replay.text)


async def test_zoom_pan_and_fit() -> None:
    async with timeline() as replay:
        whole = window(replay)
        await replay.press("plus", "plus")
        assert window(replay) != whole
        closer = window(replay)
        await replay.press("full_stop")
        assert window(replay) != closer
        await replay.press("comma", "minus", "minus")
        await replay.press("0")
        assert "0 ns to " in window(replay)
        assert "100 % of" in replay.text


async def test_from_a_kernel_to_its_launch_and_back() -> None:
    async with timeline() as replay:
        view = replay.app.main.view
        kernel = view.copied
        await replay.press("l")
        assert view.copied.startswith("cu")
        assert "its work" in replay.text
        await replay.press("l")
        assert view.copied == kernel


async def test_gaps_measures_and_searches_are_a_key_away() -> None:
    async with timeline() as replay:
        await replay.press("g")
        assert "before it the GPU idled" in replay.text
        await replay.press("left_square_bracket")
        await replay.press("g", "right_square_bracket")
        found = re.search(r"between \[ and \]: .* GPU 0 busy .* (\d+) operations", replay.text)
        assert found is not None
        assert int(found[1]) >= 1
        await replay.press("slash", *"adamw", "enter")
        await replay.until(lambda: "adamw" in replay.app.main.view.copied.lower())
        first = replay.text
        await replay.press("n")
        assert replay.text != first
        await replay.press("escape")


async def test_enter_leads_to_the_kernel_and_the_phase() -> None:
    async with timeline() as replay:
        name = replay.app.main.view.copied
        await replay.press("enter")
        assert replay.app.main.current == "kernels"
        assert replay.app.main.view.copied == name
        await replay.press("escape")
        assert isinstance(replay.app.main.view, OperationsView)
        await replay.press("down", "down", "enter")
        await replay.until(lambda: replay.app.main.current == "phases")


async def test_what_is_clicked_is_chosen_and_what_is_dragged_over_fills_the_window() -> None:
    async with timeline() as replay:
        view = replay.app.main.view
        y = next(y for y, line in enumerate(view.drawn) if line.startswith(" stream 7"))
        x = view.drawn[y].rindex("▏") + 2
        before = view.copied
        await replay.pilot.click(view, offset=(x, y))
        await replay.pilot.pause()
        assert view.copied != before or "cursor" in str(view.painted[y])
        wide = window(replay)
        await replay.pilot.mouse_down(view, offset=(40, y))
        await replay.pilot.hover(view, offset=(60, y))
        await replay.pilot.mouse_up(view, offset=(60, y))
        await replay.pilot.pause()
        assert window(replay) != wide


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 50)])
async def test_it_fits_any_terminal_and_no_key_is_dead(size: tuple[int, int]) -> None:
    async with timeline(size) as replay:
        main = replay.app.main
        for key in KEYS:
            main._message, before = None, main.view.painted
            await replay.press(key)
            await replay.pilot.pause()
            assert main._message is not None or main.view.painted != before, key
            assert all(len(line) <= size[0] for line in main.view.drawn)


async def test_a_recording_without_a_trace_keeps_its_steps_in_bars() -> None:
    async with replayed(path=DATA / "h200-medium.gputui") as replay:
        await replay.press("3")
        assert replay.app.main.current == "timeline"
        await replay.press("3")
        assert replay.app.main.current == "timeline"
