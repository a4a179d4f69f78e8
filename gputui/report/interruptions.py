"""What interrupts a loop, in sentences: its slow steps, and its pauses, which no share has."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model import units
from gputui.model.leaves import LEAVES
from gputui.report.explain import Verdict
from gputui.report.explain.evidence import IN_FEW_STEPS
from gputui.report.explain.time_tree import TimeTree, gpu_works

SLOWED = 0.01
"""Share of the time that slow steps take longer than usual ones from which they are worth one."""

WORKS = 2.0
"""What slow steps take longer over all idle time from which the GPU mostly works in them."""

PAUSED = 0.10
"""Share of the loop's time with its pauses from which these are worth a sentence."""

MOST = 3
LEAST = 0.02
"""Causes of pauses that are named, and the share of them from which one is."""


def interruptions(found: Verdict | None) -> list[str]:
    """Those of a run, none where it has no steps."""
    if found is None or found.tree is None:
        return []
    said = any(line.startswith(IN_FEW_STEPS) for one in found.findings for line in one.evidence)
    sentences = [] if said else [*_slow(found.tree)]
    if not found.says_pauses:
        sentences += _paused(found.tree)
    return sentences


def _slow(tree: TimeTree) -> Iterator[str]:
    share = tree.share(tree.slowed_ns * tree.of_processes)
    if not tree.slow_steps or share < SLOWED:
        return
    many = tree.slow_steps > 1
    steps = f"{tree.slow_steps:,} slow steps take" if many else "1 slow step takes"
    usual = "usual ones" if many else "a usual one"
    lost = units.duration(tree.slowed_ns)
    # Whoever looks for what is lost in them finds the GPU at work: they have more of it.
    works = ""
    if share > WORKS * tree.share(tree.idle_ns):
        works = f", and the GPU works in {'them' if many else 'it'}"
    yield f"{steps} {lost} longer than {usual}{works}: {units.percent(100 * share)} of the time."


def _paused(tree: TimeTree) -> Iterator[str]:
    paused_ns = sum(tree.paused.values())
    whole_ns = tree.wall_ns / tree.of_processes + paused_ns
    if not tree.pauses or paused_ns < PAUSED * whole_ns:
        return
    count = "1 pause takes" if tree.pauses == 1 else f"{tree.pauses:,} pauses take"
    if gpu_works(tree):
        count = "Work that is in no step takes"
    parts = sorted(tree.paused.items(), key=lambda part: -part[1])[:MOST]
    most = ", ".join(
        f"{LEAVES[leaf].label} {100 * ns / paused_ns:.0f} %"
        for leaf, ns in parts
        if ns >= LEAST * paused_ns
    )
    yield f"{count} {100 * paused_ns / whole_ns:.0f} % of the loop's time ({most} of it)."
