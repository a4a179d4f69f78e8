"""A run as views see it: the tables that its captured parts fill, its processes and ranges, how
work followed launches, its output and end.

What folds events into it is in `fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import (
    ApiDelta,
    CaptureDelta,
    CaptureRefused,
    CollectiveDelta,
    DeviceDelta,
    GarbageCollections,
    GpuCounters,
    ItemUnit,
    KernelDelta,
    LaunchDelta,
    LeafTime,
    LineCalls,
    LineDefined,
    LineLaunches,
    LineSamples,
    LoopDelta,
    Loss,
    Mark,
    MarkDefined,
    MarkDelta,
    MemoryOperationDelta,
    OfProcess,
    Payload,
    PeerDelta,
    ProcessAttached,
    ProcessDetached,
    RangeDefined,
    RangeKernels,
    RangeLeaf,
    ResourceNamed,
    RunEnded,
    RunProgress,
    RunResult,
    RunStarted,
    ShapeLaunches,
    StepLanes,
    StepOperations,
    StepSource,
    StepTimeline,
    StreamDelta,
    Stretch,
    ThreadLaunches,
    ThreadNamed,
    WindowCost,
    WindowWork,
)
from gputui.model.events.distributions import Accumulator
from gputui.model.leaves import LEAVES, leaf_of_number
from gputui.model.merge import declared_fields, key_fields, merged_by, merger_of, row_type
from gputui.model.steps import StepBlocks
from gputui.state.history import History
from gputui.state.readings import Readings
from gputui.state.series import Reports

# The tables that capture deltas fill: found by their declarations, added up by the fields' rules.
#
# `kernels: FoldedTable[KernelDelta] = {}` in a run, or in another struct of the session, holds the
# parts in `CaptureDelta.kernels`, merged. A row is a part that grows, with all of its fields. In it
# `process` is the delta's, and `device`, which is a process's own number, is the machine's index.

_Part = TypeVar("_Part", bound=msgspec.Struct)


class TableOf(msgspec.Struct, frozen=True):
    """Marks a field that was declared as a FoldedTable: its rows are parts of this kind."""

    kind: type[Any]


if TYPE_CHECKING:
    FoldedTable = dict[tuple[Any, ...], _Part]
    """The rows of one kind of part by their key: the process, if the part belongs to one, then the
    fields of the part with the rule Key, in their order. A row has the fields of its key, too."""
else:

    class FoldedTable:
        """The same table for msgspec, which needs the class of the rows to decode them."""

        def __class_getitem__(cls, kind: type[Any]) -> Any:
            return Annotated[dict[tuple, row_type(kind)], TableOf(kind)]


class Places(NamedTuple):
    """What the numbers in one process's delta stand for."""

    process: int
    gpus: Mapping[int, int]
    """The machine's index of each device number of the process."""
    ranges: Container[int]
    """The numbers of the ranges that are known; 0, which is outside every range, need not be among
    them."""
    kernels: Container[int] = ()
    other_kernels: int | None = None
    """The number under which all kernels count that are not among `kernels`; None if each counts
    under its own."""


Fold = Callable[[Any, CaptureDelta, Places], int]
"""Folds a delta into the tables of an object. It returns how many parts named a range that is not
known."""


@made_once
def fold_of(holder: type[msgspec.Struct]) -> Fold:
    """The fold of the tables that a class declares, each under the name of the delta's field."""
    tables = [
        (name, _table_fold(mark.kind, name in ALSO_OUTSIDE))
        for name, (_, mark) in declared_fields(holder, TableOf).items()
    ]

    def fold(tables_of: Any, delta: CaptureDelta, places: Places) -> int:
        unknown = 0
        for name, fold_parts in tables:
            changes = getattr(delta, name)
            if changes:
                unknown += fold_parts(getattr(tables_of, name), changes, places)
        return unknown

    return fold


ALSO_OUTSIDE = ("kernels", "memory_operations", "api", "range_leaves")
"""Tables whose parts count as outside every range if the recording does not define their range, so
that sums stay what was captured. Parts of other tables, which describe the range itself, are left
out."""


