"""A child process: its start, what it reports, its marks and last step, its output, its end; and
alerts on figures over a limit.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gputui.model.events.base import (
    About,
    Amount,
    Event,
    GpuIndex,
    Index,
    Integer,
    KernelNumber,
    Moment,
    ProcessNumber,
    RangeNumber,
    Record,
    RunNumber,
    ShapeNumber,
)
from gputui.model.events.capture_parts import Payload


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A child process was started, or one that runs was attached to. `run` numbers the runs of one
    session from 1.

    `pid` is None when it could not be started; the RunEnded that follows says why.
    """

    about = About.SESSION
    defines = True
    repeated_for = ("run",)

    run: RunNumber
    kind: Literal["workload", "command"]
    name: str
    arguments: tuple[str, ...]
    parameters: dict[str, str | Integer | float | bool] = msgspec.field(default_factory=dict)
    pid: Integer | None
    step_range: str | None = None
    """Name of the range that is one step, if the workload declares it."""
    capture_unavailable_reason: str | None = None
    """What is missing of phases and kernels, and why."""
    capture_feared_reason: str | None = None
    """What may be missing of them: a tool that may be in the way. It is not, once kernels come."""
    annotate: Literal["modules", "autograd"] | None = None
    """Which of torch's operations have ranges around them."""
    operator_shapes: bool = False
    """Whether names of operators have the shapes of their inputs behind them."""
    traced_step: str | None = None
    """Name of the range whose pushes are counted if only the kernels of some steps are traced."""
    max_cost_percent: float | None = None
    """What tracing may cost of the program's time; kernels are traced in windows then."""
    captured_part: str | None = None
    """In words, the part of the program whose kernels, copies and calls were captured, if not the
    whole."""
    attached: bool = False
    """Whether the process ran before, and goes on afterwards."""


class RunProgress(Event, frozen=True, kw_only=True, tag="run_progress"):
    """A workload's progress: `done` of `total` `unit`s in `stage`."""

    about = About.RUN
    repeated_for = ("run",)

    run: RunNumber
    stage: str
    done: float
    total: float | None = None
    unit: str = ""


class RunMetrics(Event, frozen=True, kw_only=True, tag="run_metrics"):
    """Values reported by the workload; the newest value of a name wins."""

    about = About.RUN

    run: RunNumber
    metrics: dict[str, float | Integer | str | bool | None]


class ResultColumn(Record, frozen=True, kw_only=True):
    """A column of a workload's table. The unit is also the suffix of the name."""

    name: str
    unit: str | None = None
    help: str = ""


class ResultTable(Record, frozen=True, kw_only=True):
    """A table reported by the workload; every row has a cell for each column, None if missing."""

    name: str
    title: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[str | Integer | float | bool | None, ...], ...] = ()


class RunResult(Event, frozen=True, kw_only=True, tag="run_result"):
    """The workload's result. `results` are metrics as well; `parameters` are the values that were
    used, defaults included; `complete` is False for a partial result after a stop."""

    about = About.RUN
    repeated_for = ("run",)

    run: RunNumber
    complete: bool
    parameters: dict[str, str | Integer | float | bool | None]
    results: dict[str, float | Integer | str | bool | None]
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)
    tables: tuple[ResultTable, ...] = ()


class RunOutput(Event, frozen=True, kw_only=True, tag="run_output"):
    """Complete lines of the child's output, sanitized.

    `dropped_lines` counts those left out because the child wrote faster than they can be kept.
    """

    about = About.RUN

    run: RunNumber
    stream: Literal["stdout", "stderr"]
    lines: tuple[str, ...]
    dropped_lines: Amount = 0


