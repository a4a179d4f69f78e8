"""How long the threads that make collectives on the CPU ran, and were ready and had no core.

Without a GPU this distinguishes a rank that is late from one that the scheduler made late: with
more threads than cores some rank is always the last, and it is another one each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gputui.attribute.collection import DeltaParts


class CoreTimes(NamedTuple):
    """Of `watched_ns`, summed over threads."""

    run_ns: int = 0
    wait_ns: int = 0
    watched_ns: int = 0


_NONE = CoreTimes()


class CoreTime:
    """Readings of the threads of one process in, sums out."""

    def __init__(self) -> None:
        self._readings: Mapping[int, tuple[int, int]] = {}
        self._read_ns: int | None = None
        self._new = _NONE
        self.kept = _NONE
        """What was read while there were collectives, since `forget`."""

    def add(self, now_ns: int, readings: Mapping[int, tuple[int, int]]) -> None:
        """For how long each thread has run, and had no core, since it began."""
        before = self._readings
        if self._read_ns is not None:
            pairs = [(new, before[one]) for one, new in readings.items() if one in before]
            self._new = CoreTimes(
                self._new.run_ns + sum(max(0, new[0] - old[0]) for new, old in pairs),
                self._new.wait_ns + sum(max(0, new[1] - old[1]) for new, old in pairs),
                self._new.watched_ns + max(0, now_ns - self._read_ns),
            )
        self._readings = readings
        self._read_ns = now_ns if readings else None

    def keep(self, together: bool) -> None:
        """What was read since the last time counts if there were collectives meanwhile."""
        if together:
            self.kept = CoreTimes(*map(sum, zip(self.kept, self._new, strict=True)))
        self._new = _NONE

    def forget(self) -> None:
        """What was kept has been written down."""
        self.kept = _NONE

    @property
    def parts(self) -> DeltaParts:
        """What was kept, by the field of CaptureDelta that it goes to."""
        return {
            "core_run_ns": self.kept.run_ns,
            "core_wait_ns": self.kept.wait_ns,
            "core_watched_ns": self.kept.watched_ns,
        }
