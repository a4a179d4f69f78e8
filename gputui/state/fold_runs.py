"""Folding the life of runs and their processes."""

from __future__ import annotations

from gputui.model.events import (
    CaptureRefused,
    ProcessAttached,
    ProcessDetached,
    ProcessOutOfSight,
    RunAskedToEnd,
    RunEnded,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
    RunStarted,
)
from gputui.state.captured import Process
from gputui.state.run import LogLine, Run
from gputui.state.series import Reports
from gputui.state.session import Session, folds


@folds(RunStarted)
def started(session: Session, event: RunStarted) -> None:
    """A new run, which is the newest from here on."""
    run = Run(event, updated_ns=event.time_ns, stage_started_ns=event.time_ns)
    session.runs[event.run] = run
    if event.capture_unavailable_reason:
        _say(run, event.time_ns, event.capture_unavailable_reason)


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
    """What a workload came to."""
    run.result = event
    run.metrics.update(event.results)


@folds(RunOutput)
def output(_: Session, run: Run, event: RunOutput) -> None:
    """Lines of the child."""
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
    """The child is gone: no range of it is open any more."""
    run.ended = event
    run.asked_ns = run.asked_ns or event.asked_ns
    _say(run, event.time_ns, event.reason)
    for node in run.ranges.values():
        node.open_since_ns = None


@folds(ProcessAttached)
def process_attached(session: Session, run: Run, event: ProcessAttached) -> None:
    """A traced process; sent again when it initialises CUDA, and when its recording goes on."""
    known = run.processes.get(event.process)
    if run.cuda_since_ns is None and event.cuda_status != "no CUDA":
        # What the GPUs held before, and what slowed them, another program did.
        run.cuda_since_ns = event.began_ns if known is None and event.began_ns else event.time_ns
        run.readings.forget_earlier_use()
    if known is None:
        run.processes[event.process] = Process(event, event.began_ns or event.time_ns)
    else:
        known.attached = event
        known.out_of_sight_ns = None
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
    """Processes without a ring."""
    run.refused = event


def _say(run: Run, time_ns: int, text: str) -> None:
    run.log.append(LogLine(time_ns, "gputui", text))
    run.log_lines += 1
