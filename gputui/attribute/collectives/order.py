"""Keeping what ranks did in order of time, whenever it is learnt of."""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar


class _Begun(Protocol):
    @property
    def start_ns(self) -> int: ...


_One = TypeVar("_One", bound=_Begun)


def insert(queue: deque[_One], one: _One, most: int) -> None:
    """Put it where its start belongs: what came late lies before what was there. Of a full queue
    the oldest goes."""
    at = len(queue)
    while at and queue[at - 1].start_ns > one.start_ns:
        at -= 1
    if at == len(queue):
        queue.append(one)
    elif len(queue) < most:
        queue.insert(at, one)
