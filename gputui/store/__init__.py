"""Recordings: the journal, the trace beside it, and the folder they lie in.

Here: where recordings lie, how files beside them are named, and the opening of paths that others
chose.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import BinaryIO

from gputui.base import JournalError, reason

SUFFIXES = (".gputui", ".gputui.gz", ".gputui.zst")
"""The suffix of a recording."""

SQLITE_SUFFIX = ".sqlite"
"""The suffix of an nsys export, which opens like a recording."""

TRACE_SUFFIX = ".gputui-trace"
SNAPSHOT_SUFFIX = ".gputui-snapshot"
TRIAL_SUFFIX = ".gputui-try.json"
"""The suffixes of files beside a recording."""


def default_folder() -> Path:
    """`<data folder>/gputui/sessions`; the data folder is XDG_DATA_HOME, else ~/.local/share.

    Raises JournalError if there is neither.
    """
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    if base.startswith("~"):
        raise JournalError("there is no home folder: set XDG_DATA_HOME, or record with -o FILE")
    return Path(base, "gputui", "sessions")


def default_path(name: str, moment: float) -> Path:
    """An unused `<UTC time>-<name>.gputui` in the default folder; `moment` in seconds."""
    path = default_folder() / stamped_name(name, moment)
    number = 2
    # Not Path.exists: in another user's home it raises.
    while os.path.exists(path):
        path = default_folder() / stamped_name(name, moment, f"-{number}")
        number += 1
    return path


def stamped_name(name: str, moment: float, ending: str = "") -> str:
    """`<UTC time>-<name><ending>.gputui`; `moment` in seconds."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(moment))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "session"
    return f"{stamp}-{plain}{ending}.gputui"


def numbered_path(path: Path, number: int) -> Path:
    """File `number` of the recording at `path`: x.gputui, x.2.gputui, …"""
    if number == 1:
        return path
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if path.name.endswith(suffix):
            return path.with_name(f"{path.name.removesuffix(suffix)}.{number}{suffix}")
    return path.with_name(f"{path.name}.{number}")


def trace_path(recording: Path) -> Path:
    """The trace beside a recording: x.gputui, x.gputui.gz, … have x.gputui-trace."""
    return recording.with_name(f"{_stem(recording)}{TRACE_SUFFIX}")


def trial_path(recording: Path) -> Path:
    """What was tried for a recording's findings: x.gputui-try.json."""
    return recording.with_name(f"{_stem(recording)}{TRIAL_SUFFIX}")


def _stem(recording: Path) -> str:
    name = recording.name
    for suffix in (".gz", ".zst", ".gputui"):
        name = name.removesuffix(suffix)
    return name


def snapshot_path(recording: Path, run: int) -> Path:
    """The memory snapshot left by a run of a recording: x.run1.gputui-snapshot."""
    return recording.with_name(f"{_stem(recording)}.run{run}{SNAPSHOT_SUFFIX}")


def snapshots(recording: Path) -> list[Path]:
    """The memory snapshots beside a recording."""
    pattern = re.compile(rf"{re.escape(_stem(recording))}\.run\d+{re.escape(SNAPSHOT_SUFFIX)}")
    try:
        names = os.listdir(recording.parent)
    except OSError:
        return []
    return [recording.with_name(name) for name in sorted(names) if pattern.fullmatch(name)]


def make_folder(path: Path) -> None:
    """Create the folder of recordings, private to the user. Raises JournalError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"cannot create {path}: {reason(error)}") from None


# Opening files that others chose: never one that could be waited for.


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises JournalError, one line, where it cannot be read or is a
    folder, a pipe or a device: opening a pipe that nobody writes to would wait for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise JournalError(f"cannot read {path}: {why}") from None
    # Of the open file: a pipe or a device that is named as a recording was waited for.
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        how = "" if stat.S_ISDIR(mode) else ": to read a recording from a pipe, give - as FILE"
        raise JournalError(f"{path} is not a file{how}")
    return os.fdopen(descriptor, "rb")
