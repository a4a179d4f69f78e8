"""Writers that are killed while they write, and what is left of their files.

    python tests/killed_writers.py FOLDER SUFFIX TIMES SEED

Each writer is a child of this process that writes ticks and says on a pipe when each is committed;
it is killed by SIGKILL at some moment. Prints "ok TIMES" when every file gave every committed tick
back, otherwise what was lost.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from gputui.events import RunOutput
from gputui.journal import JournalError, JournalReader, JournalWriter
from tests.events_for_tests import at, header, run_started

MOST_TICKS = 12


def tick(number: int, size: int) -> RunOutput:
    lines = tuple(f"{number} {i} {number * i * 7919 % 65537:x}" for i in range(size))
    return RunOutput(time_ns=at(2 + number), run=1, stream="stdout", lines=lines)


def write_until_killed(path: Path, size: int, report: int) -> None:
    writer = JournalWriter(path)
    writer.write([header(), run_started()])
    os.write(report, b".")
    for number in range(10_000):
        writer.write([tick(number, size)])
        os.write(report, b".")


def one_kill(path: Path, dice: random.Random) -> str | None:
    wanted, size = dice.randrange(1, MOST_TICKS), dice.choice((1, 50, 5000))
    told, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        try:
            write_until_killed(path, size, report)
        finally:
            os._exit(1)
    os.close(report)
    committed = 0
    while committed < wanted:
        committed += len(os.read(told, wanted - committed))
    for _ in range(dice.randrange(0, 4000)):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(told, 65536):
        committed += len(more)
    os.close(told)
    try:
        events = list(JournalReader.open(path))
    except JournalError as error:
        return str(error)
    expected = [header(), run_started(), *(tick(number, size) for number in range(committed - 1))]
    if events[: len(expected)] != expected:
        return f"{path}: {committed} ticks were committed, {len(events) - 1} can be read"
    path.unlink()
    return None


def main(folder: str, suffix: str, times: str, seed: str) -> int:
    dice = random.Random(int(seed))
    for number in range(int(times)):
        lost = one_kill(Path(folder, f"{number}{suffix}"), dice)
        if lost is not None:
            print(f"seed {seed}, kill {number}: {lost}")
            return 1
    print(f"ok {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
