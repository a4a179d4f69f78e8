"""What goes wrong with recordings, in words."""

from __future__ import annotations


class JournalError(Exception):
    """A recording cannot be written or read. The text is one line for people."""


def reason(error: OSError) -> str:
    """The system's own words for what it refused."""
    return (error.strerror or str(error)).lower()
