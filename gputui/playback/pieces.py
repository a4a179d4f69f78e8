"""The files of a recording, or another source's events, as lines that can be read again one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from gputui.model.events import AnyEvent, CaptureSum
from gputui.store.journal import JournalReader, RotatedReader
from gputui.store.journal.reader import RecordingReader, decode

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
