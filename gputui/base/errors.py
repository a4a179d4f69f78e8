"""The one class that every error of the program derives from."""

from __future__ import annotations

from typing import ClassVar

FAILED = 1
WRONG_USAGE = 2


class GputuiError(Exception):
    """Something went wrong that a person can act on. The text is one line for people."""

    exit_status: ClassVar[int] = FAILED
    """The program's exit status where nothing handles this: 1 it failed, 2 wrong usage."""
