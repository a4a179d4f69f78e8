"""How events of capture and of runs change the session; readings of the machine are folded in
`session`. This module is separate from `session`, which holds the state: views import the state
without the code that changes it."""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from gputui.model.cards import read_visible_devices
from gputui.model.events import (
    MAX_KERNELS,
    OTHER_KERNELS,
    PHASE_STARTS,
    CaptureDelta,
    CaptureRefused,
    CaptureSum,
    DeviceDefined,
    Distribution,
    GpuCounters,
    KernelDefined,
    LaunchShape,
    LineDefined,
    Mark,
    MarkDefined,
    ProcessAttached,
    ProcessDetached,
    ProcessOutOfSight,
    RangeDefined,
    RangeDelta,
    Reader,
    ResourceNamed,
    RunAskedToEnd,
    RunEnded,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
    RunStarted,
    SampledCounters,
    StepLanes,
    StepMarks,
    StepOperations,
    StepTimeline,
    ThreadNamed,
)
from gputui.model.merge import declared_fields, merger_of
from gputui.model.naming import is_kernel_launch
from gputui.model.steps import StepBlocks, blocks_of
from gputui.state.run import (
    MARKED_SITES,
    STEP_LANES,
    STEP_OPERATIONS,
    Launched,
    LogLine,
    MarkedSteps,
    Places,
    Process,
    Range,
    Run,
    fold_of,
)
from gputui.state.series import Reports
from gputui.state.session import Session, folds

# Folding what the capture library saw.

MAX_THREADS = 4096
"""Threads of a process whose names are kept, and resources."""

MAX_COUNTED_GPUS = 64
"""GPUs of a run whose counters are kept."""

MAX_LINES = 100_000
"""Lines of Python programs that are kept."""

MAX_RANGES = 100_000
"""Nodes of a process's range tree; any further ones are left out and counted."""

MAX_LEVELS = 512
"""The deepest nesting of ranges that is kept; deeper ranges are left out and counted."""

MAX_PATH = 8192
"""The longest path of a range, in characters; ranges with a longer path are left out and
counted."""


@folds(RangeDefined)
def range_defined(session: Session, run: Run, event: RangeDefined) -> None:
    """A node of the range tree, below one that is known."""
    parent = run.ranges.get(event.parent)
    process = run.processes[event.process]
    # Every node carries its path: without bounds a small file of deep ranges would take
    # memory that grows with the square of its size.
    too_many = process.nodes >= MAX_RANGES or (
        parent is not None
        and (parent.depth + 1 >= MAX_LEVELS or len(parent.path) + 1 + len(event.name) > MAX_PATH)
    )
    # 0 is no range: one with that number would be around itself.
    is_new = event.range != 0 and event.range not in session.known_ranges
    if not is_new or (event.parent and parent is None) or too_many:
        session.unknown_references += 1
        process.left_out_nodes += is_new
        return
    process.nodes += 1
    node = Range(event, path=event.name)
    if parent is not None:
        node.depth = parent.depth + 1
        node.path = f"{parent.path}/{event.name}"
        parent.children.append(event.range)
    else:
        run.roots.append(event.range)
    run.ranges[event.range] = node
    session.known_ranges.add(event.range)


@folds(ThreadNamed)
def thread_named(_: Session, run: Run, event: ThreadNamed) -> None:
    """What a thread is called."""
    threads = run.processes[event.process].threads
    if event.thread in threads or len(threads) < MAX_THREADS:
        threads[event.thread] = event


@folds(ResourceNamed)
def resource_named(session: Session, run: Run, event: ResourceNamed) -> None:
    """What a device, context or stream is called."""
    resources = run.processes[event.process].resources
    device = event.device
    gpu = None if device is None else gpu_of(session, run, event.process, device)
    key = event.kind, event.number, gpu
    if key in resources or len(resources) < MAX_THREADS:
        resources[key] = event


