"""What goes wrong with recordings, in words."""

from __future__ import annotations


class JournalError(Exception):
    """A recording cannot be written or read. The text is one line for people."""


class TakenError(JournalError):
    """A recording cannot be written under its name: there is a file of that name."""


def reason(error: OSError) -> str:
    """The system's own words for what it refused."""
    return (error.strerror or str(error)).lower()
