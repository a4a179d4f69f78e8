"""One run as a subject of a comparison, and its comparable parts, each with the error of its mean:
step, causes, metrics, devices, phases and kernels.

Also whether the steps of two runs do the same work: if they do not, neither run is the faster one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeGuard
from zlib import crc32

import msgspec

from gputui.model.events import DeviceDelta, StepSource
from gputui.model.leaves import LEAVES
from gputui.model.naming import operands, short_name
from gputui.model.sketch import Accumulator
from gputui.model.statistics import Statistics
from gputui.model.steps import SOURCES_FIRST
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.time_tree import LAYER, TimeTree
from gputui.report.phases import PhaseRow, main_step, outside_ns, phase_rows
from gputui.report.statistics import Mean, inflation, kernel_rows, mean_of_blocks
from gputui.report.tables.energy import (
    RunEnergy,
    energy_joules,
    joules_per_kernel_ns,
    run_energy,
    span_of,
    used_span,
)
from gputui.report.tables.memory import OUTSIDE
from gputui.state import BatchMeans, Readings, Reports, Run, Series, Session

# One of the runs that are compared.


@dataclass(frozen=True)
class Subject:
    """One run to compare, or the machine if no run was recorded, and its title."""

    label: str
    session: Session
    run: Run | None

    @property
    def readings(self) -> Readings:
        """Of the machine: during the run, or over the recording without one."""
        return self.session.readings if self.run is None else self.run.readings

    @cached_property
    def tree(self) -> TimeTree | None:
        """Where its time went, None where no operation was captured."""
        return None if self.run is None else Analysis(self.session, self.run).tree

    @cached_property
    def steps(self) -> float:
        """Steps of the program, with those of its warm-up: what totals are a step of."""
        if self.run is None or self.tree is None or not self.tree.has_steps:
            return 0.0
        if self.tree.marked_by:
            return self.tree.program_steps
        all_steps = sum(sums.steps for sums in self.run.loops.values())
        return all_steps * self.tree.program_steps / self.tree.steps

    @cached_property
    def widening(self) -> float:
        """How much less certain a mean is than its instances say, because they are alike."""
        return 1.0 if self.tree is None else inflation(self.tree.step_mean, self.tree.step_ns)

    @property
    def on_gpu(self) -> bool:
        """Whether anything ran on a GPU."""
        return self.run is not None and bool(self.run.devices)

    @property
    def is_estimated(self) -> bool:
        """Whether kernels were traced part of the time only, and figures are for all of it."""
        run = self.run
        return run is not None and run.traced_share < 1 and run.started.captured_part is None

    @property
    def started_ns(self) -> int:
        return self.session.started_ns if self.run is None else self.run.started.time_ns

    @property
    def duration_ns(self) -> int:
        return self.readings.duration_ns if self.run is None else self.run.duration_ns


@dataclass(slots=True)
class Entry:
    """An item in one run."""

    name: str
    short: str
    figures: dict[str, Mean] = field(default_factory=dict)


Entries = dict[str, Entry]


def _metrics(subject: Subject) -> Entries:
    if subject.run is None:
        return {}
    reported = subject.run.reported
    return {
        name: Entry(name, name, {"value": _metric(float(value), reported.get(name))})
        for name, value in subject.run.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _metric(value: float, reports: Reports | None) -> Mean:
    if reports is None or reports.only_rises:
        return Mean(value)
    return _of_stretches(value, reports.spread)


def _of_stretches(amount: float, spread: BatchMeans) -> Mean:
    deviation, count = spread.stretch_deviation, spread.stretches
    if deviation is None:
        return Mean(amount)
    return Mean(amount, deviation / math.sqrt(count), count - 1.0)


def _devices(subject: Subject) -> Entries:
    readings = subject.readings
    entries: Entries = {}
    devices = subject.run.devices if subject.run else {}
    span = span_of(subject.run) if subject.run else (readings.first_ns, readings.last_ns)
    for index, name, series in readings.gpu_series():
        mean = series.mean_of_all(span)
        _figure(entries, f"gpu{index}", name, None if mean is None else _of_stretches(mean, series))
        in_use = _in_use(series, devices.get(index))
        _figure(entries, f"gpu{index}", f"in_use_{name}", in_use)
    if subject.run is None:
        for index in sorted({index for index, _, _ in readings.gpu_series()}):
            energy = energy_joules(readings, index, span)
            _figure(entries, f"gpu{index}", "energy_joules", _value(energy[0] if energy else None))
    for row in run_energy(subject.run, subject.tree) if subject.run else ():
        for name, amount in _ENERGIES.items():
            _figure(entries, f"gpu{row.gpu}", name, _value(amount(row)))
    for index, device in sorted(devices.items()):
        _figure(entries, f"gpu{index}", "gpu_busy_ns", Mean(float(device.busy_ns)))
    for name, series in readings.host.sampled():
        _figure(entries, "host", name, _mean(series))
    return entries


def _in_use(series: Series, device: DeviceDelta | None) -> Mean | None:
    """While the run used the GPU; its error from the readings of that time, in parts of it."""
    span = used_span(device)
    mean = series.mean(span)
    if mean is None or span is None:
        return _value(mean)
    stretches = [
        (float(until_ns - since_ns), rate * (until_ns - since_ns))
        for since_ns, until_ns, rate in series.integral.rates(*span)
    ]
    size = max(1, -(-len(stretches) // _PARTS))
    blocks_of_stretches = [
        stretches[start : start + size] for start in range(0, len(stretches), size)
    ]
    blocks = [
        (sum(ns for ns, _ in part), sum(area for _, area in part)) for part in blocks_of_stretches
    ]
    mean_in_use = mean_of_blocks(blocks) if blocks else Mean(mean)
    return Mean(mean, mean_in_use.error, mean_in_use.freedom)


# Into which the readings of a time are divided, for those beside each other are alike.
_PARTS = 16

_ENERGIES: dict[str, Callable[[RunEnergy], float | None]] = {
    "energy_joules": lambda row: row.joules,
    "used_joules": lambda row: row.used_joules,
    "used_idle_joules": lambda row: row.used_idle_joules,
    "unused_joules": lambda row: row.unused_joules,
    "step_joules": lambda row: row.step_joules,
    "token_joules": lambda row: row.token_joules,
}


def _value(amount: float | None) -> Mean | None:
    return None if amount is None else Mean(amount)


def _figure(entries: Entries, name: str, figure: str, value: Mean | None) -> None:
    if value is not None:
        entries.setdefault(name, Entry(name, name)).figures[figure] = value


def _mean(spread: BatchMeans) -> Mean | None:
    if spread.average is None:
        return None
    return _of_stretches(spread.average, spread)


def _average(times: Statistics, wider: float) -> Mean | None:
    """Of instances, `wider` times less certain than if they were independent."""
    if times.average is None:
        return None
    if times.count < 2 or times.deviation is None:
        return Mean(times.average)
    error = wider * times.deviation / math.sqrt(times.count)
    return Mean(times.average, error, max(1.0, times.count / (wider * wider) - 1.0))


def _steps(subject: Subject) -> Entries:
    tree = subject.tree
    if subject.run is not None and tree is None and not subject.run.kernels:
        return _steps_on_cpu(subject.run)
    if tree is None or not tree.has_steps:
        return {}
    median, p99 = tree.step_ns.median, tree.step_ns.percentile(99)
    figures = {
        "mean_ns": tree.step_mean,
        "median_ns": None if median is None else Mean(median),
        "p99_ns": None if p99 is None else Mean(p99),
        "operations": Mean(tree.operations / tree.steps),
        "slow_percent": Mean(100.0 * tree.slow_steps / tree.steps),
        "steps": Mean(float(tree.program_steps)),
    }
    present = {name: value for name, value in figures.items() if value is not None}
    return {"step": Entry("step", "step", present)}


def step_mean(subject: Subject) -> Mean | None:
    """The length of a step; where no time was accounted for, of the ranges of the main step."""
    if subject.run is not None and subject.tree is None:
        entries = _steps_on_cpu(subject.run)
    else:
        entries = _steps(subject)
    return entries["step"].figures["mean_ns"] if entries else None


def _steps_on_cpu(run: Run) -> Entries:
    """Of a run without GPU work: the ranges of its main step."""
    step = main_step(run, phase_rows(run))
    mean = None if step is None else _average(step.cpu, 1.0)
    if step is None or mean is None:
        return {}
    figures = {"mean_ns": mean, "steps": Mean(float(step.instances))}
    for name, value in (("median_ns", step.cpu.median), ("p99_ns", step.cpu.percentile(99))):
        if value is not None:
            figures[name] = Mean(value)
    return {"step": Entry("step", "step", figures)}


def _causes(subject: Subject) -> Entries:
    """The leaves; those that took no time are 0, so that every run has the same."""
    tree = subject.tree
    if tree is None:
        return {}
    sums = {"idle": float(tree.idle_ns), "busy": float(tree.wall_ns - tree.idle_ns)}
    entries = {name: _cause(name, tree, ns, None) for name, ns in sums.items()}
    for leaf, meaning in LEAVES.items():
        ns = tree.leaves.get(leaf, 0)
        entries[meaning.key] = _cause(meaning.key, tree, ns, tree.leaf_mean(leaf))
    return entries


def _cause(name: str, tree: TimeTree, ns: float, mean: Mean | None) -> Entry:
    a_step = tree.a_step(ns)
    share = Mean(100.0 * tree.share(ns))
    if mean is not None and mean.error is not None and tree.step_mean_ns:
        share = Mean(share.amount, 100.0 * mean.error / tree.step_mean_ns, mean.freedom)
    figures = {"share_percent": share}
    if a_step is not None:
        figures["step_ns"] = mean or Mean(a_step)
    return Entry(name, name, figures)


def _phases(subject: Subject) -> Entries:
    if subject.run is None:
        return {}
    groups: dict[str, list[PhaseRow]] = {}
    for row in phase_rows(subject.run):
        domain = f"{row.domain}:" if row.domain else ""
        rank = f"rank {row.rank}: " if row.rank is not None else ""
        name = f"{rank}{domain}{row.path}"
        groups.setdefault(name, []).append(row)
    entries = {name: _phase(subject, name, rows) for name, rows in groups.items()}
    joules = joules_per_kernel_ns(subject.run, subject.tree)
    for name, entry in entries.items():
        kernel_ns = sum(row.kernel_ns for row in groups[name])
        if joules is not None and kernel_ns:
            entry.figures["energy_joules"] = Mean(kernel_ns * joules)
    if not subject.on_gpu and (ns := outside_ns(subject.run)):
        # What else says where such a run's time went?
        figures = dict.fromkeys(("cpu_avg_ns", "cpu_total_ns"), Mean(float(ns)))
        entries[OUTSIDE] = Entry(OUTSIDE, OUTSIDE, figures)
    return entries


def _phase(subject: Subject, name: str, rows: list[PhaseRow]) -> Entry:
    cpu = Accumulator.merged(row.cpu for row in rows)
    wider, steps = subject.widening, subject.steps
    projected = Accumulator.merged(row.projected for row in rows)
    instances = cpu.count
    averages = {
        "cpu_avg_ns": _average(cpu, wider),
        "gpu_projected_avg_ns": _average(projected, wider),
    }
    entry = Entry(name, rows[0].name)
    entry.figures = {key: value for key, value in averages.items() if value is not None}
    totals: dict[str, int] = {"instances": instances, "cpu_total_ns": cpu.total}
    if subject.is_estimated:
        # Counts of windows would be compared with counts of all.
        entry.figures |= _estimated(rows)
    elif subject.on_gpu:
        busy_ns = sum(row.gpu_busy_ns for row in rows)
        launches = _known_sum(row.launches for row in rows)
        copied = _known_sum(row.memcpy_bytes for row in rows)
        if instances:
            entry.figures["gpu_busy_avg_ns"] = Mean(busy_ns / instances)
        totals |= {
            "gpu_busy_ns": busy_ns,
            "gpu_total_ns": sum(row.gpu_total_ns for row in rows),
            "gpu_projected_ns": projected.total,
            "kernels": sum(row.kernels for row in rows),
            **({} if launches is None else {"launches": launches}),
            **({} if copied is None else {"memcpy_bytes": copied}),
        }
    entry.figures |= {key: Mean(float(total)) for key, total in totals.items()}
    if steps:
        entry.figures["cpu_step_ns"] = Mean(cpu.total / steps)
    return entry


def _estimated(rows: list[PhaseRow]) -> dict[str, Mean]:
    """The GPU time of a phase of whose kernels only windows were traced, if one saw it."""
    estimates = [row.gpu_estimate for row in rows]
    present = [estimate for estimate in estimates if estimate is not None]
    if len(present) < len(estimates):
        return {}
    if len(present) == 1:
        return {"gpu_total_ns": present[0]}
    return {"gpu_total_ns": Mean(sum(estimate.amount for estimate in present))}


def _known_sum(amounts: Iterable[int | None]) -> int | None:
    """None if one is not known."""
    values = [*amounts]
    return None if None in values else sum(value for value in values if value is not None)


def _kernels(subject: Subject) -> Entries:
    if subject.run is None:
        return {}
    entries: Entries = {}
    for row in kernel_rows(subject.session, subject.run):
        average = _average(row.times, subject.widening)
        if average is not None:
            figures = {"avg_ns": average}
            if not subject.is_estimated:
                figures["total_ns"] = Mean(float(row.total))
                figures["instances"] = Mean(float(row.instances))
            if subject.steps and not subject.is_estimated:
                figures["step_ns"] = Mean(row.total / subject.steps)
            entries[row.name] = Entry(row.name, row.short_name, figures)
    return entries


ENTRIES_OF: dict[str, Callable[[Subject], Entries]] = {
    "step": _steps, "cause": _causes, "metric": _metrics, "device": _devices, "phase": _phases,
    "kernel": _kernels,
}  # fmt: skip

EFFECTS = {
    "cause": ("step_ns", "share_percent"),
    "phase": ("cpu_step_ns", "cpu_total_ns"),
    "kernel": ("step_ns", "total_ns"),
}
"""By which figures the items of a kind are sorted: the first that is known."""


# What two runs have in common by which one can be the faster one: the same step, what the program
# counts itself, or the same kernels. Of runs without any of these none is.

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


class Unit(NamedTuple):
    """The work by which a run is compared with the first one.

    `factor` is the time it takes in the run over the time in the first one, None where the steps
    themselves say so; `name` is the step's, the metric's or the kernel's. Figures of a step are
    multiplied by `scale` to be of as much work as a step of the first run: 1 where both runs have
    the same step.
    """

    kind: Literal["step", "items", "work"]
    name: str = ""
    scale: float = 1.0
    factor: float | None = None
    is_sure: bool = False
    """Whether more than the recognized steps say that they are the same: a name, or kernels."""

    @property
    def has_same_step(self) -> bool:
        """Whether the recognized steps are the same work, but for what they leave out."""
        return 1 / _SAME_RATIO <= self.scale <= _SAME_RATIO


def common_unit(base: Subject, other: Subject) -> Unit | None:
    """By what `other` is compared with `base`; None if nothing makes them comparable.

    In this order: a step that both programs mark or name; steps that were recognized, with a
    similar number of operations; items that the program counts a second; kernels that both launch,
    in the same proportions and of the same size; and of the same program with other options the
    steps as they were recognized.
    """
    before, after = base.tree, other.tree
    if are_of_other_workloads(base, other):
        return None
    if before is None or after is None:
        return Unit("step")
    if (marked := _marked_step(base, other)) is not None:
        return marked
    has_steps = before.has_steps and after.has_steps
    if has_steps and (named := _named_step(base, other)) is not None:
        return named
    has_same_words = _operands(base) == _operands(other)
    if has_steps and _are_alike(base, other, before, after, has_same_words=has_same_words):
        return Unit("step")
    work = _kernels_of_both(base, other, has_same_words=has_same_words)
    unit = _scaled(_items_of_both(base, other) or work, base, other)
    if unit is not None or not (has_steps and has_same_words):
        return unit
    turns = _kernels_of_a_step(base, other)
    if turns is None:
        return None if _have_other_work(before, after) else Unit("step")
    is_same = 1 / ALIKE <= turns <= ALIKE and _are_of_one_size(base, other)
    return Unit("step") if is_same else None


def _have_other_work(before: TimeTree, after: TimeTree) -> bool:
    """Whether a step that mostly idles gives the GPU much less to do than one of the other run: it
    is then a part of that. Launching and waiting less leaves the work as it is. A row of a grid
    took 15 µs of 172, all of it at once 2.9 ms."""
    for idle, fuller in ((before, after), (after, before)):
        busy_ns = [tree.step_mean_ns * (1.0 - tree.share(tree.idle_ns)) for tree in (idle, fuller)]
        if idle.share(idle.idle_ns) >= 0.5 and busy_ns[1] > APART * busy_ns[0]:
            return True
    return False


def are_of_other_workloads(base: Subject, other: Subject) -> bool:
    """Whether both are workloads of gputui's, and not the same one."""
    runs = [subject.run.started for subject in (base, other) if subject.run is not None]
    return len({run.name for run in runs if run.kind == "workload"}) > 1


