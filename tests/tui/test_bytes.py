"""What goes to the terminal: nothing when nothing changed, little when little did."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.model.events import MachineSample
from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.widgets.canvas import changed_runs
from tests.bench.bench_screen import CountingDriver
from tests.tui import scripted


async def _frame(pilot: Pilot[None]) -> None:
    """Messages, then whatever frame they led to."""
    for _ in range(3):
        await pilot.pause(2 / 60)


@pytest.mark.parametrize("key", ["1", "2", "3", "4", "5", "6"])
async def test_unchanged_figures_write_nothing(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.005)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        source.give(scripted.gpu_session(1, quiet=20))
        await pilot.press(key)
        await _frame(pilot)
        before = CountingDriver.sent
        assert before > 0
        source.give([[scripted.no_nvlink(0)]])
        await _frame(pilot)
        assert CountingDriver.sent == before


def test_only_the_changed_cells_count() -> None:
    old = (("label ", "label"), ("12 %", "value"), ("                    x", "text"))
    new = (("label ", "label"), ("13 %", "value"), ("                    y", "text"))
    assert changed_runs(old, new) == [(7, 8), (30, 31)]
    assert changed_runs(old, old) == []
    assert changed_runs((("12", "a"), ("3", "b")), (("123", "a"),)) == [(2, 3)]
    assert changed_runs((("日 ", "a"),), (("日x", "a"),)) == [(0, 3)]


async def test_an_idle_gpu_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one reading a second: at most 0.5 kB each, the moving on of all charts included."""
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    async with app.run_test(headless=False, size=(160, 50)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.005)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        source.give([[scripted.header(1)], *([idle(tick)] for tick in range(300))])
        await _frame(pilot)
        before = CountingDriver.sent
        for tick in range(300, 320):
            source.give([[idle(tick)]])
            await _frame(pilot)
        assert 0 < CountingDriver.sent - before <= 20 * 500


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
