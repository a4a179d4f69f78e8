"""What is lost of a program's ranges where it makes them as fast as it can.

    python tests/bench/bench_burst.py [--rounds 3] [--ranges 1000000 10000000 20000000]

Runs a C program that does nothing but push and pop, under `gputui --record`, and prints how many
records a second it wrote, how many of them were dropped, how long gputui worked on after it, and
the most memory that gputui took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "inject" / "programs" / "nvtx_program.c"


def burst(program: Path, folder: Path, ranges: int) -> str:
    """One run, as a line of the table."""
    recording = folder / "burst.gputui"
    recording.unlink(missing_ok=True)
    began = time.monotonic()
    monitor = subprocess.Popen(
        [
            *(sys.executable, "-m", "gputui", "--record", "-o", str(recording)),
            *("--", str(program), "many", str(ranges)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(monitor.pid, 0)
    took_s = time.monotonic() - began
    if status:
        return f"{ranges:>12,} the run failed"
    words = [sys.executable, "-m", "gputui", "summary", str(recording), "--format", "json"]
    summary = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    overhead, run_s = summary["overhead"], summary["run"]["duration_ns"] / 1e9
    dropped = summary["dropped_events"]
    made = overhead["records"] + dropped
    return (
        f"{ranges:>12,}{made / run_s / 1e6:>10.1f}{100 * dropped / made:>11.3f}"
        f"{took_s - run_s:>11.1f}{used.ru_maxrss / 1024:>8.0f}"
    )


def main() -> None:
    """Print a line for each burst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ranges", type=int, nargs="+", default=[1_000_000, 10_000_000, 20_000_000]
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program"
        flags = ["-O1", "-w", str(SOURCE), "-o", str(program), "-ldl", "-lpthread"]
        subprocess.run(["cc", *flags], check=True)
        print(f"{'ranges':>12}{'M rec./s':>10}{'dropped %':>11}{'s besides':>11}{'MiB':>8}")
        for _ in range(options.rounds):
            for ranges in options.ranges:
                print(burst(program, folder, ranges), flush=True)


if __name__ == "__main__":
    main()
