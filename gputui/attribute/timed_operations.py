"""Operations with their calls as columns: records are wide, and each fact is read of them once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, UInt32s, times_ns

NO_KERNEL = -1
"""The kernel of an operation that is none."""

MAX_DEVICE = 255
"""Higher device numbers are clamped to this."""


class TimedOperations(NamedTuple):
    """Operations, a column a fact.

    `kernels` numbers those that are kernels or graphs as a whole, and is NO_KERNEL for others;
    `first` marks those that came first of all that their call launched. Calls are NO_CALL where
    they are not known; `nodes` are the ranges in which the operations count.
    """

    starts: Int64s
    ends: Int64s
    devices: Int64s
    streams: UInt32s
    kernels: Int64s
    first: Bools
    called_ns: Int64s
    returned_ns: Int64s
    threads: UInt32s
    nodes: Int64s

    def pick(self, rows: Int64s) -> TimedOperations:
        """Some of them: row numbers."""
        return TimedOperations._make(column.take(rows) for column in self)


def timed(records: Slots, calls: Slots, kernels: Int64s, first: Bools) -> TimedOperations:
    """The columns of records and of their calls, in whose ranges they count."""
    starts = times_ns(records["start"])
    return TimedOperations(
        starts,
        np.maximum(starts, times_ns(records["end"])),
        np.minimum(records["a"], MAX_DEVICE).astype(np.int64),
        records["b"].copy(),
        kernels,
        first,
        calls["start"].copy(),
        calls["end"].copy(),
        calls["thread"].copy(),
        calls["node"].astype(np.int64),
    )


class Launched(NamedTuple):
    """Operations with the range that launched each, sorted by start.

    `nodes` and `instances` are the ones an operation counts in: the main thread's where its own has
    none.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    nodes: Int64s
    instances: Int64s


class Ran(NamedTuple):
    """Operations with where they ran, sorted by start. `origins` hold stream and launching thread,
    0 if that is unknown, for `Streams`.
    """

    starts_ns: Int64s
    ends_ns: Int64s
    devices: Int64s
    origins: Int64s
