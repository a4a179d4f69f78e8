"""NVTX ranges that also sum the host time spent in them, for the workload's own tables."""

from __future__ import annotations

import time
from types import TracebackType

import nvtx


class Range:
    """A reusable range, for one thread at a time and not inside itself.

    `total_ns` and `count` cover the times it was left while `counting`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counting = True
        self.total_ns = 0
        self.count = 0
        self._annotation = nvtx.annotate(name)
        self._started_ns = 0

    def __enter__(self) -> None:
        self._annotation.__enter__()
        self._started_ns = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.counting:
            self.total_ns += time.perf_counter_ns() - self._started_ns
            self.count += 1
        self._annotation.__exit__(kind, error, traceback)

    def reset(self) -> None:
        """Set `total_ns` and `count` to zero."""
        self.total_ns = 0
        self.count = 0

    @property
    def total_ms(self) -> float:
        return self.total_ns / 1e6
