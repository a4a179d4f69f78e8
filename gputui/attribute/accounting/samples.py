"""What operations of a device show of others: lines that launch, kernels that are stretched."""

from __future__ import annotations

import numpy as np

from gputui.attribute.accounting.host_threads import HostThreads
from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns
from gputui.attribute.arrays import Int64s, run_starts
from gputui.attribute.distributions import sorted_pairs

LAUNCHED_WITHIN_NS = 250_000
"""What is launched this soon before or after a reading of a thread's line is that line's: shorter
than most lines of a program take, so that little is counted for their neighbours."""

COMPARED = 4096
"""Kernels of a round that are compared with their like."""

LIKE = 8
STRETCHED = 1.3
"""Mean over tenth percentile from which kernels of one shape are stretched, of at least so many:
undisturbed ones spread 4 to 11 %, beside a process at 60 % of the GPU the mean was 2.2 times the
least (one GEMM shape on an H200)."""


def stretch(alike: Int64s, took: Int64s) -> tuple[int, int]:
    """The time of kernels that have enough of their like, and how much of it is stretched."""
    if not len(alike):
        return 0, 0
    alike, took = sorted_pairs(alike, took)
    starts = run_starts(alike)
    counts = np.diff(np.append(starts, len(alike)))
    sums = np.add.reduceat(took, starts)
    usual = took[starts + counts // 10]
    many = counts >= LIKE
    longer = many & (sums >= STRETCHED * usual * counts)
    return int(sums[many].sum()), int((sums - usual * counts)[longer].sum())


class Samples:
    """Operations of one process on one device in, sums that wait to be taken out."""

    def __init__(self, threads: HostThreads, main_thread: int) -> None:
        self._threads = threads
        self._main_thread = main_thread
        self.line_launches: dict[int, tuple[int, int]] = {}
        """Line → readings and GPU time launched around them, not taken yet."""
        self.compared_ns = self.stretched_ns = 0
        """Of the kernels that were compared with their like, not taken yet."""

    def add(self, found: Columns, threads: list[int]) -> None:
        """Operations of a round, which these threads launched."""
        self._compare(found)
        self._add_launches_of_lines(found, threads)

    def _add_launches_of_lines(self, found: Columns, threads: list[int]) -> None:
        for thread in threads:
            # Autograd's threads run no Python: the line is that of who waits for them.
            times, lines = self._threads.lines.times_and_lines(thread)
            if not len(times):
                times, lines = self._threads.lines.times_and_lines(self._main_thread)
            if not len(times):
                continue
            of = np.flatnonzero(found.threads == thread)
            called = found.called_ns.take(of)
            reading = np.searchsorted(times - LAUNCHED_WITHIN_NS, called, side="right") - 1
            near = np.abs(called - times.take(reading)) < LAUNCHED_WITHIN_NS
            reading, of = reading[near], of[near]
            sums = np.bincount(reading, (found.ends - found.starts).take(of), len(times))
            for row in np.flatnonzero(sums).tolist():
                line = int(lines[row])
                readings, gpu_ns = self.line_launches.get(line, (0, 0))
                self.line_launches[line] = readings + 1, gpu_ns + int(sums[row])

    def _compare(self, found: Columns) -> None:
        """How far kernels are stretched, by some of them: 0.1 µs each."""
        middle = len(found.starts) // 2
        some = slice(max(0, middle - COMPARED // 2), middle + COMPARED // 2)
        codes = found.codes[some]
        whole = ~found.goes_on[some] & (codes >= FIRST_KERNEL)
        took = (found.ends[some] - found.starts[some])[whole]
        alike = codes[whole].astype(np.int64) << 32 | found.shapes[some][whole]
        compared, stretched = stretch(alike, took)
        self.compared_ns += compared
        self.stretched_ns += stretched
