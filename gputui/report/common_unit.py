"""What two runs have in common by which one can be the faster: the same step, something that the
program counts itself, or the same kernels. Without any of these, neither is faster."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple, TypeGuard
from zlib import crc32

import msgspec

from gputui.model.events import StepSource
from gputui.model.naming import operands, short_name
from gputui.model.steps import SOURCES_FIRST
from gputui.report.comparable import RunItem, RunItems, Subject
from gputui.report.explain.time_tree import LAYER, TimeTree
from gputui.report.phases import PhaseRow, main_step, phase_rows
from gputui.report.statistics import Mean, kernel_rows
from gputui.report.tables.energy import used_span
from gputui.state import Run

APART = 2.0
"""How many times the operations of another a step has from which it may be another step: a graph,
a compiler and another type of numbers leave more of them, or some of the kernels."""

ALIKE = 1.25
"""How many times the operations of another a step has up to which both are taken for the same one.
Of the pairs of fault and cure that were recorded, the same step has up to 1.10 times as many, and
steps that are other parts of the program have from 1.5 times as many on."""

MAIN_PERCENT = 1.0
"""Share of the kernels' time from which a kernel tells what a program does."""

FEWEST_INSTANCES = 20
"""Instances of a kernel in each run from which it measures how much work was done."""

# Kernels whose numbers have the same ratio, up to this, are launched by the same work.
_SAME_RATIO = 1.1

# How many times as long a kernel may take in another run and still be of the same size: clocks and
# cards change it by up to 1.5 (H100 and H200 differ by 1.4 in bandwidth).
_SAME_SIZE = 1.6

# Share of the kernels' time, in one of the runs at least, that the common kernels must have.
_CARRIES_PERCENT = 25.0

# Metrics that say how much of the program's own work was done in a time; `step_ms`, how long.
_ITEMS = re.compile(
    r"(?:\w+_)?(?:tokens|samples|images|items|steps|sequences|requests|examples|iterations|batches"
    r"|frames)_per_s(?:econd)?|step_ms"
)


class StepKind(msgspec.Struct, frozen=True):
    """What a step is made of: operations, and the main kernels as checksums of their names."""

    operations: float
    kernels: frozenset[int]


def step_kind(subject: Subject) -> StepKind | None:
    """None where no steps, or no kernels, are known."""
    tree, run = subject.tree, subject.run
    if run is None or tree is None or not tree.has_steps:
        return None
    rows = kernel_rows(subject.session, run)
    main = frozenset(crc32(row.name.encode()) for row in rows if row.percent >= MAIN_PERCENT)
    return StepKind(tree.operations / tree.steps, main) if main else None


def have_other_operations(before: StepKind | None, after: StepKind | None) -> bool:
    """Whether one of two steps, of commands with other words, has many more operations, or as few
    that this says nothing and no main kernel in common."""
    if before is None or after is None:
        return False
    fewer, more = sorted((before.operations, after.operations))
    return more >= APART * fewer or (more <= LAYER and not before.kernels & after.kernels)


class WorkUnit(NamedTuple):
    """The work by which a run is compared with the first one.

    `factor` is the time that this work takes in the run, over the time in the first one; None if
    the steps themselves show it. `name` is the name of the step, metric or kernel. Figures of a
    step are multiplied by `scale` so that they are of as much work as a step of the first run: 1 if
    both runs have the same step.
    """

    kind: Literal["step", "items", "work"]
    name: str = ""
    scale: float = 1.0
    factor: float | None = None
    is_sure: bool = False
    """Whether something besides the recognized steps shows that they are the same: a name, or
    kernels."""

    @property
    def has_same_step(self) -> bool:
        """Whether the recognized steps do the same work, except for what a cure leaves out."""
        return 1 / _SAME_RATIO <= self.scale <= _SAME_RATIO


