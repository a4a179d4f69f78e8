"""What the capture library itself costs, without a GPU.

    python tests/bench/bench_library.py [--rounds 5]

Nanoseconds of a push and a pop in a C program, nanoseconds of a kernel's record from CUPTI's buffer
to the ring (a stand-in for libcupti delivers them), and the rate at which a ring is read.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CAPTURE = Path(__file__).parents[1] / "inject"
sys.path.insert(0, str(CAPTURE))

from traced import environment, run  # noqa: E402

from gputui.ring import RecordKind  # noqa: E402
from gputui.ring.reader import RingFolder, StringDefinitions  # noqa: E402

PAIRS = 100_000
"""As many as a ring holds with room to spare: nothing is dropped, nothing read meanwhile."""


def pair_ns(program: Path, part: str) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = subprocess.run(
            [program, part, str(PAIRS)],
            env=environment(Path(folder)),
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.split()[1])


def record_ns(cupti: Path) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        command = [sys.executable, str(CAPTURE / "cuda_child.py"), str(cupti), "many"]
        trace = run(command, Path(folder), {"GPUTUI_CUPTI_PATH": str(cupti)}, kernels=True).trace
    return trace.health.callback_ns / len(trace.of(RecordKind.KERNEL))


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
    """Measure in turn, and print the median and the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, cupti = folder / "nvtx_program", folder / "libcupti.so.13"
        for source, target, flags in (
            ("nvtx_program.c", program, []),
            ("fake_cupti.c", cupti, ["-shared", "-fPIC"]),
        ):
            words = ["-O1", "-w", str(CAPTURE / "programs" / source), "-o", str(target), *flags]
            subprocess.run(["cc", *words, "-ldl", "-lpthread"], check=True)
        measured: dict[str, Callable[[], float]] = {
            "push and pop, registered string, ns": lambda: pair_ns(program, "many"),
            "push and pop, plain string, ns": lambda: pair_ns(program, "many-ascii"),
            "a kernel's record, ns": lambda: record_ns(folder),
            "reading a ring, M slots/s": lambda: slots_a_second(program) / 1e6,
        }
        figures: dict[str, list[float]] = {what: [] for what in measured}
        for _ in range(options.rounds):
            for what, measure in measured.items():
                figures[what].append(measure())
        for what, values in figures.items():
            spread = f"{min(values):.0f} to {max(values):.0f}"
            print(f"{what:<38}{statistics.median(values):>8.0f}  {spread}")


if __name__ == "__main__":
    main()
