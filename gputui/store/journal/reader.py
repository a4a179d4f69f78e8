"""Reading a recording, one file or several in a row, with the events that a sum covers left out."""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Union

import msgspec

from gputui.base import GputuiError, JournalError, reason
from gputui.base.decoding import convert, json_decoder
from gputui.base.sanitize import sanitize, sanitize_document
from gputui.model.events import (
    JOURNAL_SCHEMA,
    WRITTEN_KINDS,
    AnyEvent,
    CaptureSum,
    Header,
    RunEnded,
)
from gputui.store import SUFFIXES, numbered_path, open_regular
from gputui.store.journal import CompressionError, Repeats, expanded, is_compressed

# Capture events held back, undecoded, until a sum makes them unnecessary.

HELD_BYTES = 64 << 20
"""The most lines to hold; then they are handed out, and their sums are ignored."""

# The memory of a line beside its own bytes.
_LINE_BYTES = 200

# As our encoder writes it. A line of another order is decoded at once, which only takes longer.
_PREFIX = re.compile(rb'\{"event":"(capture|capture_sum)","time_ns":\d+,"process":(\d+)[,}]')
SUM_BEGINS = b'{"event":"capture_sum",'

Line = tuple[int, bytes]
"""A line: its number in the file, and its bytes."""


class HeldLines:
    """Lines of capture events by process, since the newest sum."""

    def __init__(self) -> None:
        self._lines: dict[bytes, list[Line]] = {}
        self._handed_out: set[bytes] = set()
        self._bytes = 0

    def holds_back(self, number: int, line: bytes) -> bool:
        """Whether the line need not be handed out now: it is held, or is a sum that comes too
        late.
        """
        prefix = _PREFIX.match(line)
        if prefix is None:
            return False
        kind, process = prefix.groups()
        is_sum = kind == b"capture_sum"
        if process in self._handed_out:
            return is_sum
        if is_sum:
            before = self._lines.pop(process, [])
            self._bytes -= sum(len(text) + _LINE_BYTES for _, text in before)
        self._lines.setdefault(process, []).append((number, line))
        self._bytes += len(line) + _LINE_BYTES
        return True

    @property
    def is_full(self) -> bool:
        """Whether the lines have to be handed out."""
        return self._bytes > HELD_BYTES

    def hand_out(self) -> Iterator[Line]:
        """The lines, in order; later lines of their processes are no longer held."""
        lines = sorted(line for held in self._lines.values() for line in held)
        self._handed_out.update(self._lines)
        self._lines = {}
        self._bytes = 0
        return iter(lines)


# Reading a recording.

LINE_LIMIT = 32 * 1024 * 1024
"""A longer line counts as damage: no tick comes near it."""

# A sample's writer flushes at its interval, 1 s as a rule; inotify does not reach over network file
# systems.
_FOLLOW_S = 0.1

HEADER_BEGINS = b'{"event":"header",'

Written = AnyEvent
"""The possible events of a line: those that sources emit, and sums."""

# The same for msgspec, which tells them apart by their tags.
_LINE: Any = Union[WRITTEN_KINDS]  # noqa: UP007 (of a tuple)

KNOWN_KINDS = frozenset(kind.__struct_config__.tag for kind in WRITTEN_KINDS)


@functools.cache
def decoder() -> msgspec.json.Decoder[Written]:  # noqa: TID251 (the type alone)
    """Made when the first line comes: a screen shows its first frame before. Kept here, because
    looking a union up costs a hash of every member."""
    return json_decoder(_LINE)


class RecordingReader(Protocol):
    """The events of a session, oldest first, read once.

    `skipped` counts events this version does not know, `damage` says where and why reading ended
    early; both change while iterating. Whoever opens one closes it.
    """

    name: str

    @property
    def header(self) -> Header:
        """The header of the session, its first event."""

    @property
    def skipped(self) -> int:
        """Events left out so far."""

    @property
    def damage(self) -> str | None:
        """Where and why reading ended early, in one line; None if it did not."""

    def __iter__(self) -> Iterator[AnyEvent]:
        """The events, the header first."""

    def close(self) -> None:
        """Close its files; may be called more than once."""


