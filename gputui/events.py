"""The vocabulary: every event a source can make, one small typed record each.

Sources emit these, the session folds them, the journal stores them as JSON lines. All times
are nanoseconds of CLOCK_REALTIME since the epoch (`time.time_ns()`), the clock that CUPTI and
the capture library stamp with, so that samples, ranges and kernels share one axis.

What is missing is `None`, never 0; why it is missing travels in `GpuUnavailable` and
`HostUnavailable`, which a source emits only when the reasons change.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SCHEMA_VERSION = 1
"""Of every JSON document the program prints. Raised when a shape changes."""

JOURNAL_SCHEMA = 2
"""Of the events, as the journal has them. Raised when a shape changes."""

Moment = Annotated[int, Meta(ge=0, le=4_102_444_800_000_000_000)]
"""Nanoseconds since the epoch, before the year 2100: what a calendar can show."""

Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count, a duration or a size that fits the arrays it is computed in."""

PHASE_STARTS = 1000
"""Starts of outermost ranges that are kept for the time axes, the newest."""

Step = Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)]
"""A part of a distribution's values."""


Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any other whole number: Python's have no end, but what is computed with them has."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of an event. Fields at their default are left out of the journal.

    What cannot change cannot refer to itself: the collector need not look through it (`gc`).
    """


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Something a source saw. `time_ns` is when."""

    time_ns: Moment


# --- the machine ---------------------------------------------------------------------------


class MigFacts(Record, frozen=True, kw_only=True):
    """What does not change about one MIG instance of a GPU.

    An instance is a part of its GPU, not a GPU of its own: power, temperature and clocks are the
    card's. `index` is the driver's; instances that share a `gpu_instance_id` share its memory
    and its counters.
    """

    index: Integer
    uuid: str
    name: str
    """The profile, as "1g.18gb"."""
    gpu_instance_id: Integer
    compute_instance_id: Integer | None = None
    sm_count: Integer | None = None
    memory_total_bytes: Integer | None = None


class GpuFacts(Record, frozen=True, kw_only=True):
    """What does not change about one GPU while the program runs.

    `memory_kind` "unified" is a chip whose memory is the host's: its memory figures are those of
    the host. `pcie_generation` and `pcie_width` are the most the link can do. `topology` is, by
    the other GPU's index, the way to it in the words of `nvidia-smi topo -m` ("NV18", "PIX").
    """

    index: Integer
    uuid: str
    name: str
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    sm_count: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bus_width_bits: Integer | None = None
    max_sm_clock_mhz: Integer | None = None
    max_memory_clock_mhz: Integer | None = None
    peak_memory_bandwidth_bytes_per_s: float | None = None
    peak_memory_bandwidth_source: str | None = None
    power_limit_watts: float | None = None
    temperature_slowdown_celsius: float | None = None
    pcie_generation: Integer | None = None
    pcie_width: Integer | None = None
    gpm_supported: bool = False
    mig_enabled: bool | None = None
    architecture: str | None = None
    vbios_version: str | None = None
    memory_kind: Literal["device", "unified"] = "device"
    bar1_total_bytes: Integer | None = None
    power_limit_default_watts: float | None = None
    power_limit_minimum_watts: float | None = None
    power_limit_maximum_watts: float | None = None
    temperature_shutdown_celsius: float | None = None
    memory_temperature_maximum_celsius: float | None = None
    nvlink_count: Integer | None = None
    nvlink_link_bytes_per_s: float | None = None
    """What one link carries each way."""
    topology: dict[Integer, str] = {}
    mig_instances: tuple[MigFacts, ...] = ()


class HostFacts(Record, frozen=True, kw_only=True):
    """The computer around the GPUs."""

    hostname: str
    system: str
    cpu_model: str | None = None
    cpu_count: Integer
    memory_total_bytes: Integer


class Header(Event, frozen=True, kw_only=True, tag="header"):
    """The first event of every session, and the first line of every journal.

    `monotonic_ns` is CLOCK_MONOTONIC read at `time_ns`: the anchor that tells a stepped wall
    clock from a pause.
    """

    schema: Integer
    gputui_version: str
    python_version: str
    monotonic_ns: Integer
    arguments: tuple[str, ...] = ()
    interval_s: float
    host: HostFacts
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_unavailable_reason: str | None = None


