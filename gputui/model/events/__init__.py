"""The vocabulary: every event a source can emit, one small typed record each.

Sources emit these, the session folds them, the journal stores them as JSON lines. All times
are nanoseconds of CLOCK_REALTIME since the epoch (`time.time_ns()`), the clock that CUPTI and
the capture library stamp with, so that samples, ranges and kernels share one axis.

What is missing is `None`, never 0; why it is missing travels in `GpuUnavailable` and
`HostUnavailable`, which a source emits only when the reasons change.
"""

from __future__ import annotations

from gputui.model.events.alerts import Alert
from gputui.model.events.base import JOURNAL_SCHEMA, PHASE_STARTS, SCHEMA_VERSION
from gputui.model.events.definitions import (
    NO_THREAD,
    CaptureRefused,
    DeviceDefined,
    JobFacts,
    KernelDefined,
    LaunchShape,
    LineDefined,
    MarkDefined,
    ProcessAttached,
    ProcessDetached,
    ProcessOutOfSight,
    RangeDefined,
    ResourceNamed,
    ThreadNamed,
)
from gputui.model.events.deltas import CaptureDelta, CaptureSum, Loss, OpenRange
from gputui.model.events.deltas_gpu import (
    BESIDE_ASLEEP,
    BESIDE_RUNNING,
    NO_LEAF,
    OTHER_STREAMS,
    OUTSIDE_STEPS,
    RECOMPUTING,
    DeviceDelta,
    LeafTime,
    LineLaunches,
    LineSamples,
    LoopDelta,
    RangeLeaf,
    Scope,
    StepBlock,
    StreamDelta,
    Stretch,
    ThreadLaunches,
)
from gputui.model.events.deltas_work import (
    LAUNCH_UNKNOWN,
    ApiDelta,
    CollectiveDelta,
    Distribution,
    KernelDelta,
    LaunchDelta,
    MarkDelta,
    MemoryOperationDelta,
    Payload,
    PeerDelta,
    RangeDelta,
    RangeKernels,
    ShapeLaunches,
)
from gputui.model.events.gpu import (
    GpuEnergy,
    GpuFacts,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    MigFacts,
    MigSample,
)
from gputui.model.events.machine import (
    ClockCompared,
    ClockRead,
    Header,
    HostFacts,
    HostSample,
    HostUnavailable,
    LauncherSample,
    MachineSample,
    ProcessSample,
)
from gputui.model.events.moments import (
    IdleLane,
    Mark,
    StepLanes,
    StepSpan,
    StepTimeline,
    StreamLane,
    ThreadLane,
)
from gputui.model.events.run import (
    ResultColumn,
    ResultTable,
    RunAskedToEnd,
    RunEnded,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
    RunStarted,
)
from gputui.model.events.windows import WINDOW_GROUPS, WindowCost, WindowWork

AnyEvent = (
    Header
    | MachineSample
    | GpuStatus
    | GpuEnergy
    | GpuUnavailable
    | HostUnavailable
    | Alert
    | RunStarted
    | RunProgress
    | RunMetrics
    | RunResult
    | RunOutput
    | RunAskedToEnd
    | RunEnded
    | ProcessAttached
    | ProcessDetached
    | ProcessOutOfSight
    | CaptureRefused
    | ThreadNamed
    | ResourceNamed
    | DeviceDefined
    | RangeDefined
    | MarkDefined
    | KernelDefined
    | LineDefined
    | LaunchShape
    | CaptureDelta
    | Mark
    | StepTimeline
    | StepLanes
    | ClockCompared
    | ClockRead
)

__all__ = [
    "BESIDE_ASLEEP", "BESIDE_RUNNING", "JOURNAL_SCHEMA", "LAUNCH_UNKNOWN", "NO_LEAF", "NO_THREAD",
    "OTHER_STREAMS", "OUTSIDE_STEPS", "PHASE_STARTS", "RECOMPUTING", "SCHEMA_VERSION",
    "WINDOW_GROUPS", "Alert", "AnyEvent", "ApiDelta", "CaptureDelta", "CaptureRefused",
    "CaptureSum", "ClockCompared", "ClockRead", "CollectiveDelta", "DeviceDefined", "DeviceDelta",
    "Distribution", "GpuEnergy", "GpuFacts", "GpuSample", "GpuStatus", "GpuUnavailable", "Header",
    "HostFacts", "HostSample", "HostUnavailable", "IdleLane", "JobFacts",
    "KernelDefined", "KernelDelta", "LaunchDelta", "LaunchShape", "LauncherSample", "LeafTime",
    "LineDefined", "LineLaunches", "LineSamples", "LoopDelta", "Loss", "MachineSample", "Mark",
    "MarkDefined", "MarkDelta", "MemoryOperationDelta", "MigFacts", "MigSample", "OpenRange",
    "Payload", "PeerDelta", "ProcessAttached", "ProcessDetached", "ProcessOutOfSight",
    "ProcessSample", "RangeDefined", "RangeDelta", "RangeKernels", "RangeLeaf", "ResourceNamed",
    "ResultColumn", "ResultTable", "RunAskedToEnd", "RunEnded", "RunMetrics", "RunOutput",
    "RunProgress", "RunResult", "RunStarted", "Scope", "ShapeLaunches", "StepBlock", "StepLanes",
    "StepSpan", "StepTimeline", "StreamDelta", "StreamLane", "Stretch", "ThreadLane",
    "ThreadLaunches", "ThreadNamed", "WindowCost", "WindowWork",
]  # fmt: skip
