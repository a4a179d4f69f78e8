"""Errors in words for people."""

from __future__ import annotations

import traceback
from pathlib import Path


def one_line(error: BaseException) -> str:
    """An error in one line: its own message, or its class if it has none."""
    text = " ".join(str(error).split())
    return text[:300] if text else type(error).__name__


def crash_line(error: BaseException) -> str:
    """An internal error in one line: what and where, without anybody's data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"internal error: {type(error).__name__}: {one_line(error)}{where}"
