"""What a recording takes of the disk."""

from __future__ import annotations

Written = tuple[int | None, int | None]
"""Bytes of the recording and of the trace beside it; None of what is not written."""

NOTHING_WRITTEN: Written = (None, None)
