"""Replays: a recorded session of a real H200, moved through by keys."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import ProgressBar

from gputui.model.events import Header, RunMetrics, RunProgress
from gputui.model.units import clock_text
from gputui.playback.opening import open_recording
from gputui.playback.player import Playback
from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.model import Model
from gputui.tui.shell.keys import REPLAY_KEYS
from gputui.tui.shell.main import MainScreen
from gputui.tui.widgets.line_view import LineView
from gputui.tui.widgets.run import no_run
from tests.conftest import DATA
from tests.imports.nsys_for_tests import Export
from tests.playback.test_playback import HeldBack
from tests.tui import scripted
from tests.tui.conftest import Show, wait_until
from tests.tui.test_recorded import INFERENCE, MEDIUM, recorded


def since_beginning() -> list[float]:
    """When each event of the demo is come to, in seconds: in the order of the file."""
    begun_ns = recorded(MEDIUM)[0].time_ns
    times = accumulate((event.time_ns for event in recorded(MEDIUM)), max)
    return [(time_ns - begun_ns) / 1e9 for time_ns in times]


def place(seconds: float) -> float:
    """Where one is who went to a time of the demo: at the newest event until then."""
    return max(time_s for time_s in since_beginning() if time_s <= seconds)


LENGTH_S = since_beginning()[-1]
END = clock_text(LENGTH_S)

DECODING_S = next(
    round(time_s + 0.01, 2)
    for time_s, event in zip(since_beginning(), recorded(MEDIUM), strict=True)
    if isinstance(event, RunProgress) and event.total and event.done >= event.total / 2
)
"""A time that can be typed, when the demo has decoded half its tokens."""


CHARTED = re.compile(r" *([\d.]+ \S+┤|│|0└)")
"""A line of a chart."""


class Replay:
    """A recording, halted at its beginning, and what a person would see of it."""

    def __init__(self, app: GputuiApp, pilot: Pilot[None], playback: Playback) -> None:
        self.app = app
        self.pilot = pilot
        self.playback = playback

    async def press(self, *keys: str) -> None:
        """Keys, one after another."""
        for key in keys:
            await self.pilot.press(key)

    async def go(self, text: str) -> None:
        """To a time that is typed."""
        await self.press("J", *text, "enter")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until the replay has done what was asked."""
        await wait_until(self.pilot, condition)
        await self.pilot.pause()

    @property
    def text(self) -> str:
        """What is on the screen."""
        if self.app.screen is not self.app.main:
            return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())
        views = [view for view in self.app.screen.query(LineView) if view.is_on_screen]
        return "\n".join([line for view in views for line in view.drawn] + [self.bottom])

    @property
    def top(self) -> str:
        """The top bar."""
        return self.app.main.top.drawn[0]

    @property
    def bottom(self) -> str:
        """What the bottom line says."""
        return str(self.app.main.message.content)

    @property
    def stage(self) -> str | None:
        """What the run reports to be doing."""
        run = self.app.model.session.run
        return run.progress.stage if run and run.progress else None


@asynccontextmanager
async def replayed(size: tuple[int, int] = (120, 40), path: Path = MEDIUM) -> AsyncIterator[Replay]:
    made: list[Playback] = []

    def connect(notify: Callable[[], None]) -> Playback:
        playback = Playback.open(str(path), notify)
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
        await replay.until(lambda: f" {END}/{END} " in replay.top)
        assert model.session.run is not None
        assert "paused" in replay.top
        assert "these are the last readings; in it SM active " in replay.text
        await replay.until(lambda: replay.playback.has_ended)
        await replay.press("right_square_bracket")
        await replay.until(lambda: "this is the end of the recording" in replay.text)
        await replay.press("left_square_bracket")
        await replay.until(lambda: f"{END}/" not in replay.top)
        before = replay.playback.position_s
        await replay.press("right_square_bracket")
        await replay.until(lambda: replay.playback.position_s > before)
        await replay.press("left_curly_bracket")
        await replay.until(lambda: f"0:00.0/{END}" in replay.top)
        assert model.session.run is None or not model.session.run.ended
        await replay.press("left_curly_bracket")
        await replay.until(lambda: "this is the beginning of the recording" in replay.text)


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
        await replay.press("4")
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
        assert "paused" in replay.top
        await replay.press("greater_than_sign")
        assert "×2" in replay.top