class RunAskedToEnd(Event, frozen=True, kw_only=True, tag="run_asked_to_end"):
    """gputui first asked the child to end, as `asked_ns` of RunEnded has it, which may come long
    after, or never."""

    about = About.RUN
    repeated_for = ("run",)

    run: RunNumber


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The child has ended.

    One of `exit_code` and `signal` is set; neither if it is not known how the child ended. `reason`
    is one line for people ("killed by SIGKILL", "out of memory: …"). `stopped` means that gputui
    ended it at the user's request. `child_ended_ns` is when it ended, None if it never ran;
    `time_ns` is when everything captured of it had been read.

    `asked_ns` is when gputui first asked it to end, by passing Ctrl-C on or by ending it: nothing
    that happened to its processes afterwards is a cause. `continued`, `killed` and `left` are the
    pids of its processes that could not end by themselves, at most 64 each: they had been stopped
    (SIGSTOP), had not ended in time after SIGTERM, or not even after SIGKILL.
    """

    about = About.RUN

    run: RunNumber
    exit_code: Integer | None = None
    signal: Integer | None = None
    reason: str
    stopped: bool = False
    # Not the end of reading: where the reader has a backlog, all shares of the run's time would be
    # too low.
    child_ended_ns: Moment | None = None
    asked_ns: Moment | None = None
    continued: tuple[Integer, ...] = ()
    killed: tuple[Integer, ...] = ()
    left: tuple[Integer, ...] = ()


# Single moments of a program: marks, and its last step.


class Mark(Event, frozen=True, kw_only=True, tag="mark"):
    """An NVTX mark: an instant with a name."""

    about = About.PROCESS

    process: ProcessNumber
    thread: Integer
    domain: str = ""
    name: str
    payload: Payload | None = None


class StepSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span of a step's timeline, relative to its start. `lane` is "cpu" or "gpu".

    On the "gpu" lane a span is a stretch of GPU work launched by `range`, with gaps too small to
    draw; `busy_ns` is the time in it in which something ran, None where that was not recorded.
    """

    lane: Literal["cpu", "gpu"]
    range: RangeNumber
    start_ns: Amount
    duration_ns: Amount
    busy_ns: Amount | None = None


class IdleLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of each part of a step a device idled for one cause, in thousandths of the part.
    `leaf` is its number in model.leaves."""

    leaf: Integer
    parts: tuple[Index, ...]


Letters = Annotated[str, msgspec.Meta(max_length=200)]
"""Parts of a step as letters, packed (gputui.model.leaves)."""


class ThreadLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a thread of the process was at in each part of a step; `line` is the newest that it was
    seen at, a LineDefined, None if it was not."""

    thread: Integer
    doing: Letters
    line: Integer | None = None


class StreamLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of each part of a step a stream of the device was busy, in eighths, and in all."""

    stream: Integer
    busy_ns: Amount
    ink: Letters


class StepLanes(Event, frozen=True, kw_only=True, tag="step_lanes"):
    """One steady step of a device in equal parts: how much of each it was busy, in thousandths, and
    why it idled in the rest. It is a usual step of its delta, or one that stands out by its
    length. `device` is the process's. `alone` is the part of `busy` in which only collectives ran,
    empty where none did. Of threads and streams there are as many as fit 150 bytes;
    streams only where the device had several."""

    about = About.PROCESS

    process: ProcessNumber
    device: Integer
    start_ns: Moment
    duration_ns: Amount
    busy: tuple[Index, ...]
    idle: tuple[IdleLane, ...] = ()
    threads: tuple[ThreadLane, ...] = ()
    streams: tuple[StreamLane, ...] = ()
    alone: tuple[Index, ...] = ()


class ReferredTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What single operations of a step refer to by its place among others, from 1 on: one of a
    range, a kernel, a launch shape and the name of a CUDA call."""

    range: RangeNumber | None = None
    kernel: KernelNumber | None = None
    shape: ShapeNumber | None = None
    call: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class StepOperations(Event, frozen=True, kw_only=True, tag="step_operations"):
    """Every operation, call and range of one step: those that went on during the step, and the
    calls that launched its operations. The step has StepLanes as well, which may come before or
    after.

    `packed` (base64 in a recording) holds `records` rows, which gputui.store.trace describes; they
    refer to entries of `refers`. `left_out` counts records beyond the limit.
    """

    about = About.PROCESS

    process: ProcessNumber
    start_ns: Moment
    duration_ns: Amount
    records: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    left_out: Amount = 0
    refers: tuple[ReferredTo, ...] = ()
    packed: Annotated[bytes, msgspec.Meta(max_length=4 << 20)]


class StepTimeline(Event, frozen=True, kw_only=True, tag="step"):
    """The last complete step: the spans of its ranges, outermost first, and of its GPU work.

    `spans_left_out` counts the spans beyond the limit.
    """

    about = About.PROCESS

    process: ProcessNumber
    range: RangeNumber
    start_ns: Moment
    duration_ns: Amount
    spans: tuple[StepSpan, ...] = ()
    spans_left_out: Amount = 0


# Thresholds that were crossed.


class Alert(Event, frozen=True, kw_only=True, tag="alert"):
    """A condition of `--alert` has held for as long as it says; or, if `raised` is false, has not
    held for as long. `subject` is "gpu0", "host" or "run"; `what` is a field of a reading, or the
    name of a leaf. `since_ns` is the first of the readings that raised it, `value` the newest, and
    `worst` the one furthest from the limit while the alert lasted."""

    repeated_for = ("condition", "subject")

    condition: str
    subject: str
    what: str
    gpu: GpuIndex | None = None
    raised: bool = True
    since_ns: Moment
    value: float
    worst: float
