"""What goes to the terminal: nothing when nothing changed, little when little did."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.pilot import Pilot
from textual.strip import Strip

from gputui.model.events import MachineSample
from gputui.state import Session
from gputui.tui.app import GputuiApp, Pace
from gputui.tui.narrow_updates import Pen, SentCells, changed_runs
from tests.bench.bench_screen import CountingDriver
from tests.conftest import DATA
from tests.tui import scripted
from tests.tui.test_recorded import recorded


async def _frame(pilot: Pilot[None]) -> None:
    """Messages, then whatever frame they led to."""
    for _ in range(3):
        await pilot.pause(2 / 60)


@asynccontextmanager
async def shown(
    monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> AsyncIterator[tuple[GputuiApp, Pilot[None], scripted.ScriptedSource]]:
    """The screen on a terminal whose bytes are counted."""
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
    # What a frame repeats of the one before counts once, however late a busy machine draws it.
    monkeypatch.setattr("gputui.tui.narrow_updates._SAME_S", math.inf)
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    async with app.run_test(headless=False, size=(width, height)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.005)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        yield app, pilot, source


async def test_unchanged_figures_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch, 120, 40) as (_, pilot, source):
        source.give(scripted.gpu_session(1, quiet=20))
        for key in "123456":
            drawn = CountingDriver.sent
            await pilot.press(key)
            await _frame(pilot)
            before = CountingDriver.sent
            assert before > drawn or key == "1"
            source.give([[scripted.no_nvlink(0)]])
            await _frame(pilot)
            assert CountingDriver.sent == before, key


def _strip(*parts: tuple[str, str]) -> Strip:
    return Strip([Segment(text, Style(color=color)) for text, color in parts])


def test_only_the_changed_cells_count() -> None:
    label, blanks = ("label ", "red"), ("                    ", "white")
    old = _strip(label, ("12 %", "blue"), blanks, ("x", "white"))
    new = _strip(label, ("13 %", "blue"), blanks, ("y", "white"))
    assert changed_runs(old, new) == [(7, 8), (30, 31)]
    assert changed_runs(old, _strip(label, ("12 %", "blue"), blanks, ("x", "white"))) == []
    assert changed_runs(_strip(("123", "red")), _strip(("12", "red"), ("3", "blue"))) == [(2, 3)]
    assert changed_runs(_strip(("日 ", "red")), _strip(("日x", "red"))) == [(0, 3)]
    short = Strip([Segment("12")], 3)  # its width is wrong
    assert changed_runs(short, Strip([Segment("123")], 3)) == [(0, 3)]
    odd = "日e\u0301"  # two cells and one that takes none: as many characters as cells
    assert changed_runs(_strip((odd + "a", "red")), _strip((odd + "b", "red"))) == [(0, 4)]


def test_a_frame_knows_what_stands_where_pieces_moved() -> None:
    frame = SentCells()
    whole, left, right = (_strip((text, "red")) for text in ("abcdef", "abc", "xyz"))
    assert frame.changed(0, 3, whole) == [(0, 6)]
    assert frame.changed(0, 3, _strip(("abcdef", "red"))) == []
    assert frame.changed(3, 3, right) == [(0, 3)]
    assert frame.changed(0, 3, left) == [(0, 3)]
    assert frame.changed(3, 3, _strip(("xyw", "red"))) == [(2, 3)]
    assert frame.changed(0, 3, whole) == [(0, 6)]
    frame.forget()
    assert frame.changed(0, 3, whole) == [(0, 6)]


def test_a_pen_changes_only_what_differs_and_ends_bare() -> None:
    pen = Pen(Console(color_system="truecolor", force_terminal=True), 80)
    red, blue = Style(color="#ff0000", bgcolor="#000001"), Style(color="#0000ff", bgcolor="#000001")
    blank = Style(bgcolor="#000001")
    bold = Style(color="#0000ff", bgcolor="#000001", bold=True)
    pen.move_to(2, 4)
    words = [("a", red), (" ", blank), ("b", red), ("c", blue), ("d", bold), ("e", blue)]
    strip = Strip([Segment(text, style) for text, style in words])
    pen.write(strip, 0, strip.cell_length)
    assert pen.text() == (
        "\x1b[5;3H\x1b[38;2;255;0;0;48;2;0;0;1ma b\x1b[38;2;0;0;255mc\x1b[1md"
        "\x1b[0;38;2;0;0;255;48;2;0;0;1me\x1b[0m"
    )
    underlined = Style(underline=True, color="#ff0000")
    pen.write(Strip([Segment("u", underlined), Segment(" ", blank)]), 0, 2)
    assert pen.text().endswith("\x1b[4;38;2;255;0;0mu\x1b[0;48;2;0;0;1m \x1b[0m")
    for text in ("abcdef", "日e\u0301\u0301def"):
        pen.write(Strip([Segment(text[:3]), Segment(text[3:])]), 3, 5)
        assert pen.text().endswith("de")


async def test_a_key_costs_one_screen_and_a_slow_line_gets_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the budget of a change of view; what a line cannot take in time is never sent."""
    async with shown(monkeypatch, 120, 40) as (app, pilot, source):
        source.give(scripted.gpu_session(1, quiet=20))
        await _frame(pilot)
        for key in "2345671":
            before = CountingDriver.sent
            await pilot.press(key)
            await _frame(pilot)
            assert 0 < CountingDriver.sent - before <= 12_000, key
            before = CountingDriver.sent
            await pilot.press("down")
            await _frame(pilot)
            assert CountingDriver.sent - before <= 6_000, key
        before = CountingDriver.sent
        monkeypatch.setattr(CountingDriver, "is_behind", True, raising=False)
        for key in "2345672":
            await pilot.press(key)
            await _frame(pilot)
        assert CountingDriver.sent == before
        monkeypatch.setattr(CountingDriver, "is_behind", False)
        await _frame(pilot)
        assert app.main.current == "time"
        assert 0 < CountingDriver.sent - before <= 12_000