def _table_fold(
    kind: type[Any], counts_outside: bool
) -> Callable[[dict[tuple[Any, ...], Any], Iterable[Any], Places], int]:
    merger = merger_of(kind)
    start, add = merger.start, merger.add
    own = [name for name in key_fields(kind) if name != "process"]
    of_process = issubclass(kind, OfProcess) or "process" in key_fields(kind)
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*own) if len(own) > 1 else _only(own[0])
    device = own.index("device") if "device" in own else None
    kernel = own.index("kernel") if "kernel" in own else None
    in_range = "range" in own
    place_of_range = own.index("range") if in_range else 0

    def fold(rows: dict[tuple[Any, ...], Any], changes: Iterable[Any], places: Places) -> int:
        unknown = 0
        process, gpus, ranges, kernels, other = places
        prefix = (process,) if of_process else ()
        for change in changes:
            key = get(change)
            is_undefined = in_range and change.range and change.range not in ranges
            if is_undefined:
                unknown += 1
                if not counts_outside:
                    continue
                key = *key[:place_of_range], 0, *key[place_of_range + 1 :]
            if device is not None and (index := gpus[key[device]]) != key[device]:
                key = *key[:device], index, *key[device + 1 :]
            if kernel is not None and other is not None and key[kernel] not in kernels:
                key = *key[:kernel], other, *key[kernel + 1 :]
            place = prefix + key
            row = rows.get(place)
            if row is not None:
                add(row, change)
                continue
            row = rows[place] = start(change)
            # The row has the key's numbers, which are the session's, not the part's.
            if of_process:
                row.process = process
            if device is not None:
                row.device = key[device]
            if kernel is not None:
                row.kernel = key[kernel]
            if is_undefined:
                row.range = 0
        return unknown

    return fold


def _only(name: str) -> Callable[[Any], tuple[Any]]:
    return lambda part: (getattr(part, name),)


# How a run's work followed its launches: what the session keeps of streams, gaps and threads.

QUEUE_MOMENTS = 1024
"""How many of the newest deltas keep their time in the queue: 17 minutes at one a second."""


class GpuTiming(msgspec.Struct):
    """What the GPUs did in one run, by device, range, stream and launching thread."""

    devices: FoldedTable[DeviceDelta] = {}
    range_leaves: FoldedTable[RangeLeaf] = {}
    streams: FoldedTable[StreamDelta] = {}
    launching_threads: FoldedTable[ThreadLaunches] = {}
    queue: History[tuple[int, int, int]] = msgspec.field(
        default_factory=lambda: History(tuple[int, int, int], QUEUE_MOMENTS)
    )
    """For each delta with launches: the process, how many launches there were, and how long they
    were queued, in ns."""

    def idle_by_range(
        self, process: int | None = None, device: int | None = None
    ) -> dict[int, int]:
        """How long a device idled while each range was open, in ns, by range; of one process and
        device or of all. Range 0 is outside every range."""
        idle_ns: dict[int, int] = {}
        for time in self.range_leaves.values():
            if (
                LEAVES[leaf_of_number(time.leaf)].is_idle
                and process in (None, time.process)
                and device in (None, time.device)
            ):
                idle_ns[time.range] = idle_ns.get(time.range, 0) + time.ns
        return idle_ns


# What was captured of a run: its processes, their ranges, kernels and copies, added up.


class Launched(msgspec.Struct, array_like=True):
    """What was launched in a range itself, without ranges inside it."""

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    memcpy_bytes: int = 0
    replayed: int = 0
    """How many of the kernels CUDA graphs replayed."""

    def add(self, other: Launched) -> None:
        """Add what another one counted."""
        self.replayed += other.replayed
        self.kernels += other.kernels
        self.kernel_ns += other.kernel_ns
        self.launches += other.launches
        self.memcpy_bytes += other.memcpy_bytes


class Range(msgspec.Struct):
    """A node of the range tree, with the sums of everything that was captured in it."""

    definition: RangeDefined
    children: list[int] = []
    depth: int = 0
    path: str = ""
    cpu: Accumulator = msgspec.field(default_factory=Accumulator)
    projected: Accumulator = msgspec.field(default_factory=Accumulator)
    gpu_busy_ns: int = 0
    gpu_total_ns: int = 0
    projected_range_ns: int = 0
    gpu_operations: int = 0
    levels: int = 0
    children_with_work: int = 0
    incomplete: int = 0
    """The fields from `gpu_busy_ns` on are as in RangeDelta."""
    launched: Launched = msgspec.field(default_factory=Launched)
    inherited: Launched | None = None
    """What threads without a range of their own launched while this range was open on the main
    thread."""
    payload: Payload | None = None
    """The payload of the newest instance that had one."""
    open_since_ns: int | None = None


