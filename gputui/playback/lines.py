"""Classifying the lines of a recording for folding, from their first bytes if possible."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from gputui.model.events import WRITTEN_KINDS, CaptureDelta, CaptureSum, MachineSample, RunEnded
from gputui.playback.pieces import Piece
from gputui.store.journal.rotation import Repeats

_BEGINNING = re.compile(
    rb'\{"event":"([a-z_]+)","time_ns":(\d{1,19})(?:,"process":(\d{1,18}))?[,}]'
)


class Kind(IntEnum):
    """How a line is folded."""

    EVENT = 0
    SAMPLE = 1
    CAPTURE = 2
    SUM = 3
    RUN_ENDED = 4
    PIECE = 5
    """The header of another file of the recording: sums start over."""
    NOTHING = 6
    """Of an unknown kind, or a repetition."""


_KINDS: dict[type[msgspec.Struct], Kind] = {
    MachineSample: Kind.SAMPLE,
    CaptureDelta: Kind.CAPTURE,
    CaptureSum: Kind.SUM,
    RunEnded: Kind.RUN_ENDED,
}
_KINDS_BY_NAME = {
    str(kind.__struct_config__.tag).encode(): _KINDS.get(kind, Kind.EVENT) for kind in WRITTEN_KINDS
}
OF_PROCESSES = frozenset({Kind.CAPTURE, Kind.SUM})
_REPEATED = frozenset(name.encode() for name in Repeats.KINDS)


class Lines:
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

    def look_at(self, line: bytes, piece: Piece, number: int) -> tuple[Kind, int, int]:
        """Kind, time and process of line `number` of a piece: from its first bytes if they are as
        gputui writes them. Raises DamagedError if it needs decoding and cannot be decoded.
        """
        begins_piece, self._begins = self._begins, False
        begins = _BEGINNING.match(line)
        repeats = self._repeats
        if begins is not None:
            name, time_ns, process = begins.groups()
            known = _KINDS_BY_NAME.get(name)
            is_whole = process is not None or known not in OF_PROCESSES
            if known is not None and is_whole and (repeats is None or name not in _REPEATED):
                if repeats is not None:
                    repeats.end()
                return known, int(time_ns), int(process or 0)
        event = piece.event(number, line)
        if event is None:
            return Kind.NOTHING, 0, 0
        if begins_piece:
            return Kind.PIECE, event.time_ns, 0
        if repeats is not None and not isinstance(event, CaptureSum) and repeats.is_one(event):
            return Kind.NOTHING, 0, 0
        process_number = getattr(event, "process", 0)
        return _KINDS.get(type(event), Kind.EVENT), event.time_ns, process_number
