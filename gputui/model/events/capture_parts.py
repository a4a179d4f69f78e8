"""Parts of a CaptureDelta: ranges with the calls, kernels and copies in them, where the GPU's time
went by device, stream, step and line, and what windows of tracing saw and cost.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import Annotated, Literal, get_args

import msgspec

from gputui.model.events.base import (
    Amount,
    Integer,
    KernelNumber,
    Key,
    Max,
    Min,
    Moment,
    Newest,
    OfProcess,
    ProcessNumber,
    RangeNumber,
    ShapeNumber,
    Sketch,
    Sum,
)
from gputui.model.events.distributions import Distribution
from gputui.model.units import MISSING

# What was seen in windows of tracing, where kernels are traced part of the time, and the cost.

WINDOW_GROUPS = 64
"""Windows of tracing are summed up in this many groups, which take turns. How much the groups
differ gives the uncertainty of an estimate (random groups: K. M. Wolter, Introduction to Variance
Estimation, chapter 2), and a run of any length needs no more than these groups."""


class WindowWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What windows of tracing saw of a range, in runs whose kernels are traced part of the time
    only.

    `occurrences_ppm` counts instances of the range, in millionths: an instance that lay in a window
    for half of its time counts half. `gpu_ns` is the time of the operations that were launched in
    the range itself, without those of ranges inside it. `range` 0 stands for everything outside
    every range; there, each second of tracing counts as one instance. A range that stands for a
    part of a CUDA graph (RangeDefined, `graph`) has no occurrences of its own: it occurs as often
    as the nearest range around it that has some.
    """

    range: Annotated[RangeNumber, Key]
    group: Annotated[Integer, Key]
    occurrences_ppm: Annotated[Amount, Sum] = 0
    gpu_ns: Annotated[Amount, Sum] = 0


