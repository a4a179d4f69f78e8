"""Errors of recordings, in words."""

from __future__ import annotations

from gputui.base.errors import GputuiError


class JournalError(GputuiError):
    """A recording cannot be written or read. The text is one line for people."""


class TakenError(JournalError):
    """A recording cannot be written because a file of that name exists."""


def reason(error: OSError) -> str:
    """The system's own error message."""
    return (error.strerror or str(error)).lower()
