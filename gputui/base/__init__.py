"""What every package may use and what knows nothing of GPUs: safe text, standard streams, and here
the version and the errors: the one class that all of the program's derive from, and those of
recordings. The version is not in the package's face, whose names come from the library: every layer
writes it into its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.1.0"


FAILED = 1
WRONG_USAGE = 2


class GputuiError(Exception):
    """Something went wrong that a person can act on. The text is one line for people."""

    exit_status: ClassVar[int] = FAILED
    """The program's exit status where nothing handles this: 1 it failed, 2 wrong usage."""


def did_you_mean(typed: str, names: Sequence[str]) -> str:
    """A hint to the closest of the `names`, with a blank before it; "" where none is close."""
    import difflib  # costs a start 2 ms

    close = difflib.get_close_matches(typed, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


# Errors of recordings, in words.


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
