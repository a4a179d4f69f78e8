"""How many micro-batches a training step has, by the kernels of its losses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.launch_cues import Cue

MOST_LOSSES = 8
"""Kernels of losses that are looked at: names are the program's."""

STEADY_COUNT = 0.9
"""Share of the steps that have as many losses as the usual one has micro-batches."""

APART = 0.25
"""Of a step by its losses, the least distance of two that are of two micro-batches: several losses
of one pass follow each other, and an optimizer may launch more than all passes."""


def micro_batches(
    tokens: npt.NDArray[np.uint32],
    cues: npt.NDArray[np.uint8],
    marks: npt.NDArray[np.intp],
    period: float,
) -> int | None:
    """How many losses, far from one another, the steps have that begin at `marks`, `period`
    launches apart; None where they have one, or not always as many."""
    places = np.flatnonzero(cues & int(Cue.HEAD))
    losses, times = np.unique(tokens[places], return_counts=True)
    found: list[int] = []
    for token in losses[times >= len(marks) - 1][:MOST_LOSSES].tolist():
        its = places[tokens[places] == token]
        per_step = np.diff(np.searchsorted(its, marks))
        count = int(np.median(per_step))
        if count and (per_step == count).mean() >= STEADY_COUNT:
            near = np.diff(its) < APART * period / count
            found.append(1 if near.mean() > 1 - STEADY_COUNT else count)
    return min(found) if found and min(found) > 1 else None
