"""Events → state: the one fold. Live, replayed and remote sessions all pass through here.

A session belongs to one thread: the one that draws, or the one that writes a summary. Sources
hand it events; views read its attributes and never change them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from gputui.distributions import Accumulator
from gputui.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuFacts,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostSample,
    HostUnavailable,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    LauncherSample,
    MachineSample,
    Mark,
    MemoryOperationDelta,
    ProcessAttached,
    ProcessDetached,
    ProcessSample,
    RangeDefined,
    RangeDelta,
    RunEnded,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
    RunStarted,
    StepTimeline,
)
from gputui.history import LongHistory
from gputui.visible_devices import visible_gpus

HISTORY_SAMPLES = 4096
"""Samples kept for charts: 68 minutes at one a second."""

LOG_LINES = 5000
"""Lines of a child's output kept in memory; the journal has them all."""

MARKS = 1000

PHASE_STARTS = 1000
"""Starts of outermost ranges kept for the time axes, the newest."""

CHART_FIELDS = (
    "utilization_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "memory_bandwidth_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
)
"""Fields of a GPU that charts show: kept for a day."""

HOST_CHART_FIELDS = ("cpu_percent", "memory_used_bytes")

SPREAD_FIELDS = (
    "utilization_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "memory_bandwidth_percent",
    "memory_bandwidth_bytes_per_s",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
)
"""Fields of a GPU whose least, most and mean over a run are kept."""


@dataclass(slots=True)
class Gpu:
    """One GPU: what it is, how it is, how it was."""

    facts: GpuFacts
    sample: GpuSample | None = None
    status: GpuStatus | None = None
    """What is read seldom; its own `time_ns` tells its age."""
    sample_ns: int = 0
    """When the card last told a figure: a card that hangs keeps this while time goes on."""
    unavailable: dict[str, str] = field(default_factory=dict)
    history: deque[tuple[int, GpuSample]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_SAMPLES)
    )
    long_history: LongHistory = field(default_factory=lambda: LongHistory(CHART_FIELDS))


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the child's output."""

    time_ns: int
    stream: Literal["stdout", "stderr", "gputui"]
    text: str


@dataclass(slots=True)
class Range:
    """A node of the range tree with all that was seen in it."""

    definition: RangeDefined
    children: list[int] = field(default_factory=list)
    depth: int = 0
    path: str = ""
    cpu: Accumulator = field(default_factory=Accumulator)
    projected: Accumulator = field(default_factory=Accumulator)
    gpu_busy_ns: int = 0
    gpu_total_ns: int = 0
    projected_range_ns: int = 0
    gpu_operations: int = 0
    levels: int = 0
    children_with_work: int = 0
    """As in RangeDelta, where the last is `children`: sums over projected instances."""
    open_since_ns: int | None = None


@dataclass(frozen=True, slots=True)
class KernelKey:
    """What kernel statistics are kept by. `range` 0 is outside every range; `thread` as in
    KernelDelta."""

    process: int
    range: int
    kernel: int
    device: int
    inherited: bool
    thread: int = 0


@dataclass(frozen=True, slots=True)
class LaunchKey:
    """What the times of launches are kept by. `name` is the CUDA call's."""

    process: int
    thread: int
    device: int
    name: str
    kernel: int


@dataclass(slots=True)
class LaunchTimes:
    """From the call to the kernel's end, as LaunchDelta has it."""

    total: Accumulator = field(default_factory=Accumulator)
    call: Accumulator = field(default_factory=Accumulator)
    queue: Accumulator = field(default_factory=Accumulator)
    kernel: Accumulator = field(default_factory=Accumulator)


