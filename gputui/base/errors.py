"""The one class that every error of the program derives from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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