class WindowCost(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What windows of tracing cost the program, measured by a range that repeats. A turn is the
    time from one start of the range to the next. `turns` of them touched a window, and took
    `taken_ns` together; by the turns before and after the windows, as many take `bare_ns`."""

    group: Annotated[Integer, Key]
    windows: Annotated[Amount, Sum]
    turns: Annotated[Amount, Sum]
    taken_ns: Annotated[Amount, Sum]
    bare_ns: Annotated[Amount, Sum]


# Payloads: the 8 bytes attached to a range or a mark in a record, and how to read them. The type is
# written out where it is a field: the reference page and the recorded shapes show it.


class PayloadType(IntEnum):
    """The type of a payload's 8 bytes, with NVTX's numbers. UINT32, INT32 and FLOAT are widened to
    UINT64, INT64 and DOUBLE; BYTES is the size of the program's own data.
    """

    UINT64 = 1
    INT64 = 2
    DOUBLE = 3
    UINT32 = 4
    INT32 = 5
    FLOAT = 6
    BYTES = 7


NO_PAYLOAD = 0
"""In place of a PayloadType: the range or mark carries no payload."""

PayloadName = Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]

PAYLOAD_NAMES: dict[int, PayloadName] = {
    PayloadType.UINT64: "uint64",
    PayloadType.INT64: "int64",
    PayloadType.DOUBLE: "double",
    PayloadType.UINT32: "uint32",
    PayloadType.INT32: "int32",
    PayloadType.FLOAT: "float",
    PayloadType.BYTES: "bytes",
}
"""NVTX's names of the types."""

_SIGNED = {PayloadType.INT64, PayloadType.INT32}
_REAL = {PayloadType.DOUBLE, PayloadType.FLOAT}


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value a program attached to a range or a mark, by its NVTX type.

    JSON has no NaN and no infinity: those are text. For "bytes", the program's own data, the value
    is the number of bytes.
    """

    type: Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]
    value: int | float | Literal["nan", "inf", "-inf"]


def payload_number(kind: int, bits: int) -> int | float | None:
    """The number in a payload's 8 bytes, by its type; None if there is no payload."""
    if kind not in PAYLOAD_NAMES:
        return None
    if kind in _REAL:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value
    return bits - (1 << 64) if kind in _SIGNED and bits >> 63 else bits


def payload_of(kind: int, bits: int) -> Payload | None:
    """The payload in 8 bytes as a part of an event, by its type; None if there is none."""
    value = payload_number(kind, bits)
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return Payload(
            PAYLOAD_NAMES[kind], "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        )
    return Payload(PAYLOAD_NAMES[kind], value)


def payload_text(payload: Payload | None) -> str:
    """The value a program attached to a range or mark: "42", "0.125", "64 bytes"."""
    if payload is None:
        return MISSING
    if payload.type == "bytes":
        return f"{payload.value} bytes"
    return f"{payload.value:.6g}" if isinstance(payload.value, float) else str(payload.value)


# Parts of a CaptureDelta: ranges, and the calls, kernels and copies in them.


class RangeDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The instances of one range that ended since the last delta, and the GPU work of the range.

    `cpu` are the durations of the instances on their thread. GPU operations count if they were
    launched inside the range, inside its children, or meanwhile by a thread without ranges
    (`inherited`, as in KernelDelta): `gpu_busy_ns` is the time in which at least one of them ran,
    `gpu_total_ns` the sum of their durations.

    `projected` has one duration for each instance whose operations have all arrived: from the start
    of the first to the end of the last on the GPU, as nsys projects ranges. The next four fields
    are sums over the projected instances: `projected_range_ns` is their time on the thread,
    `gpu_operations` their operations, `levels` the number of ranges, of any domain, that were open
    around each on its thread, `children_with_work` the number of ranges directly inside that also
    launched something. `payload` is that of the newest instance that had one.
    """

    range: Annotated[RangeNumber, Key]
    cpu: Annotated[Distribution | None, Sketch] = None
    gpu_busy_ns: Annotated[Amount, Sum] = 0
    gpu_total_ns: Annotated[Amount, Sum] = 0
    projected: Annotated[Distribution | None, Sketch] = None
    projected_range_ns: Annotated[Amount, Sum] = 0
    gpu_operations: Annotated[Amount, Sum] = 0
    levels: Annotated[Amount, Sum] = 0
    children_with_work: Annotated[Amount, Sum] = 0
    payload: Annotated[Payload | None, Newest] = None
    incomplete: Annotated[Amount, Sum] = 0
    """How many of the projected instances lost records: their figures are too small."""


LAUNCH_UNKNOWN = -1
"""The thread of kernels whose launch never arrived."""


class KernelDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Kernels of one name that finished, by the innermost range that launched them.

    `range` is the innermost of the program's ranges around the launch, 0 if there is none. It is
    `inherited` if the launching thread itself had none open, as autograd's: it is then the one that
    was open on the process's main thread. `thread` is the launching thread if that had no range
    open at all, not even a library's; otherwise 0; LAUNCH_UNKNOWN if the launch never arrived. Sums
    that were imported without the launches have `range` 0 and `thread` 0. Ask `is_outside` for what
    nsys counts as outside every range.

    A kernel launched while several instances of its range were open counts in `time` once for each
    of them; `repeats` is how many of these counts are not the first, so that `time.count` minus
    `repeats` is the number of kernels.

    `captured` is set for kernels that CUDA graphs replay: the range in which the graph's node was
    captured, as a range below the one of the replay (see RangeDefined). Phases count the kernel
    there. Where `captured` is 0, `replayed` counts the kernels of graphs that were captured in
    `range` itself, or outside every range.
    """

    process: Annotated[ProcessNumber, Key]
    range: Annotated[RangeNumber, Key]
    kernel: Annotated[KernelNumber, Key]
    device: Annotated[Integer, Key]
    inherited: Annotated[bool, Key] = False
    thread: Annotated[Integer, Key] = 0
    time: Annotated[Distribution, Sketch]
    repeats: Annotated[Amount, Sum] = 0
    captured: Annotated[RangeNumber, Key] = 0
    replayed: Annotated[Amount, Sum] = 0

    @property
    def phase(self) -> int:
        """The range in which phases count it."""
        return self.captured or self.range

    @property
    def is_outside(self) -> bool | None:
        """Whether the launching thread had no range open at all, as nsys counts it. None if that is
        not known, because the launch never arrived or the sums were imported without launches;
        also None if the only range open was a library's, which looks the same."""
        if self.thread:
            return None if self.thread == LAUNCH_UNKNOWN else True
        return False if self.range else None


class RangeKernels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many instances of a range launched a kernel at least once, directly or in an inner range.
    `base_repeats` of them had already launched another kernel with the same base name: a table by
    base names, as nsys's `:base`, must not count them again.
    """

    range: Annotated[RangeNumber, Key]
    kernel: Annotated[KernelNumber, Key]
    instances: Annotated[Amount, Sum]
    base_repeats: Annotated[Amount, Sum] = 0


class ShapeLaunches(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many kernels of one launch shape finished."""

    shape: Annotated[ShapeNumber, Key]
    launches: Annotated[Amount, Sum]


class LaunchDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Launches of one kernel by one CUDA function, timed as in nsys's cuda_kern_exec_sum.

    `call` is the time in the CUDA call. `queue` is the time from the call's return to the kernel's
    start; launches whose kernel started before the call returned are not in it, so that it has
    fewer values, or is None. `kernel_time` is the kernel's own time. `total` runs from the start of
    the call to the end of the kernel or of the call, whichever is later.
    """

    process: Annotated[ProcessNumber, Key]
    thread: Annotated[Integer, Key]
    device: Annotated[Integer, Key]
    name: Annotated[str, Key]
    kernel: Annotated[KernelNumber, Key]
    total: Annotated[Distribution, Sketch]
    call: Annotated[Distribution, Sketch]
    queue: Annotated[Distribution | None, Sketch] = None
    kernel_time: Annotated[Distribution, Sketch]


class MemoryOperationDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Copies and memsets that finished. `operation` is nsys's name of the kind, as
    "[CUDA memcpy Device-to-Host]"; `range`, `inherited` and `captured` are as in KernelDelta.
    """

    process: Annotated[ProcessNumber, Key]
    range: Annotated[RangeNumber, Key]
    operation: Annotated[str, Key]
    device: Annotated[Integer, Key]
    source_kind: Annotated[str | None, Key] = None
    destination_kind: Annotated[str | None, Key] = None
    inherited: Annotated[bool, Key] = False
    time: Annotated[Distribution, Sketch]
    size: Annotated[Distribution, Sketch]
    captured: Annotated[RangeNumber, Key] = 0

    @property
    def phase(self) -> int:
        """The range in which phases count it."""
        return self.captured or self.range


class ApiDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """CUDA calls of one name that returned, by the innermost range of the calling thread. Sums of
    the whole run: what a program calls while it loads is in them. `docs/measuring.md` lists the
    calls that are recorded."""

    process: Annotated[ProcessNumber, Key]
    range: Annotated[RangeNumber, Key]
    name: Annotated[str, Key]
    inherited: Annotated[bool, Key] = False
    time: Annotated[Distribution, Sketch]


class MarkDelta(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many marks of one domain and name there were, and when the first and the last. Only the
    newest marks of a tick are also events of their own (`Mark`). `payload` is that of the newest
    mark that had one.
    """

    domain: Annotated[str, Key]
    name: Annotated[str, Key]
    count: Annotated[Amount, Sum]
    first_ns: Annotated[Moment, Min]
    last_ns: Annotated[Moment, Max]
    payload: Annotated[Payload | None, Newest] = None


class CollectiveDelta(OfProcess, msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Collectives of one process by communicator, kind and size.

    `size_class` n holds messages of 2ⁿ⁻¹ up to 2ⁿ bytes. `entered` operations were begun, the
    newest at `entered_ns`; `left` have ended. `count` kernels (or ranges, where there are no
    kernels) ran them, for `time_ns` together.

    `matched` of the operations were also found on the other local ranks. In their `matched_ns`, the
    process waited `wait_ns` until the last rank came; the rest is the transfer. In `last` of them
    this rank was the last to come. `blame_ns` is how much sooner these would have ended if it had
    come together with the last but one; `inherited_ns` is the part of that for which it was late
    only because it had itself waited for another rank. Operations in the first second of a
    communicator are not matched.
    """

    communicator: Annotated[str, Key]
    kind: Annotated[str, Key]
    size_class: Annotated[Integer, Key]
    entered: Annotated[Amount, Sum] = 0
    left: Annotated[Amount, Sum] = 0
    entered_ns: Annotated[Moment | None, Max] = None
    count: Annotated[Amount, Sum] = 0
    bytes: Annotated[Amount, Sum] = 0
    time_ns: Annotated[Amount, Sum] = 0
    ranks: Annotated[Amount, Max] = 0
    """Ranks of the communicator; 0 if the process did not say: then the local ranks are counted."""
    compared: Annotated[Amount, Sum] = 0
    """Operations that had ended when the other ranks were searched for them, matched or not."""
    matched: Annotated[Amount, Sum] = 0
    matched_bytes: Annotated[Amount, Sum] = 0
    matched_ns: Annotated[Amount, Sum] = 0
    wait_ns: Annotated[Amount, Sum] = 0
    last: Annotated[Amount, Sum] = 0
    blame_ns: Annotated[Amount, Sum] = 0
    inherited_ns: Annotated[Amount, Sum] = 0
    first_ns: Annotated[Moment | None, Min] = None
    last_ns: Annotated[Moment | None, Max] = None
    """When the first matched operation began, and when the last one ended."""
    longest_wait_ns: Annotated[Amount, Max] = 0
    longest_blame_ns: Annotated[Amount, Max] = 0
    """The longest single wait, and the most that this rank cost the others in one operation: a
    single event may make up all of a sum."""
    wait_us2: Annotated[Amount, Sum] = 0
    """The sum of the squared waits, in µs²: it distinguishes a few long waits, which may be chance,
    from many that are alike."""


class PeerDelta(OfProcess, msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Messages (sends and receives) between the process and another local process, `peer`.

    `messages` counts both directions, `bytes` is what was sent to the peer. A kernel that sends and
    receives waits for all of its partners: in `matched` of this process's kernels, which took
    `matched_ns`, the peer was the last to come, and they waited `wait_ns` for it. Kernels during
    which a connection was set up are not counted.
    """

    peer: Annotated[ProcessNumber, Key]
    messages: Annotated[Amount, Sum] = 0
    bytes: Annotated[Amount, Sum] = 0
    matched: Annotated[Amount, Sum] = 0
    matched_ns: Annotated[Amount, Sum] = 0
    wait_ns: Annotated[Amount, Sum] = 0


# Parts of a CaptureDelta: where the GPU's time went, by device, stream, step and line.


class DeviceDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Time in which at least one captured operation ran on a device, and their count.

    `first_start_ns` and `last_end_ns` span the operations of this delta. `idle` are the gaps in
    which none of the process's operations ran, including the gap between two deltas; their lengths
    are kept in buckets, within 5 %. `overlap_ns` is the sum of the streams' busy times minus the
    device's busy time.
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
    """What ran on one stream. The distributions are kept in buckets, within 5 %.

    `latency` is the time from the start of a launch call to the start of the first kernel that it
    launched, `queue` the time from the call's return to that start (0 if the kernel started
    earlier), `idle` the gaps between operations. `stream` is OTHER_STREAMS for all streams beyond
    those that are kept apart.
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
    """Launch calls of one thread; `interval` is the time between the starts of consecutive calls,
    within 5 %."""

    thread: Annotated[Integer, Key]
    launches: Annotated[Amount, Sum]
    interval: Annotated[Distribution | None, Sketch] = None


class RangeLeaf(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time of a device under one leaf (model.leaves), by range.

    Busy time belongs to the innermost range that launched what ran. Idle time belongs to the
    innermost range that was open meanwhile on the thread that launched the next operation. `range`
    0 is outside every range. The parts of a device add up to its whole time. A process without
    ranges has none of these parts: `leaf_times` has the same sums.
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
    """A step at least ten times as long as the usual one: a checkpoint, or waiting for work."""
    TAIL = 5
    """After the last complete step."""
    UNSTEPPED = 6
    """No steps were found."""


class LeafTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time of one device under one leaf (model.leaves), as one process sees it.

    All leaves of a device and scope add up to the device's wall time in that scope. `loop` numbers
    the program's loops: it may train, then generate.

    Tables and summaries move some of the time of steady steps to another leaf
    (`settle` in report.explain.leaves): idle.sync beyond the loop's `waited_ns` becomes
    idle.launch, because the CPU was in no call that waits; where at least a quarter of the CUDA
    calls read values, that share of idle.launch becomes idle.sync; the share of idle.host and
    idle.wait that lies in a data loader's range becomes idle.input; time in which collectives
    waited for a rank becomes idle.rank; and time by which another process on the GPU stretched
    kernels becomes busy.shared.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    scope: Annotated[Scope, Key]
    loop: Annotated[Integer, Key]
    leaf: Annotated[Integer, Key]
    ns: Annotated[Amount, Sum]


StepSource = Literal[
    "optimizer", "module", "token", "tqdm", "lightning", "trainer", "accelerate", "keras", "loop",
    "jax", "request", "nvtx", "repetition",
]  # fmt: skip
"""What marks a program's steps: the end of an optimizer's step, the call of a module that no other
module calls, such a call while text is generated, the iteration of a progress bar, the end of a
batch in a training framework, the turn of a loop in the program's own code, the call of a jitted
function, the end of a server's request, a range with the name of a step; and, where the program has
none of these, a sequence of launches that repeats."""

STEP_SOURCES: tuple[StepSource, ...] = get_args(StepSource)
"""The sources in the order of their numbers in the ring, from 1. Add new ones at the end."""

ItemUnit = Literal["samples", "tokens"]
ITEM_UNITS: tuple[ItemUnit, ...] = get_args(ItemUnit)
"""Numbered like STEP_SOURCES."""


class LoopDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Steps (turns of a loop) that ended on one device.

    `step_ns` are the steps' lengths, each from its start to the start of the next. `slow_steps`
    took more than 1.5 times as long as the usual step, `slow_ns` together. `newest` are the
    lengths of the newest steps, in order. `waited_ns` is how long the threads that launch waited
    for the GPU, in all steps. If the steps are not alike, and no StepBlock has them, `longest` has
    their parts, as `StepBlock.longest`. `micro_batches` is how many losses, or calls of the model,
    a training step has, if more than one.

    `source` is what marks the beginning of steps: the program's own marks (StepMarks) or ranges;
    "repetition" if only repeating launches show them; None in older recordings. A repetition may
    have several periods, as a layer or ten steps: `readings` is how many were seen, of which one
    was chosen as the step.
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
    source: Annotated[StepSource | None, Newest] = None
    readings: Annotated[Amount | None, Newest] = None

    @property
    def usual_ns(self) -> float:
        """How long the steps would take together if each took the median."""
        return ((self.step_ns.median if self.step_ns else None) or 0.0) * self.steps


class StepBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive steady steps of a loop on one device: how many they are, their time, and their
    time by leaf, as pairs of a leaf and ns. Differences between blocks give the uncertainty of a
    mean, and show whether steps grow (model.steps).

    `longest` divides the block into parts, in order: pairs of a number of steps and the length of
    the longest of them. `pauses` is how often the loop paused among or right after these steps, and
    `paused` the pauses' time by leaf, which no other sum includes.
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
    """GPU time that was launched within 0.25 ms of a sample that saw the launching thread at a
    line.

    Samples are evenly spaced in time. A line's share of these sums therefore estimates its share of
    all GPU time. They are in the rows whose `kernel` is 0. The others say of which kernel the
    launch was that was nearest to a sample, and within 50 µs.
    """

    device: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    readings: Annotated[Amount, Sum]
    gpu_ns: Annotated[Amount, Sum]
    kernel: Annotated[KernelNumber, Key] = 0


class GarbageCollections(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Python's garbage collections since the process launched something, by `generation` (0: the
    youngest objects, 2: all objects) and by the line of the program at which they began. `line` is
    0 where it is not known: only collections of all objects, or of 1 ms and more, have a line.
    `objects` is how many were freed."""

    generation: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    collections: Annotated[Amount, Sum]
    total_ns: Annotated[Amount, Sum]
    longest_ns: Annotated[Amount, Max]
    objects: Annotated[Amount, Sum]


class LineCalls(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often a line of the program called something that copies, waits for a GPU or frees its
    memory: `call` is a tensor's method ("to", "item"), a function that reads a tensor ("float") or
    a function of a library ("torch.cuda.synchronize"). `tensor_bytes` is the size of all tensors
    that it was called with, `tensor` describes one of the newest of them by shape, type and device,
    as "64x3x224x224:float32:cpu"; empty if there was none."""

    line: Annotated[Integer, Key]
    call: Annotated[str, Key]
    calls: Annotated[Amount, Sum]
    tensor_bytes: Annotated[Amount, Sum]
    tensor: Annotated[str, Newest] = ""


class Stretch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much longer kernels took than the fastest tenth of the same kernel with as many threads.

    `compared_ns` is the time of all kernels that were compared. For each kernel whose mean is at
    least 1.3 times its tenth percentile, `stretched_ns` includes the time beyond that percentile.
    Another process on the GPU stretches kernels so, but kernels with uneven work look the same.
    """

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    compared_ns: Annotated[Amount, Sum]
    stretched_ns: Annotated[Amount, Sum]


NO_LEAF = -1

BESIDE_RUNNING, BESIDE_ASLEEP = -2, -3
"""In place of a leaf: the line is another thread's, which ran on a core (or slept) while the
launching thread slept."""

RECOMPUTING = -4
"""In place of a leaf: the line is of a forward pass that the backward pass computes again."""

OUTSIDE_STEPS = -1
"""In place of a loop: between or before the steps."""


class LineSamples(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often samples, 10 a second, saw the launching thread at a line of the program while the
    thread was not in a CUDA call and a device idled in steady steps. `loop` is OUTSIDE_STEPS where
    there was no steady step.

    `leaf` is the leaf (model.leaves) that the functions around the line indicate, NO_LEAF if none.
    With idle.sync or idle.alloc the thread was in a call that waits or allocates, and the device
    need not have idled. BESIDE_RUNNING, BESIDE_ASLEEP and RECOMPUTING stand there for what they
    say. `inside` is the innermost function of a library, called by the line, in which at least 60 %
    of all the line's samples were (the number of its LineDefined), 0 if there is none;
    `inside_samples` is how many were in it."""

    process: Annotated[ProcessNumber, Key]
    device: Annotated[Integer, Key]
    loop: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    samples: Annotated[Amount, Sum]
    leaf: Annotated[Integer, Key] = NO_LEAF
    inside: Annotated[Integer, Newest] = 0
    inside_samples: Annotated[Amount, Newest] = 0
