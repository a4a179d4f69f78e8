"""The comparable parts of one run: its metrics, devices, phases and kernels, with their spreads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gputui.model.naming import short_name
from gputui.model.sketch import Accumulator
from gputui.report.energy import (
    RunEnergy,
    energy_joules,
    joules_per_busy_ns,
    mean_in_use,
    run_energy,
)
from gputui.report.machine_summary import started_ns
from gputui.report.phases import PhaseRow, phase_rows
from gputui.state import BatchMeans, Readings, Reports, Run, Session


@dataclass(frozen=True, slots=True)
class Subject:
    """One run to compare, or the machine if no run was recorded, and its title."""

    label: str
    session: Session
    run: Run | None

    @property
    def readings(self) -> Readings:
        """Of the machine: during the run, or over the recording without one."""
        return self.session.readings if self.run is None else self.run.readings

    @property
    def started_ns(self) -> int:
        return started_ns(self.session) if self.run is None else self.run.started.time_ns

    @property
    def duration_ns(self) -> int:
        return self.readings.duration_ns if self.run is None else self.run.duration_ns


@dataclass(frozen=True, slots=True)
class Value:
    """A figure in one run. `deviation` and `count` are of the instances, stretches or reports that
    its spread is computed from.
    """

    amount: float
    deviation: float | None = None
    count: int = 0


@dataclass(slots=True)
class Entry:
    """An item in one run."""

    name: str
    short: str
    figures: dict[str, Value] = field(default_factory=dict)


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


def _metric(value: float, reports: Reports | None) -> Value:
    if reports is None or reports.only_rises:
        return Value(value)
    return Value(value, reports.spread.stretch_deviation, reports.spread.stretches)


def _devices(subject: Subject) -> Entries:
    readings = subject.readings
    found: Entries = {}
    devices = subject.run.devices if subject.run else {}
    for (index, name), spread in sorted(readings.gpu_spreads.items()):
        _figure(found, f"gpu{index}", name, _mean(spread))
        in_use = mean_in_use(readings, index, name, devices.get(index))
        _figure(found, f"gpu{index}", f"in_use_{name}", _value(in_use))
    if subject.run is None:
        span = readings.first_ns, readings.last_ns
        for index in sorted({index for index, _ in readings.gpu_spreads}):
            energy = energy_joules(readings, index, span)
            _figure(found, f"gpu{index}", "energy_joules", _value(energy[0] if energy else None))
    for one in run_energy(subject.run) if subject.run else ():
        for name, amount in _ENERGIES.items():
            _figure(found, f"gpu{one.gpu}", name, _value(amount(one)))
    for index, device in sorted(devices.items()):
        _figure(found, f"gpu{index}", "gpu_busy_ns", Value(float(device.busy_ns)))
    for name, spread in sorted(readings.host_spreads.items()):
        _figure(found, "host", name, _mean(spread))
    return found


_ENERGIES: dict[str, Callable[[RunEnergy], float | None]] = {
    "energy_joules": lambda one: one.joules,
    "used_joules": lambda one: one.used_joules,
    "idle_joules": lambda one: one.idle_joules,
    "step_joules": lambda one: one.step_joules,
    "token_joules": lambda one: one.token_joules,
}


def _value(amount: float | None) -> Value | None:
    return None if amount is None else Value(amount)


def _figure(entries: Entries, name: str, figure: str, value: Value | None) -> None:
    if value is not None:
        entries.setdefault(name, Entry(name, name)).figures[figure] = value


def _mean(spread: BatchMeans) -> Value | None:
    if spread.average is None:
        return None
    return Value(spread.average, spread.stretch_deviation, spread.stretches)


def _average(times: Accumulator) -> Value | None:
    if times.average is None:
        return None
    return Value(times.average, times.deviation, times.count)


def _phases(subject: Subject) -> Entries:
    if subject.run is None:
        return {}
    groups: dict[str, list[PhaseRow]] = {}
    for row in phase_rows(subject.run):
        domain = f"{row.domain}:" if row.domain else ""
        rank = f"rank {row.rank}: " if row.rank is not None else ""
        groups.setdefault(f"{rank}{domain}{row.path}", []).append(row)
    on_gpu = bool(subject.run.devices)
    joules = joules_per_busy_ns(subject.run)
    return {name: _phase(name, rows, on_gpu, joules) for name, rows in groups.items()}


def _phase(name: str, rows: list[PhaseRow], on_gpu: bool, joules: float | None) -> Entry:
    cpu = Accumulator.of(row.cpu for row in rows)
    projected = Accumulator.of(row.projected for row in rows)
    instances = cpu.count
    averages = {"cpu_avg_ns": _average(cpu), "gpu_projected_avg_ns": _average(projected)}
    entry = Entry(name, rows[0].name)
    entry.figures = {key: value for key, value in averages.items() if value is not None}
    totals: dict[str, int] = {"instances": instances, "cpu_total_ns": cpu.total}
    if on_gpu:
        busy_ns = sum(row.gpu_busy_ns for row in rows)
        if joules is not None and busy_ns:
            entry.figures["energy_joules"] = Value(busy_ns * joules)
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


def _kernels(subject: Subject) -> Entries:
    if subject.run is None:
        return {}
    sums: dict[str, Accumulator] = {}
    names = subject.session.kernel_names
    for key, kernels in subject.run.kernels.items():
        known = names.get(key.kernel)
        name = known.name if known else f"(kernel {key.kernel})"
        sums.setdefault(name, Accumulator()).add(kernels.time.freeze())
    found: Entries = {}
    for name, times in sorted(sums.items(), key=lambda item: -item[1].total):
        average = _average(times)
        if average is not None:
            found[name] = Entry(
                name,
                short_name(name),
                {
                    "avg_ns": average,
                    "total_ns": Value(float(times.total)),
                    "instances": Value(float(times.count)),
                },
            )
    return found


ENTRIES_OF: dict[str, Callable[[Subject], Entries]] = {
    "metric": _metrics,
    "device": _devices,
    "phase": _phases,
    "kernel": _kernels,
}
