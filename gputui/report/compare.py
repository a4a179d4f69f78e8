"""Runs side by side: what differs, and whether by more than the steps of one run do.

The first run is the baseline. Phases match by rank, domain and path, kernels by name, metrics
and devices by name and index. What only one run has is listed; if one name disappeared and one
like it appeared (the same kernel with other template arguments, the same range elsewhere), the
two are matched as renamed, and so are the ranges around them.

The spread is a sample standard deviation (n − 1) within one run, the larger of the two runs':
- of a phase's or a kernel's: of the durations of its instances;
- of a device's average: of its averages over the run's stretches, 16 to 31 of equal length (batch
  means: Schmeiser 1982, Operations Research 30(3)), because readings a second apart are alike;
- of a metric: of its values reported during the run, none if they only rose.
A difference that is greater exceeds it. `standard_errors` is the same difference in units of its
standard error, √(s₁²/n₁ + s₂²/n₂) (Welch 1947): over 2 or 3 it is more than chance, if instances
or stretches are independent.

For a recording without a run, only the devices are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gputui.report.comparable import ENTRIES_OF, Entries, Entry, Subject, Value

__all__ = [
    "SPREAD_RULE",
    "Comparison",
    "Difference",
    "Figure",
    "Item",
    "Subject",
    "Value",
    "compare",
]

SPREAD_RULE = (
    "A difference exceeds the spread when it is greater than the larger of both runs' sample "
    "standard deviations: of a phase's or kernel's instances, of a device's averages over 16 to 31 "
    "equal stretches of the run, of a metric's reports while the run went on."
)

KINDS = ("metric", "device", "phase", "kernel")


@dataclass(frozen=True, slots=True)
class Difference:
    """A run against the baseline. `exceeds_spread` is None if no spread is known."""

    absolute: float
    percent: float | None
    spread: float | None = None
    exceeds_spread: bool | None = None
    standard_errors: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure in every run, None if a run does not have it."""

    name: str
    values: tuple[Value | None, ...]

    def difference(self, index: int) -> Difference | None:
        """Run `index` against the first; None if one of them lacks the figure."""
        base, other = self.values[0], self.values[index]
        if base is None or other is None:
            return None
        absolute = other.amount - base.amount
        percent = 100.0 * absolute / base.amount if base.amount else None
        if base.deviation is None or other.deviation is None:
            return Difference(absolute, percent)
        if base.count < 2 or other.count < 2:
            return Difference(absolute, percent)
        spread = max(base.deviation, other.deviation)
        error = math.sqrt(base.deviation**2 / base.count + other.deviation**2 / other.count)
        return Difference(
            absolute,
            percent,
            spread,
            abs(absolute) > spread,
            absolute / error if error else None,
        )


@dataclass(frozen=True, slots=True)
class Item:
    """A metric, device, phase or kernel with its figures. `present` says which runs have it.

    `short` is the last part of a path, or a kernel's name without its arguments; `was` is the name
    in the baseline if it was renamed.
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

    def of_kind(self, kind: str) -> list[Item]:
        """The items of one of KINDS."""
        return [item for item in self.items if item.kind == kind]

    @property
    def missing(self) -> list[Item]:
        """The items that some run does not have; what only runs have is not missing if none was
        recorded.
        """
        return [
            item
            for item in self.items
            if not all(
                there or (subject.run is None and item.kind != "device")
                for there, subject in zip(item.present, self.subjects, strict=True)
            )
        ]

    @property
    def remarks(self) -> list[str]:
        """What cannot be compared, and why, one line each."""
        alone = [subject.label for subject in self.subjects if subject.run is None]
        if not alone:
            return []
        which = (
            "none of them holds a run"
            if len(alone) == len(self.subjects)
            else (f"no run was recorded in {', '.join(alone)}")
        )
        return [f"{which}: devices are compared, phases, kernels and metrics cannot be"]

    @property
    def renamed(self) -> list[Item]:
        """The items with another name in the baseline."""
        return [item for item in self.items if item.was is not None]


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Compare two or more runs with the first. Raises ValueError for fewer than two."""
    if len(subjects) < 2:
        raise ValueError("give at least two runs to compare")
    items: list[Item] = []
    for kind, entries_of in ENTRIES_OF.items():
        entries = [entries_of(subject) for subject in subjects]
        renames = _renames(entries) if kind in ("phase", "kernel") else {}
        items += _items(kind, entries, renames)
    return Comparison(tuple(subjects), tuple(items))


def _items(kind: str, entries: list[Entries], renames: dict[str, str]) -> Iterable[Item]:
    """One item per name, in the order of the first run that has it."""
    new_names = set(renames.values())
    for name in dict.fromkeys(name for found in entries for name in found):
        if name in new_names:
            continue
        new = renames.get(name)
        row = [found.get(name) or (found.get(new) if new else None) for found in entries]
        figures = dict.fromkeys(figure for entry in row if entry for figure in entry.figures)
        first = next(entry for entry in row if entry is not None)
        yield Item(
            kind=kind,
            name=new or name,
            short=first.short,
            figures={
                figure: Figure(
                    figure, tuple(entry.figures.get(figure) if entry else None for entry in row)
                )
                for figure in figures
            },
            present=tuple(entry is not None for entry in row),
            was=name if new else None,
        )


def _renames(entries: list[Entries]) -> dict[str, str]:
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
    found = {
        gone[short][0].name: came[short][0].name
        for short in gone.keys() & came.keys()
        if len(gone[short]) == len(came[short]) == 1
    }
    return found | _renamed_parents(found, gone, came)


def _renamed_parents(
    renames: dict[str, str], gone: dict[str, list[Entry]], came: dict[str, list[Entry]]
) -> dict[str, str]:
    """The phases around renamed ones: if all the renamed phases of one lie in one other, and
    neither is in both runs, the enclosing phase was renamed.
    """
    old_shorts = {entry.name: short for short, entries in gone.items() for entry in entries}
    new_shorts = {entry.name: short for short, entries in came.items() for entry in entries}
    found: dict[str, str] = {}
    inner = renames
    while inner:
        around: dict[str, set[str]] = {}
        for old, new in inner.items():
            outer = _outer(new, new_shorts[new])
            around.setdefault(_outer(old, old_shorts[old]), set()).add(outer)
        known = {**renames, **found}
        pairs = [
            (old, new)
            for old, [new, *more] in around.items()
            if not more and old in old_shorts and new in new_shorts and old not in known
        ]
        taken = Counter([*known.values(), *(new for _, new in pairs)])
        inner = {old: new for old, new in pairs if taken[new] == 1}
        found |= inner
    return found


def _outer(path: str, last: str) -> str:
    return path.removesuffix(last).removesuffix("/")


def _by_short(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.short, []).append(entry)
    return found
