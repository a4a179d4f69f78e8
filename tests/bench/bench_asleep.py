"""What it costs a program to carry the capture library asleep.

    python tests/bench/bench_asleep.py [--rounds 5]

CPU nanoseconds of a push and a pop in a C program and through the nvtx package, without a tool and
with the library asleep, in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gputui.inject.build import CAPTURE

C = r"""
#include <stdio.h>
#include <time.h>
#include "nvtx_loader.h"
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void) {
    nvtx_load();
    double began = now();
    for (long n = 0; n < 20000000; n++) {
        int (*volatile *push)(const char *) = (void *)&core[9];
        int (*volatile *end)(void) = (void *)&core[11];
        if (*push) (*push)("range");
        if (*end) (*end)();
    }
    printf("%f\n", (now() - began) / 2e7);
}
"""

PYTHON = """
import nvtx, sys, time
annotation, domain = nvtx.annotate("range"), nvtx.get_domain("library")
attributes = domain.get_event_attributes(message="range")
def with_annotate():
    with annotation: pass
def fresh():
    with nvtx.annotate("range"): pass
def of_domain():
    domain.push_range(attributes); domain.pop_range()
def functional():
    nvtx.push_range("range"); nvtx.pop_range()
def empty():
    pass
def cost(what, count=200_000):
    began = time.process_time_ns()
    for _ in range(count): what()
    return (time.process_time_ns() - began) / count
none = min(cost(empty) for _ in range(3))
for what in (with_annotate, fresh, of_domain, functional):
    print(what.__name__, min(cost(what) for _ in range(3)) - none)
"""


def environment(asleep: bool) -> dict[str, str]:
    clear = {
        name: text
        for name, text in os.environ.items()
        if "INJECTION64" not in name and not name.startswith("GPUTUI_")
    }
    library = str(CAPTURE.path)
    return clear | ({"NVTX_INJECTION64_PATH": library} if asleep else {})


def run(command: list[str], asleep: bool) -> str:
    done = subprocess.run(
        command, env=environment(asleep), capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Measure in turn, and print medians with their spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    programs = Path(__file__).parents[1] / "inject" / "programs"
    figures: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        source, program = Path(name, "bench.c"), Path(name, "bench")
        source.write_text(C)
        words = ["cc", "-O1", "-w", f"-I{programs}", str(source), "-o", str(program)]
        subprocess.run([*words, "-ldl"], check=True)
        for _ in range(options.rounds):
            for asleep in (False, True):
                figures.setdefault(("C", asleep), []).append(float(run([str(program)], asleep)))
                for line in run([sys.executable, "-c", PYTHON], asleep).splitlines():
                    what, figure = line.split()
                    figures.setdefault((what, asleep), []).append(float(figure))
    for (what, asleep), values in sorted(figures.items()):
        spread = f"{min(values):.2f} to {max(values):.2f}"
        state = "asleep" if asleep else "no tool"
        print(f"{what:<14}{state:<9}{statistics.median(values):>9.2f} ns  {spread}")


if __name__ == "__main__":
    main()
