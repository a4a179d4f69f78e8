"""The application on a scripted source, at a size, with its text to look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from gputui.state import Session
from gputui.tui.app import GputuiApp, Pace
from gputui.tui.dialogs.boxes import Frame
from gputui.tui.source import Options
from tests.idle_for_tests import pilots_wait_for_idle
from tests.tui.scripted import Batch, ScriptedSource

PATIENCE_S = 60
"""What never comes must fail a test, not hold up those after it."""


@pytest.fixture(autouse=True)
def drawn_at_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: a screen that takes long is drawn every two seconds."""
    monkeypatch.setattr("gputui.tui.app.Pace", lambda: Pace(spent=lambda: 0.0))


@pytest.fixture(autouse=True)
def no_pilot_waits_longer_than_it_must() -> Iterator[None]:
    """Nor shorter: until all that was asked for is drawn."""
    with pilots_wait_for_idle():
        yield


async def wait_until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Until a thread has brought something about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await pilot.pause(0.005)


class Shown:
    """An application that runs, and what a person would see of it."""

    def __init__(self, app: GputuiApp, pilot: Pilot[None], source: ScriptedSource) -> None:
        self.app = app
        self.pilot = pilot
        self.source = source

    async def give(self, batches: Sequence[Batch]) -> None:
        """Events, and the drawing that follows."""
        self.source.give(batches)
        await self.settle()

    async def press(self, *keys: str) -> None:
        """Keys, and the drawing that follows each."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def click(self, text: str) -> None:
        """A click where a text stands, in the view or the dialog over it."""
        y, line = next((y, line) for y, line in enumerate(self.cells()) if text in line)
        await self.pilot.click(offset=(cell_len(line[: line.index(text)]), y))
        await self.settle()

    def cells(self) -> list[str]:
        """Every line of the screen as the terminal has it; of the view alone, or of a dialog."""
        top = self.app.screen
        lines = [strip.text for strip in top._compositor.render_strips()]
        inside = self.app.main.view.region if top is self.app.main else None
        if inside is None:
            return lines
        return [line if y in inside.line_range else "" for y, line in enumerate(lines)]

    async def settle(self) -> None:
        """Until every message was handled, those included that followed from others."""
        for _ in range(2):
            await self.pilot.pause()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until a thread has brought something about."""
        try:
            await wait_until(self.pilot, condition)
        except TimeoutError:
            raise AssertionError(f"never came, on this screen:\n{self.text}") from None
        await self.settle()

    @property
    def lines(self) -> list[str]:
        """The text of the topmost screen."""
        if self.app.screen is not self.app.main:
            frame = next(iter(self.app.screen.query(Frame)), None)
            shown = self.app.screen.region if frame is None else frame.region
            inside = shown if frame is None else frame.content_region
            strips = self.app.screen._compositor.render_strips()
            of_frame = strips[shown.y : shown.bottom]
            return [strip.crop(inside.x, inside.right).text.rstrip() for strip in of_frame]
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """The same in one."""
        return "\n".join(self.lines)


Show = Callable[..., AbstractAsyncContextManager[Shown]]


@pytest.fixture
def show() -> Show:
    """Runs the application: `show(batches, size, path=..., options=...)`."""

    @asynccontextmanager
    async def run(
        batches: Sequence[Batch] = (),
        size: tuple[int, int] = (120, 40),
        *,
        path: Path | None = None,
        options: Options | None = None,
    ) -> AsyncIterator[Shown]:
        made: list[ScriptedSource] = []

        def connect(notify: Callable[[], None]) -> ScriptedSource:
            made.append(ScriptedSource(notify, path))
            return made[0]

        app = GputuiApp(connect, Session(), options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await wait_until(pilot, lambda: app.model.source is not None)
            shown = Shown(app, pilot, made[0])
            await shown.give(batches)
            yield shown
        assert app.crash is None

    return run
