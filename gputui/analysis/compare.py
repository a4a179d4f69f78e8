"""Runs side by side: what differs, and whether that is more than the steps of one run differ.

The first run is the baseline. Phases match by rank, domain and path, kernels by name, metrics
and devices by name and index. What one run alone has is listed, and where one name went and one
like it came (the same kernel with other template arguments, the same range at another place) the
two are taken for a renamed one.

The spread between steps is the sample standard deviation (n − 1) of the durations of a phase's
or kernel's instances within one run, the larger of the two runs'. A difference of averages that
is greater exceeds it. `standard_errors` is the same difference in units of its standard error,
√(s₁²/n₁ + s₂²/n₂) (Welch 1947): over 2 or 3 it is more than chance, if steps are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gputui.analysis.phases import PhaseRow, phase_rows
from gputui.distributions import Accumulator
from gputui.naming import short_name
from gputui.session import Run, Session

SPREAD_RULE = (
    "A difference of averages exceeds the spread between steps when it is greater than the larger "
    "of both runs' sample standard deviations over instances."
)

KINDS = ("metric", "device", "phase", "kernel")


@dataclass(frozen=True, slots=True)
class Subject:
    """One run to compare, and what to call it."""

    label: str
    session: Session
    run: Run


@dataclass(frozen=True, slots=True)
class Value:
    """A figure in one run. `deviation` and `count` are of the instances it is the average of."""

    amount: float
    deviation: float | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A run against the baseline. `exceeds_spread` is None where no spread is known."""

    absolute: float
    percent: float | None
    spread: float | None = None
    exceeds_spread: bool | None = None
    standard_errors: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure in every run, None where a run does not have it."""

    name: str
    values: tuple[Value | None, ...]

    def difference(self, index: int) -> Difference | None:
        """Run `index` against the first; None where one of them lacks the figure."""
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
    """A metric, device, phase or kernel with its figures. `present` tells which runs have it.

    `short` is the last part of a path, or a kernel's name without its arguments; `was` is the
    name in the baseline where it was renamed.
    """

    kind: str
    name: str
    short: str
    figures: dict[str, Figure]
    present: tuple[bool, ...]
    was: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was compared, and what could not be: items that some run lacks."""

    subjects: tuple[Subject, ...]
    items: tuple[Item, ...]

    def of_kind(self, kind: str) -> list[Item]:
        """The items of one of KINDS."""
        return [item for item in self.items if item.kind == kind]

    @property
    def missing(self) -> list[Item]:
        """The items that some run does not have."""
        return [item for item in self.items if not all(item.present)]

    @property
    def renamed(self) -> list[Item]:
        """The items that the baseline knows by another name."""
        return [item for item in self.items if item.was is not None]


@dataclass(slots=True)
class _Entry:
    """An item in one run."""

    name: str
    short: str
    figures: dict[str, Value] = field(default_factory=dict)


