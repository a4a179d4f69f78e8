"""Parts of a CaptureDelta: ranges with the calls, kernels and copies in them, where the GPU's time
went by device, stream, step and line, and what windows of tracing saw and cost.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

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
    Step,
    Sum,
)
from gputui.model.statistics import FINE, Statistics
from gputui.model.units import MISSING

# What was seen in windows of tracing, where kernels are traced part of the time, and the cost.

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


# Parts of a CaptureDelta: ranges, and the calls, kernels and copies in them.


class Distribution(Statistics, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durations (ns) or sizes (bytes) as a mergeable sum.

    `squares` is Σ(x − mean)². `values` are the distinct values in order: the values themselves
    while `exact`, otherwise bucket midpoints within 1 % of each value. Each is written as the
    difference from the previous one, the first from 0; a following −n means that it occurred n
    times, not once: [500, 32, -3, 64] is 500 once, 532 three times, 596 once.

    Where they have `buckets` there are no `values`: the number of a bucket, how many values are in
    it, and in those that follow it. Bucket i holds what is over 1.018^(i−1) up to 1.018^i.
    """

    count: Amount
    total: Amount
    squares: float
    minimum: Amount
    maximum: Amount
    values: Annotated[tuple[Step, ...], Meta(max_length=8192)]
    exact: bool = True
    buckets: Annotated[tuple[Amount, ...], Meta(max_length=8192)] = ()

    def counted(self) -> list[tuple[int, int]]:
        """(value, how often it came) in ascending order."""
        if self.buckets:
            first, *counts = self.buckets
            return [pair for pair in zip(FINE.middles[first:], counts, strict=False) if pair[1]]
        pairs: list[tuple[int, int]] = []
        value = 0
        for step in self.values:
            if step >= 0:
                value += step
                pairs.append((value, 1))
            elif pairs:
                pairs[-1] = value, -step
        return pairs


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
"""No payload."""

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
    """The number in the 8 bytes, None if there is no payload."""
    if kind not in PAYLOAD_NAMES:
        return None
    if kind in _REAL:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value
    return bits - (1 << 64) if kind in _SIGNED and bits >> 63 else bits


def payload_of(kind: int, bits: int) -> Payload | None:
    """The same as a part of an event."""
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


class RangeDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What closed in one range node since the last delta.

    `cpu` are the durations of the instances that ended. `gpu_busy_ns` is the time at least one GPU
    operation launched inside the range, inside its children, or by a thread without ranges
    meanwhile (`inherited`, as in KernelDelta) ran; `gpu_total_ns` is the sum of
    their durations. `projected` is, for each instance whose operations have all arrived, first
    start to last end on the GPU, as nsys projects. The remaining fields are sums over those
    instances: their time on the thread, their operations, the ranges of the thread around each (of
    any domain), and the ranges directly inside each that launched something too. `payload` is that
    of the newest instance that had one.
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
    """Of these instances, those in which records were lost: figures of theirs are too small."""


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
    """How many instances of a range launched a kernel that they had not launched before, directly
    or in an inner range. Of these, `base_repeats` had launched one with the same base name, as in
    nsys's `:base`.
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
    """Launches of one kernel by one call, from the call to the kernel's end.

    `call` is the time in the CUDA call, `queue` from its return to the kernel's start if that came
    later (fewer, or None), `kernel_time` the kernel's own, and `total` from the call's start to the
    kernel's end or the call's, whichever is later. As in nsys's cuda_kern_exec_sum.
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
    """Copies and memsets that finished. `operation` is nsys's name of the kind; `captured` as in
    KernelDelta.
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
    """CUDA calls that returned, by name and by innermost range of the calling thread."""

    process: Annotated[ProcessNumber, Key]
    range: Annotated[RangeNumber, Key]
    name: Annotated[str, Key]
    inherited: Annotated[bool, Key] = False
    time: Annotated[Distribution, Sketch]


class MarkDelta(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Marks of one domain and name; the `Mark` events beside them are the newest of a tick.
    `payload` is that of the newest mark that had one.
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
    newest at `entered_ns`, `left` have ended; `count` kernels, or ranges, ran them for `time_ns`.
    Of these `matched` were found on the other local ranks too: of their `matched_ns`, `wait_ns`
    passed until the last rank came, and the rest is the transfer. `last` times this rank was the
    last to come; `blame_ns` is how much sooner those would have ended had it come with the last but
    one, and `inherited_ns` the same where it was late only because it had waited itself. The first
    second of a communicator is not matched.
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
    """Ranks of the communicator, 0 where the process did not say; then local ones count."""
    compared: Annotated[Amount, Sum] = 0
    """Those that had ended when the others were looked through; `matched` are among them."""
    matched: Annotated[Amount, Sum] = 0
    matched_bytes: Annotated[Amount, Sum] = 0
    matched_ns: Annotated[Amount, Sum] = 0
    wait_ns: Annotated[Amount, Sum] = 0
    last: Annotated[Amount, Sum] = 0
    blame_ns: Annotated[Amount, Sum] = 0
    inherited_ns: Annotated[Amount, Sum] = 0
    first_ns: Annotated[Moment | None, Min] = None
    last_ns: Annotated[Moment | None, Max] = None
    """From the first to the last matched one."""
    longest_wait_ns: Annotated[Amount, Max] = 0
    longest_blame_ns: Annotated[Amount, Max] = 0
    """The longest of the waits, and of what its coming last cost: what happened once."""
    wait_us2: Annotated[Amount, Sum] = 0
    """The squares of the waits, in µs²: a few long ones may be chance, many alike are not."""


class PeerDelta(OfProcess, msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Messages (sends and receives) between the process and another local one, `peer`.

    `messages` went to and fro, of which `bytes` were sent to it. In `matched` kernels, which took
    `matched_ns`, it was the last of all partners to come: until then they waited, for `wait_ns`.
    Those in which a connection was made are not among them.
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
    program may train, then generate. Tables and summaries move some of it afterwards, in steady
    steps (report.explain.leaves): idle.sync beyond the loop's `waited_ns` becomes idle.launch, for
    the CPU was in no call that waits; idle.launch becomes idle.sync by the share of calls that read
    values, where a quarter or more do; idle.host and idle.wait become idle.input by the share of
    them that lies in a data loader's range; collectives that waited for a rank become idle.rank;
    and kernels that a process that shares the GPU stretched become busy.shared.
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
"""What says where a program's steps are: the end of an optimizer's step, the call of a module that
no other module calls, such a call while text is generated, the iteration of a progress bar, the end
of a batch in a training framework, the turn of a loop in the program's own code, the call of a
jitted function, the end of a server's request, a range that names itself a step; and, where none of
them speaks, what launches repeat."""

STEP_SOURCES: tuple[StepSource, ...] = get_args(StepSource)
"""In the order of the numbers that the ring has for them, from 1; new ones go to the end."""

ItemUnit = Literal["samples", "tokens"]
ITEM_UNITS: tuple[ItemUnit, ...] = get_args(ItemUnit)
"""Numbered like STEP_SOURCES."""


class LoopDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Turns of a loop that ended on one device.

    `step_ns` are their lengths, from start to start. A slow step took more than 1.5 times as long
    as the usual one. `newest` are the lengths of the newest steps, in order; `waited_ns` is how
    long the threads that launch waited for the GPU in all of them. Where they are not
    alike, and no StepBlock has them, `longest` are their parts as there. `micro_batches` is how
    many losses, or calls of the model, a training step has, if several.

    `source` is what says where the steps begin: the program's own marks (StepMarks) or ranges,
    "repetition" where launches repeat and nothing else speaks, None in older recordings. Repetition
    can be read in several ways, a layer for a step or ten steps for one: `readings` are the periods
    that were seen, of which one was chosen.
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
        """What the turns would take if each were the usual one."""
        return ((self.step_ns.median if self.step_ns else None) or 0.0) * self.steps


class StepBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive steady steps of a loop on one device: how many, their time, and its leaves as
    (leaf, ns). What a mean is uncertain by, and whether steps grow, is seen from one block to the
    next (model.steps).

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


class GarbageCollections(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Python's garbage collections since the process launched something: of `generation` 0, the
    youngest objects, to 2, all of them, begun at a line of the program (0: not known; only those of
    all objects, or that took 1 ms, say). `objects` were freed."""

    generation: Annotated[Integer, Key]
    line: Annotated[Integer, Key]
    collections: Annotated[Amount, Sum]
    total_ns: Annotated[Amount, Sum]
    longest_ns: Annotated[Amount, Max]
    objects: Annotated[Amount, Sum]


class LineCalls(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often a line of the program called what copies, waits for a GPU or frees its memory:
    `call` is a tensor's method ("to", "item"), what reads one ("float") or a function
    ("torch.cuda.synchronize"). `tensor_bytes` is what the tensors have that it was called for,
    `tensor` a late one's shape, type and place, as "64x3x224x224:float32:cpu"; empty where it was
    for none."""

    line: Annotated[Integer, Key]
    call: Annotated[str, Key]
    calls: Annotated[Amount, Sum]
    tensor_bytes: Annotated[Amount, Sum]
    tensor: Annotated[str, Newest] = ""


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
