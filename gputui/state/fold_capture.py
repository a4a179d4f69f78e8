"""Folding what the capture library saw."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, TypeVar

from gputui.model.events import (
    PHASE_STARTS,
    ApiDelta,
    CaptureDelta,
    CaptureSum,
    DeviceDelta,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    LaunchShape,
    Mark,
    MarkDefined,
    MarkDelta,
    MemoryOperationDelta,
    RangeDefined,
    RangeDelta,
    ResourceNamed,
    StepTimeline,
    ThreadNamed,
)
from gputui.model.sketch import Accumulator
from gputui.model.visible_devices import read_visible_devices
from gputui.state.keys import ApiKey, KernelKey, LaunchKey, MemoryOperationKey
from gputui.state.run import Device, LaunchTimes, Marks, Range, Run, TimeAndSize

if TYPE_CHECKING:
    from gputui.state.session import Session

_Key = TypeVar("_Key")

MAX_THREADS = 4096
"""Threads of a process whose names are kept, and resources."""

MAX_LOSSES = 1000
"""Causes and domains of lost records counted separately."""

MAX_LEVELS = 512
"""Ranges one inside the other; what lies deeper is left out and counted as unknown."""

MAX_PATH = 8192
"""Characters of a range's path; a range with a longer one is left out in the same way."""


def range_defined(session: Session, event: RangeDefined) -> None:
    """A node of the range tree, below one that is known."""
    run = session.run_of_process(event.process, event.time_ns)
    if run is None:
        return
    parent = run.ranges.get(event.parent)
    if event.range in session.runs_of_ranges or (event.parent and parent is None):
        session.unknown_references += 1
        return
    node = Range(event, path=event.name)
    if parent is not None:
        node.depth = parent.depth + 1
        # Every node carries its path: without bounds a small file of deep ranges would take
        # memory that grows with the square of its size.
        if node.depth >= MAX_LEVELS or len(parent.path) + 1 + len(event.name) > MAX_PATH:
            session.unknown_references += 1
            return
        node.path = f"{parent.path}/{event.name}"
        parent.children.append(event.range)
    else:
        run.roots.append(event.range)
    run.ranges[event.range] = node
    session.runs_of_ranges[event.range] = run


def thread_named(session: Session, event: ThreadNamed) -> None:
    """What a thread is called."""
    run = session.run_of_process(event.process, event.time_ns)
    if run is None:
        return
    threads = run.processes[event.process].threads
    if event.thread in threads or len(threads) < MAX_THREADS:
        threads[event.thread] = event


def resource_named(session: Session, event: ResourceNamed) -> None:
    """What a device, context or stream is called."""
    run = session.run_of_process(event.process, event.time_ns)
    if run is None:
        return
    resources = run.processes[event.process].resources
    device = event.device
    gpu = None if device is None else gpu_of(session, run, event.process, device)
    key = event.kind, event.number, gpu
    if key in resources or len(resources) < MAX_THREADS:
        resources[key] = event


def kernel_defined(session: Session, event: KernelDefined) -> None:
    """A kernel's name."""
    session.kernel_names[event.kernel] = event


def launch_shape(session: Session, event: LaunchShape) -> None:
    """A launch shape was seen for the first time."""
    session.launch_shapes[event.shape] = event


def mark_defined(session: Session, event: MarkDefined) -> None:
    """What marks of a name are."""
    if run := session.run_of_process(event.process, event.time_ns):
        run.mark_definitions[event.mark] = event


def mark(session: Session, event: Mark) -> None:
    """An instant with a name."""
    if run := session.run_of_process(event.process, event.time_ns):
        run.marks.append(event)


def step(session: Session, event: StepTimeline) -> None:
    """The last whole step of a process."""
    if run := session.run_of_process(event.process, event.time_ns):
        run.steps[event.process] = event


def delta(session: Session, event: CaptureDelta) -> None:
    """What one process did since its last delta; a sum of deltas is one too."""
    run = session.run_of_process(event.process, event.time_ns)
    if run is None:
        return
    process = run.processes[event.process]
    process.told_ns = max(process.told_ns, event.time_ns)
    process.records += event.records
    process.dropped += event.dropped
    for loss in event.losses:
        cause = loss.cause, loss.domain
        if cause in process.losses or len(process.losses) < MAX_LOSSES:
            process.losses[cause] = process.losses.get(cause, 0) + loss.records
    process.unattributed += event.unattributed
    process.callback_ns += event.callback_ns
    process.reader_cpu_ns += event.reader_cpu_ns
    process.traced_ns += event.traced_ns
    process.paused_ns += event.paused_ns
    for ranges in event.ranges:
        _range_delta(session, run, ranges)
    for kernels in event.kernels:
        _kernel_delta(session, run, run.kernels, kernels)
    for kernels in event.kernels_beside:
        _kernel_delta(session, run, run.kernels_beside, kernels)
    for entry in event.range_kernels:
        if _knows_range(session, run, entry.range):
            key = (entry.range, entry.kernel)
            run.kernel_instances[key] = run.kernel_instances.get(key, 0) + entry.instances
            if entry.base_repeats:
                run.base_repeats[key] = run.base_repeats.get(key, 0) + entry.base_repeats
    for launches in event.launches:
        _launch_delta(session, run, launches)
    for shape in event.shapes:
        known = run.shape_launches.get(shape.shape, 0)
        run.shape_launches[shape.shape] = known + shape.launches
    for operations in event.memory_operations:
        _memory_operation_delta(session, run, operations)
    for calls in event.api:
        _api_delta(session, run, calls)
    for marks in event.marks:
        _mark_delta(run, event.process, marks)
    for devices in event.devices:
        _device_delta(session, run, devices)
    run.timing.add(event, lambda device: gpu_of(session, run, event.process, device))
    if isinstance(event, CaptureSum):
        for start in event.phase_starts:
            if start.range and _knows_range(session, run, start.range):
                _began(run, start.since_ns, run.ranges[start.range].definition.name)
    _open_ranges(run, event)


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


