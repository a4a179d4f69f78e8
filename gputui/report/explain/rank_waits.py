"""How long each rank of a run waits in collectives for the last one to come.

All ranks of a synchronizing collective end it together: the last to come waits least. So without
any clock, what a rank's collectives take beyond those of the rank that waits least is waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gputui.state import Run

Place = tuple[int, int]
"""A process and its device."""

LEAST_STEPS = 20
"""Steps of each rank without which a difference would be of chance."""

STEPS_ALIKE = 0.9
"""Ranks whose counts of steps differ by more do not run the same loop."""


class Exposed(NamedTuple):
    """A rank's steady steps, and how long collectives ran in them while nothing else did."""

    steps: int
    collectives_ns: int


def waits(run: Run, exposed: Mapping[Place, Exposed]) -> dict[Place, int]:
    """The part of each rank's exposed collectives that is waiting, in ns.

    Empty where it cannot be known: fewer than two ranks are seen, they do different loops, or
    took too few steps.
    """
    ranked = [place for place in exposed if run.processes[place[0]].attached.rank is not None]
    ranks = {run.processes[process].attached.rank for process, _ in ranked}
    if len(ranks) < 2 or len(ranks) < len(ranked):
        return {}
    counts = [exposed[place].steps for place in ranked]
    if min(counts) < LEAST_STEPS or min(counts) < STEPS_ALIKE * max(counts):
        return {}
    each = {place: exposed[place].collectives_ns / exposed[place].steps for place in ranked}
    least = min(each.values())
    if not least:
        return {}
    return {place: round((ns - least) * exposed[place].steps) for place, ns in each.items()}
