"""Histories that many states have in common, kept once.

A state has the newest few thousand entries of each; the next state has most of the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Tail:
    """A deque as it was: the entries of `pieces`, the first `skipped` of them left out."""

    pieces: tuple[tuple[Any, ...], ...]
    skipped: int
    most: int | None

    def __iter__(self) -> Iterator[Any]:
        return islice(chain.from_iterable(self.pieces), self.skipped, None)

    def items(self) -> deque[Any]:
        """One that goes its own way from here on."""
        return deque(self, self.most)


@dataclass(slots=True)
class _Known:
    items: deque[Any]
    """Held, so that no other deque is taken for it."""
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
    """The deques of one session that goes on, as they were at several times."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def kept(self, items: deque[Any]) -> Tail:
        """It as it is now; what came since the last time alone takes memory."""
        known = self._known.get(id(items))
        if known is not None:
            known.add(_since(items, known.pieces[-1][-1] if known.pieces else None))
            if known.length >= len(items):
                tail = known.tail()
                if list(tail) == list(items):
                    return tail
        # Not met before, or other things happened to it than entries at its end.
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
