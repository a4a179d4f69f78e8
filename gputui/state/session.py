"""The state that views read, and which function folds which event into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gputui.model import events
from gputui.model.events import (
    AnyEvent,
    ClockCompared,
    Header,
    HostSample,
    KernelDefined,
    LauncherSample,
    LaunchShape,
    ProcessSample,
)
from gputui.state import alerts, fold_capture, fold_machine, fold_runs
from gputui.state.alerts import AlertSpan
from gputui.state.gpu import Gpu
from gputui.state.long_history import HISTORY_SAMPLES, Samples
from gputui.state.readings import Readings
from gputui.state.run import Run


class Session(msgspec.Struct, eq=False):
    """The state that views read. Events about an unknown run or range are counted in
    `unknown_references` and otherwise ignored: a truncated or hostile file cannot break the fold.

    It is data that can be encoded (gputui.playback.checkpoint): nothing in it is referred to twice.
    """

    header: Header | None = None
    time_ns: int = 0
    """The latest moment of any event."""
    sampled_ns: int = 0
    """When the newest sample was taken, by the clock as it was then."""
    latest_sample_ns: int = 0
    most_samples: int = HISTORY_SAMPLES
    """Kept of each GPU for charts; of what is older there are averages."""
    gpus: dict[int, Gpu] = {}
    host_samples: Samples[HostSample] = msgspec.field(
        default_factory=lambda: Samples.of(HostSample)
    )
    host_unavailable: dict[str, str] = {}
    processes: tuple[ProcessSample, ...] = ()
    launchers: tuple[LauncherSample, ...] = ()
    own_cpu_percent: float | None = None
    recorded_bytes: int | None = None
    traced_bytes: int | None = None
    runs: dict[int, Run] = {}
    readings: Readings = msgspec.field(default_factory=Readings)
    """Of the machine while there was no run; a run has its own."""
    alerts: list[AlertSpan] = []
    """Those that were raised, the oldest first."""
    kernel_names: dict[int, KernelDefined] = {}
    other_kernels: int | None = None
    """The number that kernels over the limit of names share."""
    launch_shapes: dict[int, LaunchShape] = {}
    clocks: dict[str, ClockCompared] = {}
    """The newest comparison of each host's clock, where the recording was copied from there."""
    samples: int = 0
    unknown_references: int = 0
    keeps_tables: bool = True
    """False leaves out what only tables and medians are made of, for whoever reads just the figures
    of each moment: adding those up takes half of the time of an OpenMetrics export."""
    # Indexes used by the folds.
    run_numbers: dict[int, int] = {}
    """The run of each process."""
    known_ranges: set[int] = set()
    gpus_of_numbers: dict[tuple[str, int], int] = {}

    @property
    def host(self) -> HostSample | None:
        """The newest sample of the host."""
        return self.host_samples.newest

    @property
    def run(self) -> Run | None:
        """The newest run, None before the first."""
        return next(reversed(self.runs.values()), None)

    @property
    def active_run(self) -> Run | None:
        """The newest run while it goes on."""
        run = self.run
        return run if run is not None and run.is_active else None

    @property
    def current_readings(self) -> Readings:
        """Where readings of the machine belong now."""
        run = self.active_run
        return self.readings if run is None else run.readings

    @property
    def started_ns(self) -> int:
        """When it began: the header's moment, of a recording without one its first sample's."""
        return self.header.time_ns if self.header else self.readings.first_ns

    @property
    def now_ns(self) -> int:
        """The reference for ages: the latest moment or, once the clock was set back, the newest
        sample's, so that nothing looks old until the latest is reached again.
        """
        return self.sampled_ns if self.sampled_ns < self.latest_sample_ns else self.time_ns

    @classmethod
    def of(cls, events: Iterable[AnyEvent]) -> Session:
        """What these events come to."""
        session = cls()
        session.apply(events)
        return session

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Fold `events`, in order."""
        for event in events:
            self.time_ns = max(self.time_ns, event.time_ns)
            self._fold(event)

    def holder_of(self, process: int) -> Run | None:
        """The run that a traced process belongs to, None if it is unknown."""
        run = self.runs.get(self.run_numbers.get(process, 0))
        # Another run may have begun with the same number, in a recording that was tampered with.
        return run if run is not None and process in run.processes else None

    def _fold(self, event: Any) -> None:
        kind = type(event)
        if kind in _FOLDS:
            _FOLDS[kind](self, event)
        elif kind in _FOLDS_OF_PROCESS:
            self._fold_into(self.holder_of(event.process), _FOLDS_OF_PROCESS[kind], event)
        elif kind in _FOLDS_OF_RUN:
            self._fold_into(self.runs.get(event.run), _FOLDS_OF_RUN[kind], event)
        elif event.gpu in self.gpus:
            _FOLDS_OF_GPU[kind](self, self.gpus[event.gpu], event)
        else:
            self.unknown_references += 1

    def _fold_into(self, run: Run | None, fold: _FoldOfRun, event: Any) -> None:
        if run is None:
            self.unknown_references += 1
        else:  # it is known to be alive then
            run.updated_ns = max(run.updated_ns, event.time_ns)
            fold(self, run, event)


_FoldOfRun = Callable[[Session, Run, Any], None]

_FOLDS: dict[type, Callable[[Session, Any], None]] = {
    events.Header: fold_machine.header,
    events.MachineSample: fold_machine.sample,
    events.HostUnavailable: fold_machine.host_unavailable,
    events.ClockCompared: fold_machine.clock_compared,
    events.Alert: alerts.alert,
    events.RunStarted: fold_runs.started,
    events.KernelDefined: fold_capture.kernel_defined,
    events.LaunchShape: fold_capture.launch_shape,
    events.ClockRead: lambda *_: None,  # about the link to this host, not about the host
}
_FOLDS_OF_GPU: dict[type, Callable[[Session, Gpu, Any], None]] = {
    events.GpuStatus: fold_machine.gpu_status,
    events.GpuEnergy: fold_machine.gpu_energy,
    events.GpuUnavailable: fold_machine.gpu_unavailable,
}
_FOLDS_OF_RUN: dict[type, _FoldOfRun] = {
    events.RunProgress: fold_runs.progress,
    events.RunMetrics: fold_runs.metrics,
    events.RunResult: fold_runs.result,
    events.RunOutput: fold_runs.output,
    events.RunAskedToEnd: fold_runs.asked_to_end,
    events.RunEnded: fold_runs.ended,
    events.ProcessAttached: fold_runs.process_attached,
    events.CaptureRefused: fold_runs.capture_refused,
}
_FOLDS_OF_PROCESS: dict[type, _FoldOfRun] = {
    events.ProcessDetached: fold_runs.process_detached,
    events.ProcessOutOfSight: fold_runs.process_out_of_sight,
    events.ThreadNamed: fold_capture.thread_named,
    events.ResourceNamed: fold_capture.resource_named,
    events.DeviceDefined: fold_capture.device_defined,
    events.RangeDefined: fold_capture.range_defined,
    events.MarkDefined: fold_capture.mark_defined,
    events.LineDefined: fold_capture.line_defined,
    events.CaptureDelta: fold_capture.delta,
    events.CaptureSum: fold_capture.delta,
    events.Mark: fold_capture.mark,
    events.StepTimeline: fold_capture.step,
    events.StepLanes: fold_capture.lanes,
}
