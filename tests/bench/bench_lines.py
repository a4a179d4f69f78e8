"""What the readings of Python lines cost an eager decode, in one process.

    taskset -c 2,3 python tests/bench/bench_lines.py [--pairs 60]

Two runs of one program differ by more than the readings cost, so they are switched on and off
every second of the same run, in the order off on, on off. Prints the median ratio of the pairs'
steps, and between which ratios nineteen of twenty medians would lie (drawn again from the pairs).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from gputui.inject.hook import python_lines
from workloads.faults.host import launch

BLOCK_S = 1.0


class Sampler(python_lines._Sampler):
    """One that can be told to end."""

    def end(self) -> None:
        """Wait until it has."""
        self._room = 0
        self.join()


def step_ns(step: Callable[[], None]) -> float:
    """The mean over a block."""
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < BLOCK_S:
        step()
        steps += 1
    return passed / steps * 1e9


def with_lines(step: Callable[[], None]) -> float:
    """The same while lines are read."""
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(folder)
        sampler.start()
        try:
            return step_ns(step)
        finally:
            sampler.end()


def main() -> None:
    """Run the pairs, print the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    pairs = parser.parse_args().pairs
    step = launch(False, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for _ in range(3):
        step_ns(step)
    ratios = []
    for pair in range(pairs):
        order = (step_ns, with_lines) if pair % 2 else (with_lines, step_ns)
        took = {run: run(step) for run in order}
        ratios.append(took[with_lines] / took[step_ns])
    draws = random.Random(1)
    medians = sorted(statistics.median(draws.choices(ratios, k=pairs)) for _ in range(2000))
    print(
        f"{statistics.median(ratios):.4f} ({medians[50]:.4f} to {medians[-51]:.4f}), {pairs} pairs"
    )


if __name__ == "__main__":
    main()
