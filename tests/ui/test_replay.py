"""Replays: a recorded session of a real H200, moved through by keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from gputui.playback import Playback
from gputui.session import Session
from gputui.ui.app import GputuiApp
from gputui.ui.keys import REPLAY_KEYS
from gputui.ui.screens.main import MainScreen
from gputui.ui.widgets.lines import LineView
from tests.ui import scripted
from tests.ui.conftest import Show
from tests.ui.test_recorded import DEMO


class Replay:
    """The demo, halted at its beginning, and what a person would see of it."""

    def __init__(self, app: GputuiApp, pilot: Pilot[None], playback: Playback) -> None:
        self.app = app
        self.pilot = pilot
        self.playback = playback

    async def press(self, *keys: str) -> None:
        """Keys, one after another."""
        for key in keys:
            await self.pilot.press(key)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until the replay has done what was asked."""
        while not condition():
            await self.pilot.pause(0.005)
        await self.pilot.pause()

    @property
    def text(self) -> str:
        """What is on the screen."""
        views = [view for view in self.app.screen.query(LineView) if view.is_on_screen]
        return "\n".join(line for view in views for line in view.drawn)

    @property
    def top(self) -> str:
        """The top bar."""
        return self.app.main.top.drawn[0]

    @property
    def stage(self) -> str | None:
        """What the run reports to be doing."""
        run = self.app.model.session.run
        return run.progress.stage if run and run.progress else None


@asynccontextmanager
async def replayed(size: tuple[int, int] = (120, 40)) -> AsyncIterator[Replay]:
    made: list[Playback] = []

    def connect(notify: Callable[[], None]) -> Playback:
        playback = Playback.open(str(DEMO), notify)
        playback.is_paused = True
        made.append(playback)
        return playback

    app = GputuiApp(connect, Session())
    async with app.run_test(size=size) as pilot:
        while app.model.source is None:
            await pilot.pause(0.005)
        replay = Replay(app, pilot, made[0])
        await replay.until(lambda: replay.playback.is_read)
        yield replay
    assert app.close_source()
    assert app.crash is None


async def test_keys_move_through_a_recording_and_back() -> None:
    async with replayed() as replay:
        model = replay.app.model
        await replay.press("right_curly_bracket")
        await replay.until(lambda: "0:05.0/0:05.0 ×1" in replay.top)
        assert model.session.run is not None
        assert "PAUSED" in replay.top
        await replay.press("left_square_bracket")
        await replay.until(lambda: "0:05.0/" not in replay.top)
        before = replay.playback.position_s
        await replay.press("right_square_bracket")
        await replay.until(lambda: replay.playback.position_s > before)
        await replay.press("left_curly_bracket")
        await replay.until(lambda: "0:00.0/0:05.0" in replay.top)
        assert model.session.run is None or not model.session.run.ended


async def test_the_next_phase_and_the_next_event_are_a_key_away() -> None:
    async with replayed() as replay:
        await replay.press("N")
        await replay.until(lambda: replay.app.model.session.run is not None)
        seen = {replay.stage}
        for _ in range(3):
            before = replay.playback.position_s
            await replay.press("n")
            await replay.until(lambda before=before: replay.playback.position_s > before)
            seen.add(replay.stage)
        assert len(seen) > 1
        await replay.press("2")
        await replay.pilot.pause()
        await replay.press("N")
        await replay.until(lambda: "run done" in replay.top)


async def test_space_halts_time_and_lets_it_go_on() -> None:
    async with replayed() as replay:
        await replay.press("space")
        assert not replay.playback.is_paused
        await replay.until(lambda: bool(replay.app.model.session.gpus))
        await replay.press("space")
        assert replay.playback.is_paused
        assert "PAUSED" in replay.top
        await replay.press("plus")
        assert "×2" in replay.top


async def test_only_a_replay_lists_its_keys(show: Show) -> None:
    for key in REPLAY_KEYS:
        name = key.action.partition("(")[0]
        assert callable(getattr(MainScreen, f"action_{name}", None)), key.action
    async with replayed((200, 70)) as replay:
        active = replay.app.screen.active_bindings
        for key in REPLAY_KEYS:
            for name in key.keys:
                assert active[name].binding.action == key.action
        await replay.press("h")
        await replay.until(lambda: "Replay" in replay.text)
        for key in REPLAY_KEYS:
            assert key.help in replay.text
    async with show([[scripted.header(1)]], (200, 70)) as shown:
        await shown.press("n", "N", "left_curly_bracket", "h")
        assert "to the next change of phase" not in shown.text