def common_unit(base: Subject, other: Subject) -> WorkUnit | None:
    """The work by which `other` is compared with `base`; None if nothing makes them comparable.

    The first of these that applies: a step that both programs declare, mark or name; recognized
    steps with a similar number of operations; items that the program counts by the second; kernels
    that both launch, in the same proportions and of the same size; and, for the same program with
    other options, the steps as they were recognized.
    """
    before, after = base.tree, other.tree
    if are_of_other_workloads(base, other):
        return None
    if before is None or after is None:
        return WorkUnit("step")
    has_steps = before.has_steps and after.has_steps
    named = _named_step(base, other) if has_steps else None
    # Marks of a workload's optimizer are made in its warm-up too, and while a graph is captured.
    if named is not None and all(_declares_step(subject) for subject in (base, other)):
        return named
    has_same_words = _operands(base) == _operands(other)
    marked = _marked_step(base, other)
    if marked is not None and (has_same_words or _may_be_one_program(base, other)):
        return marked
    if named is not None:
        return named
    if has_steps and _are_alike(base, other, before, after, has_same_words=has_same_words):
        return WorkUnit("step")
    kernels = _kernels_of_both(base, other, has_same_words=has_same_words)
    unit = _scaled(_items_of_both(base, other) or kernels, base, other)
    if unit is not None or not (has_steps and has_same_words):
        return unit
    turns = _kernels_of_a_step(base, other)
    if turns is None:
        return None if _have_other_work(before, after) else WorkUnit("step")
    is_same = 1 / ALIKE <= turns <= ALIKE and _are_of_one_size(base, other)
    return WorkUnit("step") if is_same else None


def _declares_step(subject: Subject) -> bool:
    return subject.run is not None and subject.run.started.step_range is not None


def _have_other_work(before: TimeTree, after: TimeTree) -> bool:
    """Whether a step that mostly idles gives the GPU so much less to do than a step of the other
    run that it must be a part of that step. (A cure of launching and waiting leaves the GPU's work
    as it is. A row of a grid took 15 µs of 172; the whole grid at once took 2.9 ms.)"""
    for idle, fuller in ((before, after), (after, before)):
        busy_ns = [tree.step_mean_ns * (1.0 - tree.share(tree.idle_ns)) for tree in (idle, fuller)]
        if idle.share(idle.idle_ns) >= 0.5 and busy_ns[1] > APART * busy_ns[0]:
            return True
    return False


def are_of_other_workloads(base: Subject, other: Subject) -> bool:
    """Whether both runs are of gputui's workloads, but of different ones."""
    runs = [subject.run.started for subject in (base, other) if subject.run is not None]
    return len({run.name for run in runs if run.kind == "workload"}) > 1


def _operands(subject: Subject) -> tuple[str, ...]:
    return operands(subject.run.started.arguments) if subject.run is not None else ()


def _are_alike(
    base: Subject, other: Subject, before: TimeTree, after: TimeTree, *, has_same_words: bool
) -> bool:
    """Whether the recognized steps are the same step, by their number of operations. For programs
    with different commands a small number says little, and the steps then have nothing in
    common."""
    fewer, more = sorted(tree.operations / tree.steps for tree in (before, after))
    if more > ALIKE * fewer:
        return False
    if not has_same_words:
        return not have_other_operations(step_kind(base), step_kind(other))
    if more > LAYER:
        return True
    turns = _kernels_of_a_step(base, other)
    if turns is None:
        return not _have_other_work(before, after)
    return 1 / ALIKE <= turns <= ALIKE and _are_of_one_size(base, other)


# Part of the time of the steps that marks have to span: a module that a CUDA graph holds is called
# only while the graph is captured (1 % of a run), an optimizer between long compilations in 40 %.
_COVERS = 0.25


def _marked_step(base: Subject, other: Subject) -> WorkUnit | None:
    """The step that both programs mark at the same place, by its length in each."""
    before, after = _marked_lengths(base), _marked_lengths(other)
    places = [place for place in before if place in after]
    if not places:
        return None
    source, site = place = min(
        places, key=lambda place: (SOURCES_FIRST.index(place[0]), -after[place].marks)
    )
    factor = after[place].mean_ns / before[place].mean_ns
    unit = WorkUnit("step", site or source, factor=factor, is_sure=True)
    first, second = base.tree, other.tree
    if first is None or second is None or not (first.has_steps and second.has_steps):
        return unit
    scale = factor * first.step_mean_ns / second.step_mean_ns
    per_step = [tree.operations / tree.steps for tree in (first, second)]
    if 1 / ALIKE <= scale <= ALIKE and max(per_step) <= _SAME_RATIO * min(per_step):
        # The same step: marks of the warm-up and of pauses are in their mean, and in no step's.
        return WorkUnit("step", site or source, is_sure=True)
    return unit._replace(scale=scale)


def _may_be_one_program(base: Subject, other: Subject) -> bool:
    """Whether steps of two scripts that an optimizer of the same class ends may be one step before
    and after a cure: by their operations, or by kernels of the same size."""
    if not have_other_operations(step_kind(base), step_kind(other)):
        return True
    clocks = clock_change(base, other) or 1.0
    same = [
        (old.percent, new.percent)
        for _, old, new in _shared(base, other)
        if _is_of_one_size(old, new, clocks)
    ]
    return any(sum(percents) >= _CARRIES_PERCENT for percents in zip(*same, strict=True))


