"""A process that lives long, in short: millions of ranges, and who grows meanwhile.

    python tests/bench/bench_long.py [--ranges 10000000] [--rate 150000] [--record FILE]

Runs a C program that makes steps of three ranges each, so many steps a second, under
`gputui --record`, and prints the memory of both and the size of the recording as it goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SOURCE = Path(__file__).parents[1] / "inject" / "programs" / "nvtx_program.c"


def main() -> int:
    """Run it and print a line at each tenth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=150_000, help="steps a second")
    options = parser.parse_args()
    steps = options.ranges // 3
    with tempfile.TemporaryDirectory() as folder:
        program, recording = Path(folder, "program"), Path(folder, "long.gputui")
        flags = ["-O1", "-w", str(SOURCE), "-o", str(program), "-ldl", "-lpthread"]
        subprocess.run(["cc", *flags], check=True)
        command = [sys.executable, "-m", "gputui", "--record", "-o", str(recording), "--"]
        monitor = subprocess.Popen(
            [*command, str(program), "paced", str(steps)],
            env=os.environ | {"GPUTUI_TEST_RATE": str(options.rate)},
        )
        about = psutil.Process(monitor.pid)
        began, tenth = time.monotonic(), steps / options.rate / 10
        print(f"{'seconds':>8}{'gputui MiB':>12}{'program MiB':>12}{'recording KiB':>15}")
        while monitor.poll() is None:
            time.sleep(tenth)
            try:
                own = about.memory_info().rss / 2**20
                below = [child for child in about.children(True) if child.name() == "program"]
                theirs = sum(
                    child.memory_info().rss - child.memory_info().shared for child in below
                )
            except psutil.Error:
                continue
            size = recording.stat().st_size / 1024 if recording.exists() else 0
            seconds = time.monotonic() - began
            print(f"{seconds:>8.1f}{own:>12.1f}{theirs / 2**20:>12.2f}{size:>15.1f}", flush=True)
        return monitor.returncode


if __name__ == "__main__":
    sys.exit(main())