def _operands(subject: Subject) -> tuple[str, ...]:
    return operands(subject.run.started.arguments) if subject.run is not None else ()


def _are_alike(
    base: Subject, other: Subject, before: TimeTree, after: TimeTree, *, has_same_words: bool
) -> bool:
    """Whether recognized steps are the same: by the number of their operations, which of programs
    with other words tells little where it is small, and nothing is common."""
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


def _marked_step(base: Subject, other: Subject) -> Unit | None:
    """The step that both programs mark at the same place, by its own length."""
    before, after = _marked_lengths(base), _marked_lengths(other)
    places = [place for place in before if place in after]
    if not places:
        return None
    source, site = place = min(
        places, key=lambda place: (SOURCES_FIRST.index(place[0]), -after[place].marks)
    )
    factor = after[place].mean_ns / before[place].mean_ns
    unit = Unit("step", site or source, factor=factor, is_sure=True)
    first, second = base.tree, other.tree
    if first is None or second is None or not (first.has_steps and second.has_steps):
        return unit
    return unit._replace(scale=factor * first.step_mean_ns / second.step_mean_ns)


class _Marked(NamedTuple):
    """Marks of one source and site: how many, and the mean time from one to the next."""

    marks: int
    mean_ns: float


def _marked_lengths(subject: Subject) -> dict[tuple[StepSource, str], _Marked]:
    """By source and site, the mean time in ns from one mark to the next, over the processes and
    threads that make them; without those that do not span the steps."""
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