async def test_a_time_is_typed_and_gone_to() -> None:
    async with replayed() as replay:
        await replay.press("J")
        await replay.until(lambda: "Go to a time" in replay.text)
        await replay.press(*"nonsense", "enter")
        assert "give a time like 90" in replay.text
        await replay.press("ctrl+u", *f"{DECODING_S:.2f}", "enter")
        await replay.until(lambda: replay.playback.position_s == place(DECODING_S))
        await replay.press("J", "escape")
        await replay.go("50%")
        await replay.until(lambda: replay.playback.position_s == place(LENGTH_S / 2))
        assert f"at {clock_text(LENGTH_S / 2)}" in replay.text
        await replay.go("+99h")
        await replay.until(lambda: "run done" in replay.top)
        await replay.go("0")
        await replay.until(lambda: f"0:00.0/{END}" in replay.top)


async def test_what_is_jumped_to_is_said() -> None:
    async with replayed() as replay:
        moments = replay.playback.moments
        first = next(moment for moment in moments if moment.kind == "phase")
        await replay.press("n")
        await replay.until(lambda: replay.playback.position_s > 0)
        assert first.text in replay.bottom
        await replay.go("100%")
        await replay.until(lambda: "run done" in replay.top)
        offered = {one.key for one in replay.app.main.bottom.bindings()}
        assert "?" in offered or "question_mark" in offered
        assert not {"n", "N"} & offered
        await replay.press("n")
        assert "no later change of phase" in replay.bottom
        await replay.press("N")
        assert "no later start, exit, alert or trouble" in replay.bottom


async def test_the_speed_has_its_bounds() -> None:
    async with replayed() as replay:
        await replay.press(*["greater_than_sign"] * 9)
        assert "×64" in replay.top
        await replay.press(*["less_than_sign"] * 12)
        assert "×0.25" in replay.top


@pytest.mark.parametrize("key", ["1", "3", "5", "6"])
async def test_a_jump_back_is_seen_in_every_view(key: str) -> None:
    """Also where the view keeps what it worked out: the run's clock may say the same again."""
    async with replayed((120, 60)) as replay:
        await replay.press(key)
        await replay.go("100%")
        await replay.until(lambda: "run done" in replay.top)
        late = list(replay.app.main.view.drawn)
        await replay.go(f"{DECODING_S:.2f}")
        await replay.until(lambda: replay.playback.position_s == place(DECODING_S))
        middle = list(replay.app.main.view.drawn)
        assert middle != late
        await replay.go("100%")
        await replay.until(lambda: "run done" in replay.top)
        assert replay.app.main.view.drawn == late
        await replay.go(f"{DECODING_S:.2f}")
        await replay.until(lambda: replay.playback.position_s == place(DECODING_S))
        assert replay.app.main.view.drawn == middle


async def test_events_of_one_moment_are_seen_too(show: Show) -> None:
    """A run's clock stands still while more is told of the same moment."""
    batches = scripted.gpu_session(1, quiet=3)
    async with show(batches[:-1], (120, 60)) as shown:
        await shown.press("1", "1")
        shown.app.main.view.show_item("metrics")
        assert "─ Metrics" in shown.text
        assert "0.5 furlongs" not in shown.text
        run = shown.app.model.session.run
        assert run is not None
        told = {"distance": "0.5 furlongs"}
        await shown.give([[RunMetrics(time_ns=run.updated_ns, run=1, metrics=told)]])
        assert "0.5 furlongs" in shown.text