class MigSample(Record, frozen=True, kw_only=True):
    """One MIG instance at one moment. Reasons of what is None are `mig.INDEX.FIELD`."""

    index: Integer
    memory_used_bytes: Integer | None = None
    memory_reserved_bytes: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bandwidth_percent: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None


class GpuSample(Record, frozen=True, kw_only=True):
    """One GPU at one moment. Field names are those of `--once --json`.

    `power_watts` is the driver's average over a second (Ampere and later), as nvidia-smi's
    power.draw; the pipes (`tensor_active_percent` and on) are shares of cycles (GPM).
    """

    index: Integer
    utilization_percent: float | None = None
    memory_used_bytes: Integer | None = None
    memory_reserved_bytes: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bandwidth_percent: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: Integer | None = None
    memory_clock_mhz: Integer | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    power_instant_watts: float | None = None
    memory_temperature_celsius: float | None = None
    performance_state: Integer | None = None
    """0 (fastest) to 15."""
    video_clock_mhz: Integer | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    integer_active_percent: float | None = None
    fp16_active_percent: float | None = None
    fp32_active_percent: float | None = None
    fp64_active_percent: float | None = None
    mig_instances: tuple[MigSample, ...] = ()


class HostSample(Record, frozen=True, kw_only=True):
    """The computer at one moment."""

    cpu_percent: float | None = None
    memory_used_bytes: Integer | None = None
    load_1m: float | None = None
    swap_used_bytes: Integer | None = None


class ProcessSample(Record, frozen=True, kw_only=True):
    """One process on one GPU, as the driver and the host see it.

    A process is its pid and its `start_time_ns`, because pids are used again. `kind` is the
    driver's: C computes, G draws. `gpu_instance_id` is the MIG instance it is on.
    """

    pid: Integer
    gpu: Integer
    user: str | None = None
    command: str | None = None
    gpu_memory_bytes: Integer | None = None
    sm_percent: float | None = None
    cpu_percent: float | None = None
    host_memory_bytes: Integer | None = None
    kind: Literal["C", "G", "C+G"] | None = None
    memory_bandwidth_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    start_time_ns: Moment | None = None
    parent_pid: Integer | None = None
    gpu_instance_id: Integer | None = None
    compute_instance_id: Integer | None = None


class LauncherSample(Record, frozen=True, kw_only=True):
    """An ancestor of processes on GPUs that is not on one itself: what a tree hangs from."""

    pid: Integer
    parent_pid: Integer | None = None
    start_time_ns: Moment
    user: str | None = None
    command: str | None = None


class MachineSample(Event, frozen=True, kw_only=True, tag="sample"):
    """One tick of the sampler. `processes` is None when they were not asked for this tick, and
    `launchers` goes with it.

    `own_cpu_percent` is what gputui itself used of one core since the last tick.
    """

    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] | None = None
    own_cpu_percent: float | None = None
    recorded_bytes: Amount | None = None
    """What the recording took of the disk when this tick was read; None where nothing is."""
    traced_bytes: Amount | None = None
    """The same of the trace beside it."""
    launchers: tuple[LauncherSample, ...] = ()


class GpuStatus(Event, frozen=True, kw_only=True, tag="gpu_status"):
    """What costs the driver milliseconds to tell, or seldom changes: read every few seconds.

    `time_ns` is when it was read. Counters count from where the driver began to: energy and
    throttle times from its load, ECC errors from the last reset and (`_lifetime`) for ever.
    Field names are those of `--once --json`; reasons are in GpuUnavailable.
    """

    gpu: Integer
    energy_joules: float | None = None
    temperature_margin_celsius: float | None = None
    """How much hotter the GPU may get before it slows down."""
    fan_percent: float | None = None
    throttle_seconds: dict[str, float] | None = None
    """By reason, in the words of `throttle_reasons`."""
    pcie_link_generation: Integer | None = None
    pcie_link_width: Integer | None = None
    pcie_replays: Integer | None = None
    nvlink_active_count: Integer | None = None
    bar1_used_bytes: Integer | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: Integer | None = None
    ecc_uncorrected: Integer | None = None
    ecc_corrected_lifetime: Integer | None = None
    ecc_uncorrected_lifetime: Integer | None = None
    remapped_rows_corrected: Integer | None = None
    remapped_rows_uncorrected: Integer | None = None
    row_remapping_pending: bool | None = None
    row_remapping_failed: bool | None = None
    retired_pages: Integer | None = None
    page_retirement_pending: bool | None = None
    xid_count: Integer | None = None
    """Xid errors since gputui began to listen."""
    last_xid: Integer | None = None
    last_xid_time_ns: Moment | None = None


