"""The recording: an append-only file of JSON lines, a header line first, then one event a line;
read by `reader`, written by `writer`. Here is what one file of it is: compressed or not, how large
it may become, and what it repeats of the files before it.

Every write is flushed to the operating system, compressed or not, so that a killed recording
loses at most the line being written. Reading type-checks every line; damage ends it, with a message
saying where; unknown events are skipped and counted. gputui/docs/recording.md describes the file.
gzip is in the standard library; Zstandard needs the package `zstandard` (gputui[zstd]).
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from gputui.base import GputuiError, JournalError
from gputui.model.events import (
    KINDS,
    About,
    Alert,
    AnyEvent,
    Header,
    ProcessAttached,
    RunEnded,
    RunStarted,
)

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

EXPANSION_LIMIT = 1000
EXPANSION_FREE_BYTES = 64 << 20
"""A file that expands beyond this, and beyond this many times its size, is a bomb: recordings of an
idle machine expand about 60-fold.
"""

# zlib's window bits for a gzip wrapper.
_GZIP = 31
_READ_BYTES = 1 << 16
# A frame says how much memory its decoder needs, and a hostile one may say anything: 128 MiB is
# what `zstd --long` asks for.
_LARGEST_WINDOW = 1 << 27
# See _Unzstd: 1 KiB may become 32 MiB at most.
_ZSTD_PORTION = 1 << 10
# An empty block marked as the last of its frame (RFC 8878, 3.1.1.2).
_ZSTD_LAST_BLOCK = b"\x01\x00\x00"


class Compressor(Protocol):
    """A compressor whose output so far always decodes to all input so far."""

    def write(self, data: bytes) -> bytes:
        """`data` compressed, to its last byte."""
        ...

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        ...


class _Plain:
    def write(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, _GZIP)

    def write(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class _Zstd:
    def __init__(self) -> None:
        zstandard = _zstandard("writing .zst")
        self._stream = zstandard.ZstdCompressor(level=9).compressobj()
        self._block = zstandard.COMPRESSOBJ_FLUSH_BLOCK

    def write(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data) + self._stream.flush(self._block))

    def finish(self) -> bytes:
        return bytes(self._stream.flush())


def compressor_for(path: Path | None) -> Compressor:
    """The compressor for a file name: `.gz`, `.zst`, otherwise none. Raises JournalError."""
    if path is not None and path.suffix == ".gz":
        return _Gzip()
    if path is not None and path.suffix == ".zst":
        return _Zstd()
    return _Plain()


def expanded(stream: BinaryIO, name: str) -> BinaryIO:
    """`stream`, decompressed if it starts like gzip or Zstandard; closing it closes `stream`, and
    so does failing. Raises JournalError."""
    with contextlib.ExitStack() as failed:
        failed.callback(stream.close)
        head = stream.read(len(ZSTD_MAGIC))
        raw: io.RawIOBase
        raw = rest = _Rejoined(head, stream)
        if head.startswith(GZIP_MAGIC):
            raw = _Gunzip(rest, name)
        elif head == ZSTD_MAGIC:
            raw = _Unzstd(rest, name)
        failed.pop_all()
    return io.BufferedReader(raw, _READ_BYTES)


def is_compressed(head: bytes) -> bool:
    """Whether a file starting with these bytes is gzip or Zstandard."""
    return head.startswith((GZIP_MAGIC, ZSTD_MAGIC))


def _zstandard(what: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise JournalError(
            f"{what} needs the package zstandard: pip install 'gputui[zstd]', or use .gputui.gz"
        ) from None
    return zstandard


class _Rejoined(io.RawIOBase):
    """The bytes already read, followed by the rest."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head, b""
        else:
            # A pipe returns what it has; `read` would wait for all of it.
            some = getattr(self._stream, "read1", self._stream.read)
            data = some(_READ_BYTES if size < 0 else size)
        self.count += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Expanding(io.RawIOBase):
    """Decompresses a stream, a bounded portion at a time.

    Damage raises CompressionError; a premature end counts as the end, because that is what a
    recording looks like whose writer was killed.
    """

    def __init__(self, source: _Rejoined, name: str) -> None:
        self._source = source
        self._name = name
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._expand(len(buffer))
        self._given += len(data)
        if self._given > max(EXPANSION_FREE_BYTES, EXPANSION_LIMIT * self._source.count):
            raise CompressionError(
                f"it expands more than {EXPANSION_LIMIT}-fold, which no recording does"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._source.close()
        super().close()

    def _expand(self, limit: int) -> bytes:
        raise NotImplementedError


class CompressionError(GputuiError):
    """Malformed compressed bytes. One line."""


class _Gunzip(_Expanding):
    def __init__(self, source: _Rejoined, name: str) -> None:
        super().__init__(source, name)
        self._stream = zlib.decompressobj(_GZIP)
        self._waiting = b""

    def _expand(self, limit: int) -> bytes:
        while True:
            try:
                data = self._stream.decompress(self._waiting, limit)
            except zlib.error as error:
                raise CompressionError(str(error)) from None
            self._waiting = self._stream.unconsumed_tail
            if self._stream.eof:
                # A stream may consist of several, one after the other.
                self._waiting = self._stream.unused_data
                self._stream = zlib.decompressobj(_GZIP)
            if data:
                return data
            if not self._waiting:
                self._waiting = self._source.read(_READ_BYTES)
                if not self._waiting:
                    return b""


class _Unzstd(_Expanding):
    """Fed in small portions: its decompressor returns everything at once, up to 128 KiB for 4
    bytes.
    """

    def __init__(self, source: _Rejoined, name: str) -> None:
        super().__init__(source, name)
        zstandard = _zstandard(f"reading {name}")
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._stream = self._decompressor.decompressobj()
        self._compressed = b""
        self._is_in_frame = False
        self._ready = memoryview(b"")

    def _expand(self, limit: int) -> bytes:
        while not self._ready:
            if not self._compressed:
                self._compressed = self._source.read(_READ_BYTES)
                if not self._compressed:
                    self._check_end()
                    return b""
            portion = self._compressed[:_ZSTD_PORTION]
            self._compressed = self._compressed[_ZSTD_PORTION:]
            try:
                self._ready = memoryview(self._stream.decompress(portion))
            except self._error as error:
                raise CompressionError(str(error)) from None
            self._is_in_frame = not self._stream.eof
            if self._stream.eof:
                # A file may consist of several frames.
                self._compressed = self._stream.unused_data + self._compressed
                self._stream = self._decompressor.decompressobj()
        data, self._ready = self._ready[:limit], self._ready[limit:]
        return bytes(data)

    def _check_end(self) -> None:
        """Raise CompressionError if the file ends within a block.

        A decompressor returns nothing of an incomplete block, and does not report that there was
        one. After a complete block, which every write ends with, an empty last one ends the frame.
        """
        if not self._is_in_frame:
            return
        self._is_in_frame = False
        with contextlib.suppress(self._error):
            # An empty last block ends the frame if the block before it was complete, and does not
            # if the file was cut within one: no block has to be parsed.
            self._stream.decompress(_ZSTD_LAST_BLOCK)
        if not self._stream.eof:
            # The same verdict at every offset of a file.
            raise CompressionError("it is truncated")


# --- How large and how long a file may become, and what the next one repeats.

_encoder = msgspec.json.Encoder()


class Limits(msgspec.Struct, frozen=True):
    """When a new file begins, and how much all files may take. None is no limit.

    Before they exceed `max_bytes` together, the oldest files are removed if the recording is
    rotated; otherwise recording stops.
    """

    rotate_bytes: int | None = None
    rotate_ns: int | None = None
    max_bytes: int | None = None

    @property
    def rotates(self) -> bool:
        """Whether there can be a second file."""
        return self.rotate_bytes is not None or self.rotate_ns is not None

    @property
    def file_bytes(self) -> int | None:
        """What one file may take before the next begins. At most half of the total, so that
        something is left when the oldest goes, whatever the size or time of a file.
        """
        of_all = self.max_bytes // 2 if self.max_bytes is not None else None
        return min((size for size in (self.rotate_bytes, of_all) if size is not None), default=None)


class Preamble:
    """What a file must begin with so that it can be read without the earlier ones: the events whose
    kind is `repeated_for` something, of the session and of runs that go on.
    """

    def __init__(self) -> None:
        self._session: dict[Hashable, AnyEvent] = {}
        self._runs: dict[int, dict[Hashable, AnyEvent]] = {}
        self._run_of_process: dict[int, int] = {}
        self._ended: set[int] = set()

    def see(self, events: Sequence[AnyEvent]) -> None:
        """Remember what later files need of `events`."""
        for event in events:
            if isinstance(event, RunEnded):
                self._ended.add(event.run)
            elif event.repeated_for is not None:
                self._keep(event, event.repeated_for)

    def events(self) -> list[AnyEvent]:
        """The events that the next file begins with, the header first."""
        for run in self._ended:
            self._runs.pop(run, None)
        self._ended.clear()
        of_session = sorted(self._session.values(), key=lambda event: type(event) is not Header)
        return [*of_session, *(event for run in self._runs.values() for event in run.values())]

    def _keep(self, event: AnyEvent, fields: tuple[str, ...]) -> None:
        key = type(event), *(getattr(event, field) for field in fields)
        if isinstance(event, RunStarted):
            self._runs[event.run] = {key: event}
            return
        if isinstance(event, ProcessAttached):
            self._run_of_process[event.process] = event.run
        if event.about in (About.RUN, About.PROCESS):
            run = self._runs.get(self._run_of(event))
            if run is not None:
                run[key] = event
            return
        if isinstance(event, Alert) and not event.raised:
            self._session.pop(key, None)
        else:
            self._session[key] = event

    def _run_of(self, event: AnyEvent) -> int:
        run: int | None = getattr(event, "run", None)
        return self._run_of_process.get(getattr(event, "process", 0), -1) if run is None else run


class Repeats:
    """Recognizes what a file of a rotated recording repeats from earlier ones."""

    KINDS = frozenset(
        str(kind.__struct_config__.tag) for kind in KINDS if kind.repeated_for is not None
    )
    """The events it needs to see; of other kinds it only needs to know that they came."""

    def __init__(self) -> None:
        self._seen = Preamble()
        self._known: set[bytes] = set()

    def begin(self) -> None:
        """Note what the next file repeats at its head."""
        self._known = {_encoder.encode(event) for event in self._seen.events()}

    def is_one(self, event: AnyEvent) -> bool:
        """Whether this event was read before."""
        if self._known and _encoder.encode(event) in self._known:
            return True
        if event.repeated_for is None:
            self.end()
        self._seen.see((event,))
        return False

    def end(self) -> None:
        """Note that nothing more is repeated: the file's own events begin."""
        self._known = set()
