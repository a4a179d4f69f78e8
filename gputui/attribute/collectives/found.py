"""What a process did together with other ranks, as it is found in its records."""

from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    """What a rank asked for. `communicator` is empty where it is not known."""

    communicator: str
    kind: str
    size_bytes: int
    partner: int | None


class Collective(NamedTuple):
    """Operations that ran together. `own_ns` passed since the collective before had ended. `sent`
    are the ranks of the communicator to which a message went, with its bytes, `received` those from
    which one came."""

    communicator: str
    kind: str
    size_bytes: int
    start_ns: int
    end_ns: int
    own_ns: int
    operations: int
    sent: tuple[tuple[int, int], ...] = ()
    received: tuple[int, ...] = ()


class Entered(NamedTuple):
    """An operation as it was begun."""

    communicator: str
    kind: str
    size_bytes: int
    time_ns: int


class Found(NamedTuple):
    """What came since the last time."""

    collectives: list[Collective]
    entered: list[Entered]
    ranks: dict[str, int]
    """By communicator, where the process said how many ranks it has."""
    own: dict[str, int]
    """The process's own rank in each of these."""