class _Marked(NamedTuple):
    """Marks of one source and site: how many, and the mean time from one to the next."""

    marks: int
    mean_ns: float


def _marked_lengths(subject: Subject) -> dict[tuple[StepSource, str], _Marked]:
    """The mean time in ns from one mark to the next, by source and site, over all processes and
    threads that make such marks. Marks that do not span the steps are left out."""
    run, tree = subject.run, subject.tree
    if run is None or tree is None:
        return {}
    means: dict[tuple[StepSource, str], list[_Marked]] = {}
    for steps in run.marked_steps.values():
        spans = steps.last_ns - steps.first_ns >= _COVERS * (tree.last_ns - tree.first_ns)
        mean_ns = steps.mean_ns
        if mean_ns and spans and steps.source in SOURCES_FIRST:
            marked = _Marked(steps.marks, mean_ns)
            means.setdefault((steps.source, steps.site), []).append(marked)
    return {
        place: _Marked(
            sum(each.marks for each in group), sum(each.mean_ns for each in group) / len(group)
        )
        for place, group in means.items()
    }


def _captured(run: Run, step: PhaseRow) -> int:
    """Instances of a step whose operations are known."""
    return step.instances if run.started.captured_part is None else step.projected.count


def _named_step(base: Subject, other: Subject) -> WorkUnit | None:
    """The step that both programs name alike by a range, and how many recognized steps each
    holds."""
    steps = [subject.run and main_step(subject.run, phase_rows(subject.run))
             for subject in (base, other)]  # fmt: skip
    before, after = steps
    if not before or not after or before.name != after.name:
        return None
    turns = [
        sum(sums.steps for sums in subject.run.loops.values())
        / max(1, _captured(subject.run, step))
        for subject, step in ((base, before), (other, after))
        if subject.run is not None
    ]
    if not all(turns):
        return None
    scale = turns[1] / turns[0]
    scale = 1.0 if 1 / ALIKE <= scale <= ALIKE else scale
    return WorkUnit("step", before.name, scale, is_sure=True)


def _scaled(unit: WorkUnit | None, base: Subject, other: Subject) -> WorkUnit | None:
    """A unit with a factor, and the scale of its steps. Of two lengths of a step, the second one is
    scaled so that both are of the same work."""
    before, after = base.tree, other.tree
    if unit is None or unit.factor is None or before is None or after is None:
        return unit
    if not (before.has_steps and after.has_steps):
        return unit
    scale = unit.factor * before.step_mean_ns / after.step_mean_ns
    # So near to one another both are the same step, of which the lengths are measured exactly.
    if 1 / _SAME_RATIO <= scale <= _SAME_RATIO:
        return WorkUnit("step", is_sure=True)
    return unit._replace(scale=scale, is_sure=True)


def _items_of_both(base: Subject, other: Subject) -> WorkUnit | None:
    """What both programs count a second, if it is one figure alone or all agree."""
    if base.run is None or other.run is None:
        return None
    for name, before in base.run.metrics.items():
        after = other.run.metrics.get(name)
        if _ITEMS.fullmatch(name) and _is_rate(before) and _is_rate(after):
            factor = float(before) / float(after)
            return WorkUnit("items", name, factor=1 / factor if name == "step_ms" else factor)
    return None


