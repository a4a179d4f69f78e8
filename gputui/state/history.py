"""The newest of what a session sees, in bounded memory; saved copies share what is older."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import msgspec

from gputui.base.decoding import msgpack_decoder

_Item = TypeVar("_Item")

_PACKED = 64
"""Entries that are worth packing together."""

_LEVEL = 1
"""Field names make up most of an entry, and the fastest compression removes them."""

_encoder = msgspec.msgpack.Encoder()


class History(Generic[_Item]):
    """The newest `most` entries, oldest first.

    A recording that is played has hundreds of saved states, each with mostly the same entries:
    `copy` packs those added since the last time, once, and shares what was packed.
    """

    __slots__ = ("_kind", "_most", "_newest", "_packed", "_pieces", "append")

    def __init__(self, kind: Any, most: int, items: Iterable[_Item] = ()) -> None:
        """`kind` is the entries' type."""
        self._kind = kind
        self._most = most
        self._pieces: tuple[_Piece, ...] = ()
        self._packed = 0
        """Entries in the pieces."""
        self._newest: deque[_Item] = deque(items, most)
        self.append = self._newest.append

    def copy(self) -> History[_Item]:
        """An independent copy."""
        if len(self._newest) >= _PACKED:
            self._pack()
        copy: History[_Item] = History(self._kind, self._most, self._newest)
        copy._pieces, copy._packed = self._pieces, self._packed
        return copy

    def _pack(self) -> None:
        piece = _Piece(self._kind, tuple(self._newest))
        self._packed += len(piece)
        self._newest.clear()
        pieces = deque((*self._pieces, piece))
        while self._packed - len(pieces[0]) >= self._most:
            self._packed -= len(pieces.popleft())
        self._pieces = tuple(pieces)

    def __len__(self) -> int:
        return min(self._most, self._packed + len(self._newest))

    def __iter__(self) -> Iterator[_Item]:
        left_out = self._packed + len(self._newest) - len(self)
        return islice(chain(chain.from_iterable(self._pieces), self._newest), left_out, None)

    def __reversed__(self) -> Iterator[_Item]:
        older = chain.from_iterable(map(reversed, reversed(self._pieces)))
        return islice(chain(reversed(self._newest), older), len(self))

    @property
    def oldest(self) -> _Item | None:
        """The first of them, None if there is none."""
        return next(iter(self), None)

    @property
    def newest(self) -> _Item | None:
        """The last one added, None if there is none."""
        return next(reversed(self), None)


class _Piece:
    """Consecutive entries, packed: a third of their size as objects, or less."""

    __slots__ = ("_count", "_data", "_kind")

    def __init__(self, kind: Any, items: tuple[Any, ...]) -> None:
        self._kind = kind
        self._count = len(items)
        self._data: bytes | tuple[Any, ...]
        try:
            self._data = zlib.compress(_encoder.encode(items), _LEVEL)
        except OverflowError:  # of figures that no machine has
            self._data = items

    def items(self) -> tuple[Any, ...]:
        if isinstance(self._data, tuple):
            return self._data
        items: tuple[Any, ...] = _decoder(self._kind).decode(zlib.decompress(self._data))
        return items

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(_unpacked(self))

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(_unpacked(self))


@lru_cache(maxsize=64)
def _unpacked(piece: _Piece) -> tuple[Any, ...]:
    """Those being drawn are read again and again."""
    return piece.items()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: TID251 (the type alone)
    return msgpack_decoder(tuple[kind, ...])
