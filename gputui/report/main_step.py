"""Which phase is the step that a run repeats, and what lies in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputui.state import Run

if TYPE_CHECKING:
    from gputui.report.phases import PhaseRow

STEP_NAMES = re.compile(
    r"^(step|iter|iteration|train_step|training_step|decode_step|batch"
    r"|ProfilerStep)([ #_:]{0,2}(\d+|#))?$",
    re.IGNORECASE,
)
"""Common names of one step, numbered or folded, unless the workload declares its own."""

LEAST_LEVEL = 5.0
"""Phases with less than this percentage together are a library's, not the program's."""


def main_step(run: Run, rows: Sequence[PhaseRow]) -> PhaseRow | None:
    """The step that came most often: what is not in it is warm-up or preparation."""
    wanted = run.started.step_range
    steps = [row for row in rows if row.instances and (
        row.name == wanted if wanted else STEP_NAMES.match(row.name))]  # fmt: skip
    return max(steps, key=lambda row: (row.instances, row.cpu_total_ns), default=None)


def is_inside(row: PhaseRow, outer: PhaseRow) -> bool:
    """Whether a phase is another one or inside it, in any process."""
    names = outer.key[2]
    return row.key[1] == outer.key[1] and row.key[2][: len(names)] == names


def in_main_step(run: Run, rows: Sequence[PhaseRow]) -> list[PhaseRow]:
    """The innermost phases of the main step, the longest first; of a program without one, its
    outermost phases."""
    main = main_step(run, rows)
    if main is None:
        found = [row for row in rows if row.depth == 0]
    else:
        found = [
            row
            for row in rows
            if is_inside(row, main)
            and row.key[0] == main.key[0]
            and not row.is_replayed
            and all(node.definition.graph for one in row.phase.children for node in one.nodes)
            and row is not main
        ] or [main]
    return sorted(found, key=lambda row: -(row.per_step_ns or row.cpu_total_ns))


def share_of(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What the shares of `rows` refer to; "" where none has one."""
    if not any(row.share_percent for row in rows):
        return ""
    main = main_step(run, rows)
    return "of the run" if main is None else f"of the wall time of each {main.name}"
