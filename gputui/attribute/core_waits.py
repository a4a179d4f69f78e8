"""How long the threads that make collectives on the CPU were ready to run and had no core.

Without a GPU this is what distinguishes a rank that is late from one that the scheduler made late:
with more threads than cores some rank is always the last, and it is another one each time.
"""

from __future__ import annotations

from collections.abc import Mapping


class CoreWaits:
    """Readings of the threads of one process in; for how long they waited, of how long, out."""

    def __init__(self) -> None:
        self._delays: Mapping[int, int] = {}
        self._read_ns: int | None = None
        self.clear()

    def clear(self) -> None:
        """Count from here on: what was counted has been taken."""
        self.waited_ns = 0
        self.watched_ns = 0

    def add(self, now_ns: int, delays_ns: Mapping[int, int]) -> None:
        """What each thread has waited for a core since it began."""
        before = self._delays
        if self._read_ns is not None:
            self.watched_ns += max(0, now_ns - self._read_ns)
            self.waited_ns += sum(
                max(0, delay_ns - before[thread])
                for thread, delay_ns in delays_ns.items()
                if thread in before
            )
        self._delays = delays_ns
        self._read_ns = now_ns if delays_ns else None
