"""What the capture library reports of a process: what it saw for the first time (processes, names,
shapes), and what was done since the last report, as sums that can be merged.
"""

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
    KernelNumber,
    Key,
    MarkNumber,
    Moment,
    Newest,
    Numbered,
    Parts,
    ProcessNumber,
    RangeNumber,
    Reader,
    Record,
    RunNumber,
    ShapeNumber,
    Sum,
)
from gputui.model.events.capture_parts import (
    ApiDelta,
    CollectiveDelta,
    DeviceDelta,
    GarbageCollections,
    ItemUnit,
    KernelDelta,
    LaunchDelta,
    LeafTime,
    LineCalls,
    LineLaunches,
    LineSamples,
    LoopDelta,
    MarkDelta,
    MemoryOperationDelta,
    PeerDelta,
    RangeDelta,
    RangeKernels,
    RangeLeaf,
    ShapeLaunches,
    StepBlock,
    StepSource,
    StreamDelta,
    Stretch,
    ThreadLaunches,
    WindowCost,
    WindowWork,
)

# What the capture library saw for the first time: processes, names, shapes.

MAX_SHAPES = 100_000
"""Distinct launch shapes per session; any further ones have none."""

MAX_KERNELS = 100_000
"""Distinct kernel names per session; any further ones share the name OTHER_KERNELS."""

OTHER_KERNELS = "(other kernels)"


class JobFacts(Record, frozen=True, kw_only=True):
    """The job that a rank belongs to, by its environment: the id of torchrun or the scheduler, how
    many ranks it has in all, and the number of this node in it."""

    id: str | None = None
    world_size: Integer | None = None
    node_rank: Integer | None = None


class ProcessAttached(Event, frozen=True, kw_only=True, tag="process_attached"):
    """A process of the run loaded the capture library. `process` numbers them from 1.

    Sent again with the same number when its content changes.
    """

    about = About.RUN
    defines = True
    repeated_for = ("process",)

    run: RunNumber
    process: ProcessNumber
    pid: Integer
    parent_pid: Integer
    rank: Integer | None = None
    local_rank: Integer | None = None
    job: JobFacts | None = None
    command: str
    cuda_status: str
    """"tracing", "no CUDA", or one line saying why kernels are not captured."""
    cupti_version: Integer | None = None
    visible_devices: str | None = None
    """Its CUDA_VISIBLE_DEVICES when it initialised CUDA, which its device numbers refer to."""
    launch_blocking: bool = False
    """Whether its CUDA_LAUNCH_BLOCKING was set then: each launch waits for its kernel."""
    host: str | None = None
    """Where it runs, in a session merged from recordings of several hosts."""
    unseen_forks: Amount = 0
    """Processes forked from it, without exec, that made ranges: those are not captured."""
    annotated: bool = False
    """Whether ranges were put around its torch operations."""
    began_ns: Moment | None = None
    """When it loaded the library, by its own clock; `time_ns` is when that was observed."""


class CaptureRefused(Event, frozen=True, kw_only=True, tag="capture_refused"):
    """Processes of the run had no place for their records, so that nothing of them is captured.

    Sent again when there are more of them. `reason` is one line for people.
    """

    about = About.RUN

    run: RunNumber
    processes: Amount
    reason: str


class ProcessDetached(Event, frozen=True, kw_only=True, tag="process_detached"):
    """The process ended or stopped writing. `clean` is False if it vanished without ending
    properly.
    """

    about = About.PROCESS

    process: ProcessNumber
    clean: bool
    ended_ns: Moment | None = None
    """When it ended properly, by its own clock; `time_ns` is when that was observed."""


class ProcessOutOfSight(Event, frozen=True, kw_only=True, tag="process_out_of_sight"):
    """The recording that has the process ends here, before the process: it may have gone on.

    Only in the merged session of several recordings, whose others may end later.
    """

    about = About.PROCESS

    process: ProcessNumber


class ThreadNamed(Event, frozen=True, kw_only=True, tag="thread_named"):
    """The name of a thread: the program's (nvtxNameOsThread), else the operating system's.

    Sent again when the name changes.
    """

    about = About.PROCESS
    defines = True
    repeated_for = ("process", "thread")

    process: ProcessNumber
    thread: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    name: str
    source: Literal["nvtx", "system"]
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """The scheduler's, as /proc has it: 20 where nobody changed it, negative of real-time threads;
    None where it was not read."""


class ResourceNamed(Event, frozen=True, kw_only=True, tag="resource_named"):
    """The program's name for a CUDA device, context or stream (nvtxNameCudaStream and similar).

    `number` is CUPTI's; that of a device, and `device`, are as the process numbers its devices;
    None if the device of a stream is unknown. Sent again when the name changes.
    """

    about = About.PROCESS
    defines = True
    repeated_for = ("process", "kind", "number", "device")

    process: ProcessNumber
    kind: Literal["device", "context", "stream"]
    number: Integer
    device: Integer | None = None
    name: str


