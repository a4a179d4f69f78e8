"""Writing a recording: the events, the running totals between them, and one file after another.

For the recorder of one or many targets; what is flushed when is said in `journal`.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import msgspec

from gputui.base import JournalError, TakenError, name_taken, reason
from gputui.model.events import (
    PHASE_STARTS,
    AnyEvent,
    CaptureDelta,
    CaptureSum,
    Header,
    OpenRange,
    ProcessDetached,
    RangeDefined,
    RunEnded,
    RunStarted,
)
from gputui.model.merge import merger_of
from gputui.store import make_folder, numbered_path
from gputui.store.journal import Compressor, Limits, Preamble, compressor_for
from gputui.store.journal.reader import decoder

# Running totals written between capture events, so that a reader of the final state can skip the
# events they cover.

LEAST_BYTES = 256 << 10
"""Bytes of capture events of one process that make a sum worth writing."""

LAST_BYTES = 64 << 10
"""Capture events of one process that make a sum worth writing at the end, when no more will
come."""

SHARE = 8
"""The next sum is written after this many times the bytes of the last one."""

MOST_BYTES = 8 << 20
"""A larger sum is not written: it would cost more than it saves, and lines are limited."""


class ProcessSum:
    """What one process did, from the first event added."""

    def __init__(self) -> None:
        self._merger = merger_of(CaptureDelta)
        self._row: Any = None
        self._open: dict[int, int] = {}
        self._starts: list[tuple[int, int]] = []

    def add(self, delta: CaptureDelta, outermost: set[int]) -> None:
        """Add an event; `outermost` are the top-level ranges."""
        if self._row is None:
            self._row = self._merger.start(delta)
        else:
            self._merger.add(self._row, delta)
        now_open = {e.range: e.since_ns for e in delta.open_ranges if e.range in outermost}
        for number, since_ns in now_open.items():
            if self._open.get(number) != since_ns:
                insort(self._starts, (since_ns, number))
        del self._starts[:-PHASE_STARTS]
        self._open = now_open

    def freeze(self) -> CaptureSum:
        """The sum as an event, which may be too large to write."""
        return CaptureSum(
            **self._merger.frozen(self._row),
            phase_starts=tuple(
                OpenRange(number, since_ns)
                for since_ns, number in self._starts
                if self._open.get(number) != since_ns
            ),
        )


class _Pending:
    """A process's sum, and how many bytes of its events were written since the last one."""

    def __init__(self, due: int) -> None:
        self.sum = ProcessSum()
        self.bytes = 0
        self.due = due


class Sums:
    """The sums of one file: which are to be written, and where."""

    def __init__(self, least_bytes: int = LEAST_BYTES, last_bytes: int = LAST_BYTES) -> None:
        """How many bytes of events of one process make a sum worth writing, and how many at the
        end."""
        self._least = least_bytes
        self._at_end = last_bytes
        self._pending: dict[int, _Pending | Literal["ended"]] = {}
        self._outermost: set[int] = set()

    def begin(self) -> None:
        """Drop what was to be summed: the next file starts with sums of its own."""
        self._pending = {}

    def before(self, event: AnyEvent) -> Iterator[CaptureSum]:
        """The sums to write before an event: whatever ends gets its last one."""
        match event:
            case ProcessDetached():
                yield from self._last(event.process)
            case RunEnded():
                yield from self.end()

    def after(self, event: AnyEvent, size: int) -> Iterator[CaptureSum]:
        """The sums to write after an event of this many bytes."""
        if isinstance(event, RangeDefined) and not event.parent:
            self._outermost.add(event.range)
        if not isinstance(event, CaptureDelta):
            return
        pending = self._pending.setdefault(event.process, _Pending(self._least))
        if pending == "ended":
            return
        pending.sum.add(event, self._outermost)
        pending.bytes += size
        if pending.bytes >= pending.due:
            pending.bytes = 0
            yield pending.sum.freeze()

    def wrote(self, process: int, size: int | None) -> None:
        """Set the size of the last sum returned; None if it cannot be written."""
        pending = self._pending.get(process)
        if size is None:
            self._pending[process] = "ended"
        elif isinstance(pending, _Pending):
            pending.due = max(self._least, SHARE * size)

    def end(self) -> Iterator[CaptureSum]:
        """The last sums of all processes."""
        for process in list(self._pending):
            yield from self._last(process)

    def _last(self, process: int) -> Iterator[CaptureSum]:
        pending = self._pending.get(process)
        if not isinstance(pending, _Pending):
            return
        if pending.bytes and pending.bytes >= self._at_end:
            yield pending.sum.freeze()
        # A later sum would cover only later events.
        self._pending[process] = "ended"


