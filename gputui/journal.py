"""The recording: an append-only file of JSON lines, a header line first, then one event a line.

Every write is flushed to the operating system, so that a killed recording loses at most the
line being written. Reading types every line; what is damaged ends the reading with a word about
where, what is unknown is skipped and counted.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gputui.events import (
    SCHEMA_VERSION,
    AnyEvent,
    GpuUnavailable,
    Header,
    HostUnavailable,
    RunStarted,
)
from gputui.text import clean

LINE_LIMIT = 32 * 1024 * 1024
"""A longer line is damage: no tick comes near it."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_KNOWN = frozenset(kind.__struct_config__.tag for kind in AnyEvent.__args__)


class JournalError(Exception):
    """A recording cannot be written or read. The text is one line for people."""


class JournalWriter:
    """Appends events to a new file, or to standard output.

    The first event must be the Header. When the disk refuses (full, gone), `failure` says so,
    writing ends, and the session goes on.
    """

    def __init__(self, path: Path | None) -> None:
        """Open `path`, which must not exist, private to the user; None writes to stdout.

        Raises JournalError with the reason when it cannot be opened.
        """
        self.path = path
        self.failure: str | None = None
        self.bytes_written = 0
        self._file = _open_new(path) if path is not None else os.fdopen(os.dup(1), "wb")

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` and hand them to the operating system."""
        if self._file.closed:
            return
        data = _encoder.encode_lines(events)
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self.failure = (
                f"the recording {self.path or 'on stdout'} stopped: {_reason(error)}; "
                "what was written until then is readable"
            )
            self.close()
        else:
            self.bytes_written += len(data)

    def close(self) -> None:
        """Close the file. More than once is fine."""
        try:
            self._file.close()
        except OSError as error:
            self.failure = self.failure or f"the recording {self.path}: {_reason(error)}"


class RunRecorder:
    """Records from the first run on: a screen that only watches leaves no file behind.

    `path_of` gives the file's path for the run's name. The journal starts, as every journal,
    with the header, and with why readings are missing.
    """

    def __init__(self, path_of: Callable[[str], Path]) -> None:
        self._path_of = path_of
        self._preamble: dict[tuple[type, int], AnyEvent] = {}
        self._writer: JournalWriter | None = None
        self._refused: str | None = None

    @property
    def path(self) -> Path | None:
        """Where the recording is, None before the first run."""
        return self._writer.path if self._writer else None

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded, None while all is well."""
        return self._refused or (self._writer.failure if self._writer else None)

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` once a run has started."""
        if self._writer is None and self._refused is None:
            for i, event in enumerate(events):
                if isinstance(event, RunStarted):
                    self._open(event.name)
                    events = [*self._preamble.values(), *events[i:]]
                    break
                if isinstance(event, Header | GpuUnavailable | HostUnavailable):
                    gpu = event.gpu if isinstance(event, GpuUnavailable) else -1
                    self._preamble[type(event), gpu] = event
        if self._writer is not None:
            self._writer.write(events)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, name: str) -> None:
        try:
            path = self._path_of(name)
            make_folder(path.parent)
            self._writer = JournalWriter(path)
        except JournalError as error:
            self._refused = str(error)


def default_path(name: str, moment: float) -> Path:
    """`<data folder>/gputui/sessions/<UTC time>-<name>.gputui`; `moment` in seconds.

    The data folder is XDG_DATA_HOME, ~/.local/share without it.
    """
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(moment))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "session"
    folder = Path(base, "gputui", "sessions")
    path = folder / f"{stamp}-{plain}.gputui"
    number = 2
    while path.exists():
        path = folder / f"{stamp}-{plain}-{number}.gputui"
        number += 1
    return path


def make_folder(path: Path) -> None:
    """Make the folder of recordings, private to the user. Raises JournalError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"cannot make {path}: {_reason(error)}") from None


def _open_new(path: Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise JournalError(f"{path} already exists; choose another name or remove it") from None
    except OSError as error:
        raise JournalError(f"cannot write {path}: {_reason(error)}") from None
    return os.fdopen(descriptor, "wb")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class JournalReader:
    """Reads the events of one recording, oldest first, once.

    `header` is read at once. While iterating, `skipped` counts events of kinds this version
    does not know, and `damage` says where and why reading ended early, None when it did not.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Raises JournalError when `stream` does not start with a session's header."""
        self._stream = stream
        self.name = name
        self._line = 0
        self.skipped = 0
        self.damage: str | None = None
        first = self._next_event()
        if not isinstance(first, Header):
            stream.close()
            raise JournalError(self._refusal(first))
        if first.schema > SCHEMA_VERSION:
            stream.close()
            raise JournalError(
                f"{name} was recorded by a newer gputui (schema {first.schema}, "
                f"this one reads {SCHEMA_VERSION}); upgrade gputui to read it"
            )
        self.header = first

    @classmethod
    def open(cls, path: Path) -> JournalReader:
        """The recording at `path`. Raises JournalError with the reason when it is none."""
        try:
            if not stat.S_ISREG(path.stat().st_mode) and not stat.S_ISFIFO(path.stat().st_mode):
                raise JournalError(f"{path} is not a file")
            stream = path.open("rb")
        except OSError as error:
            raise JournalError(f"cannot read {path}: {_reason(error)}") from None
        return cls(stream, str(path))

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        with self._stream:
            while (event := self._next_event()) is not None:
                yield event

    def _next_event(self) -> AnyEvent | None:
        """The next known event; None at the end or at damage."""
        while True:
            line = self._stream.readline(LINE_LIMIT)
            if not line:
                return None
            self._line += 1
            if not line.endswith(b"\n"):
                what = "is cut" if len(line) < LINE_LIMIT else "is too long"
                self.damage = f"{self.name}: line {self._line} {what}; read until there"
                return None
            try:
                return _decode(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
                if _is_unknown_kind(line):
                    self.skipped += 1
                    continue
                self.damage = (
                    f"{self.name}: line {self._line} is damaged ({clean(str(error), 120)}); "
                    "read until there"
                )
                return None

    def _refusal(self, first: AnyEvent | None) -> str:
        if first is None and self._line == 0:
            return f"{self.name} is empty: it holds no gputui session"
        return f"{self.name} is not a gputui session: its first line is no session header"


def _decode(line: bytes) -> AnyEvent:
    if b"\\" not in line and line.isascii() and b"\x7f" not in line:
        return _decoder.decode(line)
    # Strings with escapes or beyond ASCII may carry control characters: cleaned on the way in.
    event: AnyEvent = msgspec.convert(_cleaned(msgspec.json.decode(line)), AnyEvent)
    return event


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key, 200): _cleaned(item) for key, item in value.items()}
    return value


class _Kind(msgspec.Struct):
    event: str


def _is_unknown_kind(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Kind).event not in _KNOWN
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
