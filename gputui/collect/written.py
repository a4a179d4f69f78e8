"""The disk space of a recording."""

from __future__ import annotations

Written = tuple[int | None, int | None]
"""Bytes of the recording and of the trace beside it; None for what is not written."""

NOTHING_WRITTEN: Written = (None, None)