# Writing a recording.

_encoder = msgspec.json.Encoder()

# What a lone surrogate, a number out of range or a value of a wrong type raises.
_UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)

# More than compression can add to a write, and to the end of a file.
_FRAME_BYTES = 64


class JournalWriter:
    """Appends events to a new file, or to standard output.

    The first event must be the Header. A name that ends in `.gz` or `.zst` is compressed. If
    writing fails (disk full or gone), or `limits` are reached, `failure` says so, writing ends, and
    the session goes on. An event that cannot be encoded is left out. `notices` are lines about
    files removed to make room, and about events left out, which `left_out` counts.
    """

    def __init__(
        self, path: Path | None, limits: Limits | None = None, *, like: Path | None = None
    ) -> None:
        """Open `path`, which must not exist, private to the user; None writes to stdout, compressed
        as a file named `like` would be.

        Raises JournalError with the reason if it cannot be opened, TakenError if it exists.
        """
        self.path = path
        self.failure: str | None = None
        self.notices: list[str] = []
        self.left_out = 0
        self.bytes_written = 0
        self._limits = limits or Limits()
        self._preamble = Preamble() if self._limits.rotates and path is not None else None
        self._files: list[tuple[Path, int]] = []
        self._began_ns: int | None = None
        self._in_file = 0
        self._number = 1
        # Readers of a stream read all of it: sums would cost and save nothing.
        self._sums = Sums() if path is not None else None
        self._file, self._compressor = _open(path, like)

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` and hand them to the operating system."""
        if self._file.closed or not events:
            return
        try:
            if self._preamble is not None:
                if self._is_full(events[-1].time_ns):
                    self._rotate(self._preamble.events())
                self._preamble.see(events)
            self._append(events)
        except OSError as error:
            self._stop(reason(error))
        except JournalError as error:
            self._stop(str(error))

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if self._file.closed:
            return
        if self.left_out > 1:
            self.notices.append(f"{self.left_out} events in all were left out of the recording")
        try:
            self._finish_file()
        except OSError as error:
            self._fail(reason(error))
        try:
            self._file.close()
        except OSError as error:
            self._fail(reason(error))

    def _append(self, events: Sequence[AnyEvent]) -> None:
        if self._began_ns is None:
            self._began_ns = events[0].time_ns
        lines = b"".join(self._lines(events))
        # From a complete first line, even one over the limit, a reader can report what it is.
        if lines and self.bytes_written:
            self._make_room(len(lines))
        if lines:
            self._put(self._compressor.write(lines))

    def _lines(self, events: Sequence[AnyEvent]) -> Iterator[bytes]:
        for event in events:
            if self._sums is not None:
                yield from self._sum_lines(self._sums.before(event))
            line = self._line(event)
            if line is None:
                continue
            yield line
            if self._sums is not None:
                yield from self._sum_lines(self._sums.after(event, len(line)))

    def _line(self, event: AnyEvent) -> bytes | None:
        try:
            return _readable(event)
        except _UNWRITABLE as error:
            if isinstance(event, Header):
                raise JournalError(f"its header cannot be written ({error})") from None
            if not self.left_out:
                kind = type(event).__struct_config__.tag
                self.notices.append(
                    f"an event ({kind}) could not be written and was left out of the recording: "
                    f"{error}"
                )
            self.left_out += 1
            return None

    def _sum_lines(self, sums: Iterator[CaptureSum]) -> Iterator[bytes]:
        assert self._sums is not None
        for event in sums:
            try:
                line = _readable(event)
            except _UNWRITABLE:
                self._sums.wrote(event.process, None)
                continue
            self._sums.wrote(event.process, len(line))
            if len(line) <= MOST_BYTES:
                yield line

    def _finish_file(self) -> None:
        if self._sums is not None:
            lines = b"".join(self._sum_lines(self._sums.end()))
            if lines and self._has_room(len(lines)):
                self._put(self._compressor.write(lines))
            self._sums.begin()
        self._put(self._compressor.finish())

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        self.bytes_written += len(data)
        self._in_file += len(data)

    # --- limits

    def _is_full(self, now_ns: int) -> bool:
        limits, began_ns = self._limits, self._began_ns
        if began_ns is None:
            return False
        too_large = limits.file_bytes is not None and self._in_file >= limits.file_bytes
        return too_large or (limits.rotate_ns is not None and now_ns - began_ns >= limits.rotate_ns)

    def _rotate(self, preamble: Sequence[AnyEvent]) -> None:
        assert self.path is not None
        self._finish_file()
        self._file.close()
        self._files.append((numbered_path(self.path, self._number), self._in_file))
        self._number += 1
        self._file, self._compressor = _open(numbered_path(self.path, self._number))
        self._in_file, self._began_ns = 0, None
        if preamble:
            self._append(preamble)
            self._began_ns = None  # the header is as old as the session

    def _has_room(self, more: int) -> bool:
        limit = self._limits.max_bytes
        written = sum(size for _, size in self._files) + self._in_file
        # Compressed lines take less, but how much less is known only when they are written.
        return limit is None or written + more + _FRAME_BYTES <= limit

    def _make_room(self, more: int) -> None:
        """Remove the oldest files until `more` bytes fit. Raises JournalError if that fails."""
        while not self._has_room(more):
            if not self._files:
                raise JournalError(f"it reached its size limit ({self._limits.max_bytes} bytes)")
            oldest, _ = self._files.pop(0)
            try:
                oldest.unlink()
            except OSError as error:
                raise JournalError(f"{oldest} cannot be removed: {reason(error)}") from None
            self.notices.append(f"{oldest} was removed to keep the recording within its size")

    def _stop(self, why: str) -> None:
        self._fail(f"{why}; what was written before is readable")
        self._sums = None  # there is no room for them
        self.close()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or f"the recording {self.path or 'on stdout'} stopped: {why}"


def _readable(event: AnyEvent) -> bytes:
    """The line of an event. Raises if it cannot be encoded, or could not be read again, which would
    lose everything after it.
    """
    line = _encoder.encode(event)
    decoder().decode(line)
    return line + b"\n"


def _open(path: Path | None, like: Path | None = None) -> tuple[BinaryIO, Compressor]:
    compressor = compressor_for(path or like)
    if path is None:
        # A copy: closing the journal leaves standard output open.
        return os.fdopen(os.dup(1), "wb"), compressor
    try:
        # Exclusively: no recording overwrites a file, nor follows a link that was put there for it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise TakenError(name_taken(path)) from None
    except OSError as error:
        raise JournalError(f"cannot write {path}: {reason(error)}") from None
    return os.fdopen(descriptor, "wb"), compressor


# Recording from the first run on.


class RecordingWriter(Protocol):
    """What a live source writes its events to, whether it records every event or each run."""

    @property
    def path(self) -> Path | None:
        """The file; None if there is none."""

    @property
    def bytes_written(self) -> int | None:
        """Bytes written to disk so far; None before it begins."""

    @property
    def failure(self) -> str | None:
        """Why recording has stopped; None while it works."""

    @property
    def notices(self) -> Sequence[str]:
        """What was left out or removed to make room, one line each."""

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` to the recording."""

    def close(self) -> None:
        """Write what is pending, and close the file."""


class RunRecorder:
    """Records each run in a file of its own, until the next one starts: a screen that only watches
    leaves no file behind.

    `path_of` returns the file's path for the run's name. The journal starts, like every journal,
    with the header and the reasons for missing readings.
    """

    def __init__(self, path_of: Callable[[str], Path], limits: Limits | None = None) -> None:
        self._path_of = path_of
        self._limits = limits
        self._preamble = Preamble()
        self._writer: JournalWriter | None = None
        self._refused: str | None = None

    @property
    def path(self) -> Path | None:
        """The recording's path; None before the first run."""
        return self._writer.path if self._writer else None

    @property
    def bytes_written(self) -> int | None:
        """Size of the file so far; None before the first run."""
        return self._writer.bytes_written if self._writer else None

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded; None while it works."""
        return self._refused or (self._writer.failure if self._writer else None)

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know of the file, as JournalWriter has it."""
        return self._writer.notices if self._writer else ()

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` once a run has started."""
        starts = [place for place, event in enumerate(events) if isinstance(event, RunStarted)]
        for first, last in pairwise([0, *starts, len(events)]):
            part = events[first:last]
            if part and isinstance(part[0], RunStarted):
                self.close()
                self._writer = None
                self._open(part[0].name)
                if self._writer is not None:
                    self._write([*self._preamble.events(), *part])
            else:
                self._write(part)
            self._preamble.see(part)

    def _write(self, events: Sequence[AnyEvent]) -> None:
        if self._writer is not None and events:
            self._writer.write(events)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, name: str) -> None:
        existing: Path | None = None
        while self._writer is None and self._refused is None:
            path = self._path_of(name)
            try:
                make_folder(path.parent)
                self._writer = JournalWriter(path, self._limits)
            except TakenError as error:
                # Another gputui was quicker: take the next name, unless there is only one.
                self._refused = str(error) if path == existing else None
                existing = path
            except JournalError as error:
                self._refused = str(error)