def _knows_range(session: Session, run: Run, number: int) -> bool:
    if number and number not in run.ranges:
        session.unknown_references += 1
        return False
    return True


def _range_delta(session: Session, run: Run, delta: RangeDelta) -> None:
    node = run.ranges.get(delta.range)
    if node is None:
        session.unknown_references += 1
        return
    if delta.cpu:
        node.cpu.add(delta.cpu)
    if delta.projected:
        node.projected.add(delta.projected)
    node.gpu_busy_ns += delta.gpu_busy_ns
    node.gpu_total_ns += delta.gpu_total_ns
    node.projected_range_ns += delta.projected_range_ns
    node.gpu_operations += delta.gpu_operations
    node.levels += delta.levels
    node.children_with_work += delta.children
    node.payload = delta.payload or node.payload


def _kernel_delta(
    session: Session, run: Run, kernels: dict[KernelKey, Accumulator], delta: KernelDelta
) -> None:
    if _knows_range(session, run, delta.range):
        key = KernelKey(
            delta.process,
            delta.range,
            delta.kernel,
            gpu_of(session, run, delta.process, delta.device),
            delta.inherited,
            delta.thread,
        )
        _sum(kernels, key).add(delta.time)
        if delta.repeats:
            run.kernel_repeats[key] = run.kernel_repeats.get(key, 0) + delta.repeats


def _launch_delta(session: Session, run: Run, delta: LaunchDelta) -> None:
    device = gpu_of(session, run, delta.process, delta.device)
    key = LaunchKey(delta.process, delta.thread, device, delta.name, delta.kernel)
    times = run.launches.get(key)
    if times is None:
        times = run.launches[key] = LaunchTimes()
    times.total.add(delta.total)
    times.call.add(delta.call)
    times.kernel.add(delta.kernel_time)
    if delta.queue:
        times.queue.add(delta.queue)


def _memory_operation_delta(session: Session, run: Run, delta: MemoryOperationDelta) -> None:
    if _knows_range(session, run, delta.range):
        key = MemoryOperationKey(
            delta.process,
            delta.range,
            delta.operation,
            gpu_of(session, run, delta.process, delta.device),
            delta.source_kind,
            delta.destination_kind,
            delta.inherited,
        )
        both = run.memory_operations.get(key)
        if both is None:
            both = run.memory_operations[key] = TimeAndSize()
        both.time.add(delta.time)
        both.size.add(delta.size)


def _api_delta(session: Session, run: Run, delta: ApiDelta) -> None:
    if _knows_range(session, run, delta.range):
        key = ApiKey(delta.process, delta.range, delta.name, delta.inherited)
        _sum(run.api, key).add(delta.time)


def _mark_delta(run: Run, process: int, delta: MarkDelta) -> None:
    key = process, delta.domain, delta.name
    known = run.mark_counts.get(key)
    if known is None:
        run.mark_counts[key] = Marks(delta.marks, delta.first_ns, delta.last_ns, delta.payload)
    else:
        known.count += delta.marks
        known.first_ns = min(known.first_ns, delta.first_ns)
        known.last_ns = max(known.last_ns, delta.last_ns)
        known.payload = delta.payload or known.payload


def _sum(sums: dict[_Key, Accumulator], key: _Key) -> Accumulator:
    found = sums.get(key)
    if found is None:
        found = sums[key] = Accumulator()
    return found


def _device_delta(session: Session, run: Run, delta: DeviceDelta) -> None:
    index = gpu_of(session, run, delta.process, delta.device)
    device = run.devices.setdefault(index, Device())
    device.busy_ns += delta.busy_ns
    device.operations += delta.operations
    if device.first_start_ns is None or delta.first_start_ns < device.first_start_ns:
        device.first_start_ns = delta.first_start_ns
    if device.last_end_ns is None or delta.last_end_ns > device.last_end_ns:
        device.last_end_ns = delta.last_end_ns


def _open_ranges(run: Run, event: CaptureDelta) -> None:
    now_open = {entry.range: entry.since_ns for entry in event.open_ranges}
    for number, node in run.ranges.items():
        if node.definition.process == event.process:
            since_ns = now_open.get(number)
            if node.depth == 0 and since_ns is not None and since_ns != node.open_since_ns:
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
