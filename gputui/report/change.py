"""The verdict on a comparison: how much faster, because of which causes, and what was changed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from gputui.model import units
from gputui.model.leaves import LEAF_OF_KEY, LEAVES
from gputui.model.naming import command_key
from gputui.report.common_unit import (
    StepKind,
    WorkUnit,
    are_of_other_workloads,
    have_other_operations,
    step_kind,
)
from gputui.report.comparable import Subject, step_mean
from gputui.report.compare import Comparison, Difference, Figure, Item
from gputui.report.explain import Analysis, conclusion
from gputui.report.statistics import Mean
from gputui.report.tables.energy import run_energy
from gputui.state import Run

TIMES = 1.5
"""From this factor on a change reads "1.5×", below it as a percentage."""

# Percent of growth from which a change in tables is a factor.
_FACTORS = 900.0

# From here on `.3g` would write the factor with an exponent.
_MOST_TIMES = 1000

PART = 0.1
"""Least part of the change that makes a cause worth naming."""

# Causes named in the sentence of each direction: chosen for its length, not measured.
MOST = 3
OTHER_STEP = 50.0
"""Change of the operations a step in percent from which a step may be another part of the program,
if it was found in the launches."""


UNCERTAIN_PERCENT = 10.0
"""Change of a step from which "same" would mislead where the noise is larger still: the mean of a
program that waits in every sixteenth step varies by half from one stretch to the next."""


class Change(msgspec.Struct, frozen=True):
    """One run against the first. `noise_percent` is of the first one's step time.

    `compared_by` is the work that both have in common: "step", "items" that the program counts, or
    "work" of kernels that both launch; None where there is none, and then no factor either.
    """

    run: str
    word: str
    sentence: str
    because: str
    changed: str
    step_percent: float | None
    noise_percent: float | None
    compared_by: str | None = None


def changes(comparison: Comparison) -> list[Change]:
    """The verdict on each run after the first; none where neither has steps or known causes."""
    return [
        change
        for index in range(1, len(comparison.subjects))
        if (change := _change(comparison, index)) is not None
    ]


def _change(comparison: Comparison, index: int) -> Change | None:
    base, other = comparison.subjects[0], comparison.subjects[index]
    unit = comparison.units[index]
    changed = _changed(base, other)
    lengths = [item.figures["mean_ns"] for item in comparison.of_kind("step")]
    have_steps = bool(lengths) and None not in (lengths[0].values[0], lengths[0].values[index])
    if not have_steps and (base.tree is None or other.tree is None):
        return _not_measured(comparison, index, changed)
    if unit is None and (have_steps or are_of_other_workloads(base, other)):
        return _not_comparable(comparison, index, changed)
    difference = lengths[0].difference(index) if have_steps else None
    if difference is None or difference.percent is None:
        return _without_steps(comparison, index, unit, changed)
    before, after = (_amount(lengths[0], run_index) for run_index in (0, index))
    noise = None if difference.noise is None else 100.0 * difference.noise / before
    shown = signed_percent(difference.percent)
    chance = difference.noise
    sure = "noise unknown" if chance is None else f"noise ±{units.duration(chance)}"
    takes = "A step takes" if unit is None or unit.has_same_step else _work_words(unit)
    sentence = (
        f"{takes} {units.duration(after)} in run {index + 1}, {units.duration(before)} in the "
        f"baseline: {signed_duration(difference.absolute)} ({shown}, {sure})."
    )
    word = _word(before, after, difference)
    because = "" if word == "SAME" else _because(comparison, index, "step_ns", difference)
    percent = round(difference.percent, 3)
    kind = unit.kind if unit is not None else None
    return Change(other.label, word, sentence, because, changed, percent, noise, kind)


def _work_words(unit: WorkUnit) -> str:
    """What is compared where a step of one run is another part of the program than of the other."""
    by = {"step": f"by {unit.name}", "items": f"by {unit.name}", "work": f"by its {unit.name}"}
    return f"The work of a step of the baseline, {by[unit.kind]}, takes"


def _without_steps(
    comparison: Comparison, index: int, unit: WorkUnit | None, changed: str
) -> Change:
    """The change between runs of which one has no steps: by the work that both do, otherwise by the
    shares alone."""
    other = comparison.subjects[index]
    idle = next(item for item in comparison.of_kind("cause") if item.name == "idle")
    before, after = (_amount(idle.figures["share_percent"], run_index) for run_index in (0, index))
    because = _because(comparison, index, "share_percent", None)
    idles = (
        f"the GPU idles {units.percent(after)} of the time in run {index + 1}, "
        f"{units.percent(before)} in the baseline"
    )
    if unit is None or unit.factor is None:
        sentence = f"No steps to compare: {idles}."
        return Change(other.label, "NO STEPS", sentence, because, changed, None, None)
    word = _factor_word(unit.factor)
    shown = signed_percent(100.0 * (unit.factor - 1.0))
    sentence = (
        f"The same work, by its {unit.name}, takes {shown} time in run {index + 1} (no steps to "
        f"compare, noise unknown): {idles}."
    )
    return Change(other.label, word, sentence, because, changed, None, None, unit.kind)


def _not_comparable(comparison: Comparison, index: int, changed: str) -> Change:
    """What two runs are whose steps have nothing in common; which is faster is not said."""
    base, other = comparison.subjects[0], comparison.subjects[index]
    if are_of_other_workloads(base, other):
        reason = "Other workloads do other work"
    elif _command(base) != _command(other):
        reason = "Different programs"
    else:
        reason = "Different steps"
    figures = next((item.figures for item in comparison.of_kind("step")), {})
    sides = []
    for name, run_index in ((f"run {index + 1}", index), ("the baseline", 0)):
        values = [figures[key].values[run_index] for key in ("operations", "mean_ns")
                  if key in figures]  # fmt: skip
        if len(values) == 2 and values[0] is not None and values[1] is not None:
            length = units.duration(values[1].amount)
            sides.append(f"a step of {name} is {values[0].amount:,.0f} operations in {length}")
    both = f": {', '.join(sides)}" if sides else ""
    sentence = (
        f"{reason}{both}; they have no step, no count of items and no kernels of the same size in "
        "common. Shares, power and memory can be compared."
    )
    return Change(other.label, NOT_COMPARABLE, sentence, "", changed, None, None)


def _not_measured(comparison: Comparison, index: int, changed: str) -> Change | None:
    """The change between runs of which one has neither steps nor a time tree, as old recordings;
    None if neither run has."""
    base, other = comparison.subjects[0], comparison.subjects[index]
    if base.run is None or other.run is None or (base.tree is None) is (other.tree is None):
        return None
    lacking = "the baseline" if base.tree is None else f"run {index + 1}"
    sentence = (
        f"Where the time of {lacking} went was not measured when it was recorded, and no steps "
        "are known. Power, memory and what the programs report can be compared."
    )
    return Change(other.label, NOT_COMPARABLE, sentence, "", changed, None, None)


NOT_COMPARABLE = "NOT COMPARABLE"


def _command(subject: Subject) -> tuple[str, ...]:
    started = subject.run.started if subject.run is not None else None
    return command_key(started.kind, started.name, started.arguments) if started else ()


def step_change(before: Mean, after: Mean) -> str:
    """How a step's length changed, in a few words: "4.1× faster", "same" within noise."""
    difference = Figure("", (before, after)).difference(1)
    return "" if difference is None else _word(before.amount, after.amount, difference).lower()