class DeviceDefined(Event, frozen=True, kw_only=True, tag="device_defined"):
    """What the driver says of a CUDA device in a traced process that NVML does not: `device` is as
    the process numbers it, `l2_cache_bytes` CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE.
    """

    about = About.PROCESS
    defines = True
    repeated_for = ("process", "device")

    process: ProcessNumber
    device: Integer
    l2_cache_bytes: Integer


# No thread of a Linux process has the id 0.
NO_THREAD = 0

MARKED_LENGTHS = 64
"""Distances between marks that an event carries, the newest."""


class StepMarks(Event, frozen=True, kw_only=True, tag="step_marks"):
    """A program was at a boundary of its steps, as it says itself: the marks of one thread, source
    and site since the last such event of theirs. `time_ns` is the newest mark.

    `site` tells apart what has the same source: the optimizer's or module's class, the line that a
    progress bar stands at. Marks of several sources may speak of the same step, or of parts of it;
    which of them the run's steps go by is in its loops (LoopDelta). The rank is the process's.
    """

    about = About.PROCESS
    repeated_for = ("process", "thread", "source", "site")

    process: ProcessNumber
    thread: Integer
    source: StepSource
    site: str = ""
    first: Amount
    """Ordinal of the first mark among those of this source and site in the process, from 1."""
    marks: Amount
    """How many, of which the newest has the ordinal `first + marks - 1`; others may lie between
    where several threads mark the same site."""
    span_ns: Amount = 0
    """From the first of them to the newest."""
    lengths_ns: Annotated[tuple[Amount, ...], Meta(max_length=MARKED_LENGTHS)] = ()
    """From the mark before to each of the newest marks, in order."""
    items: Amount | None = None
    """Samples or tokens of all these marks' steps; None where the program does not show them."""
    unit: ItemUnit | None = None
    grown: Amount = 0
    """Of the marks, those of calls whose input is one longer than that of the call before."""


class RangeDefined(Event, frozen=True, kw_only=True, tag="range_defined"):
    """A node of the range tree, seen for the first time. `range` numbers nodes from 1.

    A node is one name at one place: (process, thread, domain, parent, name). `parent` is 0 at the
    top. `thread` is the operating system's thread id, 0 where it, and so what lies in what, is not
    known. `style` follows nsys.
    """

    about = About.PROCESS
    defines = True
    repeated_for = ("range",)

    range: RangeNumber
    process: ProcessNumber
    thread: Integer
    parent: RangeNumber
    domain: str = ""
    name: str
    style: Literal["PushPop", "StartEnd"] = "PushPop"
    color: Integer | None = None
    category: str | None = None
    category_id: Integer | None = None
    """The program's own number of the category, which may have no name."""
    graph: Literal["captured", "unseen"] | None = None
    """Set where no range of the program lies here, but its parent replays a CUDA graph: `captured`
    in a range of that name, or by a node whose capture was not seen, which it is named after."""


class MarkDefined(Event, frozen=True, kw_only=True, tag="mark_defined"):
    """Marks of one domain and name, seen for the first time; `mark` numbers them from 1. Colour and
    category are those of the first.
    """

    about = About.PROCESS
    defines = True
    repeated_for = ("mark",)

    mark: MarkNumber
    process: ProcessNumber
    domain: str = ""
    name: str
    color: Integer | None = None
    category: str | None = None
    category_id: Integer | None = None


class LineDefined(Event, frozen=True, kw_only=True, tag="line_defined"):
    """A line of a Python program, seen for the first time; `line` numbers those of a process."""

    about = About.PROCESS
    defines = True
    repeated_for = ("process", "line")

    process: ProcessNumber
    line: Integer
    path: str
    number: Amount
    function: str


class KernelDefined(Event, frozen=True, kw_only=True, tag="kernel_defined"):
    """A kernel name, seen for the first time. `kernel` numbers names from 1."""

    about = About.SESSION
    defines = True
    repeated_for = ("kernel",)

    kernel: KernelNumber
    name: str
    mangled: str


class LaunchShape(Event, frozen=True, kw_only=True, tag="launch_shape"):
    """A geometry in which `kernel` is launched, seen for the first time. `shape` numbers them from
    1.

    `grid` is in blocks and `block` in threads, each as (x, y, z); shared memory is per block.
    """

    about = About.SESSION
    defines = True
    repeated_for = ("shape",)

    shape: Annotated[int, Meta(ge=1, le=2**31 - 1), Numbered.SHAPE]
    kernel: KernelNumber
    grid: tuple[Amount, Amount, Amount]
    block: tuple[Amount, Amount, Amount]
    registers_per_thread: Amount
    static_shared_bytes: Amount = 0
    dynamic_shared_bytes: Amount = 0