class JournalReader:
    """Reads the events of one recording, oldest first, once.

    `header` is read at once. While iterating, `skipped`
    counts events of kinds this version does not know, and `damage` says where and why reading ended
    early, None if it did not.
    """

    def __init__(self, stream: BinaryIO, name: str, *, summed: bool = False) -> None:
        """`summed` is for callers that fold all events and look only at the end: capture events
        that a sum covers are then skipped without being decoded. Raises JournalError if `stream`
        does not begin with a session's header."""
        self.name = name
        self._summed = summed
        self._file: BinaryIO | None = None
        self._line = 0
        self._bytes = 0
        self.skipped = 0
        self.damage: str | None = None
        with contextlib.ExitStack() as refused:
            refused.callback(stream.close)
            try:
                self._stream = expanded(stream, name)
                self._first_line, first = self._first()
            except OSError as error:
                raise JournalError(f"cannot read {name}: {reason(error)}") from None
            if not isinstance(first, Header):
                raise JournalError(self._refusal(first))
            if first.schema > JOURNAL_SCHEMA:
                raise JournalError(
                    f"{name} was recorded by a newer gputui (schema {first.schema}, "
                    f"this one reads {JOURNAL_SCHEMA}); upgrade gputui to read it"
                )
            if first.schema < JOURNAL_SCHEMA:
                raise JournalError(
                    f"{name} was recorded by an earlier gputui (schema {first.schema}, "
                    f"this one reads {JOURNAL_SCHEMA}); record it again"
                )
            refused.pop_all()
        self.header = first
        self.line_number = self._line
        """The header's line."""
        self.offset = self._bytes - len(self._first_line)
        """The offset in the uncompressed bytes at which the header begins."""

    @classmethod
    def open(cls, path: Path, stop: Stop | None = None, *, summed: bool = False) -> JournalReader:
        """The recording at `path`. Raises JournalError with the reason if it is not one.

        With `stop`, follows a file that is still being written: waits at its end until that is set.
        `summed` as above.
        """
        file = open_regular(path)
        stream = file if stop is None else io.BufferedReader(_Tail(file, stop))
        reader = cls(stream, str(path), summed=summed)
        reader._file = file
        return reader

    def plain_file(self) -> BinaryIO | None:
        """The file once more, if it is uncompressed; None for a pipe or a compressed file."""
        if self._file is None or is_compressed(os.pread(self._file.fileno(), 4, 0)):
            return None
        return os.fdopen(os.dup(self._file.fileno()), "rb", buffering=0)

    def close(self) -> None:
        """Close the file; so does iterating to the end."""
        self._stream.close()

    def pieces(self) -> Iterator[JournalReader]:
        """The files it consists of: itself."""
        yield self

    def lines(self) -> Generator[bytes, None, None]:
        """The raw lines, the header's first, including those of unknown kinds."""
        yield self._first_line
        with self._stream:
            for line in self._lines():
                if line.startswith(HEADER_BEGINS):
                    self.damage = (
                        f"{self.name}: another recording begins at line {self._line}, as if two "
                        "were concatenated; read until there (tail -n +"
                        f"{self._line} has the rest)"
                    )
                    return
                yield line

    def __iter__(self) -> Generator[AnyEvent, None, None]:
        yield self.header
        held = HeldLines() if self._summed else None
        lines = self.lines()
        next(lines)
        with contextlib.closing(lines), contextlib.suppress(DamagedError):
            for line in lines:
                if held is not None and held.holds_back(self._line, line):
                    if held.is_full:
                        yield from self._handed_out(held)
                    continue
                if line.startswith(SUM_BEGINS):
                    continue
                event = self.event(self._line, line)
                if held is not None and isinstance(event, RunEnded):
                    # What a run did comes before its end.
                    yield from self._handed_out(held)
                if event is not None and not isinstance(event, CaptureSum):
                    yield event
            if held is not None:
                yield from self._handed_out(held)

    def _handed_out(self, held: HeldLines) -> Iterator[Any]:
        for number, line in held.hand_out():
            event = self.event(number, line)
            if event is not None:
                yield event

    def _first(self) -> tuple[bytes, Written | None]:
        with contextlib.suppress(DamagedError):
            for line in self._lines():
                event = self.event(self._line, line)
                if event is not None:
                    return line, event
        return b"", None

    def _lines(self) -> Iterator[bytes]:
        """Complete lines, to the end or to the first damaged one."""
        while True:
            try:
                line = self._stream.readline(LINE_LIMIT)
            except OSError as error:
                if self._line == 0:
                    raise
                self.damage = f"{self.name}: {reason(error)} after line {self._line}"
                return
            except CompressionError as error:
                self.damage = (
                    f"{self.name}: damaged after line {self._line} ({sanitize(str(error), 120)}); "
                    "read until there"
                )
                return
            if not line:
                return
            self._line += 1
            self._bytes += len(line)
            if not line.endswith(b"\n"):
                what = "is truncated" if len(line) < LINE_LIMIT else "is too long"
                self.damage = f"{self.name}: line {self._line} {what}; read until there"
                return
            yield line

    def event(self, number: int, line: bytes) -> Written | None:
        """The event of line `number`; None, and counted, if its kind is unknown.

        Raises DamagedError, and `damage` says why, if the line is malformed.
        """
        try:
            return decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
            if _is_unknown_kind(line):
                self.skipped += 1
                return None
            self.damage = (
                f"{self.name}: line {number} is damaged ({sanitize(str(error), 120)}); "
                "read until there"
            )
            raise DamagedError from None

    def _refusal(self, first: Written | None) -> str:
        if first is None and self._line == 0:
            if self.damage is not None:
                return f"{self.name} is damaged from its first line on: it is not a gputui session"
            return f"{self.name} is empty: it is not a gputui session"
        return f"{self.name} is not a gputui session: its first line is not a session header"


