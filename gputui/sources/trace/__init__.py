"""The raw trace beside a recording: every range, call and GPU operation, in a bounded file."""

from __future__ import annotations

from gputui.journal.places import trace_path
from gputui.sources.trace.layout import TRACE, TraceKind
from gputui.sources.trace.reader import TraceReader
from gputui.sources.trace.sink import TraceSink
from gputui.sources.trace.writer import LEAST_LIMIT, TraceWriter

__all__ = [
    "LEAST_LIMIT",
    "TRACE",
    "TraceKind",
    "TraceReader",
    "TraceSink",
    "TraceWriter",
    "trace_path",
]
