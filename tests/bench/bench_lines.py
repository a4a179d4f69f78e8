"""What the readings of Python lines cost an eager decode, in one process.

    taskset -c 2,3 python tests/bench/bench_lines.py [--pairs 120]

Two runs of one program differ by more than the readings cost, so they are switched on and off
every half second of the same run, in the order off on, on off. Prints the median ratio of the
pairs' steps, and between which ratios nineteen of twenty medians would lie (drawn again from the
pairs).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

import torch

from gputui.inject.hook import python_lines
from workloads.faults.host import launch

BLOCK_S = 0.5


class Sampler(python_lines._Sampler):
    """One that reads only while it is told to, and does not wake in between."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.reads = threading.Event()

    def _sample(self, late_ns: int = 0) -> None:
        if self.reads.is_set():
            super()._sample(late_ns)
        self.reads.wait()


def step_ns(step: Callable[[], None]) -> float:
    """The mean over a block."""
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < BLOCK_S:
        step()
        steps += 1
    return passed / steps * 1e9


def main() -> None:
    """Run the pairs, print the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=120)
    pairs = parser.parse_args().pairs
    step = launch(False, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(folder)
        sampler.start()
        ratios = []
        for pair in range(-3, pairs):
            took = {}
            for reads in (False, True) if pair % 2 else (True, False):
                (sampler.reads.set if reads else sampler.reads.clear)()
                took[reads] = step_ns(step)
            ratios += [took[True] / took[False]] * (pair >= 0)
    draws = random.Random(1)
    medians = sorted(statistics.median(draws.choices(ratios, k=pairs)) for _ in range(2000))
    print(
        f"{statistics.median(ratios):.4f} ({medians[50]:.4f} to {medians[-51]:.4f}), {pairs} pairs"
    )


if __name__ == "__main__":
    main()
