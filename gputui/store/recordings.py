"""The recordings of a folder: what each holds, without reading all of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from gputui.base import JournalError, name_taken, reason
from gputui.base.sanitize import sanitize
from gputui.model.events import AnyEvent, Header, RunEnded, RunStarted
from gputui.model.naming import command_key
from gputui.model.units import MISSING, parameter
from gputui.store import SQLITE_SUFFIX, SUFFIXES, snapshots, trace_path
from gputui.store.journal.reader import LINE_LIMIT, JournalReader, decode, first_of, recording_files

# What the beginning and the end of a recording reveal about its run; the middle is not read.

FIRST_EVENTS = 2000
"""Events at the beginning searched for the recording's run."""

TAIL_BYTES = 256 << 10
"""Bytes at the end of a plain recording searched for its newest event."""

SEARCHED_BYTES = 32 << 20
"""Bytes at the end of a plain recording searched for its run's end: the screen goes on recording
the machine after a run; a day of one GPU takes as much.
"""

WHOLE_BYTES = 4 << 20
"""A compressed recording is read to its end up to this size: seeking to its end is impossible."""

_RUN_STARTED, _RUN_ENDED = b'\n{"event":"run_started"', b'\n{"event":"run_ended"'


@dataclass(slots=True)
class Probe:
    """`started` is the first run's start, `ended` the end of the last run that began.

    `newest_ns` is None if the end of the file was not read; `ended` is valid only with `knows_end`.
    """

    started: RunStarted | None = None
    ended: RunEnded | None = None
    newest_ns: int | None = None
    knows_end: bool = False

    def add(self, events: Iterable[AnyEvent]) -> int:
        """Add events in order; how many they were."""
        count = 0
        for count, event in enumerate(events, 1):  # noqa: B007
            self.newest_ns = max(self.newest_ns or 0, event.time_ns)
            if isinstance(event, RunStarted):
                self.started = self.started or event
                self.ended = None
            elif isinstance(event, RunEnded):
                self.ended = event
        return count


def probe(path: Path, reader: JournalReader, size_bytes: int) -> Probe:
    """Read the beginning of the recording open in `reader` and, if possible, its end."""
    seen = Probe(newest_ns=reader.header.time_ns)
    events = iter(reader)
    if seen.add(islice(events, FIRST_EVENTS)) < FIRST_EVENTS:
        seen.knows_end = True
    elif path.suffix == ".gputui":
        _look_at_end(path, seen)
    elif size_bytes <= WHOLE_BYTES:
        seen.add(events)
        seen.knows_end = True
    else:
        seen.newest_ns = None
    return seen


def _look_at_end(path: Path, seen: Probe) -> None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            seen.add(_events(_read(file, size - TAIL_BYTES, size).partition(b"\n")[2]))
            line = _last_of_run(file, size)
    except OSError:
        return
    if line is not None:
        seen.ended = next((e for e in _events(line) if isinstance(e, RunEnded)), None)
    seen.knows_end = line is not None or size < SEARCHED_BYTES


def _last_of_run(file: BinaryIO, size: int) -> bytes | None:
    """The line on which the last run ended, or began: searched backwards, in growing portions."""
    end, step = size, TAIL_BYTES
    while end > max(0, size - SEARCHED_BYTES):
        start = max(0, end - step)
        # The keyword may straddle the part already searched.
        data = _read(file, start, min(size, end + len(_RUN_STARTED)))
        place = max(data.rfind(_RUN_ENDED), data.rfind(_RUN_STARTED))
        if place >= 0:
            file.seek(start + place + 1)
            return file.readline(LINE_LIMIT)
        end, step = start, 2 * step
    return None


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    start = max(0, start)
    file.seek(start)
    return file.read(end - start)


def _events(lines: bytes) -> Iterator[AnyEvent]:
    """The events that decode; the rest is skipped."""
    for line in lines.split(b"\n"):
        try:
            event = decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            continue
        if not isinstance(event, Header):
            yield event


MOST = 1000
"""Recordings listed per folder, the newest."""

_QUIET_INTERVALS, _QUIET_S = 3.0, 2.0
"""A recording not written to for this many intervals, and seconds, has ended."""

# Files of a rotated recording, the newest, searched for its last run.
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class RecordingEntry:
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


