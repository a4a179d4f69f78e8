"""The raw trace beside a recording: every range, call and GPU operation, in a bounded file."""

from __future__ import annotations

from gputui.store.places import trace_path
from gputui.store.trace.layout import TRACE, TraceKind
from gputui.store.trace.reader import TraceReader
from gputui.store.trace.writer import LEAST_LIMIT, TraceWriter

__all__ = [
    "LEAST_LIMIT", "TRACE", "TraceKind", "TraceReader", "TraceWriter", "trace_path",
]  # fmt: skip
