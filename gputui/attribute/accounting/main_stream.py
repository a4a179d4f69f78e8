"""The stream that paces a program: the one that does most of the work.

A copy on a stream of its own waits for nobody: the CPU runs ahead, copies bunch until it blocks,
and the distance from one to the next says how fast it launches, not how long a step takes. On the
stream that does most of the work operations follow each other as fast as the loop goes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Bools, Int64s, distinct
from gputui.model.leaves import Leaf

NEVER = np.iinfo(np.int32).max
"""Launches until the next one there where none is known."""

KEPT = 0.5
"""Of what was added up each time that launches are taken: what a program did long ago says little
of what it does."""

_COMMUNICATION = int(Leaf.COMMUNICATION)


class MainStream:
    """Operations in; which stream of which device did most of the work of late out."""

    def __init__(self) -> None:
        self._busy_ns: dict[int, float] = {}

    def add(
        self, lanes: Int64s, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8]
    ) -> None:
        """Operations by the stream that they ran on. Collectives wait on theirs for others."""
        if len(self._busy_ns) == 1 and (lanes == next(iter(self._busy_ns))).all():
            return  # nothing to choose between
        present = distinct(lanes).tolist()
        if len(present) == 1 and not self._busy_ns:
            self._busy_ns[present[0]] = 0.0
            return
        work = np.where(leaves == _COMMUNICATION, 0, ends - starts)
        for lane in present:
            of = work if len(present) == 1 else work[lanes == lane]
            self._busy_ns[lane] = self._busy_ns.get(lane, 0.0) + float(of.sum())

    def fade(self) -> None:
        """Let what comes count for more than what was."""
        for lane in self._busy_ns:
            self._busy_ns[lane] *= KEPT

    @property
    def is_chosen(self) -> bool:
        """Whether there is more than one stream."""
        return len(self._busy_ns) > 1

    def has(self, lanes: Int64s) -> Bools | None:
        """Which launches are on it; None where there is one stream."""
        if not self.is_chosen:
            return None
        main = max(self._busy_ns, key=lambda lane: (self._busy_ns[lane], -lane))
        is_main: Bools = lanes == main
        return is_main


def until_next(is_main: Bools | None, count: int) -> Int64s:
    """How many launches each is before the next one on the main stream; 0 on it."""
    if is_main is None:
        return np.broadcast_to(np.int64(0), count)
    rows = np.arange(count)
    following = np.where(is_main, rows, NEVER)
    found: Int64s = np.minimum.accumulate(following[::-1])[::-1] - rows
    return found
