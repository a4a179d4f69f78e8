"""Writers that are killed while they write, and what is left of their files.

    python tests/killed_writers.py FOLDER SUFFIX TIMES SEED [ROTATE_BYTES]

Each writer is a child of this process that writes ticks and says on a pipe when each is committed;
it is killed by SIGKILL at some moment. Prints "ok TIMES" when every file gave every committed tick
back, and the same session with its sums and without, otherwise what was lost.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from pathlib import Path

from gputui.base import JournalError
from gputui.model.events import AnyEvent, CaptureDelta, Distribution, KernelDelta, RunOutput
from gputui.state import Session
from gputui.store.journal import Limits
from gputui.store.journal.reader import open_journal, recording_files
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, attached, header, run_started
from tests.sessions_for_tests import contents

MOST_TICKS = 12


CAPTURE = 0
"""The size of a tick of captures instead of lines: of every few there is a sum."""

BEGINNING: list[AnyEvent] = [header(), run_started(), attached()]


def tick(number: int, size: int) -> AnyEvent:
    time_ns = at(2 + number)
    if size == CAPTURE:
        time = Distribution(200, 5000 + number, 1.5, 1, 400, tuple(range(1, 30)))
        kernels = tuple(
            KernelDelta(process=1, range=0, kernel=kernel, device=0, time=time)
            for kernel in range(300)
        )
        return CaptureDelta(time_ns=time_ns, process=1, kernels=kernels, records=number)
    lines = tuple(f"{number} {i} {number * i * 7919 % 65537:x}" for i in range(size))
    return RunOutput(time_ns=time_ns, run=1, stream="stdout", lines=lines)


def write_until_killed(path: Path, limits: Limits, size: int, report: int) -> None:
    writer = JournalWriter(path, limits)
    writer.write(BEGINNING)
    os.write(report, b".")
    for number in range(10_000):
        writer.write([tick(number, size)])
        os.write(report, b".")


def one_kill(path: Path, limits: Limits, dice: random.Random) -> str | None:
    wanted, size = dice.randrange(1, MOST_TICKS), dice.choice((CAPTURE, 1, 50, 5000))
    told, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        try:
            write_until_killed(path, limits, size, report)
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
        events = list(open_journal(path))
    except JournalError as error:
        return str(error)
    expected = [*BEGINNING, *(tick(number, size) for number in range(committed - 1))]
    if events[: len(expected)] != expected:
        return f"{path}: {committed} ticks were committed, {len(events) - 2} can be read"
    whole, summed = Session(), Session()
    whole.apply(events)
    summed.apply(open_journal(path, summed=True))
    if near(whole) != near(summed):
        return f"{path}: with its sums it is another session"
    for file in recording_files(path):
        file.unlink()
    return None


def near(session: Session) -> str:
    """All it holds, squares of differences to nine digits: their order of adding up differs."""
    return re.sub(
        r"squares=[-+.e0-9]+",
        lambda found: f"squares={float(found[0].removeprefix('squares=')):.9g}",
        repr(contents(session)),
    )


def main(folder: str, suffix: str, times: str, seed: str, rotate_bytes: str = "") -> int:
    limits = Limits(rotate_bytes=int(rotate_bytes)) if rotate_bytes else Limits()
    dice = random.Random(int(seed))
    for number in range(int(times)):
        lost = one_kill(Path(folder, f"{number}{suffix}"), limits, dice)
        if lost is not None:
            print(f"seed {seed}, kill {number}: {lost}")
            return 1
    print(f"ok {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
