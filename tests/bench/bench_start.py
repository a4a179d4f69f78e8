"""From start to the first frame, and what an idle screen costs: gputui and, if there, nvitop.

    python tests/bench/bench_start.py [--rounds 7] [--seconds 20] [--size 160x50] [--figure REGEX]

Each program runs in a pseudo-terminal of its own, in turn. The first frame is the first output
that holds text beyond terminal set-up, the first figure what matches `--figure`, as "[0-9] ?W"
does a GPU's power; bytes and CPU are counted over `--seconds` after it has settled for two. Prints
medians.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import psutil

_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[P\]_][^\x07\x1b]*(\x07|\x1b\\)|[()=>78].?)")


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, command: list[str], columns: int, lines: int) -> None:
        self.started = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._master = master
        self._seen = b""

    def read(self, seconds: float) -> bytes:
        """What it writes within `seconds`, or at once what there is."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        try:
            return os.read(self._master, 1 << 16) if ready else b""
        except OSError:
            # Linux says so when the last program has left the terminal.
            return b""

    def write(self, keys: bytes) -> None:
        """Type."""
        os.write(self._master, keys)

    def first_frame(self) -> float:
        """Seconds from the start to the first text."""
        return self._until(lambda text: len(re.findall(rb"[A-Za-z]{3,}", text)) >= 5)

    def first_figure(self, pattern: str) -> float:
        """Seconds from the start to what matches `pattern`."""
        return self._until(lambda text: re.search(pattern.encode(), text) is not None)

    def _until(self, is_there: Callable[[bytes], bool]) -> float:
        end = time.monotonic() + 20
        while not is_there(_ESCAPES.sub(b"", self._seen)):
            if time.monotonic() > end:
                return math.inf
            self._seen += self.read(1)
        return time.monotonic() - self.started

    def run_for(self, seconds: float) -> int:
        """Bytes written in `seconds`."""
        end, total = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            total += len(self.read(left))
        return total

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            self.read(0.1)
        os.close(self._master)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--size", default="160x50")
    parser.add_argument("--figure")
    options = parser.parse_args()
    columns, lines = map(int, options.size.split("x"))
    programs = {"gputui": [sys.executable, "-m", "gputui"]}
    if shutil.which("nvitop"):
        programs["nvitop"] = ["nvitop", "--interval", "1"]
    frames: dict[str, list[float]] = {name: [] for name in programs}
    figures: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, command in programs.items():
            terminal = Terminal(command, columns, lines)
            frames[name].append(terminal.first_frame())
            if options.figure:
                figures[name].append(terminal.first_figure(options.figure))
            terminal.close()
    for name, command in programs.items():
        terminal = Terminal(command, columns, lines)
        terminal.first_frame()
        terminal.run_for(2)
        process = psutil.Process(terminal.process.pid)
        before = process.cpu_times()
        written = terminal.run_for(options.seconds)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        memory = process.memory_info().rss
        terminal.close()
        print(
            f"{name:<8} first frame {statistics.median(frames[name]):.3f} s "
            f"({min(frames[name]):.3f} to {max(frames[name]):.3f})   "
            f"figure {statistics.median(figures[name] or [math.nan]):.3f} s   "
            f"{100 * used / options.seconds:.2f} % of a core   "
            f"{written / options.seconds:.0f} bytes/s   {memory / 2**20:.0f} MiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
