"""Everything that a key does, a click does; and what is listed as evidence leads to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.events import MouseDown
from textual.widgets._footer import FooterKey

from gputui.tui.dialogs.boxes import DetailsBox, Frame
from gputui.tui.dialogs.palette import Palette
from gputui.tui.views.phases import PhasesView
from gputui.tui.views.steps import StepsView
from gputui.tui.widgets.table import RecordTable
from tests.conftest import DATA
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded

DEMO = Path(__file__).parents[2] / "gputui" / "demo"
SLOW = DEMO / "slow.gputui.gz"


async def test_kernels_of_a_phase_lead_to_kernels(show: Show) -> None:
    """Clicks on them did nothing."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("4")
        await shown.click("flash_fwd_splitkv_kernel ")
        assert shown.app.main.current == "kernels"
        assert "flash_fwd_splitkv_kernel" in str(shown.app.main.view.cursor.key)
        await shown.press("escape")
        assert shown.app.main.current == "phases"


@pytest.mark.parametrize("size", [(80, 50), (120, 40), (200, 50)], ids=str)
async def test_what_time_lists_of_a_cause_leads_there(show: Show, size: tuple[int, int]) -> None:
    """Clicks beside the tree chose the line of the tree at their height."""
    async with show([recorded(SLOW)], size) as shown:
        await shown.press("2")
        view = shown.app.main.view
        await shown.click("decode/step/mlp")
        assert shown.app.main.current == "phases"
        phases = shown.app.main.view
        assert isinstance(phases, PhasesView)
        assert phases.copied == "decode/step/mlp"
        await shown.press("escape")
        chosen = view.cursor.key
        if size[0] >= 100:
            await shown.click("operations a step")
        assert (shown.app.main.current, view.cursor.key) == ("time", chosen)
        await shown.click("Enter shows the steps")
        assert shown.app.main.current == "steps"
        await shown.press("escape")
        await shown.click("attention")
        await shown.click("flash_fwd_splitkv_kernel ")
        assert shown.app.main.current == "kernels"


@pytest.mark.parametrize("size", [(120, 40), (200, 50)], ids=str)
async def test_the_phases_of_a_kernel_lead_to_phases(show: Show, size: tuple[int, int]) -> None:
    """In wide screens a click on them chose the kernel at their height."""
    async with show([recorded(SLOW)], size) as shown:
        await shown.press("5")
        await shown.click("decode/step/qkv_proj")
        view = shown.app.main.view
        assert isinstance(view, PhasesView)
        assert view.copied == "decode/step/qkv_proj"


async def test_without_gpu_work_the_phases_in_time_lead_to_phases(show: Show) -> None:
    async with show(scripted.cpu_session(), (80, 24)) as shown:
        await shown.press("2")
        name = shown.app.main.view.drawn[4].split()[0]
        await shown.click(f" {name} ")
        assert shown.app.main.current == "phases"
        assert shown.app.main.view.copied.endswith(name)
        await shown.press("2")
        await shown.click("4 shows all of them")
        assert shown.app.main.current == "phases"


async def test_a_key_in_the_key_bar_is_pressed_by_a_click(show: Show) -> None:
    """Also one that has two names: ?, h and F1 did nothing."""
    async with show([], (120, 40)) as shown:
        for label in ("help", "palette"):
            [key] = [one for one in shown.app.main.bottom.query(FooterKey)
                     if one.display and one.description == label]  # fmt: skip
            await shown.pilot.click(key)
            await shown.settle()
            assert isinstance(shown.app.screen, Palette)
            await shown.press("escape")


async def test_help_is_filtered_by_what_is_typed(show: Show) -> None:
    """Letters did what they do behind it, W started a workload."""
    async with show(scripted.cpu_session(), (80, 24)) as shown:
        await shown.press("question_mark", *"sort")
        await shown.until(lambda: shown.app.screen.query_one(CommandList).option_count == 2)
        assert "sort by the next column" in shown.text
        await shown.press(*"edly")
        await shown.until(lambda: "No matches found" in shown.text)
        await shown.press("ctrl+u", *"Ctrl-P")
        await shown.until(lambda: "every action, view, phase, kernel and run" in shown.text)
        await shown.press("escape")
        assert shown.app.screen is shown.app.main


async def test_what_the_help_lists_can_be_done_from_there(show: Show) -> None:
    async with show(scripted.cpu_session(), (80, 24)) as shown:
        await shown.press("question_mark", *"Kernels: kern")
        await shown.until(lambda: shown.app.screen.query_one(CommandList).option_count == 1)
        await shown.press("enter")
        assert shown.app.main.current == "kernels"
        await shown.press("question_mark", *"Phases")
        await shown.until(lambda: "Phases: the" in shown.text)
        await shown.click("Phases: the")
        assert shown.app.main.current == "phases"


