"""What a program does between its steps that no usual step has: it validates, or compiles."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gputui.model.leaves import CAUSES, LEAVES, Leaf, idle_sum
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.gains import OF_COMPILING
from gputui.report.explain.verdict import verdict

LEAST = 0.15
"""Share of the time from which validation is a finding, as for idle time."""

# Steps of validation, which the program's library marks.

EVALUATES = (
    ("trainer", "prediction step"),
    ("lightning", "validation batch"),
    ("keras", "test batch"),
)
"""Sources and sites of marks (inject/hook/step_marks) of steps that validate."""

OF_LONGER = 0.5
"""Part of what some steps take longer, or of the pauses, that steps of validation take."""

VALIDATE_LESS = (
    "validate less often or on fewer batches (eval_steps, val_check_interval, limit_val_batches)"
)


def evaluations(analysis: Analysis) -> Iterator[Finding]:
    """Validation between the steps of a training, where the library says which steps validate."""
    tree = analysis.tree
    marked = [
        marks
        for marks in analysis.run.marked_steps.values()
        if (marks.source, marks.site) in EVALUATES and marks.marks > 1
    ]
    if tree is None or not tree.has_steps or not marked:
        return
    batches = sum(marks.marks for marks in marked)
    lengths = (median(marks.lengths_ns) * marks.marks for marks in marked if marks.lengths_ns)
    validating_ns = sum(lengths)
    paused_ns = sum(tree.paused.values()) / max(1, tree.devices)
    within_ns = tree.slowed_ns / max(1, tree.devices)
    longer_ns = max(within_ns, paused_ns)
    whole_ns = tree.step_mean_ns * tree.steps / max(1, tree.devices)
    whole_ns += paused_ns if paused_ns > within_ns else 0
    share = min(1.0, longer_ns / whole_ns) if whole_ns else 0.0
    if share < LEAST or validating_ns < OF_LONGER * longer_ns:
        return
    yield Finding(
        cause="other_work",
        view="timeline",
        word=f"validation {100 * share:.0f} % of the time",
        sentence=(
            f"Validation takes {100 * share:.0f} % of the time: {batches:,} batches of it between "
            f"{tree.program_steps:,} steps of training."
        ),
        advice=VALIDATE_LESS,
        value=100 * share,
        threshold=100 * LEAST,
        source="marks of the library's validation steps, and what steps take beyond the median",
        recoverable=share,
        gains=gain_of(0.85 * share, 1.2 * share),
        leads=True,
        # Steps of training have so much less of each leaf as validation has of it.
        explains=tuple(
            LEAVES[leaf].key
            for leaf, ns in tree.leaves.items()
            if tree.share(ns) * (1.0 - share) < share
        ),
    )


# Compiling between the steps.

COMPILES = 0.25
"""Share of the time from which compiling between steps leads: what is compiled once is set-up."""


def compiles_between(analysis: Analysis) -> Iterator[Finding]:
    """Compiling in pauses of the loop, few and long, so that the usual step has none of it."""
    tree, outcome = analysis.tree, verdict(analysis)
    key = LEAVES[Leaf.COMPILE].key
    if tree is None or outcome is None or not tree.has_steps:
        return
    if any(finding.cause == key for finding in outcome.findings):
        return
    whole_ns = tree.wall_ns + sum(tree.paused.values())
    compiling_ns = tree.leaves.get(Leaf.COMPILE, 0) + tree.paused.get(Leaf.COMPILE, 0)
    share = compiling_ns / whole_ns if whole_ns else 0.0
    if share < COMPILES:
        return
    idle = (tree.idle_ns + idle_sum(tree.paused)) / whole_ns
    beside_ns = sum(
        leaves.get(leaf, 0)
        for leaves in (tree.leaves, tree.paused)
        for leaf in (Leaf.HOST, Leaf.WAIT)
    )
    least = share + OF_COMPILING * beside_ns / whole_ns
    yield Finding(
        cause=key,
        view="timeline",
        word=CAUSES[Leaf.COMPILE].word,
        sentence=(
            f"The program compiles {100 * share:.0f} % of the loop's time, between its steps: "
            f"{tree.pauses:,} {'pause' if tree.pauses == 1 else 'pauses'}."
        ),
        advice=CAUSES[Leaf.COMPILE].advice,
        value=100 * share,
        threshold=100 * COMPILES,
        source="lines of the compiler in the pauses of the loop",
        recoverable=share,
        gains=gain_of(0.97 * least, 0.98 * idle),
        leads=True,
        explains=(LEAVES[Leaf.LAUNCH].key,),
    )


RULES = (RunRule(16, evaluations), RunRule(16, compiles_between))
