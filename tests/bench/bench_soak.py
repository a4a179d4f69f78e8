"""Whether the screen's memory stays flat: a hundred thousand ticks through the app.

`python -m tests.bench.bench_soak [TICKS]`. A run that decodes, then the machine idle, again and
again, on two GPUs; every view is shown in turn, a frame is drawn every 100 ticks. Prints resident
memory by tenths: after the histories are full, the second, it may not grow.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

import psutil

from gputui.state import Session
from gputui.tui.app import GputuiApp
from tests.bench.bench_screen import CountingDriver
from tests.tui import scripted

GPUS = 2
RUN_TICKS = 100
EVERY = 100


async def main(ticks: int) -> int:
    """Measure and print; 1 if memory grows."""
    app = GputuiApp(scripted.ScriptedSource, Session(), driver_class=CountingDriver)
    process = psutil.Process()
    began = time.process_time()
    seen: list[float] = []
    async with app.run_test(headless=False, size=(120, 40)) as pilot:
        while app.model.source is None:
            await pilot.pause(0.01)
        source = app.model.source
        assert isinstance(source, scripted.ScriptedSource)
        source.give([[scripted.header(GPUS)]])
        keys = iter("1234567" * ticks)
        batches: Iterator[scripted.Batch] = iter(())
        for tick in range(ticks):
            if tick % (2 * RUN_TICKS) == 0:
                run = scripted.decode_run(
                    tick, 30 * RUN_TICKS, cuda=True, ticks=RUN_TICKS, ended=True
                )
                batches = iter(run)
            batch = [*next(batches, []), scripted.machine(tick, GPUS)]
            source.give([batch])
            if tick % EVERY == 0:
                if tick % (5 * EVERY) == 0:
                    await pilot.press(next(keys))
                await pilot.pause()
            if (tick + 1) % (ticks // 10) == 0:
                seen.append(process.memory_info().rss / 2**20)
                print(f"{tick + 1:>8} ticks  {seen[-1]:7.1f} MiB", file=sys.__stdout__, flush=True)
    spent = 1000 * (time.process_time() - began) / ticks
    grown = seen[-1] - seen[2]
    print(f"{spent:.2f} ms of CPU a tick; {grown:+.1f} MiB in the last seven tenths")
    return int(grown > 0.05 * seen[2])


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)))
