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
    """The job that a rank belongs to, as its environment has it: the id that torchrun or the
    scheduler gave the job, its number of ranks, and the number of this node among its nodes."""

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
    """CUDA_VISIBLE_DEVICES of the process when it initialised CUDA. The process's own device
    numbers count within it."""
    launch_blocking: bool = False
    """Whether CUDA_LAUNCH_BLOCKING was set when the process initialised CUDA: each launch then
    waits for its kernel."""
    host: str | None = None
    """Where it runs, in a session merged from recordings of several hosts."""
    unseen_forks: Amount = 0
    """How many processes were forked from it, without exec, and made ranges: they are not
    captured."""
    annotated: bool = False
    """Whether ranges were put around its torch operations."""
    began_ns: Moment | None = None
    """When the process loaded the library, by its own clock; `time_ns` is when gputui saw it."""


class CaptureRefused(Event, frozen=True, kw_only=True, tag="capture_refused"):
    """Some processes of the run had no place for their records and are not captured.

    Sent again when more processes are refused. `reason` is one line for people.
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
    """When the process ended properly, by its own clock; `time_ns` is when gputui saw it."""


class ProcessOutOfSight(Event, frozen=True, kw_only=True, tag="process_out_of_sight"):
    """The recording with this process ends here, while the process may have gone on.

    Only merged sessions have this event: their other recordings may end later.
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
    """The scheduler's priority of the thread, as in /proc: 20 if nobody changed it, negative for
    real-time threads; None if it was not read."""


class ResourceNamed(Event, frozen=True, kw_only=True, tag="resource_named"):
    """The program's name for a CUDA device, context or stream (nvtxNameCudaStream and similar).

    `number` is CUPTI's number of the context or stream; of a device it is the process's own number,
    as is `device`. `device` is None if the device of a stream is unknown. Sent again when the name
    changes.
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
    """Properties of a CUDA device that the driver gives a traced process, and NVML does not give.
    `device` is the process's own number, `l2_cache_bytes` CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE.
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
"""How many distances between marks an event carries, the newest ones."""


class StepMarks(Event, frozen=True, kw_only=True, tag="step_marks"):
    """The boundaries of steps that a program itself marked since the last such event, of one
    thread, source and site. `time_ns` is the time of the newest mark.

    `site` distinguishes marks of one source: it is the class of the optimizer or module, or the
    line of a progress bar. Marks of several sources may belong to the same step, or to parts of it;
    `LoopDelta.source` is the one by which the run's steps are counted.
    """

    about = About.PROCESS
    repeated_for = ("process", "thread", "source", "site")

    process: ProcessNumber
    thread: Integer
    source: StepSource
    site: str = ""
    first: Amount
    """The ordinal of the first of these marks among all marks of its source and site in the
    process, from 1."""
    marks: Amount
    """How many marks. The newest has the ordinal `first + marks - 1`, unless other threads marked
    the same site in between."""
    span_ns: Amount = 0
    """The time from the first of these marks to the newest."""
    lengths_ns: Annotated[tuple[Amount, ...], Meta(max_length=MARKED_LENGTHS)] = ()
    """For each of the newest marks, in order, the time since the mark before it."""
    items: Amount | None = None
    """How many samples or tokens the steps of these marks processed; None where the program does
    not show it."""
    unit: ItemUnit | None = None
    grown: Amount = 0
    """How many of the marks are of calls whose input was one longer than that of the call before,
    as in a decoder without a KV cache."""


