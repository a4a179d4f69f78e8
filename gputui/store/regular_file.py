"""Opening files that others chose: never one that could be waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from gputui.store.errors import JournalError, reason


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises JournalError, one line, where it cannot be read or is a
    folder, a pipe or a device: opening a pipe that nobody writes to would wait for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise JournalError(f"cannot read {path}: {why}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        how = "" if stat.S_ISDIR(mode) else ": to read a recording from a pipe, give - as FILE"
        raise JournalError(f"{path} is not a file{how}")
    return os.fdopen(descriptor, "rb")
