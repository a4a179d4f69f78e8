"""The disk space of a recording, for what samples it.

Not in `machine_reader`, which the sampler imports only in its thread.
"""

from __future__ import annotations

Written = tuple[int | None, int | None]
"""Bytes of the recording and of the trace beside it; None for what is not written."""

NOTHING_WRITTEN: Written = (None, None)