class Process(msgspec.Struct):
    """A traced process of a run."""

    attached: ProcessAttached
    began_ns: int
    """When it loaded the capture library, or was first seen if that is unknown."""
    detached: ProcessDetached | None = None
    out_of_sight_ns: int | None = None
    """When the recording with this process ended, if other recordings go on and nobody saw the
    process end."""
    records: int = 0
    dropped: int = 0
    unattributed: int = 0
    contradicted: int = 0
    wrong_times: int = 0
    callback_ns: int = 0
    reader_cpu_ns: int = 0
    traced_ns: int = 0
    paused_ns: int = 0
    core_run_ns: int = 0
    core_wait_ns: int = 0
    core_watched_ns: int = 0
    windows: int = 0
    standing_ppm: int | None = None
    updated_ns: int = 0
    """The time of the process's newest delta."""
    nodes: int = 0
    """How many ranges of the process the run's tree has."""
    open_nodes: list[int] = []
    """The ranges that were open at the process's newest delta."""
    left_out_nodes: int = 0
    """How many ranges were left out because of a limit, with the ranges below them."""
    threads: dict[int, ThreadNamed] = {}
    """The names of the process's threads, by thread id."""
    resources: dict[tuple[str, int, int | None], ResourceNamed] = {}
    """The program's names for CUDA devices, contexts and streams, by kind, number and the machine's
    index of the device."""
    losses: FoldedTable[Loss] = {}
    """The lost records by cause, which `dropped` counts together; older recordings have none."""

    @property
    def ended_ns(self) -> int | None:
        """When the process ended, or when it was seen to be gone if it did not say so; None while
        it runs."""
        if self.detached is None:
            return None
        return self.detached.ended_ns or self.detached.time_ns

    def stream_name(self, gpu: int, stream: int) -> str | None:
        """The program's name for a stream; None if it has given none."""
        named = self.resources.get(("stream", stream, gpu)) or self.resources.get(
            ("stream", stream, None)
        )
        return named.name if named else None


MARKED_STEPS = 512
"""How many distances between marks of steps are kept, the newest ones, for each thread and site."""

MARKED_WARM_UP = 64
"""Marks of warm-up: a quarter of eight or more, but no more than these. Launches queue up to a
thousand deep until the program waits for the GPU: of 93 optimizer steps of 50.7 ms the first 14
were marked some 4 ms apart, so that the mean of all was 44.6 ms."""

MARKED_SITES = 256
"""For how many threads and sites of a run marks are kept, the first ones."""