def recordings_in(folder: Path) -> list[Found]:
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
    recordings = [
        Found(
            max(facts[part].st_mtime_ns for part in files_of_one),
            sum(facts[part].st_size for part in files_of_one),
            path,
            files_of_one,
        )
        for path, files_of_one in _sets(facts).items()
    ]
    return sorted(recordings, key=lambda file: (file.modified_ns, file.path), reverse=True)[:MOST]


def _sets(paths: Collection[Path]) -> dict[Path, tuple[Path, ...]]:
    """The files of each recording, by its `path`."""
    sets: dict[Path, tuple[Path, ...]] = {}
    for first in {first_of(path) for path in paths} - set(paths):
        its_files = tuple(file for file in recording_files(first) if file in paths)
        if len(its_files) > 1:
            sets[first] = its_files
    firsts = {first_of(path) for path in paths if first_of(path) != path} & set(paths)
    for first in firsts:
        sets[first] = tuple(file for file in recording_files(first) if file in paths)
    grouped = {file for its_files in sets.values() for file in its_files}
    return sets | {path: (path,) for path in paths if path not in grouped}


def describe_recording(path: Path) -> RecordingEntry:
    """What one recording holds; of a rotated one, all its files."""
    try:
        its_files = tuple(recording_files(path))
        facts = [file.stat() for file in its_files]
    except OSError as error:
        return RecordingEntry(path, 0, 0, problem=f"cannot read {path}: {reason(error)}")
    size_bytes = sum(status.st_size for status in facts)
    modified_ns = max(status.st_mtime_ns for status in facts)
    if path.name.endswith(SQLITE_SUFFIX):
        return RecordingEntry(path, size_bytes, modified_ns, name="nsys export", is_nsys=True)
    try:
        reader = JournalReader.open(its_files[0])
    except JournalError as error:
        return RecordingEntry(path, size_bytes, modified_ns, problem=str(error))
    header = reader.header
    with contextlib.closing(reader):
        seen = probe(its_files[0], reader, facts[0].st_size)
    _look_at_later(its_files[1:], seen)
    result = run_ns = None
    if seen.started is not None and seen.ended is not None and seen.ended.run == seen.started.run:
        ended_ns = seen.ended.child_ended_ns or seen.ended.time_ns
        run_ns = max(0, ended_ns - seen.started.time_ns)
    # A run may have ended hours before its recording: the end is not among the last events alone.
    if seen.started is not None and seen.knows_end:
        result = seen.ended.reason if seen.ended else "no end was recorded"
    quiet_s = time.time() - modified_ns / 1e9
    return RecordingEntry(
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
        file_count=len(its_files),
    )


def _look_at_later(later_files: Sequence[Path], seen: Probe) -> None:
    """Read how the following files end. Every file repeats the runs that go on, so the newest one
    that knows a run knows how the last one ended.
    """
    for number, file in enumerate(reversed(later_files)):
        if number == _LOOKED_AT:
            seen.knows_end = False
            return
        try:
            reader = JournalReader.open(file)
            with contextlib.closing(reader):
                later = probe(file, reader, file.stat().st_size)
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
    paths = []
    for file in recording_files(path):
        paths += [
            file,
            *(trace for trace in (trace_path(file),) if trace.exists()),
            *snapshots(file),
        ]
    # If a recording's first file was removed, the trace still has the first one's name.
    beside = [trace_path(path)] if trace_path(path).exists() else []
    return list(dict.fromkeys([*paths, *beside, *snapshots(path)]))


def rename_recording(path: Path, name: str) -> Path:
    """Rename a recording and everything that belongs to it, within its folder; the new path.

    The suffix is kept if `name` has none. Everything is renamed or, with JournalError, nothing; if
    neither succeeds, the error says which files have the new name.
    """
    if not name.strip() or "/" in name or "\0" in name or name.startswith("."):
        raise JournalError(f"{name!r} is not a file name")
    suffixes = (*sorted(SUFFIXES, key=len, reverse=True), SQLITE_SUFFIX)
    suffix = next((s for s in suffixes if path.name.endswith(s)), "")
    target = path.with_name(name if name.endswith(suffixes) else f"{name}{suffix}")
    if len(recording_files(path)) > 1 and not target.name.endswith(suffix):
        raise JournalError(f"{path} is one of several files: keep the suffix {suffix}")
    stem, new_stem = trace_path(path).stem, trace_path(target).stem
    pairs = []
    for old in belongings(path):
        new = target if old == path else target.with_name(new_stem + old.name.removeprefix(stem))
        if os.path.lexists(new):
            raise JournalError(name_taken(new))
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


