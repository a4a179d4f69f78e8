"""What was seen in windows of tracing, where kernels are traced part of the time, and the cost."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputui.model.events.base import Amount, Integer, Key, OfProcess, RangeNumber, Sum

WINDOW_GROUPS = 64
"""Windows of tracing are summed up in so many groups, each window in the next one's turn: what an
estimate is uncertain by is seen from one group to another, and a run of any length is bounded
(random groups: K. M. Wolter, Introduction to Variance Estimation, chapter 2)."""


class WindowWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was seen of a range while kernels were traced, where they are traced part of the time.

    `occurrences_ppm` are millionths of instances: one that was traced for a part of its time counts
    that part. `gpu_ns` is the time of the operations that were launched in it, not in ranges inside
    it. `range` 0 is outside every range, where a second of tracing counts as an instance. What a
    CUDA graph replays (RangeDefined, `graph`) occurs as often as the range around it that has
    occurrences.
    """

    range: Annotated[RangeNumber, Key]
    group: Annotated[Integer, Key]
    occurrences_ppm: Annotated[Amount, Sum] = 0
    gpu_ns: Annotated[Amount, Sum] = 0


class WindowCost(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What windows of tracing cost: the turns of a range that they touched took `taken_ns`, as many
    turns around them `bare_ns`."""

    group: Annotated[Integer, Key]
    windows: Annotated[Amount, Sum]
    turns: Annotated[Amount, Sum]
    taken_ns: Annotated[Amount, Sum]
    bare_ns: Annotated[Amount, Sum]
