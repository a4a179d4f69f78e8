"""Live sources: each turns something outside gputui into events."""

from __future__ import annotations

Written = tuple[int | None, int | None]
"""Disk space of what is recorded, for what samples it: bytes of the recording and of the trace
beside it; None for what is not written. Here because the sampler imports nothing that is heavy."""

NOTHING_WRITTEN: Written = (None, None)