@folds(StepMarks)
def step_marks(_: Session, run: Run, event: StepMarks) -> None:
    """Marks of the program's steps; what a rotated recording repeats is not counted again."""
    key = event.process, event.thread, event.source, event.site
    steps = run.marked_steps.get(key)
    if steps is None:
        if len(run.marked_steps) >= MARKED_SITES:
            return
        steps = run.marked_steps[key] = MarkedSteps(event.source, event.site)
    newest = event.first + event.marks - 1
    if newest <= steps.newest_ordinal:
        return
    steps.newest_ordinal = newest
    if not steps.marks:
        steps.first_ns = event.time_ns - event.span_ns
    moments_ns = list(
        itertools.accumulate(event.lengths_ns[::-1], operator.sub, initial=event.time_ns)
    )[: event.marks]
    steps.add_early(steps.marks + event.marks - len(moments_ns), moments_ns[::-1])
    steps.marks += event.marks
    steps.last_ns = event.time_ns
    steps.grown += event.grown
    if event.items is not None:
        steps.items = (steps.items or 0) + event.items
        steps.unit = event.unit
    for length_ns in event.lengths_ns:
        steps.lengths_ns.append(length_ns)


@folds(DeviceDefined)
def device_defined(session: Session, run: Run, event: DeviceDefined) -> None:
    """Keeps the size of a GPU's L2 cache. A MIG instance, which has only a part of that cache, has
    none."""
    if "MIG" in (run.processes[event.process].attached.visible_devices or ""):
        return
    gpu = session.gpus.get(gpu_of(session, run, event.process, event.device))
    if gpu is not None and not gpu.facts.mig_enabled:
        gpu.facts = replace(gpu.facts, l2_cache_bytes=event.l2_cache_bytes)


@folds(SampledCounters)
def sampled_counters(_session: Session, _run: Run, _event: SampledCounters) -> None:
    """They are in the recording, for exports: what they add up to is in GpuCounters."""


@folds(GpuCounters)
def gpu_counters(session: Session, run: Run, event: GpuCounters) -> None:
    """Keeps the newest counters of a GPU. If sampling ended without figures, those of before
    stay."""
    gpu = gpu_of(session, run, event.process, event.device)
    before = run.counters.get(gpu)
    if before is not None and before.samples and not event.samples:
        event = replace(before, unavailable_reason=event.unavailable_reason)
    if gpu in run.counters or len(run.counters) < MAX_COUNTED_GPUS:
        run.counters[gpu] = event


@folds(KernelDefined)
def kernel_defined(session: Session, event: KernelDefined) -> None:
    """Keep a kernel's name; beyond MAX_KERNELS all further kernels share one name."""
    names = session.kernel_names
    if len(names) < MAX_KERNELS or event.kernel in names:
        names[event.kernel] = event
    elif session.other_kernels is None:
        session.other_kernels = event.kernel
        names[event.kernel] = replace(event, name=OTHER_KERNELS, mangled=OTHER_KERNELS)


@folds(LineDefined)
def line_defined(_: Session, run: Run, event: LineDefined) -> None:
    """A line of a Python program was seen for the first time."""
    if len(run.lines) < MAX_LINES:
        run.lines[event.process, event.line] = event


@folds(LaunchShape)
def launch_shape(session: Session, event: LaunchShape) -> None:
    """A launch shape was seen for the first time."""
    session.launch_shapes[event.shape] = event


@folds(MarkDefined)
def mark_defined(_: Session, run: Run, event: MarkDefined) -> None:
    """What marks of a name are."""
    run.mark_definitions[event.mark] = event


@folds(Mark)
def mark(_: Session, run: Run, event: Mark) -> None:
    """An instant with a name."""
    run.newest_marks.append(event)


@folds(StepTimeline)
def step(_: Session, run: Run, event: StepTimeline) -> None:
    """The last whole step of a process."""
    run.steps[event.process] = event


