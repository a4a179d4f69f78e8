"""Pauses of a run's main loop: whether they are how it goes, and what the program does in them. A
server that nobody asks sleeps there; a training saves, validates, or starts its workers again.
"""

from __future__ import annotations

import dataclasses

from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.report.explain.finding import Finding
from gputui.report.explain.leaves import LEAST_PAUSES, LEAST_TURNS
from gputui.report.explain.time_tree import TimeTree

WAITS_FOR_WORK = 0.5
"""Share of a loop's time in pauses, and of these asleep, from which a program waits for work."""

FEW_PAUSES = 0.25
"""The same from which three pauses are a habit: a checkpoint every 20 steps in a short recording.
Ranks that set up again pause once each, for less."""

PAUSES_COUNT = 0.10
"""Share of a loop's time that its pauses have to idle, awake, to count as a part of it."""


def paused_share(tree: TimeTree) -> float:
    """Of the main loop's time; 0 where pauses are too few to be how it goes."""
    return _share_paused(tree) if _are_habit(tree) else 0.0


def _share_paused(tree: TimeTree) -> float:
    paused_ns = sum(tree.paused.values())
    return paused_ns / (tree.wall_ns + paused_ns) if paused_ns else 0.0


def _are_habit(tree: TimeTree) -> bool:
    """Whether each device has enough of them, or a few that take longer than the steps: ranks that
    all set up again pause once each, or some times and not for long. Where a rank does something by
    itself, the pauses of the others are for it."""
    if tree.apart or tree.benchmark_rows:
        return False
    each = tree.pauses / max(1, tree.devices)
    return each >= LEAST_PAUSES or (each >= LEAST_TURNS and _share_paused(tree) >= FEW_PAUSES)


def gpu_works(tree: TimeTree) -> bool:
    """Whether the GPU works most of the time of the pauses: on an evaluation, or in a stretch in
    which no steps were recognised."""
    return idle_sum(tree.paused) < sum(tree.paused.values()) / 2


def other_work(share: float) -> Finding:
    """What the GPU does in so much of the time where it works in the pauses."""
    return Finding(
        cause="other_work",
        view="timeline",
        word="OTHER WORK",
        sentence=(
            f"Between bursts of steps the GPU works on something else, {100 * share:.0f} % of the "
            "time."
        ),
        advice=(
            "if that is validation, validate less often or on fewer batches (eval_steps, "
            "val_check_interval, limit_val_batches)"
        ),
        value=100 * share,
        threshold=100 * WAITS_FOR_WORK,
        source="time between the steps of the main loop in which the GPU is mostly busy",
    )


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
    # What the program does awake in pauses counts, too: a loop that saved its model every ten steps
    # was called healthy.
    wall_ns = tree.wall_ns + sum(awake.values())
    if idle_ns < PAUSES_COUNT * wall_ns:
        return None
    leaves = {
        leaf: tree.leaves.get(leaf, 0) + awake.get(leaf, 0) for leaf in (*tree.leaves, *awake)
    }
    return dataclasses.replace(tree, wall_ns=wall_ns, leaves=leaves, with_pauses=True)


def share_in_the_loop(tree: TimeTree, name: str) -> float:
    """The share, in percent, of a leaf or of all that is idle or busy, as the verdict counts it:
    with the pauses of the loop where these are a part of it."""
    whole = with_pauses(tree) or tree
    if name in ("idle", "busy"):
        idle = 100 * whole.share(whole.idle_ns)
        return idle if name == "idle" else 100 - idle
    ns = [ns for leaf, ns in whole.leaves.items() if LEAVES[leaf].key == name]
    return 100 * whole.share(sum(ns))