@dataclass(frozen=True, slots=True)
class MemoryOperationKey:
    """What statistics of copies and memsets are kept by."""

    process: int
    range: int
    operation: str
    device: int
    source_kind: str | None
    destination_kind: str | None
    inherited: bool


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What statistics of CUDA calls are kept by."""

    process: int
    range: int
    name: str
    inherited: bool


@dataclass(slots=True)
class TimeAndSize:
    """Durations and bytes of one kind of memory operation."""

    time: Accumulator = field(default_factory=Accumulator)
    size: Accumulator = field(default_factory=Accumulator)


@dataclass(slots=True)
class Device:
    """What the captured processes did to one GPU."""

    busy_ns: int = 0
    operations: int = 0
    first_start_ns: int | None = None
    last_end_ns: int | None = None


@dataclass(slots=True)
class Spread:
    """Least, most and mean of one field over samples."""

    count: int = 0
    total: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0

    def add(self, value: float) -> None:
        """Count one more value."""
        self.minimum = min(self.minimum, value) if self.count else value
        self.maximum = max(self.maximum, value) if self.count else value
        self.count += 1
        self.total += value

    @property
    def average(self) -> float | None:
        """The mean, None without values."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class Process:
    """A traced process of a run."""

    attached: ProcessAttached
    detached: ProcessDetached | None = None
    records: int = 0
    dropped: int = 0
    unattributed: int = 0
    callback_ns: int = 0
    reader_cpu_ns: int = 0
    traced_ns: int = 0
    paused_ns: int = 0


@dataclass(slots=True)
class Run:
    """One child and all that was captured of it and its children."""

    started: RunStarted
    ended: RunEnded | None = None
    progress: RunProgress | None = None
    stage_started_ns: int = 0
    metrics: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    result: RunResult | None = None
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    log_lines: int = 0
    processes: dict[int, Process] = field(default_factory=dict)
    ranges: dict[int, Range] = field(default_factory=dict)
    roots: list[int] = field(default_factory=list)
    kernels: dict[KernelKey, Accumulator] = field(default_factory=dict)
    kernels_beside: dict[KernelKey, Accumulator] = field(default_factory=dict)
    """Counted again in the ranges of further domains; `kernels` holds each kernel once."""
    kernel_instances: dict[tuple[int, int], int] = field(default_factory=dict)
    """(range, kernel) → the range's instances that launched the kernel."""
    launches: dict[LaunchKey, LaunchTimes] = field(default_factory=dict)
    memory_operations: dict[MemoryOperationKey, TimeAndSize] = field(default_factory=dict)
    api: dict[ApiKey, Accumulator] = field(default_factory=dict)
    devices: dict[int, Device] = field(default_factory=dict)
    gpu_spreads: dict[tuple[int, str], Spread] = field(default_factory=dict)
    throttle_samples: dict[tuple[int, str], int] = field(default_factory=dict)
    steps: dict[int, StepTimeline] = field(default_factory=dict)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    phase_starts: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=PHASE_STARTS))
    """(when, name) of the outermost ranges that were open when a delta came."""
    updated_ns: int = 0

    @property
    def parameters(self) -> dict[str, str | int | float | bool | None]:
        """What was asked for, with the workload's defaults once it has told them."""
        asked: dict[str, str | int | float | bool | None] = dict(self.started.parameters)
        return self.result.parameters if self.result else asked

    @property
    def traced_share(self) -> float:
        """How much of the time kernels were traced: 1 unless a duty cycle was asked for."""
        paused = sum(process.paused_ns for process in self.processes.values())
        traced = sum(process.traced_ns for process in self.processes.values())
        return traced / (traced + paused) if paused else 1.0

    @property
    def is_active(self) -> bool:
        """Whether the child is still there."""
        return self.ended is None

    @property
    def duration_ns(self) -> int:
        """From the start to the end, or to the newest event while it runs."""
        end = self.ended.time_ns if self.ended else self.updated_ns
        return max(0, end - self.started.time_ns)