@pytest.mark.parametrize(
    ("size", "until_s"),
    [((80, 24), DECODING_S), ((80, 24), math.inf), ((120, 40), math.inf), ((200, 50), DECODING_S)],
    ids=str,
)
async def test_live_and_replayed_are_the_same_picture(
    show: Show, size: tuple[int, int], until_s: float
) -> None:
    """In every view of a run, with all its tables, while it decodes and after its end."""
    keys = ("4", "5", "right", "right", "6", "6", "right", "right", "right", "right", "1", "1", "l")
    live: list[list[str]] = []
    header, *events = recorded(MEDIUM)
    assert isinstance(header, Header)
    async with show([[header]], size) as shown:
        shown.source.interval_s = header.interval_s
        last_ns = header.time_ns + until_s * 1e9
        await shown.give([[event] for event in events if event.time_ns <= last_ns])
        for key in keys:
            await shown.press(key)
            live.append(list(shown.app.main.view.drawn))
    async with replayed(size) as replay:
        if until_s == math.inf:
            await replay.go("100%")
            await replay.until(lambda: bool(replay.app.model.run and replay.app.model.run.ended))
        else:
            await replay.go(f"{until_s:.2f}")
            await replay.until(lambda: replay.playback.position_s == place(until_s))
        for key, before in zip(keys, live, strict=True):
            await replay.press(key)
            await replay.until(lambda: True)
            # Time axes end at the place in the recording, which is not now; a phase that began just
            # before it has no cell there.
            end = clock_text(replay.playback.position_s).partition(".")[0]
            drawn = [line.replace(f"{end:─>4}", "─now") for line in replay.app.main.view.drawn]
            lines = [line.replace("┬now", "─now") for line in before]
            assert len(drawn) == len(lines)
            for now, was in zip(drawn, lines, strict=True):
                # A recording's charts are as wide as it is long; a live one grows into its axis.
                assert now == was or (CHARTED.match(now) and CHARTED.match(was))


async def test_a_replay_is_left_for_another_recording_and_found_as_it_was() -> None:
    async with replayed() as replay:
        await replay.go(f"{DECODING_S:.2f}")
        await replay.until(lambda: replay.playback.position_s == place(DECODING_S))
        before = list(replay.app.main.view.drawn)
        replay.app.visit(INFERENCE, follow=False)
        await replay.until(lambda: replay.app.model.visited == "h200-inference")
        assert replay.app.model.source is not replay.playback
        await replay.press("b")
        await replay.until(lambda: replay.app.model.source is replay.playback)
        assert replay.playback.is_paused
        assert replay.playback.position_s == place(DECODING_S)
        await replay.until(lambda: replay.app.main.view.drawn == before)


async def test_a_run_on_an_h200_is_moved_through() -> None:
    async with replayed(path=INFERENCE) as replay:
        await replay.press("n")
        await replay.until(lambda: replay.stage is not None)
        await replay.go("100%")
        await replay.until(lambda: "run done" in replay.top)
        await replay.press("4")
        for part in ("✓ done in 4.45 s", "64 of 64 tokens", "▾ decode"):
            assert part in replay.text
        await replay.go("0")
        await replay.until(lambda: "run done" not in replay.top)


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
        await replay.until(lambda: len(_listed(replay.app)) > len(REPLAY_KEYS))
        listed = _listed(replay.app)
        for key in REPLAY_KEYS:
            assert f"{key.shown:<12} {key.help}  Replay" in listed
    async with show([[scripted.header(1)]], (200, 70)) as shown:
        await shown.press("n", "N", "left_curly_bracket", "h")
        await shown.until(lambda: len(_listed(shown.app)) > len(REPLAY_KEYS))
        assert not any(line.endswith("Replay") for line in _listed(shown.app))


def _listed(app: GputuiApp) -> list[str]:
    """The keys in the help."""
    found = app.screen.query(CommandList)
    return [str(option.prompt) for one in found for option in one.options]


