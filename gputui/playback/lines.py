"""What a line of a recording is to those who fold, told from its beginning where that will do."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from gputui.model.events import AnyEvent, CaptureDelta, CaptureSum, MachineSample, RunEnded
from gputui.playback.pieces import Piece
from gputui.store.journal.rotation import Repeats

_BEGINNING = re.compile(
    rb'\{"event":"([a-z_]+)","time_ns":(\d{1,19})(?:,"process":(\d{1,18}))?[,}]'
)


class Kind(IntEnum):
    """What a line is to those who fold."""

    EVENT = 0
    SAMPLE = 1
    CAPTURE = 2
    SUM = 3
    RUN_ENDED = 4
    PIECE = 5
    """The header of another file of the recording: sums begin anew."""
    NOTHING = 6
    """Of a kind that is not known, or said before."""


_KINDS: dict[type[msgspec.Struct], Kind] = {
    MachineSample: Kind.SAMPLE,
    CaptureDelta: Kind.CAPTURE,
    CaptureSum: Kind.SUM,
    RunEnded: Kind.RUN_ENDED,
}
_KINDS_BY_NAME = {
    str(kind.__struct_config__.tag).encode(): _KINDS.get(kind, Kind.EVENT)
    for kind in (*AnyEvent.__args__, CaptureSum)
}
OF_PROCESSES = frozenset({Kind.CAPTURE, Kind.SUM})
_REPEATED = frozenset(name.encode() for name in map(str, Repeats.KINDS))


class Lines:
    """Tells the lines of a recording apart, in their order."""

    def __init__(self, *, rotated: bool) -> None:
        """What a file of a rotated recording repeats of those before it is nothing."""
        self._repeats = Repeats() if rotated else None
        self._begins = False

    def begin_piece(self, *, is_first: bool) -> None:
        """The lines of a file follow, the recording's first ones or those of another."""
        self._begins = not is_first
        if self._repeats is not None:
            self._repeats.begin()

    def look_at(self, line: bytes, piece: Piece, number: int) -> tuple[Kind, int, int]:
        """Kind, time and process of line `number` of a piece: from its beginning, where that is as
        we write it. Raises DamagedError where it has to be decoded and cannot be."""
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