class RangeDefined(Event, frozen=True, kw_only=True, tag="range_defined"):
    """A node of the range tree, seen for the first time. `range` numbers nodes from 1.

    A node is one name at one place: (process, thread, domain, parent, name). `parent` is 0 at the
    top. `thread` is the operating system's thread id; 0 means that the thread is not known, and
    then the nesting of its ranges is not known either. `style` is named as in nsys.
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
    """Set for nodes that are no ranges of the program, but stand for parts of a CUDA graph that the
    parent replays. "captured": work that was captured in a range of this name; "unseen": a graph
    node whose capture was not seen, and whose number is the name."""


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
    """A geometry in which `kernel` is launched, seen for the first time. `shape` numbers these
    geometries from 1.

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
    """How many records were lost for one cause: the "ring" was full; they were "unread" in it at
    the end; "cupti" lost them; a thread had ranges open in too many "domains", so that `domain` was
    not tracked; they were "deferred" events of `domain`; or the reader's bounds for stacks, levels
    and open ranges left no "places".
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

    `records` and `dropped` count records of the ring. `unattributed` counts GPU operations whose
    launch is not known; `contradicted` of them have, from CUPTI, the number of a call that cannot
    have launched them, and the launch of the others never arrived. `wrong_times` counts operations
    with impossible times. `callback_ns` is the time that the capture library measured of itself in
    the traced process; `reader_cpu_ns` is the CPU time that reading cost in gputui.

    `kernels` counts each kernel once. `secondary_domain_kernels` (written as `kernels_beside`)
    counts the same kernels again in the ranges that were open in other domains.

    Kernels and calls were traced for `traced_ns`. If the user asked for tracing part of the time,
    they were not traced for `paused_ns`. Threads that make collectives on the CPU were watched for
    `core_watched_ns`: they ran for `core_run_ns` of it, and for `core_wait_ns` were ready to run
    but had no core.
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
    """The steady steps in order, at most 64 blocks of each loop. A loop whose steps are a single
    block has none here: `leaf_times` and `loops` have the same sums."""
    line_launches: Annotated[tuple[LineLaunches, ...], Parts] = ()
    stretches: Annotated[tuple[Stretch, ...], Parts] = ()
    range_leaves: Annotated[tuple[RangeLeaf, ...], Parts] = ()
    collectives: Annotated[tuple[CollectiveDelta, ...], Parts] = ()
    peers: Annotated[tuple[PeerDelta, ...], Parts] = ()
    losses: Annotated[tuple[Loss, ...], Parts] = ()
    """The records that `dropped` counts, by cause."""
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
    """How much longer the turns of a range took after the first window than before it, in
    millionths: the lasting cost of CUPTI in programs from which it cannot be removed again."""
    garbage_collections: Annotated[tuple[GarbageCollections, ...], Parts] = ()
    line_calls: Annotated[tuple[LineCalls, ...], Parts] = ()


class CaptureSum(CaptureDelta, frozen=True, kw_only=True, tag="capture_sum"):
    """The sum of all `capture` events of one process so far in this file; `open_ranges` is that of
    the last. Someone who reads only the final state can skip those events, and earlier sums. The
    journal writes such a sum at intervals of bytes; sources emit none.

    `phase_starts` are the starts of outermost ranges that are no longer open.
    """

    phase_starts: Annotated[tuple[OpenRange, ...], Meta(max_length=PHASE_STARTS)] = ()


# --- What a GPU's hardware counters say of the kernels that ran on it, where they are sampled.

MOST_COUNTED = 64
"""The most kernels, and the most phases, in one event: those that ran longest."""


class CountedKernel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Hardware counters of a kernel of one launch shape (0: of all its shapes).

    `time_ns` is the kernel's time in the samples, `alone_ns` the part of it in which nothing else
    ran. `rates` has, for each of `GpuCounters.counters`, the rate while the kernel ran, and
    `errors` half of that rate's 90 % interval; null where the samples cannot show it. A rate is in
    percent if the counter's name ends in `_percent`, otherwise in `GpuCounters.amounts_per_s` a
    second.
    """

    kernel: KernelNumber
    shape: ShapeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class CountedPhase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Hardware counters of the work that a range launched itself, without ranges inside it; the
    fields are as in CountedKernel."""

    range: RangeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class GpuCounters(Event, frozen=True, kw_only=True, tag="gpu_counters"):
    """A GPU's sampled counters from the first sample to `time_ns`. A later event includes the
    earlier ones and replaces them. `device` is the process's own number; if several processes use
    the GPU, the event names one of them.

    `unavailable_reason` is one line for people, if nothing is sampled, or no longer.
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
    """Samples taken while it was not known what ran: between windows of tracing, or while other
    processes used the GPU."""
    lost_samples: Amount = 0
    clock_offset_ns: Integer | None = None
    """What was added to the samples' times to put them on the kernels' clock."""
    amounts_per_s: Annotated[float, Meta(gt=0, le=1e12)] = 1.0
    """The unit of rates that are not in percent: 1e9 means billions a second."""
    mean: tuple[float, ...] = ()
    """The mean of each counter over all used samples: of the whole GPU, busy or not."""
    kernels: Annotated[tuple[CountedKernel, ...], Meta(max_length=MOST_COUNTED)] = ()
    phases: Annotated[tuple[CountedPhase, ...], Meta(max_length=MOST_COUNTED)] = ()


MOST_SAMPLES_AT_ONCE = 5000
"""The most samples of a GPU's counters in one event."""


class SampledCounters(Event, frozen=True, kw_only=True, tag="sampled_counters"):
    """Single samples of a GPU's counters, kept where raw records are kept too (`--trace`).

    The times are on the kernels' clock: sample i began `starts_ns[i]` before `time_ns`, and is
    `lengths_ns[i]` long. `values` has a row for each sample, in the order of `counters`: percent,
    or counts.
    """

    about = About.PROCESS

    process: ProcessNumber
    device: Integer
    counters: tuple[str, ...]
    starts_ns: Annotated[tuple[Amount, ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
    lengths_ns: Annotated[tuple[Amount, ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
    values: Annotated[tuple[tuple[float, ...], ...], Meta(max_length=MOST_SAMPLES_AT_ONCE)]
