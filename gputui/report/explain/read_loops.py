"""Functions of the program that go through values one by one: each is read back, or decides what is
launched for it, so that the CPU waits and launches in turn. What both cost goes together.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gputui.model.leaves import Leaf
from gputui.report.explain.advice import MANY_READS, is_of_passes
from gputui.report.explain.analysis import Analysis, computed_once
from gputui.report.explain.leaves import waits_a_step
from gputui.report.explain.lines import MOSTLY, kernels_at

LAUNCHES = 0.3
"""Part of the launches that such a function makes at least: 0.46 to 0.96 in four programs. A value
that is read once a step, of work that lies elsewhere, is none."""

LEAST_WAITS = 10
"""Samples within waits from which they say which function waits."""


class ReadLoop(NamedTuple):
    """A function that reads values one by one, which part of all launches it makes, and which part
    of the waits for the GPU, 0 to 1."""

    function: str
    file: str
    launches: float
    waits: float


@computed_once
def read_loop(analysis: Analysis) -> ReadLoop | None:
    """The function that waits most, where it launches much and no layers of a model or gradients;
    None where there is none."""
    waiting, launching = analysis.lines(Leaf.SYNC), analysis.lines(Leaf.LAUNCH)
    if not waiting or not launching or waiting[0].samples < LEAST_WAITS:
        return None
    if waits_a_step(analysis.run, analysis.all_steps) < MANY_READS:
        return None
    counts = Counter[tuple[str, str]]()
    for line in waiting:
        counts[line.file, line.caller] += line.seen
    [((file, function), seen)] = counts.most_common(1)
    own = [line for line in launching if (line.file, line.caller) == (file, function)]
    launches = sum(line.seen for line in own) / launching[0].samples
    waits = seen / waiting[0].samples
    names = analysis.kernel_names
    kernels = {names[n].name for line in own for n in kernels_at(analysis.run, line) if n in names}
    if launches < LAUNCHES or waits < MOSTLY or any(map(is_of_passes, kernels)):
        return None
    return ReadLoop(function, file, launches, waits)