def _named_step(base: Subject, other: Subject) -> Unit | None:
    """The step that both programs name alike by a range, and how many recognized steps each
    holds."""
    steps = [subject.run and main_step(subject.run, phase_rows(subject.run))
             for subject in (base, other)]  # fmt: skip
    before, after = steps
    if not before or not after or before.name != after.name:
        return None
    turns = [
        sum(sums.steps for sums in subject.run.loops.values()) / step.instances
        for subject, step in ((base, before), (other, after))
        if subject.run is not None
    ]
    if not all(turns):
        return None
    scale = turns[1] / turns[0]
    scale = 1.0 if 1 / ALIKE <= scale <= ALIKE else scale
    return Unit("step", before.name, scale, is_sure=True)


def _scaled(unit: Unit | None, base: Subject, other: Subject) -> Unit | None:
    """A unit with a factor, and what its steps are to be multiplied by: of two lengths of a step,
    the second one so that both are of the same work."""
    before, after = base.tree, other.tree
    if unit is None or unit.factor is None or before is None or after is None:
        return unit
    if not (before.has_steps and after.has_steps):
        return unit
    scale = unit.factor * before.step_mean_ns / after.step_mean_ns
    # So near to one another both are the same step, of which the lengths are measured exactly.
    if 1 / _SAME_RATIO <= scale <= _SAME_RATIO:
        return Unit("step", is_sure=True)
    return unit._replace(scale=scale, is_sure=True)


