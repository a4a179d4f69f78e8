"""Several processes of a run on one GPU: one tree of the device, and each process's part of it.

Each process sees the whole time of the device: what it ran itself, when the others ran something
(PEER), and when nobody did. The device's tree is the mean of what they see, by the length of what
each saw, with the others' time under the leaves that they have: an instant in which several ran
something counts for each of them in equal parts, and idle time for those that might have ended it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.report.explain.rank_waits import Place
from gputui.state import Run

Leaves = Mapping[Leaf, int]


class Part(NamedTuple):
    """What one process has of a GPU that others of the run use too."""

    process: int
    gpu: int
    leaves: dict[Leaf, int]
    """Of the device's time: those of all its processes add up to its wall time."""

    @property
    def busy_ns(self) -> int:
        """Time in which the process ran something, or half of it where another did too."""
        return sum(ns for leaf, ns in self.leaves.items() if not LEAVES[leaf].is_idle)

    @property
    def idle_ns(self) -> int:
        """Time in which nobody ran anything, as far as it is this process's to end."""
        return idle_sum(self.leaves)


def together(run: Run, seen: Mapping[Place, Leaves]) -> dict[Place, Part]:
    """The parts of processes that share a GPU and were seen doing so."""
    found: dict[Place, Part] = {}
    groups: dict[tuple[str | None, int], dict[Place, Leaves]] = defaultdict(dict)
    for place, leaves in seen.items():
        process = run.processes.get(place[0])
        host = process.attached.host if process is not None else None
        if any(leaves.values()):
            groups[host, place[1]][place] = leaves
    for group in groups.values():
        if len(group) > 1 and any(leaves.get(Leaf.PEER) for leaves in group.values()):
            found |= _parts(group)
    return found


def _parts(group: Mapping[Place, Leaves]) -> dict[Place, Part]:
    walls = {place: sum(leaves.values()) for place, leaves in group.items()}
    scale = max(walls.values()) / sum(walls.values())
    busy = {place: _busy(leaves) for place, leaves in group.items()}
    amounts: dict[Place, dict[Leaf, float]] = {place: defaultdict(float) for place in group}
    for place, leaves in group.items():
        for leaf, ns in leaves.items():
            if leaf is not Leaf.PEER:
                amounts[place][leaf] += ns * scale
        theirs = sum(ns for other, ns in busy.items() if other != place)
        for other, of in group.items():
            if other != place and busy[other]:
                share = leaves.get(Leaf.PEER, 0) * scale * busy[other] / theirs
                for leaf, ns in of.items():
                    if _is_own(leaf):
                        amounts[other][leaf] += share * ns / busy[other]
        if not theirs:
            amounts[place][Leaf.PEER] += leaves.get(Leaf.PEER, 0) * scale
    rounded = {place: {leaf: round(ns) for leaf, ns in of.items()} for place, of in amounts.items()}
    # What rounding leaves is the largest one's.
    place, leaf = max(
        ((place, leaf) for place, of in rounded.items() for leaf in of),
        key=lambda at: rounded[at[0]][at[1]],
    )
    rounded[place][leaf] += max(walls.values()) - sum(sum(of.values()) for of in rounded.values())
    return {place: Part(*place, of) for place, of in rounded.items()}


def _is_own(leaf: Leaf) -> bool:
    return not LEAVES[leaf].is_idle and leaf is not Leaf.PEER


def _busy(leaves: Leaves) -> int:
    return sum(ns for leaf, ns in leaves.items() if _is_own(leaf))
