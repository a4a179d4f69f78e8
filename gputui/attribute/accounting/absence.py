"""What a thread was at while it was away from CUDA, as the operating system saw it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Int64s
from gputui.model.leaves import Leaf

AWAY_LEAVES = (Leaf.HOST, Leaf.SCHEDULER, Leaf.INPUT, Leaf.WAIT)
"""What a thread may be at while it is away from CUDA."""

COLUMN = {leaf: column for column, leaf in enumerate(AWAY_LEAVES)}
"""Where each stands in the shares of an interval."""

READINGS_KEPT = 4096


class States:
    """Readings of one thread: time under each of AWAY_LEAVES up to each reading."""

    __slots__ = ("_last", "sums", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sums: list[tuple[float, ...]] = []
        self._last: tuple[int, int] | None = None

    def add(self, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf) -> None:
        if self._last is None or time_ns <= self.times[-1]:
            self._last = run_ns, delay_ns
            self.times.append(time_ns)
            self.sums.append(self.sums[-1] if self.sums else (0.0,) * len(AWAY_LEAVES))
            return
        passed = time_ns - self.times[-1]
        run = min(passed, max(0, run_ns - self._last[0]))
        delay = min(passed - run, max(0, delay_ns - self._last[1]))
        parts = {Leaf.HOST: run, Leaf.SCHEDULER: delay, asleep_in: passed - run - delay}
        before = self.sums[-1]
        self.sums.append(
            tuple(
                known + parts.get(leaf, 0) for known, leaf in zip(before, AWAY_LEAVES, strict=True)
            )
        )
        self.times.append(time_ns)
        self._last = run_ns, delay_ns
        if len(self.times) > 2 * READINGS_KEPT:
            del self.times[:READINGS_KEPT], self.sums[:READINGS_KEPT]

    def shares(
        self, starts: Int64s, ends: Int64s, unread: Leaf = Leaf.HOST
    ) -> npt.NDArray[np.float64]:
        """Of each interval, the part under each leaf; all under `unread` where there is no
        reading."""
        out = np.zeros((len(starts), len(AWAY_LEAVES)))
        if len(self.times) < 2:
            out[:, COLUMN[unread]] = 1.0
            return out
        # Those before and after these intervals change nothing: an hour has tens of thousands.
        first = max(0, bisect_right(self.times, int(starts.min())) - 1) if len(starts) else 0
        last = bisect_left(self.times, int(ends.max())) + 1 if len(starts) else 1
        times, sums = np.array(self.times[first:last]), np.array(self.sums[first:last])
        for column in range(len(AWAY_LEAVES)):
            out[:, column] = np.interp(ends, times, sums[:, column]) - np.interp(
                starts, times, sums[:, column]
            )
        whole = out.sum(axis=1)
        unknown = whole <= 0
        out[unknown, COLUMN[unread]], whole[unknown] = 1.0, 1.0
        shares: npt.NDArray[np.float64] = out / whole[:, np.newaxis]
        return shares
