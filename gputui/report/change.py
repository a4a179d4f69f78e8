"""The verdict on a comparison: how much faster, because of which causes, and what was changed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from gputui.model import units
from gputui.model.leaves import LEAF_OF_KEY, LEAVES
from gputui.model.naming import command_key, operands
from gputui.report.comparable import Subject, are_apart, step_kind
from gputui.report.compare import Comparison, Difference, Figure, Item
from gputui.report.statistics import Mean

TIMES = 1.5
"""From this factor on a change reads "1.5×", below it as a percentage."""

_FACTORS = 900.0
"""Percent of growth from which a change in tables is a factor."""

# From here on `.3g` would write the factor with an exponent.
_MOST_TIMES = 1000

PART = 0.1
"""Least part of the change that makes a cause worth naming."""

# Causes named in the sentence of each direction: chosen for its length, not measured.
MOST = 3
OTHER_STEP = 50.0
"""Change of the operations a step in percent from which a step may be another part of the program,
if it was found in the launches."""


class Change(msgspec.Struct, frozen=True):
    """One run against the first. `noise_percent` is of the first one's step time."""

    run: str
    word: str
    sentence: str
    because: str
    changed: str
    step_percent: float | None
    noise_percent: float | None


def changes(comparison: Comparison) -> list[Change]:
    """The verdict on each run after the first; none of those of which neither steps nor
    causes are known."""
    return [
        change
        for index in range(1, len(comparison.subjects))
        if (change := _change(comparison, index)) is not None
    ]


def _change(comparison: Comparison, index: int) -> Change | None:
    base, other = comparison.subjects[0], comparison.subjects[index]
    changed = _changed(base, other)
    lengths = [item.figures["mean_ns"] for item in comparison.of_kind("step")]
    difference = lengths[0].difference(index) if lengths else None
    if difference is None or difference.percent is None:
        if base.tree is None or other.tree is None:
            return None
        idle = next(item for item in comparison.of_kind("cause") if item.name == "idle")
        before, after = (
            _amount(idle.figures["share_percent"], run_index) for run_index in (0, index)
        )
        sentence = (
            f"No steps to compare: the GPU idles {units.percent(after)} of the time "
            f"in run {index + 1}, {units.percent(before)} in the baseline."
        )
        because = _because(comparison, index, "share_percent", None)
        return Change(other.label, "NO STEPS", sentence, because, changed, None, None)
    before, after = (_amount(lengths[0], run_index) for run_index in (0, index))
    noise = None if difference.noise is None else 100.0 * difference.noise / before
    shown = signed_percent(difference.percent)
    chance = difference.noise
    sure = "noise unknown" if chance is None else f"noise ±{units.duration(chance)}"
    sentence = (
        f"A step takes {units.duration(after)} in run {index + 1}, {units.duration(before)} in the "
        f"baseline: {signed_duration(difference.absolute)} ({shown}, {sure})."
    )
    may_differ = _words(base) != _words(other)
    if may_differ and are_apart(step_kind(base), step_kind(other)):
        return _not_comparable(comparison, index, before, after, changed)
    word = "ANOTHER WORKLOAD" if _are_others(base, other) else _word(before, after, difference)
    because = "" if word == "SAME" else _because(comparison, index, "step_ns", difference)
    return Change(
        other.label, word, sentence, because, changed, round(difference.percent, 3), noise
    )


def _not_comparable(
    comparison: Comparison, index: int, before: float, after: float, changed: str
) -> Change:
    """Of two runs whose steps have nothing in common: what they are, without which is faster."""
    base, other = comparison.subjects[0], comparison.subjects[index]
    figures = next(item.figures for item in comparison.of_kind("step"))
    each, others = (_amount(figures["operations"], run_index) for run_index in (0, index))
    sentence = (
        f"Not comparable: a step of run {index + 1} is {others:,.0f} operations in "
        f"{units.duration(after)}, one of the baseline {each:,.0f} in {units.duration(before)}, "
        "and they share no kernel of weight. Shares, power and memory can be compared."
    )
    same = _command(base) == _command(other)
    word = "DIFFERENT STEPS" if same else "DIFFERENT PROGRAMS"
    return Change(other.label, word, sentence, "", changed, None, None)


def _command(subject: Subject) -> tuple[str, ...]:
    started = subject.run.started if subject.run is not None else None
    return command_key(started.kind, started.name, started.arguments) if started else ()


def _words(subject: Subject) -> tuple[str, ...]:
    return operands(subject.run.started.arguments) if subject.run is not None else ()


def _are_others(base: Subject, other: Subject) -> bool:
    """Whether their steps do different things, of which none is the faster one."""
    runs = [subject.run.started for subject in (base, other) if subject.run is not None]
    return len({run.name for run in runs if run.kind == "workload"}) > 1


def step_change(before: Mean, after: Mean) -> str:
    """How a step's length changed, in a few words: "4.1× faster", "same" within noise."""
    difference = Figure("", (before, after)).difference(1)
    return "" if difference is None else _word(before.amount, after.amount, difference).lower()


def _word(before: float, after: float, difference: Difference) -> str:
    if difference.beyond_noise is False or not before or not after:
        return "SAME"
    ratio = before / after if after < before else after / before
    direction = "FASTER" if after < before else "SLOWER"
    if ratio >= TIMES:
        return f"{ratio:.1f}× {direction}"
    share = f"{abs(difference.percent or 0.0):.2g} %"
    return f"{share} {direction}" if ratio > 1.0 else "SAME"


def _because(comparison: Comparison, index: int, figure: str, difference: Difference | None) -> str:
    """The causes that moved, the largest first: those of the change, then those against it."""
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
            words = f"operations a step {before:,.0f} → {after:,.0f}"
            doubt = ": it may be another step" if abs(difference.percent) >= OTHER_STEP else ""
            return f"{words}{doubt}"
    return ""


def _difference_of(item: Item, figure: str, index: int) -> Difference | None:
    return item.figures[figure].difference(index) if figure in item.figures else None


def _amount(figure: Figure, index: int) -> float:
    value = figure.values[index]
    return value.amount if value is not None else math.nan


def _changed(base: Subject, other: Subject) -> str:
    """What was changed between two runs, and what of the rest is the same."""
    if base.run is None or other.run is None:
        return ""
    before, after = base.run.parameters, other.run.parameters
    differences = [
        f"{name}: {_asked(before, name)} → {_asked(after, name)}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    same = []
    facts = zip(_facts(base), _facts(other), strict=True)
    for (name, first), (_, second) in facts:
        if first == second:
            same.append(name)
        else:
            differences.append(f"{name}: {first} → {second}")
    words = ", ".join(differences) or "nothing that is recorded"
    return f"{words}. Same: {', '.join(same)}" if same else words


def _asked(parameters: Mapping[str, str | int | float | bool | None], name: str) -> str:
    return units.parameter(parameters[name]) if name in parameters else "unset"


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