def _word(before: float, after: float, difference: Difference) -> str:
    if not before or not after:
        return "SAME"
    if difference.beyond_noise is False:
        return "SAME" if abs(difference.percent or 0.0) < UNCERTAIN_PERCENT else "UNCERTAIN"
    return _factor_word(after / before)


def _factor_word(factor: float) -> str:
    """A time over another one in words: "4.1× FASTER", "12 % SLOWER", "SAME"."""
    ratio = max(factor, 1 / factor)
    direction = "FASTER" if factor < 1 else "SLOWER"
    if ratio >= TIMES:
        return f"{ratio:.1f}× {direction}"
    share = f"{100 * abs(factor - 1):.2g} %"
    return f"{share} {direction}" if ratio > 1.0 else "SAME"


def _because(comparison: Comparison, index: int, figure: str, difference: Difference | None) -> str:
    """The causes that moved, the largest first: those in the direction of the change, then those
    against it."""
    moved: list[tuple[float, str]] = []
    whole = abs(difference.absolute) if difference else 100.0
    for item in comparison.of_kind("cause"):
        leaf = LEAF_OF_KEY.get(item.name)
        moved_by = _difference_of(item, figure, index) if leaf is not None else None
        if leaf is None or moved_by is None or moved_by.beyond_noise is False:
            continue
        if abs(moved_by.absolute) >= PART * whole:
            moved.append((moved_by.absolute, LEAVES[leaf].label))
    moved.sort(key=lambda cause: -abs(cause[0]))
    show = signed_duration if figure == "step_ns" else _points
    if difference is not None:
        falls = difference.absolute < 0
        helping = [cause for cause in moved if (cause[0] < 0) is falls]
        against = [cause for cause in moved if (cause[0] < 0) is not falls]
    else:
        helping, against = moved, []
    words = ", ".join(f"{label} {show(ns)}" for ns, label in helping[:MOST])
    if against:
        more = ", ".join(f"{label} {show(ns)}" for ns, label in against[:MOST])
        words = f"{words}; against it {more}" if words else f"against it {more}"
    operations = _operations(comparison, index) if difference is not None else ""
    return "; ".join(filter(None, (words, operations)))