class GpuUnavailable(Event, frozen=True, kw_only=True, tag="gpu_unavailable"):
    """Why fields of one GPU are None: field name → reason. Replaces what was said before.

    The names are those of `GpuSample`, `GpuStatus` and `GpuFacts`, with `mig.INDEX.` before those
    of an instance; `device` is there too when one reason holds for the whole card (lost, or no
    answer).
    """

    gpu: Integer
    reasons: dict[str, str]


class HostUnavailable(Event, frozen=True, kw_only=True, tag="host_unavailable"):
    """Why host fields, or whole kinds of readings (`processes`), are None. Replaces as above.

    `processes.FIELD` tells why that field is None for some process; `sampler` that sampling ended.
    """

    reasons: dict[str, str]


# --- a run ---------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A child process was started. `run` numbers the runs of one session from 1.

    `pid` is None when it could not be started; the RunEnded that follows says why.
    """

    run: Integer
    kind: Literal["workload", "command"]
    name: str
    arguments: tuple[str, ...]
    parameters: dict[str, str | Integer | float | bool] = {}
    pid: Integer | None
    step_range: str | None = None
    """Name of the range that is one step, where the workload says so."""
    capture_unavailable_reason: str | None = None
    annotate: Literal["modules", "autograd"] | None = None
    """What of torch ranges were to be put around."""
    traced_step: str | None = None
    """Name of the range whose pushes are counted where kernels of some steps alone are traced."""


class RunProgress(Event, frozen=True, kw_only=True, tag="run_progress"):
    """How far the workload is: `done` of `total` `unit`s in `stage`."""

    run: Integer
    stage: str
    done: float
    total: float | None = None
    unit: str = ""


class RunMetrics(Event, frozen=True, kw_only=True, tag="run_metrics"):
    """Figures the workload reported; the newest value of a name wins."""

    run: Integer
    metrics: dict[str, float | Integer | str | bool | None]


class ResultColumn(Record, frozen=True, kw_only=True):
    """A column of a workload's table. The unit is also the suffix of the name."""

    name: str
    unit: str | None = None
    help: str = ""


class ResultTable(Record, frozen=True, kw_only=True):
    """A table the workload made; every row has a cell for each column, None where missing."""

    name: str
    title: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[str | Integer | float | bool | None, ...], ...] = ()


class RunResult(Event, frozen=True, kw_only=True, tag="run_result"):
    """What the workload came to. `results` are metrics too; `parameters` are those that held,
    defaults filled in; `complete` is False for what it had when it was stopped."""

    run: Integer
    complete: bool
    parameters: dict[str, str | Integer | float | bool | None]
    results: dict[str, float | Integer | str | bool | None]
    unavailable: dict[str, str] = {}
    tables: tuple[ResultTable, ...] = ()