class MarkedSteps(msgspec.Struct):
    """The steps that a program marked, of one process, thread, source and site (StepMarks)."""

    source: StepSource
    site: str
    marks: int = 0
    first_ns: int = 0
    last_ns: int = 0
    newest_ordinal: int = 0
    items: int | None = None
    """How many samples or tokens the marked steps processed; None if the program does not show
    it."""
    unit: ItemUnit | None = None
    grown: int = 0
    """How many of the marks are of calls whose input was one longer than that of the call
    before."""
    lengths_ns: History[int] = msgspec.field(default_factory=lambda: History(int, MARKED_STEPS))
    early: list[tuple[int, int]] = []
    """The first marks whose time is known, as pairs of how many marks came before and the time in
    ns."""

    def add_early(self, marks: int, moments_ns: list[int]) -> None:
        """Adds the times of consecutive marks, of which the first has so many marks before it."""
        room = max(0, MARKED_WARM_UP + 1 - len(self.early))
        self.early += enumerate(moments_ns[:room], marks)

    @property
    def mean_ns(self) -> float | None:
        """The mean length of a step: the time from the first mark after warm-up to the last, pauses
        included, over the steps in between; None before the second mark. Without a known time after
        warm-up and within the first half, it begins at the very first mark."""
        if self.marks < 2:
            return None
        warm_up = min(MARKED_WARM_UP, self.marks // 8 * 2)
        settled = (mark for mark in self.early if warm_up <= mark[0] <= self.marks // 2)
        # The first marks run ahead of the GPU while the queue of launches fills: of 50.65 ms a step
        # they said 44.6.
        before, first_ns = next(settled, (0, self.first_ns))
        return (self.last_ns - first_ns) / (self.marks - 1 - before)


LOG_LINES = 5000
"""Lines of a child's output kept in memory; the journal has them all."""

MARKS = 1000

STEP_LANES = 48
"""How many steps are kept in parts (StepLanes)."""

STEP_OPERATIONS = 8
"""How many steps of a process are kept with every operation: the newest, and the longest."""


class LogLine(msgspec.Struct, frozen=True):
    """One line of the child's output."""

    time_ns: int
    stream: Literal["stdout", "stderr", "gputui"]
    text: str


class Run(msgspec.Struct):
    """One run: a program, and everything that was captured of it and of the processes it
    started."""

    started: RunStarted
    ended: RunEnded | None = None
    clock_set_ns: int = 0
    """By how much the clocks of the run's hosts were set while it ran, in all."""
    asked_ns: int | None = None
    """When gputui first asked it to end."""
    progress: RunProgress | None = None
    stage_started_ns: int = 0
    metrics: dict[str, float | int | str | bool | None] = {}
    reported: dict[str, Reports] = {}
    """The numeric values that the program reported of each metric while it ran."""
    result: RunResult | None = None
    log: History[LogLine] = msgspec.field(default_factory=lambda: History(LogLine, LOG_LINES))
    log_lines: int = 0
    processes: dict[int, Process] = {}
    undefined_range_records: int = 0
    """How many parts were in ranges that the recording does not define, or that were left out for
    want of room: they count outside every range."""
    refused: CaptureRefused | None = None
    ranges: dict[int, Range] = {}
    roots: list[int] = []
    kernels: FoldedTable[KernelDelta] = {}
    secondary_domain_kernels: FoldedTable[KernelDelta] = {}
    """The kernels of `kernels`, which has each once, counted again in the ranges of further
    domains."""
    range_kernels: FoldedTable[RangeKernels] = {}
    launches: FoldedTable[LaunchDelta] = {}
    shapes: FoldedTable[ShapeLaunches] = {}
    memory_operations: FoldedTable[MemoryOperationDelta] = {}
    api: FoldedTable[ApiDelta] = {}
    timing: GpuTiming = msgspec.field(default_factory=GpuTiming)
    """Launch latency, queues, gaps and streams."""
    collectives: FoldedTable[CollectiveDelta] = {}
    peers: FoldedTable[PeerDelta] = {}
    leaf_times: FoldedTable[LeafTime] = {}
    loops: FoldedTable[LoopDelta] = {}
    step_blocks: dict[int, StepBlocks] = {}
    """The steady steps of each process in order, in blocks; `device` in them is the machine's
    index."""
    line_samples: FoldedTable[LineSamples] = {}
    line_launches: FoldedTable[LineLaunches] = {}
    garbage_collections: FoldedTable[GarbageCollections] = {}
    line_calls: FoldedTable[LineCalls] = {}
    stretches: FoldedTable[Stretch] = {}
    window_work: FoldedTable[WindowWork] = {}
    window_costs: FoldedTable[WindowCost] = {}
    counters: dict[int, GpuCounters] = {}
    """The newest hardware counters of each GPU, by the machine's index."""
    lines: dict[tuple[int, int], LineDefined] = {}
    """Lines of Python programs, by process and number."""
    readings: Readings = msgspec.field(default_factory=Readings)
    """Readings of the machine while the program ran."""
    marked_steps: dict[tuple[int, int, str, str], MarkedSteps] = {}
    """The steps that the program marked, by process, thread, source and site."""
    steps: dict[int, StepTimeline] = {}
    step_lanes: list[StepLanes] = []
    """Steps in parts, in order: the newest, and the longest. `device` in them is the machine's
    index."""
    step_operations: dict[int, list[StepOperations]] = {}
    """For each process, steps with every operation, in order. `device` in them is the process's own
    number."""
    newest_marks: History[Mark] = msgspec.field(default_factory=lambda: History(Mark, MARKS))
    marks: FoldedTable[MarkDelta] = {}
    """All marks, counted by domain and name."""
    mark_definitions: dict[int, MarkDefined] = {}
    """The definition of each mark by its number; older recordings have none."""
    phase_starts: list[tuple[int, str]] = []
    """For outermost ranges that were open when a delta came, in order of time: when they began, and
    their name."""
    cuda_since_ns: int | None = None
    """When CUDA was first seen in a process of the run; None if it was not."""
    updated_ns: int = 0
    raw_names: bool = False
    """Whether phases keep the full names of their ranges, numbers included."""
    is_of_some_ranks: bool = False
    """Whether only some ranks were chosen, and the processes of others left out."""

    @property
    def devices(self) -> dict[int, DeviceDelta]:
        """What all processes did to each GPU, by the machine's index."""
        return merged_by(self.timing.devices.values(), lambda use: use.device, DeviceDelta)

    @property
    def on_gpu_ns(self) -> tuple[int, int]:
        """The time in which its processes had CUDA: from the first one's start to the last one's
        end; all of the run where none is known to have had it."""
        if self.cuda_since_ns is None:
            return self.started.time_ns, self.ended_ns
        ends = [process.ended_ns or self.ended_ns for process in self.processes.values()]
        return self.cuda_since_ns, max(self.cuda_since_ns, *ends)

    @property
    def has_left_gpus(self) -> bool:
        """Whether all of its processes that could have CUDA have ended."""
        ended = [process.ended_ns is not None for process in self.processes.values()]
        return self.cuda_since_ns is not None and all(ended)

    @property
    def parameters(self) -> dict[str, str | int | float | bool | None]:
        """The requested parameters, with the workload's defaults once it has reported them."""
        asked: dict[str, str | int | float | bool | None] = dict(self.started.parameters)
        return self.result.parameters if self.result else asked

    @property
    def uncaptured_reason(self) -> str | None:
        """What of phases and kernels is not captured, as it was known or feared at the start; of
        what was feared nothing once there are kernels."""
        feared = None if self.kernels else self.started.capture_feared_reason
        return "; ".join(filter(None, (feared, self.started.capture_unavailable_reason))) or None

    @property
    def unseen_reason(self) -> str | None:
        """What of phases and kernels is not seen in this run, and why; None where nothing is
        known to stand in the way."""
        reason = self.uncaptured_reason
        if refused := self.refused:
            who = "1 process" if refused.processes == 1 else f"{refused.processes} processes"
            return f"no phases and no kernels of {who}: no place for records: {refused.reason}"
        if reason or self.processes or self.ended is None or self.started.pid is None:
            return reason
        if self.outcome == "failed" or self.started.kind == "workload":
            # It ended before it came to that, and why is said.
            return None
        hint = "" if self.started.annotate else "; --annotate modules shows what torch does"
        return f"no phases and no kernels: no process of the run loaded NVTX or CUDA{hint}"

    @property
    def unseen_forks(self) -> str | None:
        """One line about the ranges of forked processes, None where there were none."""
        count = sum(process.attached.unseen_forks for process in self.processes.values())
        who = "1 forked process" if count == 1 else f"{count} forked processes"
        return f"the ranges of {who} are not seen; spawn or exec instead" if count else None

    @property
    def launches_block(self) -> bool:
        """Whether each launch waits for its kernel, as CUDA_LAUNCH_BLOCKING has it."""
        return any(process.attached.launch_blocking for process in self.processes.values())

    @property
    def traced_share(self) -> float:
        """How much of the time kernels were traced: 1 unless `--trace-steps` was given."""
        paused = sum(process.paused_ns for process in self.processes.values())
        traced = sum(process.traced_ns for process in self.processes.values())
        return traced / (traced + paused) if paused else 1.0

    @property
    def outcome(self) -> Literal["running", "done", "stopped", "detached", "failed", "ended"]:
        """How the run ended. "ended" means that nobody knows how, as with an imported report; a
        program that is "detached" may go on."""
        if self.ended is None:
            return "running"
        if self.ended.stopped:
            return "detached" if self.started.attached else "stopped"
        if self.ended.exit_code is None and self.ended.signal is None:
            return "ended"
        if self.ended.exit_code == 0:
            return "done"
        return "failed" if self.asked_ns is None else "stopped"

    @property
    def is_cut_off(self) -> bool:
        """Whether gputui ended the run at a time that was not recorded, as earlier versions did."""
        return self.ended is not None and self.ended.stopped and self.asked_ns is None

    def was_asked_to_end(self, time_ns: int) -> bool:
        """Whether gputui had asked the run to end by this time."""
        return self.asked_ns is not None and self.asked_ns <= time_ns

    @property
    def is_active(self) -> bool:
        """Whether the child is still there."""
        return self.ended is None

    @property
    def ended_ns(self) -> int:
        """When the child ended; the newest event while it runs."""
        if self.ended:
            return self.ended.child_ended_ns or self.ended.time_ns
        return self.updated_ns

    @property
    def end_reason(self) -> str:
        """Why the run ended, in words."""
        return self.ended.reason if self.ended else "the recording ends before the run does"

    @property
    def duration_ns(self) -> int:
        """How long the run took: from its start to its end, or to the newest event while it
        runs."""
        return max(0, self.ended_ns - self.started.time_ns)
