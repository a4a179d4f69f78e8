"""Reading a recording."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Union

import msgspec

from gputui.base.decoding import convert, json_decoder
from gputui.base.errors import GputuiError
from gputui.base.sanitize import sanitize, sanitize_document
from gputui.model.events import (
    JOURNAL_SCHEMA,
    WRITTEN_KINDS,
    AnyEvent,
    CaptureSum,
    Header,
    RunEnded,
)
from gputui.store.errors import JournalError, reason
from gputui.store.journal.compression import CompressionError, expanded, is_compressed
from gputui.store.journal.held import SUM_BEGINS, HeldLines
from gputui.store.regular_file import open_regular

LINE_LIMIT = 32 * 1024 * 1024
"""A longer line counts as damage: no tick comes near it."""

_FOLLOW_S = 0.1

HEADER_BEGINS = b'{"event":"header",'

Written = AnyEvent
"""The possible events of a line: those that sources emit, and sums."""

_LINE: Any = Union[WRITTEN_KINDS]  # noqa: UP007 (of a tuple)
"""The same for msgspec, which tells them apart by their tags."""

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
    header: Header

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
        """`summed` is for callers that fold all of it and only look at the end: capture events
        covered by a sum are skipped without decoding.

        Raises JournalError if `stream` does not start with a session's header.
        """
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
        """Where the header begins, as an offset in the uncompressed bytes."""

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
                if held is not None and held.take(self._line, line):
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
