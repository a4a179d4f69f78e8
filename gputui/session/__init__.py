"""Events → state: the one fold. Live, replayed and remote sessions all pass through here.

A session belongs to one thread: the one that draws, or the one that writes a summary. Sources
hand it events; views read its attributes and never change them.
"""

from __future__ import annotations

from gputui.events import PHASE_STARTS
from gputui.session.capture import MAX_LEVELS, MAX_PATH, gpu_of
from gputui.session.gpu import CHART_FIELDS, HISTORY_SAMPLES, Gpu
from gputui.session.keys import ApiKey, KernelKey, LaunchKey, MemoryOperationKey
from gputui.session.readings import Growth, Occupant, Readings, Trouble
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
from gputui.session.session import Session
from gputui.session.spread import SPREAD_FIELDS, Reports, Spread

__all__ = [
    "CHART_FIELDS",
    "HISTORY_SAMPLES",
    "LOG_LINES",
    "MARKS",
    "MAX_LEVELS",
    "MAX_PATH",
    "PHASE_STARTS",
    "SPREAD_FIELDS",
    "ApiKey",
    "Device",
    "Gpu",
    "Growth",
    "KernelKey",
    "LaunchKey",
    "LaunchTimes",
    "LogLine",
    "Marks",
    "MemoryOperationKey",
    "Occupant",
    "Process",
    "Range",
    "Readings",
    "Remark",
    "Reports",
    "Run",
    "Session",
    "Spread",
    "TimeAndSize",
    "Trouble",
    "gpu_of",
    "remarks",
]
