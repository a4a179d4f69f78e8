"""Events → state: the one fold. Live, replayed and remote sessions all pass through here.

A session belongs to one thread: the one that draws, or the one that writes a summary. Sources
hand it events; views read its attributes and never change them.
"""

from __future__ import annotations

from gputui.events import PHASE_STARTS
from gputui.session.capture import MAX_LEVELS, MAX_PATH
from gputui.session.gpu import CHART_FIELDS, HISTORY_SAMPLES, Gpu
from gputui.session.keys import ApiKey, KernelKey, LaunchKey, MemoryOperationKey
from gputui.session.remarks import Remark, remarks
from gputui.session.run import (
    LOG_LINES,
    MARKS,
    Device,
    LaunchTimes,
    LogLine,
    Marks,
    Process,
    Range,
    Run,
    TimeAndSize,
)
from gputui.session.session import HOST_CHART_FIELDS, Session
from gputui.session.spread import SPREAD_FIELDS, Spread

__all__ = [
    "CHART_FIELDS",
    "HISTORY_SAMPLES",
    "HOST_CHART_FIELDS",
    "LOG_LINES",
    "MARKS",
    "MAX_LEVELS",
    "MAX_PATH",
    "PHASE_STARTS",
    "SPREAD_FIELDS",
    "ApiKey",
    "Device",
    "Gpu",
    "KernelKey",
    "LaunchKey",
    "LaunchTimes",
    "LogLine",
    "Marks",
    "MemoryOperationKey",
    "Process",
    "Range",
    "Remark",
    "Run",
    "Session",
    "Spread",
    "TimeAndSize",
    "remarks",
]
