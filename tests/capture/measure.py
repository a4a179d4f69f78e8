"""Measures the capture library: `python tests/capture/measure.py`. Figures, no judgement.

Nanoseconds that a push and a pop cost a C program, and the rate at which its ring is read.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from traced import environment

from gputui.capture.ring import RingFolder, StringDefinitions

SOURCE = Path(__file__).with_name("programs") / "nvtx_program.c"
RUNS = 3


def pair_ns(program: Path, part: str) -> float:
    """The fastest of some runs whose ring holds all: nothing is dropped, nothing read meanwhile."""
    best = float("inf")
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            done = subprocess.run(
                [program, part, "100000"],
                env=environment(Path(folder)),
                capture_output=True,
                text=True,
                check=True,
            )
            best = min(best, float(done.stdout.split()[1]))
    return best


def slots_a_second(program: Path) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        extra = {"GPUTUI_RING_BYTES": str(256 << 20)}
        subprocess.run(
            [program, "many", "2000000"],
            env=environment(Path(folder), extra),
            capture_output=True,
            check=True,
        )
        (ring,), _ = RingFolder(Path(folder)).discover()
        definitions = StringDefinitions()
        count = 0
        began = time.perf_counter()
        while len(batch := ring.read(65_536)):
            count += len(batch)
            definitions.split(batch)
        return count / (time.perf_counter() - began)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "nvtx_program"
        command = ["cc", "-O1", "-w", str(SOURCE), "-o", str(program), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        print(f"push and pop, registered string: {pair_ns(program, 'many'):.0f} ns")
        print(f"push and pop, plain string:      {pair_ns(program, 'many-ascii'):.0f} ns")
        print(f"reading a ring:                  {slots_a_second(program) / 1e6:.0f} M slots/s")


if __name__ == "__main__":
    main()