class RunOutput(Event, frozen=True, kw_only=True, tag="run_output"):
    """Whole lines the child wrote, cleaned of control characters.

    `dropped_lines` counts those left out because the child wrote faster than is kept.
    """

    run: Integer
    stream: Literal["stdout", "stderr"]
    lines: tuple[str, ...]
    dropped_lines: Amount = 0


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The child is gone. One of `exit_code` and `signal` is set, neither where nobody knows.

    `reason` is one line for people ("killed by SIGKILL", "out of memory: …"); `stopped` tells
    that gputui ended it at the user's wish. `child_ended_ns` is when it ended: `time_ns` is when
    all that was captured of it had been read; None in older recordings and where it never ran.
    """

    run: Integer
    exit_code: Integer | None = None
    signal: Integer | None = None
    reason: str
    stopped: bool = False
    child_ended_ns: Moment | None = None


# --- what the capture library saw ------------------------------------------------------------


class ProcessAttached(Event, frozen=True, kw_only=True, tag="process_attached"):
    """A process of the run loaded the capture library. `process` numbers them from 1.

    Comes again with the same number when what it says changes.
    """

    run: Integer
    process: Integer
    pid: Integer
    parent_pid: Integer
    rank: Integer | None = None
    local_rank: Integer | None = None
    command: str
    cuda_status: str
    """"tracing", "no CUDA", or one line that says why kernels are not seen."""
    cupti_version: Integer | None = None
    visible_devices: str | None = None
    """Its CUDA_VISIBLE_DEVICES when it initialised CUDA: what its device numbers stand for."""
    unseen_forks: Amount = 0
    """Processes forked from it, without exec, that made ranges: those are not seen."""
    annotated: bool = False
    """Whether ranges were put around what its torch does."""


class ProcessDetached(Event, frozen=True, kw_only=True, tag="process_detached"):
    """The process ended or stopped writing. `clean` is False when it vanished mid-way."""

    process: Integer
    clean: bool


class ThreadNamed(Event, frozen=True, kw_only=True, tag="thread_named"):
    """What a thread is called: by the program (nvtxNameOsThread), else by the operating system.

    Comes again when the name changes.
    """

    process: int
    thread: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    name: str
    source: Literal["nvtx", "system"]


class ResourceNamed(Event, frozen=True, kw_only=True, tag="resource_named"):
    """What the program calls a CUDA device, context or stream (nvtxNameCudaStream and its like).

    `number` is CUPTI's; that of a device, and `device`, are as the process numbers its devices;
    None where it is not known on which one the stream is. Comes again when the name changes.
    """

    process: Integer
    kind: Literal["device", "context", "stream"]
    number: Integer
    device: Integer | None = None
    name: str


class RangeDefined(Event, frozen=True, kw_only=True, tag="range_defined"):
    """A node of the range tree, seen for the first time. `range` numbers nodes from 1.

    A node is one name at one place: (process, thread, domain, parent, name). `parent` is 0 at
    the top. `thread` is the operating system's thread id. `style` follows nsys.
    """

    range: Integer
    process: Integer
    thread: Integer
    parent: Integer
    domain: str = ""
    name: str
    style: Literal["PushPop", "StartEnd"] = "PushPop"
    color: Integer | None = None
    category: str | None = None
    category_id: Integer | None = None
    """The program's own number of the category, which may have no name."""


class MarkDefined(Event, frozen=True, kw_only=True, tag="mark_defined"):
    """Marks of one domain and name, seen for the first time; `mark` numbers them from 1. Colour and
    category are those of the first."""

    mark: Integer
    process: Integer
    domain: str = ""
    name: str
    color: Integer | None = None
    category: str | None = None
    category_id: Integer | None = None


class KernelDefined(Event, frozen=True, kw_only=True, tag="kernel_defined"):
    """A kernel name, seen for the first time. `kernel` numbers names from 1."""

    kernel: Integer
    name: str
    mangled: str


class LaunchShape(Event, frozen=True, kw_only=True, tag="launch_shape"):
    """A geometry in which `kernel` is launched, seen for the first time. `shape` numbers them
    from 1.

    `grid` is in blocks and `block` in threads, each as (x, y, z); shared memory is of a block.
    """

    shape: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    kernel: Integer
    grid: tuple[Amount, Amount, Amount]
    block: tuple[Amount, Amount, Amount]
    registers_per_thread: Amount
    static_shared_bytes: Amount = 0
    dynamic_shared_bytes: Amount = 0


class Distribution(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durations (ns) or sizes (bytes) as a mergeable sum.

    `squares` is Σ(x − mean)². `values` are the different values in order: the values themselves
    while `exact`, otherwise bucket midpoints no further than 1 % from each value. Each is written
    as its distance from the one before it, the first from 0; −n after it says that it came n
    times, not once: [500, 32, -3, 64] is 500 once, 532 three times, 596 once.
    """

    count: Amount
    total: Amount
    squares: float
    minimum: Amount
    maximum: Amount
    values: Annotated[tuple[Step, ...], Meta(max_length=8192)]
    exact: bool = True


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value that a program put beside a range or a mark, by its type in NVTX.

    JSON has no word for a number that is none: those are text. Of "bytes", which stands for data
    of the program's own making, the value is how many there were.
    """

    type: Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]
    value: int | float | Literal["nan", "inf", "-inf"]


class RangeDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What closed in one range node since the last delta.

    `cpu` are the durations of the instances that ended. `gpu_busy_ns` is the time at least one
    GPU operation launched inside the range (or inside its children) ran; `gpu_total_ns` adds
    their durations up. `projected` are, for each instance whose operations have all arrived,
    first start to last end on the GPU, as nsys projects. What follows adds up over those
    instances: their time on the thread, their operations, the ranges of the thread around each
    (of any domain), and the ranges directly inside each that launched something too. `payload` is
    that of the newest instance that had one.
    """

    range: Integer
    cpu: Distribution | None = None
    gpu_busy_ns: Amount = 0
    gpu_total_ns: Amount = 0
    projected: Distribution | None = None
    projected_range_ns: Amount = 0
    gpu_operations: Amount = 0
    levels: Amount = 0
    children: Amount = 0
    payload: Payload | None = None


class KernelDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Kernels of one name that finished, by the innermost range that launched them.

    `range` 0 is outside every range. `inherited` tells that the launching thread had no range
    open and `range` is the one open on the process's main thread at that moment (autograd);
    nsys counts such a kernel outside every range. `thread` is the launching thread where it had
    no range open at all, not even a library's; 0 otherwise. `repeats` are those of `time` that
    were launched in several overlapping instances of the range, less one each.
    """

    process: Integer
    range: Integer
    kernel: Integer
    device: Integer
    inherited: bool = False
    thread: Integer = 0
    time: Distribution
    repeats: Amount = 0


class RangeKernels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many instances of a range launched a kernel that they had not launched before, in
    themselves or in a range inside. So many of them had launched one of the same base name, as in
    nsys's `:base`."""

    range: Integer
    kernel: Integer
    instances: Amount
    base_repeats: Amount = 0


