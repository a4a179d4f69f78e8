"""At which line of the program the CPU was while the GPU idled."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import NamedTuple

from gputui.model.events import NO_LEAF
from gputui.model.leaves import Leaf
from gputui.state import Run

LEAST_SAMPLES = 10
"""Readings of the program's line that make an estimate."""


class LikeliestLine(NamedTuple):
    """A line, and in how many of all samples the program was there."""

    where: str
    seen: int
    samples: int


def likeliest_line(
    run: Run, process: int | None = None, leaf: Leaf | None = None
) -> LikeliestLine | None:
    """Where a run, or one process of it, was most often; None where too little was seen. With a
    `leaf`, of the readings whose frames speak of it, or where none do, of those that are silent."""
    return next(iter(line_shares(run, process, leaf)), None)


def line_shares(
    run: Run, process: int | None = None, leaf: Leaf | None = None
) -> list[LikeliestLine]:
    """Where a run, or one process of it, was, the most frequent line first; none where too little
    was seen."""
    said = leaf if any(key.leaf == leaf for key in run.line_samples) else NO_LEAF
    counts = Counter[tuple[int, int]]()
    for key, seen in run.line_samples.items():
        if process in (None, key.process) and (leaf is None or key.leaf == said):
            counts[key.process, key.line] += seen.samples
    whole = sum(counts.values())
    if whole < LEAST_SAMPLES:
        return []
    return [
        LikeliestLine(
            f"{PurePath(line.path).name}:{line.number} {line.function}", seen_there, whole
        )
        for place, seen_there in counts.most_common()
        if (line := run.lines.get(place)) is not None
    ]
