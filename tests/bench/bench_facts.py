"""What it costs a program that its calls are counted by line, and its garbage collections timed.

    python tests/bench/bench_facts.py [--pairs 60] [--python PATH]

In one child with the start-up hook: blocks of a loop that copies and reads a value, with calls
watched and without in turn, in random order; the mean of the pairs' ratios with its 95 % interval,
and how many such calls were made a second. Nanoseconds of an empty collection with the hook's
callback and without. Needs Python 3.12 and torch in the child; a GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gputui.inject import hook

CHILD = """
import gc, math, random, statistics, sys, time, torch
monitoring = sys.monitoring
tool = next((number for number in (4, 3) if monitoring.get_tool(number) == "gputui"), None)
if tool is None:
    raise SystemExit("calls are not watched here: Python 3.12 and torch 2.9 are needed")
device = "cuda" if torch.cuda.is_available() else "cpu"
host, sums = torch.randn(64), torch.zeros((), device=device)
matrix = torch.randn(1024 if device == "cuda" else 64, 1024, device=device)

def block(seconds):
    turns, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        host.to(device)
        matrix @ matrix.T
        sums.item()
        turns += 1
    return (time.perf_counter() - began) / turns

def watch(yes):
    events = monitoring.events.CALL if yes else 0
    monitoring.set_local_events(tool, block.__code__, events)

block(1.0)
ratios, seconds = [], 0.0
for _ in range(int(sys.argv[1])):
    order, times = [True, False], {}
    random.shuffle(order)
    for yes in order:
        watch(yes)
        block(0.02)
        times[yes] = block(0.2)
    ratios.append(times[True] / times[False])
    seconds += times[True]
mean = statistics.mean(ratios)
half = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
rate = 2 * len(ratios) / seconds
print(f"calls: {mean:.4f} ({mean - half:.4f} to {mean + half:.4f}) at {rate:,.0f} calls a second")

def collections(count=20_000):
    began = time.perf_counter_ns()
    for _ in range(count):
        gc.collect(0)
    return (time.perf_counter_ns() - began) / count

callbacks = list(gc.callbacks)
with_hook = min(collections() for _ in range(5))
gc.callbacks.clear()
without = min(collections() for _ in range(5))
gc.callbacks.extend(callbacks)
print(f"a collection of the youngest objects: {without:.0f} ns, {with_hook:.0f} with the callback")
"""


def main() -> None:
    """Run the child once, and print what it prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--python", default=sys.executable, help="the child's interpreter")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(hook.__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "GPUTUI_LINES": "10",
            "GPUTUI_CAPTURE_DIR": folder,
        }
        subprocess.run(
            [options.python, "-c", CHILD, str(options.pairs)], env=environment, check=True
        )


if __name__ == "__main__":
    main()