class Session:
    """The state that views read. Events about a run or range that is not known are counted in
    `unknown_references` and otherwise left out: a cut or hostile file cannot break the fold.
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        self.time_ns = 0
        self.gpus: dict[int, Gpu] = {}
        self.host: HostSample | None = None
        self.host_history: deque[tuple[int, HostSample]] = deque(maxlen=HISTORY_SAMPLES)
        self.host_long_history = LongHistory(HOST_CHART_FIELDS)
        self.host_unavailable: dict[str, str] = {}
        self.processes: tuple[ProcessSample, ...] = ()
        self.launchers: tuple[LauncherSample, ...] = ()
        self.own_cpu_percent: float | None = None
        self.runs: dict[int, Run] = {}
        self.kernel_names: dict[int, KernelDefined] = {}
        self.samples = 0
        self.unknown_references = 0
        self._runs_of_processes: dict[int, Run] = {}
        self._runs_of_ranges: dict[int, Run] = {}
        self._gpus_of_numbers: dict[tuple[str, int], int] = {}
        self._folds: dict[type, Callable[..., None]] = {
            Header: self._header,
            MachineSample: self._machine_sample,
            GpuStatus: self._gpu_status,
            GpuUnavailable: self._gpu_unavailable,
            HostUnavailable: self._host_unavailable,
            RunStarted: self._run_started,
            RunProgress: self._run_progress,
            RunMetrics: self._run_metrics,
            RunResult: self._run_result,
            RunOutput: self._run_output,
            RunEnded: self._run_ended,
            ProcessAttached: self._process_attached,
            ProcessDetached: self._process_detached,
            RangeDefined: self._range_defined,
            KernelDefined: self._kernel_defined,
            CaptureDelta: self._capture_delta,
            Mark: self._mark,
            StepTimeline: self._step,
        }

    @property
    def run(self) -> Run | None:
        """The newest run, None before the first."""
        return next(reversed(self.runs.values()), None)

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Fold `events` in, in order."""
        for event in events:
            self.time_ns = max(self.time_ns, event.time_ns)
            self._folds[type(event)](event)

    # --- the machine

    def _header(self, event: Header) -> None:
        self.header = event
        for facts in event.gpus:
            known = self.gpus.get(facts.index)
            if known is None:
                self.gpus[facts.index] = Gpu(facts)
            else:
                known.facts = facts

    def _machine_sample(self, event: MachineSample) -> None:
        self.samples += 1
        self.host = event.host
        self.host_history.append((event.time_ns, event.host))
        self.host_long_history.add(event.time_ns, event.host)
        self.own_cpu_percent = event.own_cpu_percent
        if event.processes is not None:
            self.processes = event.processes
            self.launchers = event.launchers
        if (run := self.run) and run.is_active:
            # A program that says nothing is running all the same.
            run.updated_ns = max(run.updated_ns, event.time_ns)
        for sample in event.gpus:
            gpu = self.gpus.get(sample.index)
            if gpu is None:
                self.unknown_references += 1
                continue
            gpu.sample = sample
            if "device" not in gpu.unavailable:
                gpu.sample_ns = event.time_ns
            gpu.history.append((event.time_ns, sample))
            gpu.long_history.add(event.time_ns, sample)
            if (run := self.run) and run.is_active:
                self._spread(run, sample)

    @staticmethod
    def _spread(run: Run, sample: GpuSample) -> None:
        for name in SPREAD_FIELDS:
            value = getattr(sample, name)
            if value is not None:
                run.gpu_spreads.setdefault((sample.index, name), Spread()).add(value)
        for reason in sample.throttle_reasons or ():
            key = (sample.index, reason)
            run.throttle_samples[key] = run.throttle_samples.get(key, 0) + 1

    def _gpu_status(self, event: GpuStatus) -> None:
        gpu = self.gpus.get(event.gpu)
        if gpu is None:
            self.unknown_references += 1
        else:
            gpu.status = event

    def _gpu_unavailable(self, event: GpuUnavailable) -> None:
        gpu = self.gpus.get(event.gpu)
        if gpu is None:
            self.unknown_references += 1
        else:
            gpu.unavailable = dict(event.reasons)

    def _host_unavailable(self, event: HostUnavailable) -> None:
        self.host_unavailable = dict(event.reasons)

    # --- runs

    def _run_started(self, event: RunStarted) -> None:
        run = Run(event, updated_ns=event.time_ns, stage_started_ns=event.time_ns)
        self.runs[event.run] = run
        if event.capture_unavailable_reason:
            self._say(run, event.time_ns, event.capture_unavailable_reason)

    def _known_run(self, number: int, time_ns: int) -> Run | None:
        run = self.runs.get(number)
        if run is None:
            self.unknown_references += 1
        else:
            run.updated_ns = max(run.updated_ns, time_ns)
        return run

    def _run_progress(self, event: RunProgress) -> None:
        if run := self._known_run(event.run, event.time_ns):
            if run.progress is None or run.progress.stage != event.stage:
                run.stage_started_ns = event.time_ns
            run.progress = event

    def _run_metrics(self, event: RunMetrics) -> None:
        if run := self._known_run(event.run, event.time_ns):
            run.metrics.update(event.metrics)

    def _run_result(self, event: RunResult) -> None:
        if run := self._known_run(event.run, event.time_ns):
            run.result = event
            run.metrics.update(event.results)

    def _run_output(self, event: RunOutput) -> None:
        if run := self._known_run(event.run, event.time_ns):
            for line in event.lines:
                run.log.append(LogLine(event.time_ns, event.stream, line))
            run.log_lines += len(event.lines)
            if event.dropped_lines:
                self._say(run, event.time_ns, f"{event.dropped_lines} lines left out here")

    def _run_ended(self, event: RunEnded) -> None:
        if run := self._known_run(event.run, event.time_ns):
            run.ended = event
            self._say(run, event.time_ns, event.reason)
            for node in run.ranges.values():
                node.open_since_ns = None

    @staticmethod
    def _say(run: Run, time_ns: int, text: str) -> None:
        run.log.append(LogLine(time_ns, "gputui", text))
        run.log_lines += 1

    # --- capture

    def _process_attached(self, event: ProcessAttached) -> None:
        if run := self._known_run(event.run, event.time_ns):
            known = run.processes.get(event.process)
            if known is None:
                run.processes[event.process] = Process(event)
            else:  # said again when the process initialises CUDA
                known.attached = event
            self._runs_of_processes[event.process] = run

    def _gpu_of(self, run: Run, number: int, device: int) -> int:
        """The machine's index of a process's CUDA device number."""
        process = run.processes.get(number)
        visible = process.attached.visible_devices if process else None
        if visible is None:
            return device
        key = visible, device
        if key not in self._gpus_of_numbers:
            uuids = {index: gpu.facts.uuid for index, gpu in self.gpus.items()}
            gpus = visible_gpus(visible, uuids)
            self._gpus_of_numbers[key] = gpus[device] if device < len(gpus) else device
        return self._gpus_of_numbers[key]

    def _run_of_process(self, process: int, time_ns: int) -> Run | None:
        run = self._runs_of_processes.get(process)
        if run is None:
            self.unknown_references += 1
        else:
            run.updated_ns = max(run.updated_ns, time_ns)
        return run

    def _process_detached(self, event: ProcessDetached) -> None:
        if run := self._run_of_process(event.process, event.time_ns):
            run.processes[event.process].detached = event

    def _range_defined(self, event: RangeDefined) -> None:
        run = self._run_of_process(event.process, event.time_ns)
        if run is None:
            return
        parent = run.ranges.get(event.parent)
        if event.range in self._runs_of_ranges or (event.parent and parent is None):
            self.unknown_references += 1
            return
        node = Range(event, path=event.name)
        if parent is None:
            run.roots.append(event.range)
        else:
            parent.children.append(event.range)
            node.depth = parent.depth + 1
            node.path = f"{parent.path}/{event.name}"
        run.ranges[event.range] = node
        self._runs_of_ranges[event.range] = run

    def _kernel_defined(self, event: KernelDefined) -> None:
        self.kernel_names[event.kernel] = event

    def _mark(self, event: Mark) -> None:
        if run := self._run_of_process(event.process, event.time_ns):
            run.marks.append(event)

    def _step(self, event: StepTimeline) -> None:
        if run := self._run_of_process(event.process, event.time_ns):
            run.steps[event.process] = event

    def _capture_delta(self, event: CaptureDelta) -> None:
        run = self._run_of_process(event.process, event.time_ns)
        if run is None:
            return
        process = run.processes[event.process]
        process.records += event.records
        process.dropped += event.dropped
        process.unattributed += event.unattributed
        process.callback_ns += event.callback_ns
        process.reader_cpu_ns += event.reader_cpu_ns
        process.traced_ns += event.traced_ns
        process.paused_ns += event.paused_ns
        for ranges in event.ranges:
            self._range_delta(run, ranges)
        for kernels in event.kernels:
            self._kernel_delta(run, run.kernels, kernels)
        for kernels in event.kernels_beside:
            self._kernel_delta(run, run.kernels_beside, kernels)
        for entry in event.range_kernels:
            if self._knows_range(run, entry.range):
                key = (entry.range, entry.kernel)
                run.kernel_instances[key] = run.kernel_instances.get(key, 0) + entry.instances
        for launches in event.launches:
            self._launch_delta(run, launches)
        for operations in event.memory_operations:
            self._memory_operation_delta(run, operations)
        for calls in event.api:
            self._api_delta(run, calls)
        for devices in event.devices:
            self._device_delta(run, devices)
        self._open_ranges(run, event)

    def _range_delta(self, run: Run, delta: RangeDelta) -> None:
        node = run.ranges.get(delta.range)
        if node is None:
            self.unknown_references += 1
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

    def _knows_range(self, run: Run, number: int) -> bool:
        if number and number not in run.ranges:
            self.unknown_references += 1
            return False
        return True

    def _kernel_delta(
        self, run: Run, kernels: dict[KernelKey, Accumulator], delta: KernelDelta
    ) -> None:
        if self._knows_range(run, delta.range):
            key = KernelKey(
                delta.process,
                delta.range,
                delta.kernel,
                self._gpu_of(run, delta.process, delta.device),
                delta.inherited,
                delta.thread,
            )
            kernels.setdefault(key, Accumulator()).add(delta.time)

    def _launch_delta(self, run: Run, delta: LaunchDelta) -> None:
        device = self._gpu_of(run, delta.process, delta.device)
        key = LaunchKey(delta.process, delta.thread, device, delta.name, delta.kernel)
        times = run.launches.setdefault(key, LaunchTimes())
        times.total.add(delta.total)
        times.call.add(delta.call)
        times.kernel.add(delta.kernel_time)
        if delta.queue:
            times.queue.add(delta.queue)

    def _memory_operation_delta(self, run: Run, delta: MemoryOperationDelta) -> None:
        if self._knows_range(run, delta.range):
            key = MemoryOperationKey(
                delta.process,
                delta.range,
                delta.operation,
                self._gpu_of(run, delta.process, delta.device),
                delta.source_kind,
                delta.destination_kind,
                delta.inherited,
            )
            both = run.memory_operations.setdefault(key, TimeAndSize())
            both.time.add(delta.time)
            both.size.add(delta.size)

    def _api_delta(self, run: Run, delta: ApiDelta) -> None:
        if self._knows_range(run, delta.range):
            key = ApiKey(delta.process, delta.range, delta.name, delta.inherited)
            run.api.setdefault(key, Accumulator()).add(delta.time)

    def _device_delta(self, run: Run, delta: DeviceDelta) -> None:
        index = self._gpu_of(run, delta.process, delta.device)
        device = run.devices.setdefault(index, Device())
        device.busy_ns += delta.busy_ns
        device.operations += delta.operations
        if device.first_start_ns is None or delta.first_start_ns < device.first_start_ns:
            device.first_start_ns = delta.first_start_ns
        if device.last_end_ns is None or delta.last_end_ns > device.last_end_ns:
            device.last_end_ns = delta.last_end_ns

    @staticmethod
    def _open_ranges(run: Run, event: CaptureDelta) -> None:
        now_open = {entry.range: entry.since_ns for entry in event.open_ranges}
        for number, node in run.ranges.items():
            if node.definition.process == event.process:
                since_ns = now_open.get(number)
                if node.depth == 0 and since_ns is not None and since_ns != node.open_since_ns:
                    run.phase_starts.append((since_ns, node.definition.name))
                node.open_since_ns = since_ns
