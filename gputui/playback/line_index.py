"""The lines of a recording: kind, time and position of each, without decoding them.

Lines of a plain file are read in place; others are copied, as plain lines, into an unnamed
temporary file. A line takes 21 bytes of memory here, whatever its size. For `index`, which folds
the events in them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, Protocol

import msgspec

from gputui.model.events import (
    WRITTEN_KINDS,
    AnyEvent,
    CaptureDelta,
    CaptureSum,
    MachineSample,
    RunEnded,
)
from gputui.store.journal import Repeats
from gputui.store.journal.reader import (
    DamagedError,
    JournalReader,
    RecordingReader,
    RotatedReader,
    decode,
)

# The files of a recording, or another source's events, as lines that can be read again one by
# one.

_encoder = msgspec.json.Encoder()


class Piece(Protocol):
    """A sequence of consecutive lines."""

    def lines(self) -> Iterator[bytes]:
        """All of them, a header first."""

    def event(self, number: int, line: bytes) -> AnyEvent | CaptureSum | None:
        """The event in a line, as JournalReader.event gives it."""


class _Encoded:
    """The events of a source other than a journal, as lines."""

    def __init__(self, recording: RecordingReader) -> None:
        self._recording = recording

    def lines(self) -> Iterator[bytes]:
        return (_encoder.encode(event) + b"\n" for event in self._recording)

    def event(self, number: int, line: bytes) -> AnyEvent | CaptureSum | None:
        del number
        return decode(line)


def pieces_of(recording: RecordingReader) -> Iterator[Piece]:
    if isinstance(recording, JournalReader | RotatedReader):
        return recording.pieces()
    return iter((_Encoded(recording),))


# Classifying the lines of a recording for folding, from their first bytes if possible.

_BEGINNING = re.compile(
    rb'\{"event":"([a-z_]+)","time_ns":(\d{1,19})(?:,"process":(\d{1,18}))?[,}]'
)


class LineKind(IntEnum):
    """How a line is folded."""

    EVENT = 0
    SAMPLE = 1
    CAPTURE = 2
    SUM = 3
    RUN_ENDED = 4
    PIECE = 5
    """The header of another file of the recording: sums start over."""
    NOTHING = 6
    """A line of an unknown kind, or a repetition."""


_KINDS: dict[type[msgspec.Struct], LineKind] = {
    MachineSample: LineKind.SAMPLE,
    CaptureDelta: LineKind.CAPTURE,
    CaptureSum: LineKind.SUM,
    RunEnded: LineKind.RUN_ENDED,
}
_KINDS_BY_NAME = {
    str(kind.__struct_config__.tag).encode(): _KINDS.get(kind, LineKind.EVENT)
    for kind in WRITTEN_KINDS
}
OF_PROCESSES = frozenset({LineKind.CAPTURE, LineKind.SUM})
_REPEATED = frozenset(name.encode() for name in Repeats.KINDS)


class LineClassifier:
    """Classifies the lines of a recording, in order."""

    def __init__(self, *, rotated: bool) -> None:
        """Repetitions in a file of a rotated recording count as nothing."""
        self._repeats = Repeats() if rotated else None
        self._begins = False

    def begin_piece(self, *, is_first: bool) -> None:
        """The next lines belong to a new file: the recording's first or a later one."""
        self._begins = not is_first
        if self._repeats is not None:
            self._repeats.begin()

    def look_at(self, line: bytes, piece: Piece, number: int) -> tuple[LineKind, int, int]:
        """Kind, time and process of line `number` of a piece: from its first bytes if they are as
        gputui writes them. Raises DamagedError if it needs decoding and cannot be decoded.
        """
        begins_piece, self._begins = self._begins, False
        begins = _BEGINNING.match(line)
        repeats = self._repeats
        if begins is not None:
            name, time_ns, process = begins.groups()
            kind = _KINDS_BY_NAME.get(name)
            is_whole = process is not None or kind not in OF_PROCESSES
            if kind is not None and is_whole and (repeats is None or name not in _REPEATED):
                if repeats is not None:
                    repeats.end()
                return kind, int(time_ns), int(process or 0)
        event = piece.event(number, line)
        if event is None:
            return LineKind.NOTHING, 0, 0
        if begins_piece:
            return LineKind.PIECE, event.time_ns, 0
        if repeats is not None and not isinstance(event, CaptureSum) and repeats.is_one(event):
            return LineKind.NOTHING, 0, 0
        process_number = getattr(event, "process", 0)
        return _KINDS.get(type(event), LineKind.EVENT), event.time_ns, process_number