async def test_a_run_of_which_nobody_knows_how_it_ended_is_not_called_failed(
    show: Show, tmp_path: Path
) -> None:
    export = Export()
    export.range("step", 0, 1_000_000_000)
    report = open_recording(str(export.write(tmp_path / "r.sqlite")))
    async with show([list(report)], (120, 40)) as shown:
        await shown.press("4")
        assert "■ ended after 1.00 s" in shown.text
        assert "run ended" in shown.app.main.top.drawn[0]
        assert "FAILED" not in shown.text


def damaged(path: Path) -> Path:
    """The recording of a run, in the midst of which a line was destroyed."""
    lines = INFERENCE.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:58], b"garbage", *lines[59:]]))
    return path


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_damaged_recording_is_said_to_be(tmp_path: Path, size: tuple[int, int]) -> None:
    async with replayed(size, damaged(tmp_path / "mid.gputui")) as replay:
        await replay.until(lambda: "line 59 is damaged" in replay.text)
        assert str(tmp_path) not in replay.text
        await replay.press("4", "J", *"50%", "enter")
        await replay.until(lambda: "running" in replay.text)
        await replay.press("J", *"100%", "enter")
        await replay.until(lambda: "no end was recorded" in replay.text)
        assert "running" not in replay.text
        assert "mid.gputui: line 59 is damaged" in replay.text
        await replay.press("1", "1", "enter")
        await replay.until(lambda: "state" in replay.text)
        assert "no end was recorded" in replay.text
        assert "line 59 is damaged" in replay.text


async def test_damage_before_a_run_is_said_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    path.write_bytes(INFERENCE.read_bytes().split(b"\n")[0] + b"\ngarbage\n")
    async with replayed(path=path) as replay:
        await replay.press("4")
        await replay.until(lambda: "x.gputui: line 2 is damaged" in replay.text)
        await replay.press("4")
        assert "No run" in replay.text
        assert "x.gputui: line 2 is damaged" in replay.text


def test_before_a_recording_is_read_nobody_says_that_it_holds_no_run() -> None:
    title, _, text = no_run(Model(Session()), 80, 24, "x")[-3:]
    assert (title[-1][0], text[-1][0]) == ("Opening", "reading what there is to show…")


async def test_a_recording_of_ranks_without_readings_opens_on_its_ranks() -> None:
    """Nothing in it may be called missing from this machine, or the program idle."""
    async with replayed(path=DATA / "ranks" / "late_host.gputui.gz") as replay:
        await replay.go("100%")
        await replay.until(lambda: "run done" in replay.top)
        await replay.press("1", "6")
        assert "RANK 2 IS LATE" in replay.text
        await replay.press("6")
        assert "This recording holds none of its GPUs and host." in replay.text
        assert "--demo" not in replay.text
        await replay.press("6")
        assert "No kernels were kept in this recording" in replay.text
        await replay.press("5")
        assert "No kernels were kept in this recording" in replay.text


async def test_a_whole_recording_has_nothing_wrong_with_it() -> None:
    async with replayed() as replay:
        await replay.press("J", *"100%", "enter")
        await replay.until(lambda: "run done" in replay.top)
        assert replay.app.model.remark == ""


async def test_how_much_of_a_file_is_read_is_seen_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.playback.line_index._FEW_BYTES", 1)
    monkeypatch.setattr("gputui.playback.player.LOOK_S", 0.0)
    export = Export()
    for i in range(100):
        export.range("step", 100_000_000 * i, 100_000_000 * i + 90_000_000)
    report = HeldBack(export.write(tmp_path / "r.sqlite"))
    app = GputuiApp(lambda notify: Playback(report, notify, start_s=1e9), Session())
    async with app.run_test(size=(120, 40)) as pilot:
        bars = app.main.query
        await wait_until(pilot, lambda: any(one.percentage for one in bars(ProgressBar)))
        assert "reading, Esc stops" in app.main.top.drawn[0]
        report.go_on.set()
        await wait_until(pilot, lambda: not bars(ProgressBar))
        assert app.main.view.size.height == 38
    assert app.close_source()