class DamagedError(GputuiError):
    """A malformed line, which `damage` describes."""


class Stop(Protocol):
    """Says when a followed file will no longer grow."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most this many seconds; whether it will no longer grow."""
        ...


class _Tail(io.RawIOBase):
    """A file whose end is final only once `stop` says so; everything before that is read."""

    def __init__(self, stream: BinaryIO, stop: Stop) -> None:
        self._stream = stream
        self._stop = stop
        self._is_stopped = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = self._stream.read(len(buffer))
            if data or self._is_stopped:
                buffer[: len(data)] = data
                return len(data)
            self._is_stopped = self._stop.wait(_FOLLOW_S)

    def close(self) -> None:
        self._stream.close()
        super().close()


def decode(line: bytes) -> Written:
    """The event of one line, its strings sanitized. Raises what msgspec raises, or ValueError."""
    if b"\\" not in line and line.isascii() and b"\x7f" not in line:
        return decoder().decode(line)
    # Only strings with escapes or beyond ASCII can carry control characters: sanitize those.
    document = sanitize_document(json_decoder(Any).decode(line))
    event: Written = convert(document, _LINE, str_keys=True)
    return event


class _Kind(msgspec.Struct):
    event: str


def _is_unknown_kind(line: bytes) -> bool:
    try:
        return json_decoder(_Kind).decode(line).event not in KNOWN_KINDS
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False


# Reading the files of a rotated recording, x.gputui, x.2.gputui, …, as one session.

# Missing files that are named; of more, the first and the last.
_NAMED = 3

_NUMBERED = re.compile(
    rf"(?P<stem>.+)\.(?P<number>[1-9]\d{{0,5}})(?P<suffix>{'|'.join(map(re.escape, SUFFIXES))})",
    re.DOTALL,
)


class RotatedReader:
    """The events of several files, oldest first, once, like a JournalReader for one.

    What a file repeats from earlier ones is left out. `damage` also reports files that are missing
    or cannot be read.
    """

    def __init__(
        self,
        path: Path,
        files: dict[int, Path],
        *,
        summed: bool = False,
        stop: Stop | None = None,
    ) -> None:
        """`files` are the files of the recording that begins with `path`, by number, 1 for that
        file; at least one. With `stop`, the reader waits at the end of the newest file, and reads
        files that appear, until `stop` is set. Raises JournalError if none can be read."""
        self.name = str(path)
        self._path = path
        self._summed = summed
        self._stop = stop
        self._remarks: list[str] = []
        self._files: dict[int, Path] = {}
        self._opened: list[JournalReader] = []
        header: Header | None = None
        for number, file in sorted(files.items()):
            try:
                reader = JournalReader.open(file)
            except JournalError as error:
                if len(files) == 1:
                    raise
                self._remarks.append(str(error))
                continue
            reader.close()
            if header is None:
                header = reader.header
            if reader.header == header:
                # Another recording may have such a name too.
                self._files[number] = file
        if header is None:
            raise JournalError(self._remarks[0])
        self.header = header
        unread = {*files} - {*self._files}
        missing = sorted({*range(1, max(self._files))} - {*self._files} - unread)
        if missing:
            self._remarks.append(_missing_files(path, missing))

    @property
    def damage(self) -> str | None:
        """What was not read and why, None if everything was."""
        damages = [piece.damage for piece in self._opened if piece.damage]
        return "; ".join([*self._remarks, *damages]) or None

    @property
    def skipped(self) -> int:
        """Events of kinds that this version does not know."""
        return sum(piece.skipped for piece in self._opened)

    def close(self) -> None:
        """Close the file that is read."""
        for piece in self._opened:
            piece.close()

    def pieces(self) -> Iterator[JournalReader]:
        """The recording's files in order. Each is open only until the next is yielded."""
        read = 0
        while later := [number for number in self._files if number > read]:
            read = later[0]
            is_waited_at = self._stop is not None and len(later) == 1
            try:
                piece = JournalReader.open(
                    self._files[read],
                    _Superseded(self, self._stop) if self._stop and is_waited_at else None,
                    summed=self._summed,
                )
            except JournalError as error:
                self._remarks.append(str(error))
            else:
                self._opened.append(piece)
                yield piece
            if is_waited_at:
                self.look()

    def look(self) -> bool:
        """Whether there is a file after the newest known one, which it then becomes."""
        newest = max(self._files)
        for number, file in sorted(_files(self._path).items()):
            with contextlib.suppress(JournalError, OSError):
                # Wait for one whose header is incomplete.
                if number > newest and _header(file, _identity(file)) == self.header:
                    self._files[number] = file
        return max(self._files) > newest

    def __iter__(self) -> Generator[AnyEvent, None, None]:
        repeats = Repeats()
        for piece in self.pieces():
            repeats.begin()
            for event in piece:
                if not repeats.is_one(event):
                    yield event