# What a process did since the last report, as sums that can be merged.


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
    kernels: Annotated[tuple[KernelDelta, ...], Parts, Reader.TABLES] = ()
    secondary_domain_kernels: Annotated[tuple[KernelDelta, ...], Parts, Reader.TABLES] = (
        msgspec.field(default=(), name="kernels_beside")
    )
    range_kernels: Annotated[tuple[RangeKernels, ...], Parts, Reader.TABLES] = ()
    launches: Annotated[tuple[LaunchDelta, ...], Parts, Reader.TABLES] = ()
    shapes: Annotated[tuple[ShapeLaunches, ...], Parts, Reader.TABLES] = ()
    memory_operations: Annotated[tuple[MemoryOperationDelta, ...], Parts, Reader.TABLES] = ()
    api: Annotated[tuple[ApiDelta, ...], Parts] = ()
    devices: Annotated[tuple[DeviceDelta, ...], Parts] = ()
    streams: Annotated[tuple[StreamDelta, ...], Parts, Reader.TABLES] = ()
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
    """What `dropped` is made of: records lost, by cause."""
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
    garbage_collections: Annotated[tuple[GarbageCollections, ...], Parts] = ()
    line_calls: Annotated[tuple[LineCalls, ...], Parts] = ()


class CaptureSum(CaptureDelta, frozen=True, kw_only=True, tag="capture_sum"):
    """The sum of all `capture` events of one process so far in this file, with `open_ranges` as in
    the last: a reader of the final state can skip those events, and earlier sums. A recording has
    one every so many bytes; sources emit none.

    `phase_starts` are outermost ranges that are no longer open.
    """

    phase_starts: Annotated[tuple[OpenRange, ...], Meta(max_length=PHASE_STARTS)] = ()


# --- What a GPU's hardware counters say of the kernels that ran on it, where they are sampled.

MOST_COUNTED = 64
"""Kernels, and phases, of one event: those that ran longest."""


class CountedKernel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A kernel of one launch shape (0: of all), by the counters of `GpuCounters.counters`: its time
    in the samples, how much of it nothing else ran, and of each counter the rate while it ran and
    half of its 90 % interval; null where the samples cannot tell.

    A rate is in percent where the counter's name ends in `_percent`, else in
    `GpuCounters.amounts_per_s` a second.
    """

    kernel: KernelNumber
    shape: ShapeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class CountedPhase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same of what a range launched, and of nothing inside it."""

    range: RangeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class GpuCounters(Event, frozen=True, kw_only=True, tag="gpu_counters"):
    """A GPU's sampled counters, from the first sample to `time_ns`: sums, of which a later event
    replaces an earlier one. `device` is the process's own number, and one of several processes
    stands for all on that GPU.

    `unavailable_reason` is one line for people, where nothing is sampled, or no more.
    """

    about = About.PROCESS
    repeated_for = ("process", "device")

    process: ProcessNumber
    device: Integer
    unavailable_reason: str | None = None
    chip: str = ""
    cupti_version: Integer | None = None
    interval_ns: Amount | None = None
    """How long a sample is meant to be."""
    counters: tuple[str, ...] = ()
    samples: Amount = 0
    unused_samples: Amount = 0
    """Taken while it was not known what ran: between windows of tracing, or of other processes."""
    lost_samples: Amount = 0
    clock_offset_ns: Integer | None = None
    """What was added to the samples' times so that they fit the kernels'."""
    amounts_per_s: Annotated[float, Meta(gt=0, le=1e12)] = 1.0
    """The unit of rates that are no shares: 1e9 spares digits."""
    mean: tuple[float, ...] = ()
    """Of each counter over all samples that are used: the whole GPU's, busy or not."""
    kernels: Annotated[tuple[CountedKernel, ...], Meta(max_length=MOST_COUNTED)] = ()
    phases: Annotated[tuple[CountedPhase, ...], Meta(max_length=MOST_COUNTED)] = ()


MOST_SAMPLES_AT_ONCE = 5000
"""Samples of a GPU's counters in one event."""


class SampledCounters(Event, frozen=True, kw_only=True, tag="sampled_counters"):
    """Samples of a GPU's counters one by one, where raw records are kept too (`--trace`): on the
    kernels' clock, `starts_ns` as distances from `time_ns` backwards, each `lengths_ns` long.
    `values` has a row for each, in the order of `counters`: percent, or counts.
    """

    about = About.PROCESS

    process: ProcessNumber
    device: Integer
    counters: tuple[str, ...]
    starts_ns: Annotated[tuple[Amount, ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
    lengths_ns: Annotated[tuple[Amount, ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
    values: Annotated[tuple[tuple[float, ...], ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
