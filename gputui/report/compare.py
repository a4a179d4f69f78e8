"""Runs side by side: what differs, and whether by more than the steps of one run do.

Also the conditions of `--fail-if`, under which a comparison fails: what a CI job asks of two
recordings. The parts that are compared come from `comparable`, the verdict on them is in `change`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gputui.base import GputuiError
from gputui.model.kernel_categories import category
from gputui.report.alerts import ANY_GPU, Threshold
from gputui.report.common_unit import (
    OF_OWN_STEPS,
    WorkUnit,
    clock_change,
    common_unit,
    is_of_step,
    scaled,
)
from gputui.report.comparable import EFFECTS, ENTRIES_OF, RunItem, RunItems, Subject
from gputui.report.explain.verdict import share_in_the_loop
from gputui.report.statistics import Mean, noise

CLOCKS_DIFFER = 0.15
"""Change of the clock from which a remark says so. Of recordings of one program on one kind of card
the mean clocks while it was in use differ by up to 10 %, with power and temperature."""

NOISE_RULE = (
    "Noise is half the 95 % interval of the difference of two means. The error of a mean comes "
    "from blocks of steps, from 16 to 31 stretches of a device's readings, or from stretches of a "
    "metric's reports; a difference beyond it is more than chance."
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A run against the baseline. `noise` and `beyond_noise` are None where the error of one of the
    means is not known."""

    absolute: float
    percent: float | None
    noise: float | None = None
    beyond_noise: bool | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure in every run; None where a run does not have it. `apart` are the runs in which the
    figure is of other work than in the first run."""

    name: str
    values: tuple[Mean | None, ...]
    apart: frozenset[int] = frozenset()

    def difference(self, index: int) -> Difference | None:
        """Run `index` against the first; None if one of them lacks the figure, or if they cannot be
        compared."""
        base, other = self.values[0], self.values[index]
        if base is None or other is None or index in self.apart:
            return None
        absolute = other.amount - base.amount
        percent = 100.0 * absolute / base.amount if base.amount else None
        chance = noise(base, other)
        beyond = None if chance is None else abs(absolute) > chance
        return Difference(absolute, percent, chance, beyond)

    @property
    def effect(self) -> float:
        """The largest difference of any run; what a run lacks counts as 0."""
        amounts = [
            value.amount if value else 0.0
            for index, value in enumerate(self.values)
            if index not in self.apart
        ]
        return max(abs(amount - amounts[0]) for amount in amounts)


@dataclass(frozen=True, slots=True)
class Item:
    """A step, cause, metric, device, phase or kernel with its figures.

    `present` says which runs have it, `short` is the last part of a path, or a
    kernel's name without its arguments; `was` is the name in the baseline if it was renamed.
    """

    kind: str
    name: str
    short: str
    figures: dict[str, Figure]
    present: tuple[bool, ...]
    was: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was compared, and the items that some run lacks."""

    subjects: tuple[Subject, ...]
    items: tuple[Item, ...]
    units: tuple[WorkUnit | None, ...] = ()
    """The work by which each run is compared with the first, None where nothing is common."""

    def of_kind(self, kind: str) -> list[Item]:
        """The items of a kind: step, cause, metric, device, phase or kernel."""
        return [item for item in self.items if item.kind == kind]

    @property
    def missing(self) -> list[Item]:
        """The items that some run does not have; what only runs have is not missing if none was
        recorded.
        """
        return [
            item
            for item in self.items
            if item.kind not in ("step", "cause")
            and not all(
                there or (subject.run is None and item.kind != "device")
                for there, subject in zip(item.present, self.subjects, strict=True)
            )
        ]

    def lacking(self, item: Item) -> list[str]:
        """The titles of the runs that do not have it."""
        there = zip(self.subjects, item.present, strict=True)
        return [subject.label for subject, present in there if not present]

    @property
    def remarks(self) -> list[str]:
        """What cannot be compared, and why, one line each."""
        alone = [subject.label for subject in self.subjects if subject.run is None]
        if not alone:
            return [*self._without_steps, *self._in_windows, *self._of_other_clocks]
        which = (
            "none of them holds a run"
            if len(alone) == len(self.subjects)
            else (f"no run was recorded in {', '.join(alone)}")
        )
        return [f"{which}: devices are compared, phases, kernels and metrics cannot be"]

    @property
    def _in_windows(self) -> list[str]:
        labels = [subject.label for subject in self.subjects if subject.is_estimated]
        if not labels:
            return []
        return [
            f"kernels were traced part of the time in {', '.join(labels)}: GPU times of phases are "
            "estimated by occurrences, and counts are not compared"
        ]

    @property
    def _of_other_clocks(self) -> list[str]:
        """Runs whose GPU had another clock: their times differ for this alone."""
        base = self.subjects[0]
        changes = {subject.label: clock_change(base, subject) for subject in self.subjects[1:]}
        return [
            f"the GPU's clock in {label} was {100 * change:.0f} % of that in {base.label}: times "
            "differ for this alone"
            for label, change in changes.items()
            if change is not None and abs(change - 1) >= CLOCKS_DIFFER
        ]

    @property
    def _without_steps(self) -> list[str]:
        trees = [(subject.label, subject.tree) for subject in self.subjects]
        without = [label for label, tree in trees if tree is not None and not tree.has_steps]
        if not without or any(tree is None for _, tree in trees):
            return []
        which = "any of them" if len(without) == len(trees) else ", ".join(without)
        return [f"no steps were found in {which}: causes are compared by their shares"]

    @property
    def renamed(self) -> list[Item]:
        """The items with another name in the baseline."""
        return [item for item in self.items if item.was is not None]


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Compare two or more runs with the first. Raises ValueError for fewer than two."""
    if len(subjects) < 2:
        raise ValueError("give at least two runs to compare")
    items: list[Item] = []
    units = (WorkUnit("step"), *(common_unit(subjects[0], other) for other in subjects[1:]))
    for kind, entries_of in ENTRIES_OF.items():
        entries = [
            scaled(kind, entries_of(subject), unit)
            for subject, unit in zip(subjects, units, strict=True)
        ]
        renames = _renames(entries, kind) if kind in ("phase", "kernel") else {}
        kind_items = list(_items(kind, entries, renames, units))
        if kind in EFFECTS:
            kind_items.sort(key=lambda item: -_effect(item, EFFECTS[kind]))
        items += kind_items
    return Comparison(tuple(subjects), tuple(items), units)


def _effect(item: Item, names: Sequence[str]) -> float:
    figures = [item.figures[name] for name in names if name in item.figures]
    return figures[0].effect if figures else 0.0


def _apart(kind: str, figure: str, units: Sequence[WorkUnit | None]) -> frozenset[int]:
    """The runs in which a figure is of other work than in the first one."""
    if not is_of_step(kind, figure):
        return frozenset()
    return frozenset(
        index
        for index, unit in enumerate(units)
        if unit is None or (not unit.has_same_step and figure in OF_OWN_STEPS)
    )


def _items(
    kind: str, entries: list[RunItems], renames: dict[str, str], units: Sequence[WorkUnit | None]
) -> Iterable[Item]:
    """One item per name, in the order of the first run that has it."""
    new_names = set(renames.values())
    for name in dict.fromkeys(name for run_entries in entries for name in run_entries):
        if name in new_names:
            continue
        new = renames.get(name)
        row = [
            run_entries.get(name) or (run_entries.get(new) if new else None)
            for run_entries in entries
        ]
        figures = dict.fromkeys(figure for entry in row if entry for figure in entry.figures)
        first = next(entry for entry in row if entry is not None)
        yield Item(
            kind=kind,
            name=new or name,
            short=first.short,
            figures={
                figure: Figure(
                    figure,
                    tuple(entry.figures.get(figure) if entry else None for entry in row),
                    _apart(kind, figure, units),
                )
                for figure in figures
            },
            present=tuple(entry is not None for entry in row),
            was=name if new else None,
        )


def _renames(entries: list[RunItems], kind: str) -> dict[str, str]:
    """Old name → new name, if one name of the baseline is in no other run, and a similar one is in
    all other runs but not in the baseline.
    """
    base, others = entries[0], entries[1:]
    gone = _by_short(entry for name, entry in base.items() if not any(name in o for o in others))
    came = _by_short(
        entry
        for name, entry in others[0].items()
        if name not in base and all(name in other for other in others)
    )
    renamed = {
        gone[short][0].name: came[short][0].name
        for short in gone.keys() & came.keys()
        if len(gone[short]) == len(came[short]) == 1
        and (kind != "kernel" or _are_near(gone[short][0].name, came[short][0].name))
    }
    return renamed | _renamed_parents(renamed, gone, came)


def _are_near(old: str, new: str) -> bool:
    """Whether two names of one function belong to one kernel. The template arguments that say what
    it does must be equal; only numbers and data types may differ."""
    words = [set(_WORDS.findall(name)) for name in (old, new)]
    same = len(words[0] & words[1])
    return category(old) == category(new) and same >= _NEAR * len(words[0] | words[1])


_WORDS = re.compile(r"[^\W\d]\w{3,}")
# Share of the words of two names that is in both from which they are near.
_NEAR = 0.75


def _renamed_parents(
    renames: dict[str, str], gone: dict[str, list[RunItem]], came: dict[str, list[RunItem]]
) -> dict[str, str]:
    """The phases around renamed ones: if all the renamed phases of one lie in one other, and
    neither is in both runs, the enclosing phase was renamed.
    """
    old_shorts = {entry.name: short for short, entries in gone.items() for entry in entries}
    new_shorts = {entry.name: short for short, entries in came.items() for entry in entries}
    renamed_parents: dict[str, str] = {}
    inner = renames
    while inner:
        around: dict[str, set[str]] = {}
        for old, new in inner.items():
            outer = _outer(new, new_shorts[new])
            around.setdefault(_outer(old, old_shorts[old]), set()).add(outer)
        all_renames = {**renames, **renamed_parents}
        pairs = [
            (old, new)
            for old, [new, *more] in around.items()
            if not more and old in old_shorts and new in new_shorts and old not in all_renames
        ]
        uses = Counter([*all_renames.values(), *(new for _, new in pairs)])
        inner = {old: new for old, new in pairs if uses[new] == 1}
        renamed_parents |= inner
    return renamed_parents


def _outer(path: str, last: str) -> str:
    return path.removesuffix(last).removesuffix("/")


def _by_short(entries: Iterable[RunItem]) -> dict[str, list[RunItem]]:
    entries_by_short: dict[str, list[RunItem]] = {}
    for entry in entries:
        entries_by_short.setdefault(entry.short, []).append(entry)
    return entries_by_short


# Conditions under which a comparison fails: what a CI job asks of two recordings.
#
#     decode.gpu_busy_ns>+5%        grew by more than 5 % over the baseline
#     decode.cpu_avg_ns>+200000     grew by more than that many ns
#     tokens_per_s<-3%              a metric shrank by more than 3 %
#     gpu0.temperature_celsius>80   is over 80, whatever the baseline was
#     idle.launch>40%               the GPU waits for launches over 40 % of the time
#     idle.launch>+5%               that share grew by more than 5 points
#     step.mean_ns>+3%              a step takes over 3 % longer
#
# A phase goes by its path or its last part, a kernel by its name or its short name. Figures of
# gpu0, or of gpu for any, and of host are means; with `for` they are readings (`alerts`).


NOT_COMPARABLE = 3
"""Exit status of a condition that two runs have no common work for."""


class NotComparableError(GputuiError):
    """A condition is of work that two runs do not have in common. One line."""

    exit_status = NOT_COMPARABLE


class Condition(Threshold, frozen=True):
    """A condition on a comparison."""

    def tripped(self, comparison: Comparison) -> list[str]:
        """One line for each run that meets the condition, or that cannot be judged. Raises
        ThresholdError if no run has the figure that the condition names, NotComparableError if that
        figure is of work that a run does not have in common with the first."""
        if self.for_ns is not None:
            raise self.error("a condition with for needs gputui summary: it is of one recording")
        lines = []
        for item, figure in self._find(comparison):
            if (item.kind, figure.name) == ("cause", "share_percent"):
                figure = _in_the_loop(comparison, item, figure)
            if self.percent and not self.relative and not figure.name.endswith("_percent"):
                number = f"{self.limit:g}"
                raise self.error(f"say +{number}% or -{number}%")
            which = f"{item.name}: " if self.what.startswith(f"{ANY_GPU}.") else ""
            for index, subject in enumerate(comparison.subjects[1:], 1):
                if self.relative and index in figure.apart:
                    raise NotComparableError(
                        f"{subject.label}: {self.text}: its steps are of other work than those of "
                        f"{comparison.subjects[0].label}; compare a metric, or a phase by its name"
                    )
                reason = self._judge(item, figure, index)
                if reason is not None:
                    lines.append(f"{subject.label}: {self.text}: {which}{reason}")
        return lines

    def _judge(self, item: Item, figure: Figure, index: int) -> str | None:
        value, base = figure.values[index], figure.values[0]
        if value is None:
            return f"{item.name} has no {figure.name} here"
        if not self.relative:
            unit = " %" if self.percent else ""
            return f"it is {_number(value.amount)}{unit}" if self.meets(value.amount) else None
        difference = figure.difference(index)
        if difference is None or base is None:
            return f"{item.name} has no {figure.name} in the baseline"
        # A share changes by points of the wall time.
        in_percent = self.percent and item.kind != "cause"
        change = difference.percent if in_percent else difference.absolute
        if change is None:
            # Growth from zero has no percentage: it exceeds any share.
            change = difference.absolute * float("inf") if difference.absolute else 0.0
        if not self.meets(change):
            return None
        sign = "+" if change > 0 else ""
        shown = f"{sign}{_number(change)}{' %' if self.percent else ''}"
        # In figures as the table has them: a gate's line had powers of ten.
        return f"{_number(base.amount)} → {_number(value.amount)} ({shown})"

    def _find(self, comparison: Comparison) -> list[tuple[Item, Figure]]:
        for kind, figure in (("metric", "value"), ("cause", "share_percent")):
            for item in comparison.of_kind(kind):
                if item.name == self.what:
                    return [(item, item.figures[figure])]
        name, dot, figure = self.what.rpartition(".")
        if not dot:
            raise self.error(f"no run reports a metric {self.what!r}")
        if name == ANY_GPU:
            gpus = [item for item in comparison.of_kind("device") if figure in item.figures]
            if gpus := [item for item in gpus if item.name.startswith(ANY_GPU)]:
                return [(item, item.figures[figure]) for item in gpus]
        items = [item for item in comparison.items if name in (item.name, item.was)]
        items = items or [item for item in comparison.items if item.short == name]
        # "step" is the loop's, and what many programs call a range.
        items = [item for item in items if figure in item.figures] or items
        if name in ("idle", "busy") and not any(figure in item.figures for item in items):
            choices = ", ".join(item.name for item in comparison.of_kind("cause"))
            why = f"known: {choices}" if choices else "no run captured what a GPU did"
            raise self.error(f"there is no cause {self.what!r}; {why}")
        if not items:
            raise self.error(f"no run has a phase, kernel or device {name!r}")
        if len(items) > 1:
            choices = ", ".join(repr(item.name) for item in items[:5])
            raise self.error(f"{name!r} is several things; say which: {choices}")
        [item] = items
        if figure not in item.figures:
            choices = ", ".join(item.figures)
            raise self.error(f"{item.name} has no {figure!r}; it has {choices}")
        return [(item, item.figures[figure])]


def _in_the_loop(comparison: Comparison, item: Item, figure: Figure) -> Figure:
    """A share as the verdict gives it: where pauses are a habit of the loop, they are a part of
    it."""
    trees = [subject.tree for subject in comparison.subjects]
    shares = (None if tree is None else Mean(share_in_the_loop(tree, item.name)) for tree in trees)
    return replace(figure, values=tuple(shares))


def _number(amount: float) -> str:
    """The number with enough digits to differ from a nearby limit, and without powers of ten."""
    return f"{amount:,.0f}" if 1e5 <= abs(amount) < 1e18 else f"{amount:,.6g}"
