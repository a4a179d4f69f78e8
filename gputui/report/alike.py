"""Whether the steps of two runs do the same work: of others none is the faster one.

What a compiler makes of a program has other kernels and fewer operations too: steps are taken for
other ones only where the commands differ in more than options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

if TYPE_CHECKING:
    from gputui.report.subject import Subject

APART = 2.0
"""How many times the operations of another a step has from which it may be another step: a graph,
a compiler and another type of numbers leave more of them, or some of the kernels."""

MAIN_PERCENT = 1.0
"""Share of the kernels' time from which a kernel tells what a program does."""


class StepKind(msgspec.Struct, frozen=True):
    """What a step is made of: operations, and the main kernels as checksums of their names."""

    operations: float
    kernels: frozenset[int]


def step_kind(subject: Subject) -> StepKind | None:
    """None where no steps, or no kernels, are known."""
    from gputui.report.statistics import kernel_rows  # the list of runs needs it seldom

    tree, run = subject.tree, subject.run
    if run is None or tree is None or not tree.has_steps:
        return None
    rows = kernel_rows(subject.session, run)
    main = frozenset(crc32(row.name.encode()) for row in rows if row.percent >= MAIN_PERCENT)
    return StepKind(tree.operations / tree.steps, main) if main else None


def are_apart(before: StepKind | None, after: StepKind | None) -> bool:
    """Whether two steps have neither their operations nor a main kernel in common."""
    if before is None or after is None or before.kernels & after.kernels:
        return False
    return have_other_operations(before, after)


def have_other_operations(before: StepKind | None, after: StepKind | None) -> bool:
    """Whether one of two steps has many more operations."""
    if before is None or after is None:
        return False
    fewer, more = sorted((before.operations, after.operations))
    return more >= APART * fewer
