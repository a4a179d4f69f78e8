"""Which instance was innermost at any moment of the last minute, per thread and domain."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.attribute.instances import NO_INSTANCE

NO_NODE = 0


class Timeline:
    """Moments in order, each with the innermost instance and its node from then on."""

    __slots__ = ("_begin", "_end", "_instances", "_nodes", "_times_ns")

    def __init__(self) -> None:
        self._begin = 0
        self._end = 0
        self._times_ns = np.empty(0, np.int64)
        self._instances = np.empty(0, np.int64)
        self._nodes = np.empty(0, np.int32)

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def last_ns(self) -> int:
        """The newest moment, 0 when there is none."""
        return int(self._times_ns[self._end - 1]) if self._end > self._begin else 0

    def append(self, times_ns: Int64s, instances: Int64s, nodes: Int64s) -> None:
        """Append later moments; earlier ones (the clock stepped) are clamped to the newest."""
        count = len(times_ns)
        if not count:
            return
        if self._end + count > len(self._times_ns):
            self._make_room(count)
        new = slice(self._end, self._end + count)
        np.maximum.accumulate(np.maximum(times_ns, self.last_ns), out=self._times_ns[new])
        self._instances[new] = instances
        self._nodes[new] = nodes
        self._end += count

    def at(self, times_ns: Int64s) -> tuple[Int64s, Int64s]:
        """The innermost instance and its node at each moment, boundaries included.

        NO_INSTANCE and NO_NODE if nothing was open, or the moment is too old.
        """
        live = slice(self._begin, self._end)
        places = np.searchsorted(self._times_ns[live], times_ns, side="right") - 1
        if self._begin == self._end:
            nothing = np.full(len(times_ns), NO_INSTANCE)
            return nothing, np.zeros(len(times_ns), np.int64)
        before = places < 0
        places[before] = 0
        instances = self._instances[live][places]
        nodes = self._nodes[live][places].astype(np.int64)
        instances[before] = NO_INSTANCE
        nodes[before] = NO_NODE
        return instances, nodes

    def between(self, after_ns: int, before_ns: int) -> tuple[Int64s, Int64s]:
        """The moments strictly between two times; the innermost node from `after_ns` on, then that
        from each of them on."""
        live = self._times_ns[self._begin : self._end]
        first = int(np.searchsorted(live, after_ns, side="right"))
        last = max(first, int(np.searchsorted(live, before_ns, side="left")))
        nodes = self._nodes[self._begin + first : self._begin + last]
        before = self.at(np.array([after_ns]))[1]
        return live[first:last], np.concatenate((before, nodes)).astype(np.int64)

    def forget(self, before_ns: int) -> None:
        """Drop earlier moments, but never the newest: its state still holds."""
        live = self._times_ns[self._begin : self._end]
        # The moment just before the limit gives the innermost range at the limit.
        drop = int(np.searchsorted(live, before_ns)) - 1
        self._begin += max(0, min(drop, len(live) - 1))

    def _make_room(self, count: int) -> None:
        length = len(self)
        size = max(256, 2 * (length + count))
        for name in ("_times_ns", "_instances", "_nodes"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[:length] = old[self._begin : self._end]
            setattr(self, name, new)
        self._begin, self._end = 0, length
