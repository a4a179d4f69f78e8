"""What a process did since the last report, as sums that can be merged."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gputui.model.events.base import (
    PHASE_STARTS,
    About,
    Amount,
    Blocks,
    Event,
    Integer,
    Key,
    Moment,
    Newest,
    Parts,
    ProcessNumber,
    RangeNumber,
    Sum,
)
from gputui.model.events.deltas_gpu import (
    DeviceDelta,
    LeafTime,
    LineLaunches,
    LineSamples,
    LoopDelta,
    RangeLeaf,
    StepBlock,
    StreamDelta,
    Stretch,
    ThreadLaunches,
)
from gputui.model.events.deltas_work import (
    ApiDelta,
    CollectiveDelta,
    KernelDelta,
    LaunchDelta,
    MarkDelta,
    MemoryOperationDelta,
    PeerDelta,
    RangeDelta,
    RangeKernels,
    ShapeLaunches,
)
from gputui.model.events.windows import WindowCost, WindowWork


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Lost records, and why: the "ring" was full, they were left "unread" in it at the end, "cupti"
    lost them, a thread had ranges open in too many "domains" to track `domain` too, they were
    "deferred" events of `domain`, or the reader had no "places" left (stacks, levels, open ranges).
    """

    cause: Annotated[Literal["ring", "unread", "cupti", "domains", "deferred", "places"], Key]
    domain: Annotated[str, Key]
    records: Annotated[Amount, Sum]


class OpenRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range that is open now, and since when."""

    range: RangeNumber
    since_ns: Moment


class CaptureDelta(Event, frozen=True, kw_only=True, tag="capture"):
    """Everything captured in one process since its last delta.

    `records` and `dropped` count ring records; `unattributed` counts GPU operations whose launch
    never arrived, and those that CUPTI gave the number of a call that cannot have launched them
    (`contradicted`); `wrong_times` counts those with times that no clock showed; `callback_ns` is
    the library's measurement of its own time in the traced process; `reader_cpu_ns` is what reading
    cost in gputui. `secondary_domain_kernels` (written as `kernels_beside`) counts again, in the
    ranges of other open domains, what `kernels` counts once.
    Kernels and calls were traced for `traced_ns` and, if the user asked for only part of the time,
    not for `paused_ns`. Threads that make collectives on the CPU ran for `core_run_ns` of
    `core_watched_ns`, and for `core_wait_ns` were ready to run and had no core.
    """

    about = About.PROCESS

    process: Annotated[ProcessNumber, Key]
    ranges: Annotated[tuple[RangeDelta, ...], Parts] = ()
    kernels: Annotated[tuple[KernelDelta, ...], Parts] = ()
    secondary_domain_kernels: Annotated[tuple[KernelDelta, ...], Parts] = msgspec.field(
        default=(), name="kernels_beside"
    )
    range_kernels: Annotated[tuple[RangeKernels, ...], Parts] = ()
    launches: Annotated[tuple[LaunchDelta, ...], Parts] = ()
    shapes: Annotated[tuple[ShapeLaunches, ...], Parts] = ()
    memory_operations: Annotated[tuple[MemoryOperationDelta, ...], Parts] = ()
    api: Annotated[tuple[ApiDelta, ...], Parts] = ()
    devices: Annotated[tuple[DeviceDelta, ...], Parts] = ()
    streams: Annotated[tuple[StreamDelta, ...], Parts] = ()
    launching_threads: Annotated[tuple[ThreadLaunches, ...], Parts] = ()
    marks: Annotated[tuple[MarkDelta, ...], Parts] = ()
    leaf_times: Annotated[tuple[LeafTime, ...], Parts] = ()
    loops: Annotated[tuple[LoopDelta, ...], Parts] = ()
    line_samples: Annotated[tuple[LineSamples, ...], Parts] = ()
    step_blocks: Annotated[tuple[StepBlock, ...], Blocks] = ()
    """The steady steps in order, at most 64 blocks of each loop; empty where those of a loop are
    one block, as `leaf_times` and `loops` have it."""
    line_launches: Annotated[tuple[LineLaunches, ...], Parts] = ()
    stretches: Annotated[tuple[Stretch, ...], Parts] = ()
    range_leaves: Annotated[tuple[RangeLeaf, ...], Parts] = ()
    collectives: Annotated[tuple[CollectiveDelta, ...], Parts] = ()
    peers: Annotated[tuple[PeerDelta, ...], Parts] = ()
    losses: Annotated[tuple[Loss, ...], Parts] = ()
    """The parts of `dropped`."""
    open_ranges: Annotated[tuple[OpenRange, ...], Newest] = ()
    records: Annotated[Amount, Sum] = 0
    dropped: Annotated[Amount, Sum] = 0
    unattributed: Annotated[Amount, Sum] = 0
    contradicted: Annotated[Amount, Sum] = 0
    wrong_times: Annotated[Amount, Sum] = 0
    callback_ns: Annotated[Amount, Sum] = 0
    reader_cpu_ns: Annotated[Amount, Sum] = 0
    traced_ns: Annotated[Amount, Sum] = 0
    paused_ns: Annotated[Amount, Sum] = 0
    core_run_ns: Annotated[Amount, Sum] = 0
    core_wait_ns: Annotated[Amount, Sum] = 0
    core_watched_ns: Annotated[Amount, Sum] = 0
    window_work: Annotated[tuple[WindowWork, ...], Parts] = ()
    window_costs: Annotated[tuple[WindowCost, ...], Parts] = ()
    windows: Annotated[Amount, Sum] = 0
    """Windows of tracing that ended."""
    standing_ppm: Annotated[Integer | None, Newest] = None
    """How much longer turns took after the first window than before it, in millionths: what CUPTI
    costs where it cannot be taken out of the program again."""


class CaptureSum(CaptureDelta, frozen=True, kw_only=True, tag="capture_sum"):
    """The sum of all `capture` events of one process so far in this file, with `open_ranges` as in
    the last: a reader of the final state can skip those events, and earlier sums. A recording has
    one every so many bytes; sources emit none.

    `phase_starts` are outermost ranges that are no longer open.
    """

    phase_starts: Annotated[tuple[OpenRange, ...], Meta(max_length=PHASE_STARTS)] = ()