@pytest.mark.parametrize("key", ["colon", "question_mark", "0"])
async def test_another_size_that_comes_amid_a_batch_is_drawn_after_it(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Over the palette, a dialog and the view, though nothing else happens."""
    async with shown(monkeypatch, 80, 24) as (app, pilot, source):
        source.give(scripted.gpu_session(1, quiet=3))
        await pilot.press(key)
        await _frame(pilot)
        app.app_focus = False  # no cursor blinks
        await _frame(pilot)
        is_drawn = asyncio.Event()
        driver = app._driver
        assert driver is not None

        def write(text: str) -> None:
            if "\x1b[45;" in text:
                is_drawn.set()

        monkeypatch.setattr(driver, "write", write)
        with app.batch_update():
            await pilot.resize_terminal(100, 45)
            await _frame(pilot)
            assert not is_drawn.is_set()
        async with asyncio.timeout(20):
            await is_drawn.wait()


def test_a_screen_that_costs_too_much_is_drawn_every_two_seconds() -> None:
    now_s, cpu_s, drawn = 0.0, 0.0, 0

    def draw(cost_s: float) -> float:
        def it() -> None:
            nonlocal cpu_s, drawn
            cpu_s += cost_s
            drawn += 1

        return pace.draw(it)

    pace = Pace(lambda: now_s, lambda: cpu_s)
    for _ in range(3):
        assert draw(0.15) == 0
    assert pace.is_slow
    assert draw(0.15) == 2.0
    now_s += 1.5
    assert draw(0.15) == 0.5
    assert drawn == 3
    now_s += 0.5
    assert draw(0.02) == 0
    assert not pace.is_slow
    assert draw(0.02) == 0
    assert drawn == 5


async def test_an_idle_gpu_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one reading a second: at most 0.5 kB each, the moving on of all charts included."""
    async with shown(monkeypatch, 160, 50) as (_, pilot, source):
        source.give([[scripted.header(1)], *([idle(tick)] for tick in range(300))])
        await _frame(pilot)
        before = CountingDriver.sent
        for tick in range(300, 320):
            source.give([[idle(tick)]])
            await _frame(pilot)
        assert 0 < CountingDriver.sent - before <= 20 * 500


BUDGETS = {"1": 2500, "2": 1200, "3": 4000, "4": 1200, "5": 1200, "6": 2500, "7": 100}
"""Bytes a reading by the view's key, at 120 × 40 and one reading a second: those of the design."""


@pytest.mark.parametrize("key", BUDGETS)
async def test_a_view_of_a_run_keeps_to_its_budget(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """While a recorded training run finds its steps and goes on with them."""
    events = recorded(DATA / "faults" / "starved.gputui.gz")
    at = [n for n, event in enumerate(events) if isinstance(event, MachineSample)]
    begin, *ends = at[46:72:2]
    async with shown(monkeypatch, 120, 40) as (_, pilot, source):
        source.give([events[:begin]])
        await pilot.press(key)
        await _frame(pilot)
        before = CountingDriver.sent
        for end in ends:
            source.give([events[begin:end]])
            await _frame(pilot)
            begin = end
        mean = (CountingDriver.sent - before) / len(ends)
        assert 0 < mean <= BUDGETS[key], mean


def idle(tick: int) -> MachineSample:
    """A reading of a machine on which little moves: power, PCIe, the host's CPU."""
    sample = scripted.machine(tick, 1, busy=False)
    noise = (tick * 7919) % 97 / 97
    gpu = replace(
        sample.gpus[0],
        power_watts=76.0 + 0.8 * noise,
        memory_used_bytes=650_000_000,
        pcie_rx_bytes_per_s=3e4 * noise,
        pcie_tx_bytes_per_s=2e4 * noise,
    )
    host = replace(sample.host, cpu_percent=1 + 2 * noise, memory_used_bytes=31 << 30)
    return replace(sample, gpus=(gpu,), host=host)
