"""What a child prints and reports: bytes of a pipe → complete lines, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gputui.base.sanitize import clean_output

Stream = Literal["stdout", "stderr", "report"]

LINES_PER_BATCH = 2000
"""Output lines beyond this in one batch are counted and dropped. Reports are never dropped: this
many of them complete a batch.
"""

_LONGEST_LINE = 1 << 16
_LONGEST_REPORT = 1 << 22
"""A reported table is one line."""


@dataclass(slots=True)
class Lines:
    """Complete lines of one stream since the last batch."""

    stream: Stream
    lines: list[str]
    dropped: int = 0


class LineBuffer:
    """Splits bytes into lines, holding at most one line and one batch."""

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream = stream
        self._partial = b""
        self._lines: list[str] = []
        self._dropped = 0
        self._longest = _LONGEST_REPORT if stream == "report" else _LONGEST_LINE

    @property
    def is_full(self) -> bool:
        """Whether the next input would be dropped unless the batch is handed over first."""
        return len(self._lines) >= LINES_PER_BATCH

    def feed(self, data: bytes) -> None:
        """Add bytes as they were read."""
        pieces = (self._partial + data).split(b"\n")
        self._partial = pieces.pop()
        if len(self._partial) > self._longest:
            pieces.append(self._partial)
            self._partial = b""
        room = len(pieces) if self.stream == "report" else LINES_PER_BATCH - len(self._lines)
        self._dropped += max(0, len(pieces) - room)
        self._lines += [self._text(piece) for piece in pieces[: max(0, room)]]

    def _text(self, piece: bytes) -> str:
        text = piece.decode("utf-8", "replace")
        return text if self.stream == "report" else clean_output(text)

    def take(self, final: bool = False) -> Lines | None:
        """The lines since the last call, None if there are none; `final` completes the last one."""
        if final and self._partial:
            self.feed(b"\n")
        if not self._lines and not self._dropped:
            return None
        lines = Lines(self.stream, self._lines, self._dropped)
        self._lines, self._dropped = [], 0
        return lines
