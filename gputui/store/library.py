"""The recordings of a folder: what each holds, without reading all of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputui.model.units import parameter
from gputui.store.errors import JournalError, reason, taken
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.rotated import first_of, members
from gputui.store.places import SQLITE_SUFFIX, SUFFIXES, snapshots, trace_path
from gputui.store.probe import Probe, probe

MOST = 1000
"""Recordings listed per folder, the newest."""

_QUIET_INTERVALS, _QUIET_S = 3.0, 2.0
"""A recording not written to for this many intervals, and seconds, has ended."""

_LOOKED_AT = 16
"""Files of a rotated recording, the newest, searched for its last run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording, of one file or, if rotated, of `file_count`: `path` stands for all. `problem`
    says in one line why it cannot be opened; the rest is None then.

    `is_nsys` is an export of nsys, of which nothing else is read. `started_ns` is when the first
    run started, or the recording without one. `length_ns`, of the whole recording, and `result` are
    None if not searched for (large compressed files); `run_ns` is how long its only run took, None
    before that ended. `is_written` means that some program seems to be
    recording into it: its last write is no older than a few of its samples. `succeeded` is None
    before the run's end.
    """

    path: Path
    size_bytes: int
    started_ns: int
    hostname: str | None = None
    gpus: tuple[str, ...] = ()
    kind: str | None = None
    name: str | None = None
    arguments: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    length_ns: int | None = None
    run_ns: int | None = None
    result: str | None = None
    succeeded: bool | None = None
    is_written: bool = False
    has_trace: bool = False
    is_nsys: bool = False
    file_count: int = 1
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a recording. Two equal ones hold the same.

    `path` stands for all of `files`; if the oldest files of a rotated recording were removed, it
    does not exist.
    """

    modified_ns: int
    size_bytes: int
    path: Path
    files: tuple[Path, ...]


def files(folder: Path) -> list[Found]:
    """The recordings of `folder`, newest first; like `recordings`, but reads only the beginning of
    files whose names continue another.
    """
    facts: dict[Path, os.stat_result] = {}
    refused: OSError | None = None
    try:
        for entry in os.scandir(folder):
            try:
                if entry.name.endswith((*SUFFIXES, SQLITE_SUFFIX)) and entry.is_file():
                    facts[Path(entry.path)] = entry.stat()
            except FileNotFoundError:
                continue  # removed since it was listed: the others are still there
            except OSError as error:
                refused = error  # as does a link to itself
        if refused is not None and not facts:
            raise refused
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"cannot read {folder}: {reason(error)}") from None
    found = [
        Found(
            max(facts[part].st_mtime_ns for part in parts),
            sum(facts[part].st_size for part in parts),
            path,
            parts,
        )
        for path, parts in _sets(facts).items()
    ]
    return sorted(found, key=lambda file: (file.modified_ns, file.path), reverse=True)[:MOST]


def _sets(paths: Collection[Path]) -> dict[Path, tuple[Path, ...]]:
    """The files of each recording, by its `path`."""
    sets: dict[Path, tuple[Path, ...]] = {}
    for first in {first_of(path) for path in paths} - set(paths):
        parts = tuple(part for part in members(first) if part in paths)
        if len(parts) > 1:
            sets[first] = parts
    firsts = {first_of(path) for path in paths if first_of(path) != path} & set(paths)
    for first in firsts:
        sets[first] = tuple(part for part in members(first) if part in paths)
    taken = {part for parts in sets.values() for part in parts}
    return sets | {path: (path,) for path in paths if path not in taken}