async def test_a_click_beside_a_dialog_closes_what_is_only_read(show: Show) -> None:
    """Nothing happened. What asks stays: a stray click is no answer, and nothing typed is lost."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("6", "enter")
        assert isinstance(shown.app.screen, DetailsBox)
        await shown.pilot.click(offset=(0, 20))
        await shown.settle()
        assert shown.app.screen is shown.app.main
        await shown.press("e", *"xy")
        dialog = shown.app.screen
        await shown.pilot.click(offset=(0, 20))
        await shown.settle()
        assert shown.app.screen is dialog
        assert "xy" in shown.text


async def test_keys_that_are_named_in_a_view_can_be_clicked(show: Show) -> None:
    """Only those of the key bar could."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("3", "3")
        await shown.click("n the next one")
        assert "of these steps" in shown.text
        view = shown.app.main.view
        assert isinstance(view, StepsView)
        assert view.at is not None
        await shown.click("v: shares of these steps")
        assert shown.app.model.scope is not None
        first = shown.app.model.scope
        await shown.click("v next scope")
        assert shown.app.model.scope != first
        await shown.press("0", "v")
        await shown.click("0 back to the steady steps")
        assert shown.app.model.scope is None
        await shown.press("5")
        await shown.click("y: copy the name")
        assert shown.app.clipboard == str(shown.app.main.view.cursor.key)
        await shown.click("Enter: more")
        assert isinstance(shown.app.screen, DetailsBox)
    async with show([[scripted.header(0), scripted.machine(0, 1)]], (120, 40)) as shown:
        await shown.press("4")
        await shown.click("shows the runs that were recorded")
        assert shown.app.main.current == "sessions"


async def test_the_ranks_in_timeline_are_in_order(show: Show) -> None:
    """They began with whichever process came first: rank 3 of 4."""
    ranks = DATA / "ranks" / "late_host.gputui.gz"
    async with show([recorded(ranks)], (120, 40)) as shown:
        await shown.press("3", "3")
        assert "rank 0, GPU 0  1 of 4" in shown.text
        await shown.click("s another one")
        assert "rank 1, GPU 1  2 of 4" in shown.text


async def test_a_click_on_the_verdict_leads_to_where(show: Show) -> None:
    """It is drawn as chosen from the beginning: the first click on it did nothing that was seen."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("1")
        await shown.click("Enter shows more")
        assert shown.app.main.current == "time"


async def test_names_below_the_bar_lead_to_their_leaves(show: Show) -> None:
    """Only the parts of the bar did, which for a small one is a cell wide."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        for text, key in (
            ("launch-bound ", "idle.launch"),
            ("busy ", "busy"),
            ("sync ", "idle.sync"),
        ):
            await shown.press("1")
            view = shown.app.main.view
            y = next(n for n, line in enumerate(view.drawn) if line.startswith(" █ busy "))
            await shown.pilot.click(view, offset=(view.drawn[y].index(text), y))
            await shown.settle()
            assert (shown.app.main.current, shown.app.main.view.cursor.key) == ("time", key)


async def test_a_click_on_a_line_that_is_gone_does_nothing(show: Show) -> None:
    """It ended the screen: phases closed between a click and its message."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("4")
        view = shown.app.main.view
        view.post_message(RecordTable.Chosen(1000, 0))
        await shown.settle()
        assert shown.app.main.current == "phases"
        await shown.press("/", *"none of them", "enter")
        assert "no phase matches" in shown.text
        view.post_message(RecordTable.Chosen(0, 0))
        await shown.settle()
        assert shown.app.main.current == "phases"


async def test_a_press_on_what_has_just_left_the_screen_does_nothing(show: Show) -> None:
    """Textual's selection of text asked for the parent of what its last layout had there."""
    async with show([recorded(SLOW)], (120, 40)) as shown:
        await shown.press("6", "enter")
        frame = shown.app.screen.query_one(Frame)
        x, y = frame.region.offset
        removed = frame.remove()
        for _ in range(100):  # until it has been taken out, and nothing was laid out since
            if frame.parent is not None:
                await asyncio.sleep(0)
        assert frame.parent is None
        await shown.app.on_event(MouseDown(None, x, y, 0, 0, 1, False, False, False))
        await removed
        await shown.settle()