def _operations(comparison: Comparison, index: int) -> str:
    for item in comparison.of_kind("step"):
        difference = _difference_of(item, "operations", index)
        if (
            difference is not None
            and difference.percent is not None
            and abs(difference.percent) >= 1.0
        ):
            before, after = (
                _amount(item.figures["operations"], run_index) for run_index in (0, index)
            )
            shown = [f"{amount:,.0f}" for amount in (before, after)]
            unit = comparison.units[index]
            is_doubtful = abs(difference.percent) >= OTHER_STEP and not (unit and unit.is_sure)
            doubt = ": it may be another step" if is_doubtful else ""
            return f"operations a step {' → '.join(shown)}{doubt}" if len({*shown}) > 1 else ""
    return ""


def _difference_of(item: Item, figure: str, index: int) -> Difference | None:
    return item.figures[figure].difference(index) if figure in item.figures else None


def _amount(figure: Figure, index: int) -> float:
    value = figure.values[index]
    return value.amount if value is not None else math.nan


def _changed(base: Subject, other: Subject) -> str:
    """What was changed between two runs, and which of the other facts are the same."""
    if base.run is None or other.run is None:
        return ""
    before, after = base.run.parameters, other.run.parameters
    names = dict.fromkeys((*before, *after))
    if base.run.started.name != other.run.started.name:  # another workload has others
        names = dict.fromkeys(name for name in before if name in after)
    asked = {name: (_asked(before, name), _asked(after, name)) for name in names}
    differences = [
        f"{name}: {first} → {second}" for name, (first, second) in asked.items() if first != second
    ]
    same = []
    facts = zip(_facts(base), _facts(other), strict=True)
    for (name, first), (_, second) in facts:
        if first == second:
            same.append(name)
        else:
            differences.append(f"{name}: {first} → {second}")
    # Ranges around every operator make a step longer: they are no change of the program.
    options = zip(_recorded_with(base.run), _recorded_with(other.run), strict=True)
    differences += [
        f"{name}: {first} → {second}" for (name, first), (_, second) in options if first != second
    ]
    words = ", ".join(differences) or "nothing that is recorded"
    return f"{words}. Same: {', '.join(same)}" if same else words


def _asked(parameters: Mapping[str, str | int | float | bool | None], name: str) -> str:
    return (units.parameter(parameters[name]) if name in parameters else "") or "unset"


