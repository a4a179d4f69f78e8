"""Events → state: the one fold, for live, replayed and remote sessions alike.

A session belongs to one thread: the one that draws, or the one that writes a summary. Sources
hand it events; views read its attributes and never change them.
"""

from __future__ import annotations

from gputui.state.fold import MAX_LEVELS, MAX_PATH, gpu_of
from gputui.state.history import HISTORY_SAMPLES, Samples, Track
from gputui.state.readings import AlertSpan, Gpu, Occupant, Readings, gpu_metrics, mig_metrics
from gputui.state.remarks import remarks
from gputui.state.run import LOG_LINES, MARKS, Launched, LogLine, Process, Range, Run
from gputui.state.series import BatchMeans, Reports, Series, Span, Total
from gputui.state.session import Session, lasting_alerts

__all__ = [
    "HISTORY_SAMPLES", "LOG_LINES", "MARKS", "MAX_LEVELS", "MAX_PATH", "AlertSpan", "BatchMeans",
    "Gpu", "Launched", "LogLine", "Occupant", "Process", "Range", "Readings", "Reports", "Run",
    "Samples", "Series", "Session", "Span", "Total", "Track", "gpu_metrics", "gpu_of",
    "lasting_alerts", "mig_metrics", "remarks",
]  # fmt: skip
