"""Recordings in which every text is one that breaks markup, formats or widths, in every view."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec
import pytest
from rich.cells import cell_len

from gputui.model.events import AnyEvent
from gputui.state.session import Link
from gputui.store import default_folder
from gputui.store.journal import Limits
from gputui.store.journal.writer import JournalWriter
from gputui.tui.source import Options
from gputui.tui.tour import FOLDER
from tests.conftest import DATA
from tests.tui import scripted
from tests.tui.conftest import Show, Shown
from tests.tui.scripted import HOSTILE
from tests.tui.test_hosts import shown_hosts
from tests.tui.test_recorded import recorded

RECORDINGS = {
    "decode": FOLDER / "slow.gputui.gz",
    "graphs": FOLDER / "graphs.gputui.gz",
    "input": DATA / "faults" / "starved.gputui.gz",
    "ranks": DATA / "ranks" / "late_work.gputui.gz",
    "hang": DATA / "ranks" / "hang.gputui.gz",
}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def spoiled(value: Any, hint: str = "") -> Any:
    """The same with this in every text whose value is free."""
    if isinstance(value, str):
        return value if "Literal" in hint else f"{value}{HOSTILE}"
    if isinstance(value, msgspec.Struct):
        hints = _hints(type(value))
        fields = {
            name: spoiled(getattr(value, name), str(hints[name]))
            for name in value.__struct_fields__
        }
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple | list):
        return type(value)(spoiled(one, hint) for one in value)
    if isinstance(value, dict):
        return {spoiled(key, hint): spoiled(one, hint) for key, one in value.items()}
    return value


def whole(shown: Shown, width: int, where: str) -> str:
    """What is on the screen, each line of which is as wide as that."""
    strips = shown.app.screen._compositor.render_strips()
    assert all(strip.cell_length == width for strip in strips), where
    assert all(cell_len(line) <= width for line in shown.lines), where
    return shown.text


KEYS = (
    *("1", "enter", "enter", "2", "end", "3", "n", "4", "end", "enter", "escape", "5", "enter"),
    *("escape", "right", "right", "6", "6", "6", "7", "1", "1", "pagedown", "pagedown", "end"),
)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=str)
@pytest.mark.parametrize("name", ["decode", "input", "ranks", "hang"])
async def test_every_view_holds_what_a_recording_names(
    show: Show, name: str, size: tuple[int, int]
) -> None:
    events: list[AnyEvent] = [spoiled(event) for event in recorded(RECORDINGS[name])]
    async with show([events], size, options=Options(shows_run=True)) as shown:
        seen = ""
        for key in KEYS:
            await shown.press(key)
            seen += whole(shown, size[0], key)
        assert "[red]" in seen


async def test_a_screen_reader_is_read_it_too(show: Show) -> None:
    batches = [[spoiled(event) for event in batch] for batch in scripted.cpu_session()]
    options = Options(shows_run=True, reader=True)
    async with show(batches, (120, 40), options=options) as shown:
        assert "[red]" in "".join([await press(shown, key) for key in KEYS])


async def press(shown: Shown, key: str) -> str:
    await shown.press(key)
    return whole(shown, 120, key)


async def test_it_is_compared_and_listed(show: Show) -> None:
    place = default_folder()
    place.mkdir(parents=True)
    for name in ("decode", "graphs"):
        writer = JournalWriter(place / f"{name}{HOSTILE.replace('/', '')}.gputui", Limits())
        writer.write([spoiled(event) for event in recorded(RECORDINGS[name])])
        writer.close()
    async with show([[scripted.header(0)]], (120, 40)) as shown:
        await shown.press("7")
        await shown.until(lambda: shown.text.count("evil]") >= 2)
        whole(shown, 120, "runs")
        await shown.press("m", "down", "m", "c")
        await shown.until(lambda: "FASTER" in shown.text or "SLOWER" in shown.text)
        for key in ("tab", "end", "enter", "escape") * 6:
            await shown.press(key)
            whole(shown, 120, key)


async def test_hosts_are_called_so() -> None:
    names = [f"{number}{HOSTILE}" for number in range(3)]
    async with shown_hosts(names, (120, 40)) as (shown, source):
        source.give(names[1], Link("lost", HOSTILE, 0))
        await shown.settle()
        assert "[red]" in whole(shown, 120, "hosts")
        for key in ("down", "enter", "1", "6", "escape", "end"):
            await shown.press(key)
            whole(shown, 120, key)