def delete_recording(path: Path) -> int:
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


# Runs of one command: what ran, how it ended, and what the run before did not have.


def recording_name(path: Path) -> str:
    """A file's name without the common suffix."""
    name = path.name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return sanitize(name.removesuffix(suffix), 200)
    return sanitize(name, 200)


def result_text(entry: RecordingEntry, current: Path | None) -> str:
    """The outcome of the run, or why the recording cannot be opened."""
    if entry.problem is not None:
        # The path is in the first column; the error comes first here.
        return entry.problem.replace(f"{entry.path} ", "").replace(f"{entry.path}: ", "")
    if entry.is_nsys:
        return "opens as a recording"
    if entry.path == current and entry.succeeded is None:
        return "being recorded here"
    if entry.is_written and entry.succeeded is None:
        return "being recorded"
    if entry.name is None:
        return "no run" if entry.length_ns is not None else MISSING
    if entry.succeeded:
        return "done"
    return (entry.result or MISSING).removeprefix(f"{entry.name} ")


def command_of(entry: RecordingEntry) -> tuple[str, ...]:
    """What runs of one command share."""
    return command_key(entry.kind, entry.name, entry.arguments)


def program_of(entry: RecordingEntry) -> str | None:
    """What ran: a workload, or the script of a command rather than the interpreter that all
    scripts share."""
    if entry.kind == "command":
        scripts = (Path(word).name for word in entry.arguments[1:] if word.endswith(".py"))
        return next(scripts, entry.name)
    return entry.name


def run_before(entry: RecordingEntry, entries: Iterable[RecordingEntry]) -> RecordingEntry | None:
    """The newest older run of the same command."""
    older = [
        other
        for other in entries
        if other.problem is None
        and other.kind is not None
        and command_of(other) == command_of(entry)
        and (other.started_ns, other.path) < (entry.started_ns, entry.path)
    ]
    return max(older, key=lambda other: (other.started_ns, other.path), default=None)


def what_changed(entry: RecordingEntry, before: RecordingEntry | None) -> str:
    """The parameters and arguments that the run before did not have."""
    if entry.kind is None:
        return ""
    if before is None:
        return "first run"
    was = dict(before.parameters)
    changes = [f"{name}={value}" for name, value in entry.parameters if was.get(name) != value]
    if back := [name for name in was if name not in dict(entry.parameters)]:
        changes.append(f"default {' '.join(back)}")
    if entry.kind == "command":
        own = [word for word in entry.arguments if word not in before.arguments]
        gone = [word for word in before.arguments if word not in entry.arguments]
        changes += own or [f"without {' '.join(gone)}"] * bool(gone)
    if entry.hostname != before.hostname:
        changes.append(f"on {entry.hostname}")
    if entry.gpus != before.gpus:
        changes.append(f"on {gpus_text(entry)}" if entry.gpus else "without a GPU")
    return sanitize(" ".join(changes), 200) or "same command"


def gpus_text(entry: RecordingEntry) -> str:
    """The GPUs in a few words: "8 × H200", "none", "-" where they are not known."""
    if entry.problem is not None or entry.is_nsys:
        return "-"
    if not entry.gpus:
        return "none"
    kinds = dict.fromkeys(entry.gpus)
    if len(kinds) > 1:
        return f"{len(entry.gpus)} GPUs"
    many = f"{len(entry.gpus)} × " if len(entry.gpus) > 1 else ""
    return many + entry.gpus[0].removeprefix("NVIDIA ")


def by_command(entries: Iterable[RecordingEntry], *, other_way: bool) -> list[RecordingEntry]:
    """The runs of the command that ran last first, newest first."""
    listed = list(entries)
    newest: dict[tuple[str, ...], int] = {}
    for entry in listed:
        newest[command_of(entry)] = max(newest.get(command_of(entry), 0), entry.started_ns)
    listed.sort(
        key=lambda e: (newest[command_of(e)], command_of(e), e.started_ns, e.path), reverse=True
    )
    return listed[::-1] if other_way else listed
