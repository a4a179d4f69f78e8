"""Histories shared by many states, stored once.

A state has the newest few thousand entries of each; the next state has mostly the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Tail:
    """A saved deque: the entries of `pieces` without the first `skipped`."""

    pieces: tuple[tuple[Any, ...], ...]
    skipped: int
    most: int | None

    def __iter__(self) -> Iterator[Any]:
        return islice(chain.from_iterable(self.pieces), self.skipped, None)

    def items(self) -> deque[Any]:
        """An independent copy."""
        return deque(self, self.most)


@dataclass(slots=True)
class _Known:
    items: deque[Any]
    """A reference, so that its id is not reused for another deque."""
    pieces: deque[tuple[Any, ...]] = field(default_factory=deque)
    length: int = 0

    def add(self, items: tuple[Any, ...]) -> None:
        if items:
            self.pieces.append(items)
            self.length += len(items)
        while self.pieces and self.length - len(self.pieces[0]) >= len(self.items):
            self.length -= len(self.pieces.popleft())

    def tail(self) -> Tail:
        return Tail(tuple(self.pieces), self.length - len(self.items), self.items.maxlen)


class Histories:
    """The deques of one growing session, saved at several times."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def kept(self, items: deque[Any]) -> Tail:
        """A saved copy; only entries added since the last time take memory."""
        known = self._known.get(id(items))
        if known is not None:
            known.add(_since(items, known.pieces[-1][-1] if known.pieces else None))
            if known.length >= len(items):
                tail = known.tail()
                if list(tail) == list(items):
                    return tail
        # New, or changed otherwise than by appending.
        known = self._known[id(items)] = _Known(items)
        known.add(tuple(items))
        return known.tail()


def _since(items: deque[Any], last: Any) -> tuple[Any, ...]:
    new: list[Any] = []
    for item in reversed(items):
        if item is last:
            break
        new.append(item)
    return tuple(reversed(new))