@folds(StepLanes)
def lanes(session: Session, run: Run, event: StepLanes) -> None:
    """A step of a device in parts; of many the newest are kept, and the longest."""
    gpu = _Gpus(session, run, event.process)[event.device]
    kept = run.step_lanes
    kept.append(event if gpu == event.device else replace(event, device=gpu))
    _forget_a_usual_step(kept, STEP_LANES)


@folds(StepOperations)
def operations(_: Session, run: Run, event: StepOperations) -> None:
    """Every operation of a step; of many the newest are kept, and the longest."""
    kept = run.step_operations.setdefault(event.process, [])
    kept.append(event)
    _forget_a_usual_step(kept, STEP_OPERATIONS)


def _forget_a_usual_step(kept: list[Any], most: int) -> None:
    """If more than `most` steps are kept, drops the first that is not among the longest quarter."""
    if len(kept) > most:
        lengths = sorted(step.duration_ns for step in kept)
        usual = lengths[len(lengths) * 3 // 4]
        kept.remove(next(step for step in kept if step.duration_ns <= usual))


@folds(CaptureDelta, CaptureSum)
def delta(session: Session, run: Run, event: CaptureDelta) -> None:
    """What one process did since its last delta; a sum of deltas is one too."""
    _count_launched(run, event)
    if not session.keeps_tables:
        event = _without_tables(event)
    process = run.processes[event.process]
    process.updated_ns = max(process.updated_ns, event.time_ns)
    merger_of(CaptureDelta, Process).add(process, event)
    places = Places(
        event.process,
        _Gpus(session, run, event.process),
        run.ranges,
        session.kernel_names,
        session.other_kernels,
    )
    add_to_range = merger_of(RangeDelta, Range).add
    for part in event.ranges:
        if (node := run.ranges.get(part.range)) is not None:
            add_to_range(node, part)
        else:
            session.unknown_references += 1
    unknown = 0
    for tables in (run, run.timing, process):
        # Kernels of ranges that were never defined count outside every range: they were in no
        # table, and nothing said so.
        unknown += fold_of(type(tables))(tables, event, places)
    if unknown:
        session.unknown_references += unknown
        run.undefined_range_records += sum(
            part.time.count
            for changes in (event.kernels, event.memory_operations, event.api)
            for part in changes
            if part.range and part.range not in run.ranges
        )
    for block in blocks_of(event):
        gpu = places.gpus[block.device]
        blocks = run.step_blocks.setdefault(event.process, StepBlocks())
        blocks.append(block if gpu == block.device else replace(block, device=gpu))
    _queued(run, event)
    if isinstance(event, CaptureSum):
        for start in event.phase_starts:
            if start.range in run.ranges:
                _began(run, start.since_ns, run.ranges[start.range].definition.name)
            elif start.range:
                session.unknown_references += 1
    _open_ranges(run, event)


_IN_TABLES_ONLY: dict[str, tuple[()]] = dict.fromkeys(declared_fields(CaptureDelta, Reader), ())


def _without_tables(delta: CaptureDelta) -> CaptureDelta:
    def bare(times: Distribution | None) -> Distribution | None:
        # Values are what medians are made of, and an exporter's session shows none.
        return times and replace(times, values=())

    return replace(
        delta,
        ranges=tuple([replace(part, cpu=bare(part.cpu), projected=None) for part in delta.ranges]),
        api=tuple([replace(part, time=bare(part.time)) for part in delta.api]),
        **_IN_TABLES_ONLY,
    )


def _count_launched(run: Run, event: CaptureDelta) -> None:
    """Count in its range what was launched there: whoever asks at every sample cannot go through
    all that a run holds."""
    ranges = run.ranges

    def counts_of(number: int, inherited: bool = False) -> Launched | None:
        node = ranges.get(number)
        if node is None:
            return None
        if not inherited:
            return node.launched
        if node.inherited is None:
            node.inherited = Launched()
        return node.inherited

    for kernels in event.kernels:
        if (counts := counts_of(kernels.captured or kernels.range, kernels.inherited)) is not None:
            counts.kernels += kernels.time.count
            counts.kernel_ns += kernels.time.total
            counts.replayed += kernels.time.count if kernels.captured else kernels.replayed
    # In ranges of other domains and of the Start/End style, beside those that count them once.
    for kernels in event.secondary_domain_kernels:
        if (counts := counts_of(kernels.range)) is not None:
            counts.kernels += kernels.time.count - kernels.repeats
            counts.kernel_ns += kernels.time.total
    for calls in event.api:
        if is_kernel_launch(calls.name) and (
            (counts := counts_of(calls.range, calls.inherited)) is not None
        ):
            counts.launches += calls.time.count
    for copies in event.memory_operations:
        if (
            "memcpy" in copies.operation
            and copies.size is not None
            and copies.size.count > 0
            and (
                (counts := counts_of(copies.captured or copies.range, copies.inherited)) is not None
            )
        ):
            counts.memcpy_bytes += copies.size.total


def _queued(run: Run, event: CaptureDelta) -> None:
    queues = [stream.queue for stream in event.streams if stream.queue is not None]
    if launches := sum(queue.count for queue in queues):
        run.timing.queue.append((event.process, launches, sum(queue.total for queue in queues)))


class _Gpus(dict[int, int]):
    """The machine's index of each device number of one process."""

    def __init__(self, session: Session, run: Run, process: int) -> None:
        super().__init__()
        self._gpu_of: Callable[[int], int] = partial(gpu_of, session, run, process)

    def __missing__(self, device: int) -> int:
        index = self[device] = self._gpu_of(device)
        return index


def gpu_of(session: Session, run: Run, number: int, device: int) -> int:
    """The machine's index of a process's CUDA device number."""
    process = run.processes.get(number)
    visible = process.attached.visible_devices if process else None
    if visible is None:
        return device
    key = visible, device
    if key not in session.gpus_of_numbers:
        uuids = {index: gpu.facts.uuid for index, gpu in session.gpus.items()}
        gpus = read_visible_devices(visible, uuids, lambda name: _holder(session, name)).gpus
        session.gpus_of_numbers[key] = gpus[device] if device < len(gpus) else device
    return session.gpus_of_numbers[key]


def _holder(session: Session, instance: str) -> int | None:
    """The GPU that a MIG instance is a part of, by its UUID or "MIG-GPU-<UUID>/<GI>/<CI>"."""
    name = instance.lower()
    matching = [
        index
        for index, gpu in session.gpus.items()
        # CUDA_VISIBLE_DEVICES may name a MIG instance, which is no GPU's UUID: its work was once
        # counted as GPU 0's.
        for part in gpu.facts.mig_instances
        if part.uuid.lower().startswith(name)
        or name == f"mig-{gpu.facts.uuid}/{part.gpu_instance_id}/{part.compute_instance_id}".lower()
    ]
    return matching[0] if len(matching) == 1 else None


def _open_ranges(run: Run, event: CaptureDelta) -> None:
    now_open = {
        entry.range: entry.since_ns
        for entry in event.open_ranges
        if entry.range in run.ranges and run.ranges[entry.range].definition.process == event.process
    }
    process = run.processes[event.process]
    for number in process.open_nodes:
        if number not in now_open:
            run.ranges[number].open_since_ns = None
    process.open_nodes = [*now_open]
    for number, since_ns in now_open.items():
        node = run.ranges[number]
        if node.depth == 0 and since_ns != node.open_since_ns:
            _began(run, since_ns, node.definition.name)
        node.open_since_ns = since_ns


def _began(run: Run, since_ns: int, name: str) -> None:
    """Remember the newest starts, in whatever order they are reported."""
    entry = since_ns, name
    place = bisect_left(run.phase_starts, entry)
    if run.phase_starts[place : place + 1] != [entry]:
        run.phase_starts.insert(place, entry)
        if len(run.phase_starts) > PHASE_STARTS:
            del run.phase_starts[0]


# Folding the life of runs and their processes.


@folds(RunStarted)
def started(session: Session, event: RunStarted) -> None:
    """A new run, which is the newest from here on."""
    run = Run(event, updated_ns=event.time_ns, stage_started_ns=event.time_ns)
    session.runs[event.run] = run
    for reason in (event.capture_feared_reason, event.capture_unavailable_reason):
        if reason:
            _say(run, event.time_ns, reason)


@folds(RunProgress)
def progress(_: Session, run: Run, event: RunProgress) -> None:
    """How far a run is, and since when it is in its stage."""
    if run.progress is None or run.progress.stage != event.stage:
        run.stage_started_ns = event.time_ns
    run.progress = event


@folds(RunMetrics)
def metrics(_: Session, run: Run, event: RunMetrics) -> None:
    """Figures of a run; the newest of a name wins."""
    run.metrics.update(event.metrics)
    for name, value in event.metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            run.reported.setdefault(name, Reports()).add(float(value))


@folds(RunResult)
def result(_: Session, run: Run, event: RunResult) -> None:
    """Keep the results that a workload reports at its end."""
    run.result = event
    run.metrics.update(event.results)


@folds(RunOutput)
def output(_: Session, run: Run, event: RunOutput) -> None:
    """Append lines that the child printed to the run's log."""
    for line in event.lines:
        run.log.append(LogLine(event.time_ns, event.stream, line))
    run.log_lines += len(event.lines)
    if event.dropped_lines:
        _say(run, event.time_ns, f"{event.dropped_lines} lines left out here")


@folds(RunAskedToEnd)
def asked_to_end(_: Session, run: Run, event: RunAskedToEnd) -> None:
    """What happens to its processes from here on is no cause."""
    run.asked_ns = run.asked_ns or event.time_ns


@folds(RunEnded)
def ended(_: Session, run: Run, event: RunEnded) -> None:
    """Ends the run: the child is gone, so that none of its ranges is open any more."""
    run.ended = event
    run.asked_ns = run.asked_ns or event.asked_ns
    _say(run, event.time_ns, event.reason)
    for node in run.ranges.values():
        node.open_since_ns = None


@folds(ProcessAttached)
def process_attached(session: Session, run: Run, event: ProcessAttached) -> None:
    """A traced process; sent again when it initialises CUDA, and when its recording goes on."""
    process = run.processes.get(event.process)
    if run.cuda_since_ns is None and event.cuda_status != "no CUDA":
        # What the GPUs held before, and what slowed them, another program did.
        run.cuda_since_ns = event.began_ns if process is None and event.began_ns else event.time_ns
        run.readings.forget_earlier_use()
    if process is None:
        run.processes[event.process] = Process(event, event.began_ns or event.time_ns)
    else:
        process.attached = event
        process.out_of_sight_ns = None
    session.run_numbers[event.process] = event.run


@folds(ProcessDetached)
def process_detached(_: Session, run: Run, event: ProcessDetached) -> None:
    """A traced process that ended."""
    run.processes[event.process].detached = event


@folds(ProcessOutOfSight)
def process_out_of_sight(_: Session, run: Run, event: ProcessOutOfSight) -> None:
    """A traced process whose recording ended before it."""
    run.processes[event.process].out_of_sight_ns = event.time_ns


@folds(CaptureRefused)
def capture_refused(_: Session, run: Run, event: CaptureRefused) -> None:
    """Keep the latest count of processes that got no ring, and the reason."""
    run.refused = event


def _say(run: Run, time_ns: int, text: str) -> None:
    run.log.append(LogLine(time_ns, "gputui", text))
    run.log_lines += 1