def _items_of_both(base: Subject, other: Subject) -> Unit | None:
    """What both programs count a second, if it is one figure alone or all agree."""
    if base.run is None or other.run is None:
        return None
    for name, before in base.run.metrics.items():
        after = other.run.metrics.get(name)
        if _ITEMS.fullmatch(name) and _is_rate(before) and _is_rate(after):
            factor = float(before) / float(after)
            return Unit("items", name, factor=1 / factor if name == "step_ms" else factor)
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
    """The kernels that both launch, and that are main ones in either: those of weight first."""
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
    """Whether the common kernel of most weight does as much in both: rows of a grid and the whole
    of it may have kernels of the same names."""
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


def _kernels_of_both(base: Subject, other: Subject, *, has_same_words: bool) -> Unit | None:
    """The work of kernels that both runs launch, by how often they do in a time.

    None unless those that are launched in the same proportion carry most of what is common, each
    takes about as long in both, and together they are much of both runs. Of one program with other
    options much of one run is enough: a cure leaves some kernels as they are, which may take little
    of the faulty run's time.
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
    return Unit("work", short_name(name), factor=factor)


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


def scaled(kind: str, entries: Entries, unit: Unit | None) -> Entries:
    """Entries of a run with its figures of a step as of the work of a step of the first run.
    Without a common unit they stay what they are."""
    if unit is None or unit.scale == 1.0 or kind not in _OF_A_STEP:
        return entries
    figures = _OF_A_STEP[kind]
    return {
        name: Entry(
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
