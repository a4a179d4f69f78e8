"""Saved states of a session: encoded, except for histories, which share what they have packed."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from gputui.base.decoding import decode_msgpack
from gputui.state import Session
from gputui.state.history import History

_LEVEL = 1
"""Names of fields and of kernels make up most of a session, and repeat."""


class Checkpoint:
    """A saved state of a session, from which others can continue."""

    __slots__ = ("_encoded", "_histories")

    def __init__(self, session: Session) -> None:
        """Raises OverflowError where a sum exceeds 64 bits, as no machine's does."""
        histories: list[History[Any]] = []

        def put_aside(value: object) -> int:
            if not isinstance(value, History):
                raise NotImplementedError(f"a session cannot be saved with a {type(value)}")
            histories.append(value.copy())
            return len(histories) - 1

        encoded = msgspec.msgpack.encode(session, enc_hook=put_aside)
        self._encoded = zlib.compress(encoded, _LEVEL)
        self._histories = tuple(histories)

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, without the histories."""
        return len(self._encoded)

    def session(self) -> Session:
        """An independent session that continues from here."""

        def put_back(_: type, place: int) -> History[Any]:
            return self._histories[place].copy()

        encoded = zlib.decompress(self._encoded)
        return decode_msgpack(encoded, Session, put_back)