# Times stand in arrays of 64 bits; a forged recording may claim any.
_LAST_NS = 2**63 - 1
# Bytes of lines that are indexed before they are announced: each announcement takes a lock.
_BATCH_BYTES = 1 << 20
_FEW_BYTES = 1 << 12  # of another tool's file: its events take long to make
_READ_BYTES = 1 << 20
# Files of a rotated recording kept open; lines of further files are copied.
_MOST_FILES = 64


@dataclass(frozen=True, slots=True)
class _Part:
    first: int
    """The number of its first line."""
    line_number: int
    """That line's number in its own file."""
    piece: Piece
    file: BinaryIO
    """Where the recording's lines can be read."""


class LineIndex:
    """The lines of a recording by number, from 0, and by time. One thread reads, any may query."""

    def __init__(self, recording: RecordingReader, *, live: bool = False) -> None:
        """Closes `recording`. With `live`, every line is announced as soon as it is there."""
        self._recording = recording
        self._lines = LineClassifier(rotated=isinstance(recording, RotatedReader))
        # The session of another tool's file may begin long before what was captured of it.
        self._begins_with_event = not isinstance(recording, JournalReader | RotatedReader)
        self._batch_bytes = 0 if live else _BATCH_BYTES
        self._files = contextlib.ExitStack()
        # A file without a name: however this ends, nothing of a recording is left behind.
        self._spool = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._spooled = 0
        self._parts: list[_Part] = []
        self._firsts: list[int] = []
        self._ended: dict[int, int] = {}
        self._times = array("q")
        self._offsets = array("Q")
        self._lengths = array("I")
        self._kinds = bytearray()
        self._captures = array("Q")
        self._processes = array("Q")
        self._count = 0
        self._changed = threading.Condition()
        self._waiting = 0
        self.is_complete = False
        self.failure: str | None = None
        """Why the recording was not read to its end, if the cause is outside it."""
        self._is_reading = False
        self._closing = False

    def __len__(self) -> int:
        return self._count

    @property
    def first_ns(self) -> int:
        """When the recording begins; 0 before anything was read."""
        return self._times[0] if self._count else 0

    @property
    def last_ns(self) -> int:
        """The time of the newest line read; 0 before there is any."""
        return self._times[self._count - 1] if self._count else 0

    @property
    def has_captures(self) -> bool:
        """Whether there are capture events in what has been read."""
        return bool(self._captures)

    def read(self) -> None:
        """Read the recording to its end, or until that fails. Runs in a thread."""
        with self._changed:
            if self._closing:
                return
            self._is_reading = True
        try:
            with contextlib.closing(self._recording):
                for piece in pieces_of(self._recording):
                    self._read_piece(piece)
                    if self._closing:
                        break
            self._publish()
        except OSError as error:
            self.failure = (
                f"cannot finish reading {self._recording.name}: {error.strerror or error}"
            )
            if self._spooled:
                self.failure += f" (unpacked in {tempfile.gettempdir()}; set TMPDIR to change it)"
        with self._changed:
            self.is_complete = True
            self._end_at_last()
            self._is_reading = False
            if self._closing:
                self._close_files()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading, and close the files: the thread that reads does, if it still reads."""
        with self._changed:
            self._closing = True
            if not self._is_reading:
                self._close_files()
                self._recording.close()
            self._changed.notify_all()

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait until line `number` has been read, or cannot come; whether it was read."""
        self._wait_for(lambda: self._count > number, timeout_s)
        return self._count > number

    def wait_for_time(self, time_ns: int, timeout_s: float) -> bool:
        """Wait until the recording has been read up to a moment; whether it was, or has ended."""
        return self._wait_for(lambda: self.last_ns > time_ns, timeout_s)

    def time_of(self, number: int) -> int:
        """When line `number` was written, never before the previous one."""
        return self._times[number]

    def number_at(self, time_ns: int) -> int:
        """How many lines there are up to and including a moment."""
        return bisect_right(self._times, time_ns, 0, self._count)

    def kind_of(self, number: int) -> int:
        """The Kind of a line."""
        return self._kinds[number]

    def process_of(self, number: int) -> int:
        """The process of a capture or sum line."""
        return self._processes[bisect_right(self._captures, number) - 1]

    def length_of(self, number: int) -> int:
        return self._lengths[number]

    def numbers(self, kind: LineKind, first: int, last: int) -> Iterator[int]:
        """Lines of one kind from `first` to before `last`, newest first."""
        sought = bytes((kind,))
        while (last := self._kinds.rfind(sought, first, last)) >= 0:
            yield last

    def lines(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Lines by their numbers, until it is closed; neighbours are read together."""
        wanted = iter(numbers)
        number = next(wanted, None)
        while number is not None:
            part = self._part_of(number)
            start = end = self._offsets[number]
            run: list[int] = []
            while (
                number is not None
                and self._offsets[number] == end
                and end - start < _READ_BYTES
                and (not run or self._part_of(number) is part)
            ):
                run.append(number)
                end += self._lengths[number]
                number = next(wanted, None)
            with self._changed:
                if self._closing:
                    return
                try:
                    # Under the lock: the number of a descriptor that is closed may be another
                    # file's at once.
                    data = os.pread(part.file.fileno(), end - start, start)
                except OSError:  # as if it ended there: `event` reports that, and where
                    data = b""
            place = 0
            for line_number in run:
                length = self._lengths[line_number]
                yield line_number, data[place : place + length]
                place += length

    def event(self, number: int, line: bytes) -> AnyEvent | CaptureSum | None:
        """The event in a line, None if its kind is unknown or it repeats an earlier file.

        A malformed line ends its file there; the recording's `damage` reports it.
        """
        place = bisect_right(self._firsts, number) - 1
        if self._kinds[number] == LineKind.NOTHING or number >= self._ended.get(place, number + 1):
            return None
        part = self._parts[place]
        try:
            return part.piece.event(part.line_number + number - part.first, line)
        except DamagedError:
            self._end_part(place, number)
            return None

    def _close_files(self) -> None:
        with contextlib.suppress(OSError):  # what did not fit on the disk is still in a buffer
            self._files.close()

    def _part_of(self, number: int) -> _Part:
        return self._parts[bisect_right(self._firsts, number) - 1]

    def _wait_for(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(
                    lambda: reached() or self.is_complete or self._closing, timeout_s
                )
            finally:
                self._waiting -= 1

    # --- reading

    def _read_piece(self, piece: Piece) -> None:
        file, line_number, offset = None, 1, self._spooled
        if isinstance(piece, JournalReader):
            line_number = piece.line_number
            file = piece.plain_file() if len(self._parts) < _MOST_FILES else None
            if file is not None:
                offset = piece.offset
                self._files.enter_context(file)
        self._lines.begin_piece(is_first=not self._times)
        place = len(self._parts)
        self._parts.append(_Part(len(self._times), line_number, piece, file or self._spool))
        self._firsts.append(len(self._times))
        unpublished = 0
        most = self._batch_bytes
        if not isinstance(piece, JournalReader):
            most = min(most, _FEW_BYTES)
        for line in piece.lines():
            if file is None:
                self._spool.write(line)
                self._spooled += len(line)
            try:
                self._add(line, offset, self._parts[place])
            except DamagedError:
                break
            offset += len(line)
            unpublished += len(line)
            if unpublished > most:
                self._publish()
                unpublished = 0
            if self._closing or place in self._ended:
                break

    def _add(self, line: bytes, offset: int, part: _Part) -> None:
        number = part.line_number + len(self._times) - part.first
        kind, time_ns, process = self._lines.look_at(line, part.piece, number)
        if kind in OF_PROCESSES:
            self._captures.append(len(self._times))
            self._processes.append(process)
        self._offsets.append(offset)
        self._lengths.append(len(line))
        self._kinds.append(kind)
        before_ns = self._times[-1] if self._times else 0
        if len(self._times) == 1 and self._begins_with_event:
            self._times[0] = min(max(before_ns, time_ns), _LAST_NS)
        self._times.append(min(max(before_ns, time_ns), _LAST_NS))

    def _publish(self) -> None:
        self._spool.flush()
        with self._changed:
            self._count = len(self._times)
            if self._waiting:
                self._changed.notify_all()

    def _end_part(self, place: int, number: int) -> None:
        """Drop a part's lines from `number` on."""
        with self._changed:
            self._ended[place] = number
            following = self._firsts[place + 1 : place + 2]
            last = following[0] if following else len(self._kinds)
            self._kinds[number:last] = bytes((LineKind.NOTHING,)) * (last - number)
            if self.is_complete:
                self._end_at_last()

    def _end_at_last(self) -> None:
        while self._count and self._kinds[self._count - 1] == LineKind.NOTHING:
            self._count -= 1