def _recorded_with(run: Run) -> list[tuple[str, str]]:
    """Options of gputui that a program feels, or by which less of it is seen."""
    started = run.started
    return [
        ("--annotate", "shapes" if started.operator_shapes else started.annotate or "none"),
        ("captured", started.captured_part or "all"),
    ]


def _facts(subject: Subject) -> list[tuple[str, str]]:
    run, header = subject.run, subject.session.header
    assert run is not None
    gpus = [gpu.facts.name for gpu in subject.session.gpus.values()]
    command = run.started.name
    if run.started.kind == "command":
        command = " ".join(run.started.arguments)
    return [
        ("command", command),
        ("host", header.host.hostname if header else "unknown"),
        ("GPU", ", ".join(gpus) or "none"),
        ("driver", (header.driver_version if header else None) or "unknown"),
    ]


def signed_percent(value: float) -> str:
    """ "+3.20 %", "−75.3 %", from 10 times on "13.6×": +1,258.8 % nobody reads."""
    if not value:
        return "0 %"
    if value >= _FACTORS:
        times = 1 + value / 100
        return f"{times:.3g}×" if times < _MOST_TIMES else f">{_MOST_TIMES}×"
    if -100 < value < -99.9:
        return "<−99.9 %"
    digits = f"{abs(value):.2f}" if abs(value) < 10 else f"{abs(value):,.1f}"
    return f"{'−' if value < 0 else '+'}{digits} %"


def signed_duration(ns: float) -> str:
    """A change of a time with its sign and unit, such as "−3.95 ms"."""
    return f"{'−' if ns < 0 else '+'}{units.duration(abs(ns))}"


def _points(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{abs(share):.1f} points"


# Recorded runs of one command, by a few figures of each.


class RunFigures(msgspec.Struct, frozen=True):
    """The figures by which runs of one command are compared. None where nothing is known."""

    step: Mean | None = None
    rate: float | None = None
    """Of the first thing that the workload reports per second: tokens, if it has some."""
    busy_percent: float | None = None
    kind: StepKind | None = None
    cause: str = ""
    """The verdict's word with its share, "healthy", or the largest leaf with its share."""
    token_joules: float | None = None
    """Energy of a token, of all GPUs of the run together."""


def facts_of(subject: Subject) -> RunFigures:
    """The figures of a run; nothing is known of a recording without one."""
    run = subject.run
    if run is None:
        return RunFigures()
    analysis = Analysis(subject.session, run)
    concluded = conclusion(analysis)
    tree = concluded.tree if concluded is not None else None
    rates = [name for name in run.metrics if name.endswith("_per_s") and "bytes" not in name]
    rates.sort(key=lambda name: (name != "tokens_per_s", name))
    value = run.metrics.get(rates[0]) if rates else None
    energy = [gpu.token_joules for gpu in run_energy(run, analysis.tree)]
    facts = RunFigures(
        step_mean(subject),
        float(value) if isinstance(value, int | float) else None,
        token_joules=sum(filter(None, energy)) or None,
    )
    if concluded is not None and concluded.findings:
        cause = concluded.findings[0].headline.lower().replace(":", "")
        facts = replace(facts, cause=cause)
    if tree is None:
        return facts
    largest = max(tree.leaves, key=lambda leaf: tree.leaves[leaf])
    share = f"{LEAVES[largest].label} {100 * tree.share(tree.leaves[largest]):.0f} %"
    if concluded is not None and concluded.word == "HEALTHY":
        share = "healthy"
    return replace(
        facts,
        busy_percent=100 * (1 - tree.share(tree.idle_ns)),
        kind=step_kind(subject),
        cause=facts.cause or share,
    )


def change_between(
    before: RunFigures | None, after: RunFigures | None, has_same_words: bool
) -> str:
    """How the step's length changed, in a few words; "" where it is not known. The commands have
    the same words, or only options differ."""
    if before is None or after is None or before.step is None or after.step is None:
        return ""
    is_other = not has_same_words and have_other_operations(before.kind, after.kind)
    return "another step" if is_other else step_change(before.step, after.step)