_Entries = dict[str, _Entry]


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Compare two or more runs with the first. Raises ValueError for fewer than two."""
    if len(subjects) < 2:
        raise ValueError("give at least two runs to compare")
    items: list[Item] = []
    for kind, entries_of in _ENTRIES.items():
        entries = [entries_of(subject) for subject in subjects]
        renames = _renames(entries) if kind in ("phase", "kernel") else {}
        items += _items(kind, entries, renames)
    return Comparison(tuple(subjects), tuple(items))


def _items(kind: str, entries: list[_Entries], renames: dict[str, str]) -> Iterable[Item]:
    """One item a name, in the order of the first run that has it."""
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


def _renames(entries: list[_Entries]) -> dict[str, str]:
    """Old name → new name, where one name of the baseline is in no other run, and one name alike
    is in all other runs and not in the baseline."""
    base, others = entries[0], entries[1:]
    gone = _by_short(entry for name, entry in base.items() if not any(name in o for o in others))
    came = _by_short(
        entry
        for name, entry in others[0].items()
        if name not in base and all(name in other for other in others)
    )
    return {
        gone[short][0].name: came[short][0].name
        for short in gone.keys() & came.keys()
        if len(gone[short]) == len(came[short]) == 1
    }


def _by_short(entries: Iterable[_Entry]) -> dict[str, list[_Entry]]:
    found: dict[str, list[_Entry]] = {}
    for entry in entries:
        found.setdefault(entry.short, []).append(entry)
    return found


# --- what one run has --------------------------------------------------------------------------


def _metrics(subject: Subject) -> _Entries:
    return {
        name: _Entry(name, name, {"value": Value(float(value))})
        for name, value in subject.run.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _devices(subject: Subject) -> _Entries:
    found: _Entries = {}
    for (index, name), spread in sorted(subject.run.gpu_spreads.items()):
        if spread.average is not None:
            entry = found.setdefault(f"gpu{index}", _Entry(f"gpu{index}", f"gpu{index}"))
            entry.figures[name] = Value(spread.average)
    for index, device in sorted(subject.run.devices.items()):
        entry = found.setdefault(f"gpu{index}", _Entry(f"gpu{index}", f"gpu{index}"))
        entry.figures["gpu_busy_ns"] = Value(float(device.busy_ns))
    return found


def _average(times: Accumulator) -> Value | None:
    if times.average is None:
        return None
    return Value(times.average, times.deviation, times.count)


def _phases(subject: Subject) -> _Entries:
    groups: dict[str, list[PhaseRow]] = {}
    for row in phase_rows(subject.run):
        domain = f"{row.domain}:" if row.domain else ""
        rank = f"rank {row.rank}: " if row.rank is not None else ""
        groups.setdefault(f"{rank}{domain}{row.path}", []).append(row)
    on_gpu = bool(subject.run.devices)
    return {name: _phase(name, rows, on_gpu) for name, rows in groups.items()}


def _phase(name: str, rows: list[PhaseRow], on_gpu: bool) -> _Entry:
    cpu = Accumulator.of(row.cpu for row in rows)
    projected = Accumulator.of(row.projected for row in rows)
    instances = cpu.count
    averages = {"cpu_avg_ns": _average(cpu), "gpu_projected_avg_ns": _average(projected)}
    entry = _Entry(name, rows[0].name)
    entry.figures = {key: value for key, value in averages.items() if value is not None}
    totals: dict[str, int] = {"instances": instances, "cpu_total_ns": cpu.total}
    if on_gpu:
        busy_ns = sum(row.gpu_busy_ns for row in rows)
        if instances:
            entry.figures["gpu_busy_avg_ns"] = Value(busy_ns / instances)
        totals |= {
            "gpu_busy_ns": busy_ns,
            "gpu_total_ns": sum(row.gpu_total_ns for row in rows),
            "gpu_projected_ns": projected.total,
            "kernels": sum(row.kernels for row in rows),
            "launches": sum(row.launches for row in rows),
            "memcpy_bytes": sum(row.memcpy_bytes for row in rows),
        }
    entry.figures |= {key: Value(float(total)) for key, total in totals.items()}
    return entry


def _kernels(subject: Subject) -> _Entries:
    sums: dict[str, Accumulator] = {}
    names = subject.session.kernel_names
    for key, times in subject.run.kernels.items():
        known = names.get(key.kernel)
        name = known.name if known else f"(kernel {key.kernel})"
        sums.setdefault(name, Accumulator()).add(times.freeze())
    found: _Entries = {}
    for name, times in sorted(sums.items(), key=lambda item: -item[1].total):
        average = _average(times)
        if average is not None:
            found[name] = _Entry(
                name,
                short_name(name),
                {
                    "avg_ns": average,
                    "total_ns": Value(float(times.total)),
                    "instances": Value(float(times.count)),
                },
            )
    return found


_ENTRIES: dict[str, Callable[[Subject], _Entries]] = {
    "metric": _metrics,
    "device": _devices,
    "phase": _phases,
    "kernel": _kernels,
}
