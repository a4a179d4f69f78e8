"""Which marks of a program (StepMarks) say what its steps are, where the steps that were recognized
are something else: what repeated before the first mark, or within a step."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.model.events import LoopDelta, Scope
from gputui.model.sketch import Accumulator
from gputui.model.steps import SOURCES_FIRST
from gputui.report.phases import is_step_name
from gputui.state import Run
from gputui.state.run import MarkedSteps

FEWEST_MARKS = 6
"""Chosen, not measured. Their distances have to be known, or the median step would not be."""

MOST = 0.5
"""Part of the device's time after the first mark that marks have to span."""

OF_LOOP = 0.25
"""Part of the recognized loop that marks are at least as long as: a last evaluation is no run."""

ANOTHER = 1.5
"""Recognized steps for each marked one, or the other way round, from which they are not the same.
Of 80 optimizer steps with a checkpoint every few, 69 were recognized: the rest were pauses."""

SAME_SPAN = 0.9
"""Part of the longest span of a source's sites that another site spans which marks as long."""


def is_marked(loop: LoopDelta) -> bool:
    """Whether the program said itself where the turns of a loop begin."""
    return loop.source not in (None, "repetition")


def names_steps(run: Run) -> bool:
    """Whether ranges name themselves steps, which win over marks."""
    wanted = run.started.step_range
    names = (each.definition.name for each in run.ranges.values())
    return any(name == wanted if wanted else is_step_name(name) for name in names)


def covers_the_rest(first_ns: int, last_ns: int, loops: Iterable[LoopDelta]) -> bool:
    """Whether a span is most of a device's time from its beginning on."""
    end_ns = max((loop.last_ns for loop in loops), default=last_ns)
    return last_ns - first_ns >= MOST * (end_ns - first_ns)


def marked_steps(run: Run, process: int, device: int, main: int | None) -> MarkedSteps | None:
    """The marks of a process that stand for the steps of its `main` loop on a device; None where
    that loop's own steps are those, or none speaks of most of the time after its first mark.
    Without a main loop, only where no steps at all were recognized."""
    loops = [
        each for each in run.loops.values() if (each.process, each.device) == (process, device)
    ]
    loop = run.loops.get((process, device, Scope.STEADY, main)) if main is not None else None
    if (loop is not None and is_marked(loop)) or not run.marked_steps or names_steps(run):
        return None
    if loop is None and any(each.steps for each in loops):
        return None  # several loops, none of which is the run: pauses among them say more
    spanning = [
        marks
        for (marker, *_), marks in run.marked_steps.items()
        if marker == process
        and marks.source in SOURCES_FIRST
        and len([*marks.lengths_ns]) >= FEWEST_MARKS - 1
        and covers_the_rest(marks.first_ns, marks.last_ns, loops)
    ]
    if loop is not None:
        least_ns = OF_LOOP * (loop.last_ns - loop.first_ns)
        spanning = [marks for marks in spanning if marks.last_ns - marks.first_ns >= least_ns]
    if not spanning:
        return None
    source = min((marks.source for marks in spanning), key=SOURCES_FIRST.index)
    sites = [marks for marks in spanning if marks.source == source]
    if loop is not None and any(_is_same(loop, marks) for marks in sites):
        return None
    longest_ns = max(marks.last_ns - marks.first_ns for marks in sites)
    # Of optimizers the one that runs less often: a generator's, once in five of its opponent's.
    return min(
        (marks for marks in sites if marks.last_ns - marks.first_ns >= SAME_SPAN * longest_ns),
        key=lambda marks: marks.marks,
    )


def _is_same(loop: LoopDelta, marks: MarkedSteps) -> bool:
    if not loop.steps or not marks.mean_ns:
        return False
    turns = marks.mean_ns * loop.steps / max(1, loop.last_ns - loop.first_ns)
    return 1 / ANOTHER <= turns <= ANOTHER


def overlapping(loops: Iterable[LoopDelta], marks: MarkedSteps) -> set[tuple[int, Scope]]:
    """The loops and scopes that lie within the span of marks for more than half of their time.

    Not set-up: its moments are those at which it was accounted for. 135 ms before the first mark
    would have been a third of the time around 235 ms of marks."""
    return {
        (loop.loop, loop.scope)
        for loop in loops
        # The moments of marks are those at which they were accounted for.
        if loop.scope is not Scope.SETUP
        and 2 * (min(loop.last_ns, marks.last_ns) - max(loop.first_ns, marks.first_ns))
        > loop.last_ns - loop.first_ns
    }


def step_lengths(marks: MarkedSteps) -> Accumulator:
    """As many lengths as there are steps, spread as those that are known; their mean is that of
    all marks after warm-up."""
    steps, mean_ns = marks.marks - 1, marks.mean_ns or 0.0
    known = sorted(marks.lengths_ns) or [round(mean_ns)]
    lengths = Accumulator(
        count=steps, total=round(steps * mean_ns), minimum=known[0], maximum=known[-1]
    )
    for number, length_ns in enumerate(known):
        times = (number + 1) * steps // len(known) - number * steps // len(known)
        lengths.values[length_ns] = lengths.values.get(length_ns, 0) + times
    lengths.squares = sum(
        times * (length_ns - mean_ns) ** 2 for length_ns, times in lengths.values.items()
    )
    return lengths
