"""Taking turns, where reading every GPU in one tick would be too slow."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_AGE_NS = 1_900_000_000
"""The driver looks back two seconds: reading sooner adds little. Less a tick's jitter."""
MOST_AGE_NS = 8_000_000_000
"""An older value is refreshed at any cost, or not shown."""
_ROUND = 4
"""Ticks in which every member has had a turn, at one tick per second or slower."""
_LEAST_SHARE = 2


class Turns:
    """Members in turn, the one that waited longest first."""

    def __init__(self, members: Sequence[int]) -> None:
        self._share = max(_LEAST_SHARE, -(-len(members) // _ROUND))
        self._asked_ns: dict[int, int | None] = dict.fromkeys(members)

    def take(self, now_ns: int) -> frozenset[int]:
        """Whose turn it is at this tick: a share of the members, plus all not read for
        `MOST_AGE_NS` (at first, everyone). Nobody twice within `LEAST_AGE_NS`.
        """
        waited = {
            member: MOST_AGE_NS + 1 if asked_ns is None else now_ns - asked_ns
            for member, asked_ns in self._asked_ns.items()
        }
        order = sorted(waited, key=lambda member: -waited[member])
        chosen = frozenset(
            member
            for place, member in enumerate(order)
            if waited[member] > MOST_AGE_NS
            or (place < self._share and waited[member] >= LEAST_AGE_NS)
        )
        self._asked_ns.update(dict.fromkeys(chosen, now_ns))
        return chosen
