"""Pauses of the main loop: a server that nobody asks sleeps in them, a training loop saves, logs,
starts the workers of its next epoch or waits for a request that it made.

Waiting for input counts as sleep there only where no frame of the program says that it fetches
input (`DeviceSteps`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.model.units import duration, percent
from gputui.report.explain.counted import LEAST_PAUSES, LEAST_STEPS
from gputui.report.explain.finding import Finding
from gputui.report.explain.time_tree import TimeTree

WAITS_FOR_WORK = 0.5
"""Share of a loop's time in pauses, and of these asleep, from which a program waits for work."""

COUNT = 0.10
"""Share of a loop's time that its pauses have to idle, awake, to count as a part of it."""


def paused_share(tree: TimeTree) -> float:
    """Of the main loop's time; 0 where pauses are too few to be how it goes."""
    return _share(tree) if _are_habit(tree) else 0.0


def _share(tree: TimeTree) -> float:
    paused_ns = sum(tree.paused.values())
    return paused_ns / (tree.wall_ns + paused_ns) if paused_ns else 0.0


def _are_habit(tree: TimeTree) -> bool:
    """Whether each device has enough of them, or a few that take longer than the steps: ranks that
    all set up again pause once each, or some times and not for long."""
    each = tree.pauses / max(1, tree.devices)
    return each >= LEAST_PAUSES or (each >= LEAST_STEPS and _share(tree) >= WAITS_FOR_WORK)


def gpu_works(tree: TimeTree) -> bool:
    """Whether the GPU works most of the time of the pauses: on an evaluation, or in a stretch in
    which no steps were recognised."""
    return idle_sum(tree.paused) < sum(tree.paused.values()) / 2


def other_work(share: float) -> Finding:
    """What the GPU does in so much of the time where it works in the pauses."""
    return Finding(
        "other_work",
        "OTHER WORK",
        f"Between bursts of steps the GPU works on something else, {100 * share:.0f} % of the "
        "time.",
        "if that is validation, validate less often or on fewer batches (eval_steps, "
        "val_check_interval, limit_val_batches)",
        100 * share,
        100 * WAITS_FOR_WORK,
        "time between the steps of the main loop in which the GPU is mostly busy",
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
    wall_ns = tree.wall_ns + sum(awake.values())
    if idle_ns < COUNT * wall_ns:
        return None
    leaves = {
        leaf: tree.leaves.get(leaf, 0) + awake.get(leaf, 0) for leaf in (*tree.leaves, *awake)
    }
    return replace(tree, wall_ns=wall_ns, leaves=leaves, with_pauses=True)


def in_words(tree: TimeTree, leaves: Iterable[Leaf]) -> tuple[str, str]:
    """What the shares of a tree are of, and what to say of so much of it: the time a step, or what
    of it lies in pauses."""
    some = list(leaves)
    ns = sum(tree.leaves.get(leaf, 0) for leaf in some)
    if tree.with_pauses:
        paused_ns, asleep_ns = sum(tree.paused.values()), tree.paused.get(Leaf.WAIT, 0)
        awake = [tree.paused.get(leaf, 0) for leaf in some if leaf is not Leaf.WAIT]
        rest_ns = tree.wall_ns - (paused_ns - asleep_ns)
        pauses = percent(100 * paused_ns / (tree.wall_ns + asleep_ns))
        without = percent(100 * (ns - sum(awake)) / rest_ns) if rest_ns else "0 %"
        return (
            "the loop with its pauses",
            f": {tree.pauses:,} pauses take {pauses} of it, without them {without}",
        )
    return _of_steps(tree), _time(tree, ns)


def of_scope(tree: TimeTree, share: float) -> str:
    """A share of a tree without pauses, in words."""
    return f"{100 * share:.0f} % of {_of_steps(tree)}{_time(tree, share * tree.wall_ns)}"


def _of_steps(tree: TimeTree) -> str:
    return "each step" if tree.has_steps else "the time since its first kernel"


def _time(tree: TimeTree, ns: float) -> str:
    a_step = tree.a_step(ns)
    if a_step is None or not tree.step_mean_ns:
        return ""
    return f": {duration(a_step)} of {duration(tree.step_mean_ns)}"


def share_in_the_loop(tree: TimeTree, name: str) -> float:
    """The share, in percent, of a leaf or of all that is idle or busy, as the verdict counts it:
    with the pauses of the loop where these are a part of it."""
    whole = with_pauses(tree) or tree
    if name in ("idle", "busy"):
        idle = 100 * whole.share(whole.idle_ns)
        return idle if name == "idle" else 100 - idle
    ns = [ns for leaf, ns in whole.leaves.items() if LEAVES[leaf].key == name]
    return 100 * whole.share(sum(ns))