class ShapeLaunches(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many kernels of one launch shape finished."""

    shape: Integer
    launches: Amount


class LaunchDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Launches of one kernel by one call, from the call to the kernel's end.

    `call` is the time in the CUDA call, `queue` from its return to the kernel's start where that
    came later (fewer, or None), `kernel_time` the kernel's own, and `total` from the call's start
    to the kernel's end or the call's, whichever is later. As in nsys's cuda_kern_exec_sum.
    """

    process: Integer
    thread: Integer
    device: Integer
    name: str
    kernel: Integer
    total: Distribution
    call: Distribution
    queue: Distribution | None = None
    kernel_time: Distribution


class MemoryOperationDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Copies and memsets that finished. `operation` is nsys's name of the kind."""

    process: Integer
    range: Integer
    operation: str
    device: Integer
    source_kind: str | None = None
    destination_kind: str | None = None
    inherited: bool = False
    time: Distribution
    size: Distribution


class ApiDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """CUDA calls that returned, by name and by innermost range of the calling thread."""

    process: Integer
    range: Integer
    name: str
    inherited: bool = False
    time: Distribution


class DeviceDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Time in which at least one captured operation ran on a device, and their count.

    `first_start_ns` and `last_end_ns` span the operations of this delta. `idle` are the gaps in
    which none of the process's operations ran, that between two deltas included; its values are
    buckets, within 5 %. `overlap_ns` are the busy times of its streams, added up, less its own.
    """

    process: Integer
    device: Integer
    busy_ns: Amount
    operations: Amount
    first_start_ns: Moment
    last_end_ns: Moment
    idle: Distribution | None = None
    overlap_ns: Amount = 0


class StreamDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What ran on one stream. Values of its distributions are buckets, within 5 %.

    `latency` is from a launch call's start to the start of the first kernel that it launched,
    `queue` from the call's return (0 where the kernel was faster), `idle` the gaps between
    operations. `stream` is OTHER_STREAMS over the limit.
    """

    device: Integer
    stream: Integer
    operations: Amount
    busy_ns: Amount
    latency: Distribution | None = None
    queue: Distribution | None = None
    idle: Distribution | None = None


OTHER_STREAMS = -1


class ThreadLaunches(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Launch calls of one thread; `interval` is from one's start to the next's, within 5 %."""

    thread: Integer
    launches: Amount
    interval: Distribution | None = None


class IdleRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time in which a device idled while `range` was the innermost one open on the thread that
    launched what came next; 0 is outside every range."""

    device: Integer
    range: Integer
    idle_ns: Amount


class MarkDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Marks of one domain and name; the `Mark` events beside them are the newest of a tick.
    `payload` is that of the newest mark that had one."""

    domain: str
    name: str
    marks: Amount
    first_ns: Moment
    last_ns: Moment
    payload: Payload | None = None


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records that were lost, and why: the "ring" was full, they were left "unread" in it at the
    end, "cupti" lost them, a thread had ranges open in too many "domains" to follow `domain` too,
    or the reader had no "places" left (stacks, levels, open ranges)."""

    cause: Literal["ring", "unread", "cupti", "domains", "places"]
    domain: str
    records: Amount


class OpenRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range that is open now, and since when."""

    range: Integer
    since_ns: Moment


class CaptureDelta(Event, frozen=True, kw_only=True, tag="capture"):
    """All that the reader saw in one process since its last delta.

    `records` and `dropped` count ring records; `unattributed` counts GPU operations whose
    launch never arrived; `callback_ns` is what the library measured of its own time in the
    traced process; `reader_cpu_ns` is what reading cost here. `kernels_beside` count again, in
    the ranges of further domains that were open too, what `kernels` counts once. Kernels and calls
    were traced for `traced_ns` and, where the user wanted part of the time alone, not for
    `paused_ns`.
    """

    process: Integer
    ranges: tuple[RangeDelta, ...] = ()
    kernels: tuple[KernelDelta, ...] = ()
    kernels_beside: tuple[KernelDelta, ...] = ()
    range_kernels: tuple[RangeKernels, ...] = ()
    launches: tuple[LaunchDelta, ...] = ()
    shapes: tuple[ShapeLaunches, ...] = ()
    memory_operations: tuple[MemoryOperationDelta, ...] = ()
    api: tuple[ApiDelta, ...] = ()
    devices: tuple[DeviceDelta, ...] = ()
    streams: tuple[StreamDelta, ...] = ()
    launching_threads: tuple[ThreadLaunches, ...] = ()
    idle_ranges: tuple[IdleRange, ...] = ()
    marks: tuple[MarkDelta, ...] = ()
    losses: tuple[Loss, ...] = ()
    """What `dropped` adds up; older recordings do not tell."""
    open_ranges: tuple[OpenRange, ...] = ()
    records: Amount = 0
    dropped: Amount = 0
    unattributed: Amount = 0
    callback_ns: Amount = 0
    reader_cpu_ns: Amount = 0
    traced_ns: Amount = 0
    paused_ns: Amount = 0


class CaptureSum(CaptureDelta, frozen=True, kw_only=True, tag="capture_sum"):
    """The sum of all `capture` events of one process so far in this file, `open_ranges` as in the
    last: who wants the end alone may leave them, and earlier sums, out. A recording has one every
    so many bytes; sources make none.

    `phase_starts` are outermost ranges that are no longer open.
    """

    phase_starts: Annotated[tuple[OpenRange, ...], Meta(max_length=PHASE_STARTS)] = ()


class Mark(Event, frozen=True, kw_only=True, tag="mark"):
    """An NVTX mark: an instant with a name."""

    process: Integer
    thread: Integer
    domain: str = ""
    name: str
    payload: Payload | None = None


class StepSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span of a step's timeline, relative to its start. `lane` is "cpu" or "gpu".

    On the "gpu" lane a span is a stretch of GPU work launched by `range`.
    """

    lane: Literal["cpu", "gpu"]
    range: Integer
    start_ns: Amount
    duration_ns: Amount


class StepTimeline(Event, frozen=True, kw_only=True, tag="step"):
    """The last whole step: the spans of its ranges, outermost first, and of its GPU work.

    `spans_left_out` counts what was too much to carry.
    """

    process: Integer
    range: Integer
    start_ns: Moment
    duration_ns: Amount
    spans: tuple[StepSpan, ...] = ()
    spans_left_out: Amount = 0


AnyEvent = (
    Header
    | MachineSample
    | GpuStatus
    | GpuUnavailable
    | HostUnavailable
    | RunStarted
    | RunProgress
    | RunMetrics
    | RunResult
    | RunOutput
    | RunEnded
    | ProcessAttached
    | ProcessDetached
    | ThreadNamed
    | ResourceNamed
    | RangeDefined
    | MarkDefined
    | KernelDefined
    | LaunchShape
    | CaptureDelta
    | Mark
    | StepTimeline
)
