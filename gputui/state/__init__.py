"""Events → state: the one fold, for live, replayed and remote sessions alike.

A session belongs to one thread: the one that draws, or the one that writes a summary. Sources
hand it events; views read its attributes and never change them.
"""

from __future__ import annotations

from gputui.model.events import PHASE_STARTS
from gputui.state.alerts import AlertSpan, lasting_alerts
from gputui.state.batch_means import BatchMeans, Reports
from gputui.state.captured import Device, Launched, LaunchTimes, Marks, Process, Range, TimeAndSize
from gputui.state.fold_capture import MAX_LEVELS, MAX_PATH, gpu_of
from gputui.state.gpu import HISTORY_SAMPLES, Gpu, gpu_metrics, mig_metrics
from gputui.state.keys import (
    ApiKey,
    CollectiveKey,
    KernelKey,
    LaunchKey,
    MemoryOperationKey,
    PeerKey,
)
from gputui.state.readings import Growth, Occupant, Readings, Trouble
from gputui.state.remarks import Remark, remarks
from gputui.state.run import LOG_LINES, MARKS, LogLine, Run
from gputui.state.session import Session

__all__ = [
    "HISTORY_SAMPLES", "LOG_LINES", "MARKS", "MAX_LEVELS", "MAX_PATH", "PHASE_STARTS", "AlertSpan",
    "ApiKey", "BatchMeans", "CollectiveKey", "Device", "Gpu", "Growth", "KernelKey", "LaunchKey",
    "LaunchTimes", "Launched", "LogLine", "Marks", "MemoryOperationKey", "Occupant", "PeerKey",
    "Process", "Range", "Readings", "Remark", "Reports", "Run", "Session", "TimeAndSize", "Trouble",
    "gpu_metrics", "gpu_of", "lasting_alerts", "mig_metrics", "remarks",
]  # fmt: skip