def describe(path: Path) -> Entry:
    """What one recording holds; of a rotated one, all its files."""
    try:
        parts = tuple(members(path))
        facts = [part.stat() for part in parts]
    except OSError as error:
        return Entry(path, 0, 0, problem=f"cannot read {path}: {reason(error)}")
    size_bytes = sum(one.st_size for one in facts)
    modified_ns = max(one.st_mtime_ns for one in facts)
    if path.name.endswith(SQLITE_SUFFIX):
        return Entry(path, size_bytes, modified_ns, name="nsys export", is_nsys=True)
    try:
        reader = JournalReader.open(parts[0])
    except JournalError as error:
        return Entry(path, size_bytes, modified_ns, problem=str(error))
    header = reader.header
    with contextlib.closing(reader):
        seen = probe(parts[0], reader, facts[0].st_size)
    _look_at_later(parts[1:], seen)
    result = run_ns = None
    if seen.started is not None and seen.ended is not None and seen.ended.run == seen.started.run:
        ended_ns = seen.ended.child_ended_ns or seen.ended.time_ns
        run_ns = max(0, ended_ns - seen.started.time_ns)
    if seen.started is not None and seen.knows_end:
        result = seen.ended.reason if seen.ended else "no end was recorded"
    quiet_s = time.time() - modified_ns / 1e9
    return Entry(
        path=path,
        size_bytes=size_bytes,
        started_ns=seen.started.time_ns if seen.started else header.time_ns,
        hostname=header.host.hostname,
        gpus=tuple(gpu.name for gpu in header.gpus),
        kind=seen.started.kind if seen.started else None,
        name=seen.started.name if seen.started else None,
        arguments=seen.started.arguments if seen.started else (),
        parameters=tuple(
            (name, parameter(value)) for name, value in seen.started.parameters.items()
        )
        if seen.started
        else (),
        length_ns=None if seen.newest_ns is None else max(0, seen.newest_ns - header.time_ns),
        run_ns=run_ns,
        result=result,
        succeeded=seen.ended.exit_code == 0 if result and seen.ended else None,
        is_written=-1 < quiet_s < _QUIET_S + _QUIET_INTERVALS * header.interval_s,
        has_trace=trace_path(path).exists(),
        file_count=len(parts),
    )


def _look_at_later(parts: Sequence[Path], seen: Probe) -> None:
    """Read how the following files end. Every file repeats the runs that go on, so the newest one
    that knows a run knows how the last one ended.
    """
    for number, part in enumerate(reversed(parts)):
        if number == _LOOKED_AT:
            seen.knows_end = False
            return
        try:
            reader = JournalReader.open(part)
            with contextlib.closing(reader):
                later = probe(part, reader, part.stat().st_size)
        except (JournalError, OSError):
            continue  # it was removed meanwhile
        if number == 0:
            seen.newest_ns = later.newest_ns
        if later.started is not None:
            seen.started = seen.started or later.started
            seen.ended, seen.knows_end = later.ended, later.knows_end
            return


def belongings(path: Path) -> list[Path]:
    """The files of a recording: its own, their traces and memory snapshots."""
    found = []
    for part in members(path):
        found += [part, *(one for one in (trace_path(part),) if one.exists()), *snapshots(part)]
    # If a recording's first file was removed, the trace still has the first one's name.
    beside = [trace_path(path)] if trace_path(path).exists() else []
    return list(dict.fromkeys([*found, *beside, *snapshots(path)]))


def rename(path: Path, name: str) -> Path:
    """Rename a recording and everything that belongs to it, within its folder; the new path.

    The suffix is kept if `name` has none. Everything is renamed or, with JournalError, nothing; if
    neither succeeds, the error says which files have the new name.
    """
    if not name.strip() or "/" in name or "\0" in name or name.startswith("."):
        raise JournalError(f"{name!r} is not a file name")
    known = (*sorted(SUFFIXES, key=len, reverse=True), SQLITE_SUFFIX)
    suffix = next((s for s in known if path.name.endswith(s)), "")
    target = path.with_name(name if name.endswith(known) else f"{name}{suffix}")
    if len(members(path)) > 1 and not target.name.endswith(suffix):
        raise JournalError(f"{path} is one of several files: keep the suffix {suffix}")
    stem, new_stem = trace_path(path).stem, trace_path(target).stem
    pairs = []
    for old in belongings(path):
        new = target if old == path else target.with_name(new_stem + old.name.removeprefix(stem))
        if os.path.lexists(new):
            raise JournalError(taken(new))
        pairs.append((old, new))
    done: list[tuple[Path, Path]] = []
    for old, new in pairs:
        try:
            old.rename(new)
        except OSError as error:
            left = _named_back(done)
            raise JournalError(f"cannot rename {old}: {reason(error)}{left}") from None
        done.append((old, new))
    return target


def _named_back(done: Sequence[tuple[Path, Path]]) -> str:
    """Undo a renaming; a message about files for which that fails."""
    left = []
    for old, new in reversed(done):
        try:
            new.rename(old)
        except OSError:
            left.append(new.name)
    return f"; {', '.join(left)} was already renamed" if left else ""


def delete(path: Path) -> int:
    """Remove a recording and everything that belongs to it; how many files that were.

    Raises JournalError, which says how many are already gone.
    """
    gone = 0
    there = belongings(path)
    # The oldest last: while it exists the others are still found by its name.
    for file in reversed(there):
        try:
            file.unlink()
        except OSError as error:
            done = f"; {gone} of its {len(there)} files are gone" if gone else ""
            raise JournalError(f"cannot remove {file}: {reason(error)}{done}") from None
        gone += 1
    return gone
