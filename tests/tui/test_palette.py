"""Textual's palette where the program ends, or the terminal changes, as it is opened."""

from __future__ import annotations

from textual import events
from textual.widgets import KeyPanel

from gputui.tui.dialogs.boxes import DetailsBox
from gputui.tui.dialogs.palette import Palette
from tests.tui import scripted
from tests.tui.conftest import Show


async def test_a_palette_may_be_taken_away_before_it_is_there(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3), (80, 24)) as shown:
        shown.app.push_screen(Palette())
        await shown.app.pop_screen()
        await shown.settle()


async def test_a_click_outside_of_all_closes_the_palette(show: Show) -> None:
    """One that was sent at a larger size."""
    async with show(scripted.gpu_session(1, quiet=3), (80, 24)) as shown:
        palette = Palette()
        await shown.app.push_screen(palette)
        x = y = 500
        palette.post_message(
            events.Click(palette, x, y, 0, 0, 1, False, False, False, screen_x=x, screen_y=y)
        )
        await shown.settle()
        assert not isinstance(shown.app.screen, Palette)


async def test_a_page_of_the_manual_is_found_by_its_title_and_read(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3), (80, 24)) as shown:
        await shown.press("colon", *"costs")
        await shown.until(lambda: "manual: What it costs" in shown.text)
        await shown.press("enter")
        await shown.until(lambda: isinstance(shown.app.screen, DetailsBox))
        assert "What it costs" in shown.text
        await shown.press("escape")
        assert shown.app.screen is shown.app.main


async def test_the_keys_stand_beside_the_view_as_long_as_that_is_wished(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3), (120, 40)) as shown:
        main = shown.app.main
        width = main.view.size.width
        await shown.press("colon", *"beside")
        await shown.until(lambda: "keys beside the view" in shown.text)
        await shown.press("enter")
        await shown.until(lambda: bool(main.query(KeyPanel)))
        await shown.until(lambda: "quit at once; a run" in shown.text)
        assert main.view.size.width < width
        assert shown.lines[0].split()[:2] == ["1", "Overview"]
        assert "q quit" in shown.lines[-1]
        await main.run_action("keys_panel")
        await shown.settle()
        assert main.view.size.width == width
