"""What many hosts cost here: CPU time, memory, bytes over the links and to the terminal.

`python -m tests.bench.bench_hosts [HOSTS] [GPUS] [WIDTHxHEIGHT]`. Each far end is a process of its
own that replays a stream, one sample a second, as gputui there would write it (gzip). The screen
draws with Textual's real writer into a driver that counts. Then some histories are filled.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
import zlib
from pathlib import Path

os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

import msgspec
import psutil

from gputui.collect.hosts import FarOptions, command_target, distinct
from gputui.collect.hosts.fleet import Fleet
from gputui.state import Session
from gputui.state.history import HISTORY_SAMPLES
from gputui.tui.app import GputuiApp
from gputui.tui.source import Options
from tests.bench.bench_screen import CountingDriver
from tests.tui import scripted

TICKS = 40
SETTLE_S = 5.0
FILLED = 2
"""Hosts whose histories are filled: 64 would take minutes."""
STATUS_EVERY = 5

_REPLAYER = """\
import os, sys, time, zlib
path, token = sys.argv[1], sys.argv[sys.argv.index("--token") + 1]
os.write(1, b'gputui %s {"schema":3,"version":"bench"}\\n' % token.encode())
packer = zlib.compressobj(6, zlib.DEFLATED, 31)
for tick in open(path, "rb").read().split(b"\\n\\n"):
    data = packer.compress(tick + b"\\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    os.write(1, data)
    time.sleep(1)
"""


def ticks(gpus: int) -> list[bytes]:
    """The lines of each tick: the header and a sample first, then a sample, seldom a status."""
    found = []
    for tick in range(3 * TICKS):
        events = [scripted.header(gpus)] if not tick else []
        events = [*events, scripted.machine(tick, gpus)]
        if tick % STATUS_EVERY == 0:
            events += [scripted.status(gpu, events[-1].time_ns) for gpu in range(gpus)]
        found.append(b"\n".join(map(msgspec.json.encode, events)))
    return found


def packed_bytes(lines: list[bytes]) -> float:
    """A second of one link, compressed."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    sizes = [len(packer.compress(one + b"\n") + packer.flush(zlib.Z_SYNC_FLUSH)) for one in lines]
    return sum(sizes[1:]) / len(sizes[1:])


async def main(hosts: int, gpus: int, width: int, height: int) -> None:
    """Measure and print."""
    me = psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        lines = ticks(gpus)
        (Path(folder) / "stream").write_bytes(b"\n\n".join(lines))
        (Path(folder) / "replayer.py").write_text(_REPLAYER)
        command = [sys.executable, "-SE", f"{folder}/replayer.py", f"{folder}/stream"]
        named = [shlex.join([*command, f"node-{number:02}"]) for number in range(hosts)]
        before = me.memory_info().rss
        fleet = Fleet(distinct(map(command_target, named)), FarOptions(()))
        began_s = time.monotonic()
        fleet.connect(60)
        print(f"{hosts} hosts × {gpus} GPUs, connected in {time.monotonic() - began_s:.1f} s")

        def connect(notify: object) -> Fleet:
            fleet.on_news(notify)  # type: ignore[arg-type]
            return fleet

        told: list[str] = []  # while the application runs, it takes what is printed
        options = Options(shows_hosts=True)
        app = GputuiApp(connect, Session(), options, driver_class=CountingDriver)
        async with app.run_test(headless=False, size=(width, height)) as pilot:
            await asyncio.sleep(SETTLE_S)
            for view, keys in (("all hosts", ()), ("one host's GPUs", ("enter",)), ("runs", "7")):
                await pilot.press(*keys)
                await pilot.pause()
                sent, cpu, wall = CountingDriver.sent, time.process_time(), time.monotonic()
                await asyncio.sleep(TICKS / 2)
                wall = time.monotonic() - wall
                told.append(
                    f"{view:<16} {1e3 * (time.process_time() - cpu) / wall:6.1f} ms of CPU/s  "
                    f"{(CountingDriver.sent - sent) / wall / 1e3:6.2f} kB/s to the terminal"
                )
            each = packed_bytes(lines)
            told.append(
                f"links            {each / 1e3:.2f} kB/s each, {hosts * each / 1e3:.0f} in all"
            )
            rss = me.memory_info().rss
            told.append(
                f"memory           {rss >> 20} MiB, {(rss - before) >> 20} of it for the hosts"
            )
            watched = app.model.hosts
            assert watched is not None
            samples = [scripted.machine(tick, gpus) for tick in range(HISTORY_SAMPLES)]
            rss = me.memory_info().rss
            cpu = time.process_time()
            some = list(watched.values())[:FILLED]
            for host in some:
                # Decoded anew for each: as from a link, no two share an object.
                host.session.apply(map(_anew, samples))
            spent = (time.process_time() - cpu) / len(some) / HISTORY_SAMPLES
            each = (me.memory_info().rss - rss) / len(some)
            told.append(
                f"full histories    {each / 2**20:.1f} MiB a host, {hosts * each / 2**20:.0f} in "
                f"all; {1e6 * spent:.0f} µs to decode and fold a host's sample"
            )
        print("\n".join(told))
        fleet.close()


def _anew(sample: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(sample), type=type(sample))


if __name__ == "__main__":
    HOSTS, GPUS = (int(word) for word in (*sys.argv[1:3], "64", "8")[:2])
    SIZE = sys.argv[3] if len(sys.argv) > 3 else "160x50"
    asyncio.run(main(HOSTS, GPUS, *map(int, SIZE.split("x"))))
