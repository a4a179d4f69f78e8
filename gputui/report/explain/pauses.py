"""Pauses of the main loop: a server that nobody asks sleeps in them, a training loop saves, logs,
starts the workers of its next epoch or waits for a request that it made.

Waiting for input counts as sleep there only where no frame of the program says that it fetches
input (`DeviceSteps`)."""

from __future__ import annotations

from dataclasses import replace

from gputui.model.leaves import Leaf, idle_sum
from gputui.report.explain.counted import LEAST_PAUSES
from gputui.report.explain.time_tree import TimeTree

WAITS_FOR_WORK = 0.5
"""Share of a loop's time in pauses, and of these asleep, from which a program waits for work."""

COUNT = 0.10
"""Share of a loop's time that its pauses have to idle, awake, to count as a part of it."""


def paused_share(tree: TimeTree) -> float:
    """Of the main loop's time; 0 where pauses are too few to be how it goes."""
    paused_ns = sum(tree.paused.values())
    return paused_ns / (tree.wall_ns + paused_ns) if _are_habit(tree) else 0.0


def _are_habit(tree: TimeTree) -> bool:
    """Whether each device has enough of them: ranks that all set up again pause once each."""
    return tree.pauses >= LEAST_PAUSES * max(1, tree.devices)


def sleeps(tree: TimeTree) -> bool:
    """Whether the program is mostly asleep in its pauses: it has nothing to do."""
    return tree.paused.get(Leaf.WAIT, 0) >= WAITS_FOR_WORK * sum(tree.paused.values())


def with_pauses(tree: TimeTree) -> TimeTree | None:
    """The tree with what the program did awake in the pauses of its loop: None where that is
    little, or no habit."""
    if not _are_habit(tree):
        return None
    awake: dict[Leaf, int] = {**tree.paused}
    awake.pop(Leaf.WAIT, None)
    idle_ns = idle_sum(awake)
    wall_ns = tree.wall_ns + sum(awake.values())
    if idle_ns < COUNT * wall_ns:
        return None
    leaves = {
        leaf: tree.leaves.get(leaf, 0) + awake.get(leaf, 0) for leaf in (*tree.leaves, *awake)
    }
    return replace(tree, wall_ns=wall_ns, leaves=leaves, with_pauses=True)
