"""What shows a leaf's cause: the line of the program, the steps it is in; and what is one cause."""

from __future__ import annotations

from dataclasses import replace

from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.finding import Finding
from gputui.report.explain.lines import likeliest_line
from gputui.report.explain.time_tree import TimeTree
from gputui.state import Run


def evidence(run: Run, tree: TimeTree, leaf: Leaf) -> tuple[str, ...]:
    """What stands beside the finding that a leaf is."""
    if leaf in _AT_A_LINE:
        return tuple(filter(None, (where(run), _in_few_steps(tree, leaf))))
    if leaf is Leaf.LAUNCH and tree.steps:
        return (f"{tree.operations / tree.steps:,.0f} operations a step",)
    return ()


_AT_A_LINE = (Leaf.HOST, Leaf.INPUT, Leaf.WAIT, Leaf.SCHEDULER, Leaf.COMPILE)


FEW = 0.9
"""Part of a leaf that the mean step has over the median one from which usual steps have none."""


def _in_few_steps(tree: TimeTree, leaf: Leaf) -> str | None:
    """Where the largest of these leaves is in slow steps only: how many these are."""
    largest = max(_AT_A_LINE, key=lambda one: tree.leaves.get(one, 0))
    a_step, usual = tree.a_step(tree.leaves[leaf]), tree.step_ns.median
    if leaf is not largest or tree.with_pauses or a_step is None or usual is None:
        return None
    if not tree.slow_steps or tree.step_mean_ns - usual < FEW * a_step:
        return None
    return f"A usual step has none of it: {tree.slow_steps:,} of {tree.steps:,} are slow"


def where(run: Run) -> str | None:
    """At which line of the program the CPU was; None where too little was seen."""
    line = likeliest_line(run)
    if line is None:
        return None
    share = 100 * line.seen / line.samples
    return f"In {share:.0f} % of {line.samples} samples the program was at {line.where}"


ONE_LINE = 0.9
"""Share of the readings at one line from which what the CPU is at outside CUDA is one cause."""

_AT_ONE_LINE = (Leaf.HOST, Leaf.INPUT, Leaf.WAIT)


def each_cause_once(run: Run, tree: TimeTree, found: list[Finding]) -> list[Finding]:
    """Findings, the largest first, without those that one before stands for: saving a model
    computes, reads and waits at one line."""
    keys = {LEAVES[leaf].key: leaf for leaf in _AT_ONE_LINE}
    together = [one for one in found if one.cause in keys]
    line = likeliest_line(run)
    if len(together) < 2 or line is None or line.seen < ONE_LINE * line.samples:
        return found
    first = together[0]
    others = {
        leaf: tree.share(tree.leaves.get(leaf, 0))
        for key, leaf in keys.items()
        if key != first.cause
    }
    named = ", ".join(
        f"{LEAVES[leaf].label} {100 * share:.0f} %" for leaf, share in others.items() if share
    )
    recoverable = min(first.recoverable + sum(others.values()), 0.999)
    whole = replace(
        first,
        value=100 * recoverable,
        recoverable=recoverable,
        gain=1.0 / (1.0 - recoverable),
        evidence=(*first.evidence, f"The same line costs more: {named}"),
    )
    rest = [one for one in found if one not in together]
    return sorted([whole, *rest], key=lambda one: -one.recoverable)