class _Superseded:
    """Says when the newest file has been followed by another."""

    def __init__(self, reader: RotatedReader, stop: Stop) -> None:
        self._reader = reader
        self._stop = stop

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.wait(timeout) or self._reader.look()


def open_journal(
    path: Path, *, summed: bool = False, stop: Stop | None = None
) -> JournalReader | RotatedReader:
    """The recording at `path`, with the files that follow it if it was rotated.

    `path` may also be a pattern, such as x*.gputui, that matches the files of one recording. A file
    with a number is read by itself. `summed` as in JournalReader. With `stop`, a recording that is
    still being written is followed into its next files until that is set. Raises JournalError.
    """
    path = _first_of_pattern(path)
    files = _files(path)
    if stop is not None and files and all(map(os.path.isfile, files.values())):
        return RotatedReader(path, files, summed=summed, stop=stop)
    if not files or [*files] == [1]:
        return JournalReader.open(path, stop, summed=summed)
    return RotatedReader(path, files, summed=summed)


def recording_files(path: Path) -> list[Path]:
    """The files of the recording at `path` in order: itself, and those whose name and header
    continue it. Only itself if it cannot be read, or was not rotated.
    """
    files = [file for _, file in sorted(_files(path).items())] or [path]
    if len(files) == 1:
        return files
    try:
        header = _header(files[0], _identity(files[0]))
    except (JournalError, OSError):
        return [path]
    continued = files[:1]
    for file in files[1:]:
        with contextlib.suppress(JournalError, OSError):
            if _header(file, _identity(file)) == header:
                continued.append(file)
    return continued


def first_of(path: Path) -> Path:
    """The name of the first file that a file of this name would continue; else `path`."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None or match["number"] == "1":
        return path
    return path.with_name(match["stem"] + match["suffix"])


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


@functools.lru_cache(maxsize=4096)
def _header(path: Path, identity: tuple[int, int]) -> Header:
    """The header of a file, cached: a folder is scanned every few seconds."""
    del identity
    reader = JournalReader.open(path)
    reader.close()
    return reader.header


def _files(path: Path) -> dict[int, Path]:
    """The files of a recording by number, judging by their names."""
    # Not Path.exists: in another user's folder it raises.
    by_number = {1: path} if os.path.exists(path) else {}
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # whoever opens the file reports why
        return by_number
    for name in names:
        match = _NUMBERED.fullmatch(name)
        number = int(match["number"]) if match else 1
        if number > 1 and numbered_path(path, number).name == name:
            by_number[number] = path.with_name(name)
    return by_number


def _first_of_pattern(path: Path) -> Path:
    if os.path.exists(path) or not glob.has_magic(str(path)):
        return path
    firsts = set()
    for name in glob.iglob(str(path)):
        match = _NUMBERED.fullmatch(name)
        if match or name.endswith(SUFFIXES):
            firsts.add(match["stem"] + match["suffix"] if match else name)
    if len(firsts) > 1:
        some = ", ".join(sorted(firsts)[:_NAMED])
        raise JournalError(f"{path} matches several recordings ({some}, …): name one")
    return Path(firsts.pop()) if firsts else path


def _missing_files(path: Path, missing: list[int]) -> str:
    names = [numbered_path(path, number).name for number in missing]
    if len(names) > _NAMED:
        names = [f"{names[0]} to {names[-1]}"]
    what = "is" if len(missing) == 1 else "are"
    return f"{', '.join(names)} {what} missing: what happened in that time is left out"
