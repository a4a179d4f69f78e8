"""Errors of recordings, in words."""

from __future__ import annotations

from pathlib import Path

from gputui.base.errors import GputuiError


class JournalError(GputuiError):
    """A recording cannot be written or read. The text is one line for people."""


class TakenError(JournalError):
    """A recording cannot be written because a file of that name exists."""


def name_taken(path: Path) -> str:
    """What to say where a file of that name exists already."""
    return f"{path} already exists; choose another name or remove it"


def reason(error: OSError) -> str:
    """The system's own error message."""
    return (error.strerror or str(error)).lower()
