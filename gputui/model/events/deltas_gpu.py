"""Parts of a CaptureDelta: where the GPU's time went, by device, stream, step and line."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from gputui.model.events.base import (
    Amount,
    Integer,
    Key,
    Max,
    Min,
    Moment,
    Newest,
    OfProcess,
    ProcessNumber,
    RangeNumber,
    Sketch,
    Sum,
)
from gputui.model.events.deltas_work import Distribution


class DeviceDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Time in which at least one captured operation ran on a device, and their count.

    `first_start_ns` and `last_end_ns` span the operations of this delta. `idle` are the gaps in
    which none of the process's operations ran, including the gap between two deltas; its values are
    buckets, within 5 %. `overlap_ns` is the sum of its streams' busy times, less its own.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    busy_ns: Annotated[Amount, Sum]
    operations: Annotated[Amount, Sum]
    first_start_ns: Annotated[Moment, Min]
    last_end_ns: Annotated[Moment, Max]
    idle: Annotated[Distribution | None, Sketch] = None
    overlap_ns: Annotated[Amount, Sum] = 0

    @property
    def span_ns(self) -> int:
        """From the first operation's start to the last one's end."""
        return max(0, self.last_end_ns - self.first_start_ns)


class StreamDelta(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What ran on one stream. Values of its distributions are buckets, within 5 %.

    `latency` is from a launch call's start to the start of the first kernel it launched, `queue`
    from the call's return (0 if the kernel was faster), `idle` the gaps between operations.
    `stream` is OTHER_STREAMS beyond the limit.
    """

    device: Annotated[Integer, Key]
    stream: Annotated[Integer, Key]
    operations: Annotated[Amount, Sum]
    busy_ns: Annotated[Amount, Sum]
    latency: Annotated[Distribution | None, Sketch] = None
    queue: Annotated[Distribution | None, Sketch] = None
    idle: Annotated[Distribution | None, Sketch] = None


OTHER_STREAMS = -1


class ThreadLaunches(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Launch calls of one thread; `interval` is from one's start to the next's, within 5 %."""

    thread: Annotated[Integer, Key]
    launches: Annotated[Amount, Sum]
    interval: Annotated[Distribution | None, Sketch] = None


class RangeLeaf(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time of a device under one leaf (model.leaves), by range: what ran, by the innermost range
    that launched it; idle time, by the innermost range open meanwhile on the thread that launched
    what came next. 0 is outside every range. All of them add up to the device's time. None are
    written for a process without ranges: there `leaf_times` says it all.
    """

    device: Annotated[Integer, Key]
    range: Annotated[RangeNumber, Key]
    leaf: Annotated[Integer, Key]
    ns: Annotated[Amount, Sum]


class Scope(IntEnum):
    """Which part of a run a time belongs to. Shares are of STEADY where there are steps."""

    SETUP = 0
    """Before the first step."""
    WARMUP = 1
    STEADY = 2
    EVALUATION = 3
    """Turns of the loop with far fewer operations than its steps have."""
    PAUSE = 4
    """A checkpoint, or waiting for work: a step ten times as long as the usual one."""
    TAIL = 5
    """After the last step that is whole."""
    UNSTEPPED = 6
    """No steps were found."""


class LeafTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time of one device under one leaf (model.leaves), as one process sees it.

    All leaves of a device and scope add up to its wall time there. `loop` numbers what repeats: a
    program may train, then generate.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    scope: Annotated[Scope, Key]
    loop: Annotated[Integer, Key]
    leaf: Annotated[Integer, Key]
    ns: Annotated[Amount, Sum]


class LoopDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Turns of a loop that ended on one device.

    `step_ns` are their lengths, from start to start. A slow step took more than 1.5 times as long
    as the usual one. `newest` are the lengths of the newest steps, in order; `waited_ns` is how
    long the threads that launch waited for the GPU in all of them. Where they are not
    alike, and no StepBlock has them, `longest` are their parts as there. `micro_batches` is how
    many losses a training step has, if several.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    scope: Annotated[Scope, Key]
    loop: Annotated[Integer, Key]
    steps: Annotated[Amount, Sum]
    operations: Annotated[Amount, Sum]
    first_ns: Annotated[Moment, Min]
    last_ns: Annotated[Moment, Max]
    step_ns: Annotated[Distribution | None, Sketch] = None
    slow_steps: Annotated[Amount, Sum] = 0
    slow_ns: Annotated[Amount, Sum] = 0
    newest: Annotated[tuple[Amount, ...], Newest] = ()
    waited_ns: Annotated[Amount | None, Sum] = None
    longest: Annotated[tuple[tuple[Amount, Amount], ...], Newest] = ()
    micro_batches: Annotated[Amount | None, Newest] = None

    @property
    def usual_ns(self) -> float:
        """What the turns would take if each were the usual one."""
        return ((self.step_ns.median if self.step_ns else None) or 0.0) * self.steps


class StepBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive steady steps of a loop on one device: how many, their time, and its leaves as
    (leaf, ns). What a mean is uncertain by, and whether steps grow, is seen from one block to the
    next (model.step_blocks).

    `longest` are its parts in order, each with its number of steps and the longest of them. The
    loop made `pauses` among or right after these steps, of `paused` (leaf, ns): in no other sum.
    """

    device: Integer
    loop: Integer
    steps: Amount
    ns: Amount
    leaves: tuple[tuple[Integer, Amount], ...] = ()
    longest: tuple[tuple[Amount, Amount], ...] = ()
    pauses: Amount = 0
    paused: tuple[tuple[Integer, Amount], ...] = ()


class LineLaunches(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """GPU time that was launched within 0.25 ms of a reading that saw a thread at a line.

    Readings come at even distances, so that lines share these sums as they share all GPU time.
    """

    device: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    readings: Annotated[Amount, Sum]
    gpu_ns: Annotated[Amount, Sum]


class Stretch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much longer kernels took than the same kernel over as many threads can take.

    Of kernels that took `compared_ns` together `stretched_ns` is beyond the tenth percentile, where
    the mean is at least 1.3 times that: what a process that shares the GPU does to them, and what
    kernels of uneven work do.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    compared_ns: Annotated[Amount, Sum]
    stretched_ns: Annotated[Amount, Sum]


NO_LEAF = -1

BESIDE_RUNNING, BESIDE_ASLEEP = -2, -3
"""In place of a leaf: the line of another thread, which ran on a core or slept, seen while the
thread that launches slept."""

RECOMPUTING = -4
"""In place of a leaf: the line of a forward pass that a backward pass computes again."""

OUTSIDE_STEPS = -1
"""In place of a loop."""


class LineSamples(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often a line of the program was seen while a device idled in steady steps, and the
    thread that launches was away from CUDA: 10 readings a second. `loop` is -1 outside of steps.
    `leaf` is what the frames around the line speak of (model.leaves), -1 where they do not;
    idle.sync's or idle.alloc's where the thread waited for the device or allocated instead, and
    the device need not have idled; -2 and -3 where it is another thread's line, which ran or slept
    while the launching one slept; -4 where a backward pass computes a forward pass again. Most of
    all its readings were inside a function of a library that the line called, `inside_samples` of
    them: a line as it is defined, 0 if there is none."""

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    loop: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    samples: Annotated[Amount, Sum]
    leaf: Annotated[Integer, Key] = NO_LEAF
    inside: Annotated[Integer, Newest] = 0
    inside_samples: Annotated[Amount, Newest] = 0
