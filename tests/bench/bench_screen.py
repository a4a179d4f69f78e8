"""What the screen costs: bytes to the terminal and CPU time a tick, for each view.

`python -m tests.bench.bench_screen [WIDTHxHEIGHT] [GPUS]`. Draws with Textual's real writer
into a driver that counts; a tick is one second of a busy machine with a run that decodes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.views.devices import DevicesView
from tests.tui import scripted

TICKS = 60
SETTLE = 400
DAY_S, EVERY_S = 86_400, 15
"""Charts over 24 hours are full before the first measurement."""


class CountingDriver(HeadlessDriver):
    """Pretends to be a terminal; counts what it is sent."""

    sent = 0

    @property
    def is_headless(self) -> bool:
        """Not headless, so that frames are rendered to text."""
        return False

    def write(self, data: str) -> None:
        """Count."""
        CountingDriver.sent += len(data.encode())


async def _frame(pilot: Pilot[None]) -> None:
    """Until messages are handled and the frame is out: frames come 60 times a second."""
    await pilot.pause()
    await asyncio.sleep(2 / 60)


async def main(width: int, height: int, gpus: int) -> None:
    """Measure and print."""
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    results: list[tuple[str, float, float, int]] = []
    async with app.run_test(headless=False, size=(width, height)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.01)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        source.give([[scripted.header(gpus)]])
        day = range(-DAY_S, 0, EVERY_S)
        source.give([[scripted.machine(tick, gpus)] for tick in (*day, *range(SETTLE))])
        run = scripted.decode_run(SETTLE, 30_000, cuda=True, ticks=10 * TICKS, ended=False)
        source.give(run[:2])
        batches = iter(run[2:])
        tick = SETTLE
        for keys in (
            ("1",),
            ("2",),
            ("3",),
            ("4",),
            ("5",),
            ("6",),
            ("minus",),
            ("minus",),
            ("minus", "minus", "minus"),
        ):
            await pilot.press(*keys)
            await _frame(pilot)
            sent, cpu = CountingDriver.sent, time.process_time()
            for _ in range(TICKS):
                tick += 1
                source.give([[*next(batches), scripted.machine(tick, gpus)]])
                await _frame(pilot)
            spent = (time.process_time() - cpu) / TICKS
            sent = CountingDriver.sent - sent
            before = CountingDriver.sent
            for _ in range(10):
                app.main.draw()
                await _frame(pilot)
            idle = CountingDriver.sent - before
            view = app.main.view
            zoomed = ""
            if isinstance(view, DevicesView) and "minus" in keys:
                zoomed = f" {view.look.window_ns // 10**9} s"
            results.append((app.main.current + zoomed, sent / TICKS, 1000 * spent, idle))
    print(f"{width}x{height}, {gpus} GPUs, one tick a second, truecolor")
    print(f"{'view':<14}{'bytes/tick':>12}{'CPU ms/tick':>14}{'bytes unchanged':>18}")
    for name, sent, cpu, idle in results:
        print(f"{name:<14}{sent:>12.0f}{cpu:>14.2f}{idle:>18}")


if __name__ == "__main__":
    size = sys.argv[1] if len(sys.argv) > 1 else "160x50"
    columns, _, lines = size.partition("x")
    asyncio.run(main(int(columns), int(lines), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
