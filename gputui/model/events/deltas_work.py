"""Parts of a CaptureDelta: ranges, and the calls, kernels and copies in them."""

from __future__ import annotations

from typing import Annotated, Literal

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


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value a program attached to a range or a mark, by its NVTX type.

    JSON has no NaN and no infinity: those are text. For "bytes", the program's own data, the value
    is the number of bytes.
    """

    type: Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]
    value: int | float | Literal["nan", "inf", "-inf"]


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

    `range` 0 is outside every range. `inherited` means that the launching thread had no range open
    and `range` is the one open on the process's main thread at that moment (autograd); nsys counts
    such a kernel outside every range. `thread` is the launching thread if it had no range open at
    all, not even a library's; otherwise 0; -1 if the launch never arrived. `repeats` are those of
    `time` that were launched in several overlapping instances of the range, less one each.
    `captured` is set for what CUDA graphs replay: the range below `range` that stands for where it
    was captured (see RangeDefined), in which phases count it. Without it, `replayed` of the kernels
    are those of graphs that were captured in `range` itself, or outside every range.
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