def _is_rate(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and value is not True and 0 < value < math.inf


def clock_change(base: Subject, other: Subject) -> float | None:
    """The clock of the GPU while the run used it over that in the first run; None if unknown."""
    clocks = [_clock(subject) for subject in (base, other)]
    before, after = clocks
    return after / before if before and after else None


def _clock(subject: Subject) -> float | None:
    devices = subject.run.devices if subject.run is not None else {}
    for index, name, series in subject.readings.gpu_series():
        if name == "sm_clock_mhz" and index in devices:
            return series.mean(used_span(devices[index]))
    return None


class _Launched(NamedTuple):
    """A kernel in one run: instances in a ns of its wall time, its mean length, its share."""

    per_ns: float
    average_ns: float
    percent: float


def _shared(base: Subject, other: Subject) -> list[tuple[str, _Launched, _Launched]]:
    """The kernels that both runs launch and that are main ones in at least one, the heaviest
    first."""
    before, after = _launched(base), _launched(other)
    shared = [
        (name, before[name], after[name])
        for name in before.keys() & after.keys()
        if max(before[name].percent, after[name].percent) >= MAIN_PERCENT
    ]
    return sorted(shared, key=lambda row: (-max(row[1].percent, row[2].percent), row[0]))


def _is_of_one_size(old: _Launched, new: _Launched, clocks: float) -> bool:
    """Whether a kernel takes about as long in both runs, with their clocks or without."""
    times = new.average_ns / old.average_ns
    return any(1 / _SAME_SIZE <= slowed * times <= _SAME_SIZE for slowed in (1.0, clocks))


def _are_of_one_size(base: Subject, other: Subject) -> bool:
    """Whether the heaviest common kernel does as much in both runs: the rows of a grid and the
    whole grid may have kernels of the same names."""
    _, first, second = _shared(base, other)[0]
    return _is_of_one_size(first, second, clock_change(base, other) or 1.0)


def _kernels_of_a_step(base: Subject, other: Subject) -> float | None:
    """How many times as many of the common kernels a recognized step of `other` launches; None
    without any."""
    before, after, shared = base.tree, other.tree, _shared(base, other)
    if not shared or before is None or after is None:
        return None
    _, first, second = shared[0]
    return second.per_ns * after.step_mean_ns / (first.per_ns * before.step_mean_ns)


def _kernels_of_both(base: Subject, other: Subject, *, has_same_words: bool) -> WorkUnit | None:
    """The work of the kernels that both runs launch, by how often they do so in a time.

    None unless the kernels that are launched in the same proportion carry most of what is common,
    each takes about as long in both runs, and together they are a large part of both. For the same
    program with other options, a large part of one run is enough: a cure leaves some kernels as
    they are, and these may take little of the faulty run's time.
    """
    shared = _shared(base, other)
    if not shared:
        return None
    name, first, second = shared[0]
    clocks = clock_change(base, other) or 1.0
    factor = first.per_ns / second.per_ns
    agreeing = [
        (old, new)
        for _, old, new in shared
        if 1 / _SAME_RATIO <= old.per_ns / new.per_ns / factor <= _SAME_RATIO
        and _is_of_one_size(old, new, clocks)
    ]
    weight = sum(max(old.percent, new.percent) for _, old, new in shared)
    agreed = sum(max(old.percent, new.percent) for old, new in agreeing)
    carried = sum(old.percent for old, _ in agreeing), sum(new.percent for _, new in agreeing)
    if (
        agreed < 0.6 * weight
        or (max(carried) if has_same_words else min(carried)) < _CARRIES_PERCENT
    ):
        return None
    return WorkUnit("work", short_name(name), factor=factor)


def _launched(subject: Subject) -> dict[str, _Launched]:
    """The kernels that came often enough to measure work, by name."""
    run, tree = subject.run, subject.tree
    if run is None or tree is None or not tree.wall_ns or subject.is_estimated:
        return {}
    operations = sum(device.operations for device in run.devices.values())
    # Of a run's kernels as many are of its steady steps as of all its operations.
    steady = min(1.0, tree.operations / operations) if operations else 0.0
    return {
        row.name: _Launched(
            row.instances * steady / tree.wall_ns, row.total / row.instances, row.percent
        )
        for row in kernel_rows(subject.session, run)
        if row.instances * steady >= FEWEST_INSTANCES
    }


# Figures that are of one step, by the kind of item.
_OF_A_STEP = {
    "step": ("mean_ns", "operations"),
    "cause": ("step_ns",),
    "phase": ("cpu_step_ns",),
    "kernel": ("step_ns",),
}

OF_OWN_STEPS = ("median_ns", "p99_ns", "slow_percent", "steps")
"""Figures of steps that mean nothing for a part of a step, or for several."""


def scaled(kind: str, entries: RunItems, unit: WorkUnit | None) -> RunItems:
    """The items of a run with its figures of a step as of the work of a step of the first run.
    Without a common unit they stay what they are."""
    if unit is None or unit.scale == 1.0 or kind not in _OF_A_STEP:
        return entries
    figures = _OF_A_STEP[kind]
    return {
        name: RunItem(
            entry.name,
            entry.short,
            {
                figure: _times(mean, unit.scale) if figure in figures else mean
                for figure, mean in entry.figures.items()
            },
        )
        for name, entry in entries.items()
    }


def _times(mean: Mean, scale: float) -> Mean:
    error = None if mean.error is None else mean.error * scale
    return Mean(mean.amount * scale, error, mean.freedom)


def is_of_step(kind: str, figure: str) -> bool:
    """Whether a figure is of steps, which two runs may not have in common."""
    return figure in _OF_A_STEP.get(kind, ()) or (kind == "step" and figure in OF_OWN_STEPS)
