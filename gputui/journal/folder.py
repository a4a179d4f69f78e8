"""The recordings of a folder: what each holds, without reading it all."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gputui.journal.errors import JournalError, reason
from gputui.journal.glimpse import glimpse
from gputui.journal.places import SUFFIXES, snapshots, trace_path
from gputui.journal.reader import JournalReader

MOST = 1000
"""Recordings of a folder that are listed, the newest."""

_QUIET_INTERVALS, _QUIET_S = 3.0, 2.0
"""A recording that was not written to for so many intervals, and seconds, has ended."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording. `problem` says in one line why it cannot be opened; the rest is None then.

    `length_ns` and `result` are None where they were not looked for (large compressed files).
    `is_written` tells that some program seems to be recording into it: its last write is no older
    than a few of its samples. `succeeded` is None before the run's end.
    """

    path: Path
    size_bytes: int
    started_ns: int
    hostname: str | None = None
    gpus: tuple[str, ...] = ()
    kind: str | None = None
    name: str | None = None
    length_ns: int | None = None
    result: str | None = None
    succeeded: bool | None = None
    is_written: bool = False
    has_trace: bool = False
    problem: str | None = None


def recordings(folder: Path) -> list[Entry]:
    """The recordings of `folder`, the newest first; none where it is not there.

    Reads the beginning and the end of each: some milliseconds a file. Raises JournalError where
    the folder cannot be read.
    """
    return [describe(found.path) for found in files(folder)]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is called as recordings are. Two equal ones hold the same."""

    modified_ns: int
    size_bytes: int
    path: Path


def files(folder: Path) -> list[Found]:
    """The recordings of `folder` unread, the newest first; as `recordings`."""
    try:
        found = [
            Found(entry.stat().st_mtime_ns, entry.stat().st_size, Path(entry.path))
            for entry in os.scandir(folder)
            if entry.name.endswith(SUFFIXES) and entry.is_file()
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"cannot read {folder}: {reason(error)}") from None
    return sorted(found, key=lambda file: (file.modified_ns, file.path), reverse=True)[:MOST]


def describe(path: Path) -> Entry:
    """What one recording holds."""
    try:
        facts = path.stat()
    except OSError as error:
        return Entry(path, 0, 0, problem=f"cannot read {path}: {reason(error)}")
    try:
        reader = JournalReader.open(path)
    except JournalError as error:
        return Entry(path, facts.st_size, facts.st_mtime_ns, problem=str(error))
    header = reader.header
    with contextlib.closing(reader):
        seen = glimpse(path, reader, facts.st_size)
    result = None
    if seen.started is not None and seen.knows_end:
        result = seen.ended.reason if seen.ended else "no end was recorded"
    quiet_s = time.time() - facts.st_mtime
    return Entry(
        path=path,
        size_bytes=facts.st_size,
        started_ns=header.time_ns,
        hostname=header.host.hostname,
        gpus=tuple(gpu.name for gpu in header.gpus),
        kind=seen.started.kind if seen.started else None,
        name=seen.started.name if seen.started else None,
        length_ns=None if seen.newest_ns is None else max(0, seen.newest_ns - header.time_ns),
        result=result,
        succeeded=seen.ended.exit_code == 0 if result and seen.ended else None,
        is_written=-1 < quiet_s < _QUIET_S + _QUIET_INTERVALS * header.interval_s,
        has_trace=trace_path(path).exists(),
    )


def rename(path: Path, name: str) -> Path:
    """Give a recording, and what lies beside it, another name in its folder; the new path.

    The suffix is kept where `name` has none of its own. Raises JournalError.
    """
    if not name.strip() or "/" in name or "\0" in name or name.startswith("."):
        raise JournalError(f"{name!r} is no name for a file")
    suffix = next((s for s in sorted(SUFFIXES, key=len, reverse=True) if path.name.endswith(s)), "")
    target = path.with_name(name if name.endswith(SUFFIXES) else f"{name}{suffix}")
    pairs = [(path, target), (trace_path(path), trace_path(target))]
    stem = trace_path(path).stem
    pairs += [
        (old, target.with_name(trace_path(target).stem + old.name.removeprefix(stem)))
        for old in snapshots(path)
    ]
    for old, new in pairs:
        if not old.exists() and old != path:
            continue
        if new.exists():
            raise JournalError(f"{new} already exists; choose another name or remove it")
        try:
            old.rename(new)
        except OSError as error:
            raise JournalError(f"cannot rename {old}: {reason(error)}") from None
    return target


def delete(path: Path) -> None:
    """Remove a recording, its trace and its memory snapshots. Raises JournalError."""
    for file in (path, trace_path(path), *snapshots(path)):
        try:
            file.unlink(missing_ok=file != path)
        except OSError as error:
            raise JournalError(f"cannot remove {file}: {reason(error)}") from None
