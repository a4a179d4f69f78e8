"""Folding what the capture library saw."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gputui.model.events import (
    MAX_KERNELS,
    OTHER_KERNELS,
    PHASE_STARTS,
    CaptureDelta,
    CaptureSum,
    DeviceDefined,
    Distribution,
    KernelDefined,
    LaunchShape,
    LineDefined,
    Mark,
    MarkDefined,
    RangeDefined,
    RangeDelta,
    ResourceNamed,
    StepLanes,
    StepTimeline,
    ThreadNamed,
)
from gputui.model.merge import merger_of
from gputui.model.naming import is_kernel_launch
from gputui.model.step_blocks import StepBlocks, blocks_of
from gputui.model.visible_devices import read_visible_devices
from gputui.state.captured import Launched, Process, Range
from gputui.state.run import STEP_LANES, Run
from gputui.state.session import Session, folds
from gputui.state.tables import Places, fold_of

MAX_THREADS = 4096
"""Threads of a process whose names are kept, and resources."""

MAX_LINES = 100_000
"""Lines of Python programs that are kept."""

MAX_RANGES = 100_000
"""Nodes of a process's range tree; any further ones are left out and counted."""

MAX_LEVELS = 512
"""Ranges one inside the other; what lies deeper is left out in the same way."""

MAX_PATH = 8192
"""Characters of a range's path; a range with a longer one is left out in the same way."""


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
    if event.range in session.known_ranges or (event.parent and parent is None) or too_many:
        session.unknown_references += 1
        process.left_out_nodes += event.range not in session.known_ranges
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


@folds(DeviceDefined)
def device_defined(session: Session, run: Run, event: DeviceDefined) -> None:
    """The L2 cache of a GPU; a MIG instance has a part of it."""
    if "MIG" in (run.processes[event.process].attached.visible_devices or ""):
        return
    gpu = session.gpus.get(gpu_of(session, run, event.process, event.device))
    if gpu is not None and not gpu.facts.mig_enabled:
        gpu.facts = replace(gpu.facts, l2_cache_bytes=event.l2_cache_bytes)


@folds(KernelDefined)
def kernel_defined(session: Session, event: KernelDefined) -> None:
    """A kernel's name."""
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
    if len(kept) > STEP_LANES:
        lengths = sorted(one.duration_ns for one in kept)
        usual = lengths[len(lengths) * 3 // 4]
        kept.remove(next(one for one in kept if one.duration_ns <= usual))


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
    for tables in (run, run.timing, process):
        session.unknown_references += fold_of(type(tables))(tables, event, places)
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


_IN_TABLES_ONLY: dict[str, tuple[()]] = {
    "kernels": (),
    "secondary_domain_kernels": (),
    "range_kernels": (),
    "launches": (),
    "shapes": (),
    "memory_operations": (),
    "streams": (),
}
"""Fields of a delta that only rows of tables are made of."""


def _without_tables(delta: CaptureDelta) -> CaptureDelta:
    def bare(times: Distribution | None) -> Distribution | None:
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

    def of(number: int, inherited: bool = False) -> Launched | None:
        node = ranges.get(number)
        if node is None:
            return None
        if not inherited:
            return node.launched
        if node.inherited is None:
            node.inherited = Launched()
        return node.inherited

    for kernels in event.kernels:
        if (counts := of(kernels.captured or kernels.range, kernels.inherited)) is not None:
            counts.kernels += kernels.time.count
            counts.kernel_ns += kernels.time.total
            counts.replayed += kernels.time.count if kernels.captured else kernels.replayed
    # In ranges of other domains and of the Start/End style, beside those that count them once.
    for kernels in event.secondary_domain_kernels:
        if (counts := of(kernels.range)) is not None:
            counts.kernels += kernels.time.count - kernels.repeats
            counts.kernel_ns += kernels.time.total
    for calls in event.api:
        if is_kernel_launch(calls.name) and (
            (counts := of(calls.range, calls.inherited)) is not None
        ):
            counts.launches += calls.time.count
    for copies in event.memory_operations:
        if (
            "memcpy" in copies.operation
            and copies.size is not None
            and copies.size.count > 0
            and ((counts := of(copies.captured or copies.range, copies.inherited)) is not None)
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
