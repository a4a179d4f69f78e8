"""One run as a subject of a comparison: its comparable parts (step, causes, metrics, devices,
phases and kernels), each with the error of its mean. Which work two runs have in common is decided
in `common_unit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from gputui.model.events import DeviceDelta
from gputui.model.events.distributions import Accumulator, Statistics
from gputui.model.leaves import LEAVES
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.time_tree import TimeTree
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
        """Readings of the machine: during the run, or over the recording if it has no run."""
        return self.session.readings if self.run is None else self.run.readings

    @cached_property
    def tree(self) -> TimeTree | None:
        """Where the run's time went; None if no operation was captured."""
        return None if self.run is None else Analysis(self.session, self.run).tree

    @cached_property
    def steps(self) -> float:
        """How many steps the program made, warm-up included. Totals are divided by it."""
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
        """Whether kernels were traced only part of the time, so that figures are estimates for all
        of it."""
        run = self.run
        return run is not None and run.traced_share < 1 and run.started.captured_part is None

    @property
    def started_ns(self) -> int:
        return self.session.started_ns if self.run is None else self.run.started.time_ns

    @property
    def duration_ns(self) -> int:
        return self.readings.duration_ns if self.run is None else self.run.duration_ns


@dataclass(slots=True)
class RunItem:
    """A metric, GPU, phase or kernel, as it is in one run."""

    name: str
    short: str
    figures: dict[str, Mean] = field(default_factory=dict)


RunItems = dict[str, RunItem]


def _metrics(subject: Subject) -> RunItems:
    if subject.run is None:
        return {}
    reported = subject.run.reported
    return {
        name: RunItem(name, name, {"value": _metric(float(value), reported.get(name))})
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


def _devices(subject: Subject) -> RunItems:
    readings = subject.readings
    entries: RunItems = {}
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
    """A mean over the time in which the run used the GPU; its error follows from the readings of
    that time, divided into parts."""
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


def _figure(entries: RunItems, name: str, figure: str, value: Mean | None) -> None:
    if value is not None:
        entries.setdefault(name, RunItem(name, name)).figures[figure] = value


def _mean(spread: BatchMeans) -> Mean | None:
    if spread.average is None:
        return None
    return _of_stretches(spread.average, spread)


def _average(times: Statistics, wider: float) -> Mean | None:
    """The mean of instances, with an error `wider` times that of independent instances."""
    if times.average is None:
        return None
    if times.count < 2 or times.deviation is None:
        return Mean(times.average)
    error = wider * times.deviation / math.sqrt(times.count)
    return Mean(times.average, error, max(1.0, times.count / (wider * wider) - 1.0))


def _steps(subject: Subject) -> RunItems:
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
    return {"step": RunItem("step", "step", present)}


def step_mean(subject: Subject) -> Mean | None:
    """The length of a step; where no time was accounted for, of the ranges of the main step."""
    if subject.run is not None and subject.tree is None:
        entries = _steps_on_cpu(subject.run)
    else:
        entries = _steps(subject)
    return entries["step"].figures["mean_ns"] if entries else None


def _steps_on_cpu(run: Run) -> RunItems:
    """For a run without GPU work, the ranges of its main step."""
    step = main_step(run, phase_rows(run))
    mean = None if step is None else _average(step.cpu, 1.0)
    if step is None or mean is None:
        return {}
    figures = {"mean_ns": mean, "steps": Mean(float(step.instances))}
    for name, value in (("median_ns", step.cpu.median), ("p99_ns", step.cpu.percentile(99))):
        if value is not None:
            figures[name] = Mean(value)
    return {"step": RunItem("step", "step", figures)}


def _causes(subject: Subject) -> RunItems:
    """The time of every leaf. Leaves that took no time are 0, so that every run has the same
    leaves."""
    tree = subject.tree
    if tree is None:
        return {}
    sums = {"idle": float(tree.idle_ns), "busy": float(tree.wall_ns - tree.idle_ns)}
    entries = {name: _cause(name, tree, ns, None) for name, ns in sums.items()}
    for leaf, meaning in LEAVES.items():
        ns = tree.leaves.get(leaf, 0)
        entries[meaning.key] = _cause(meaning.key, tree, ns, tree.leaf_mean(leaf))
    return entries


def _cause(name: str, tree: TimeTree, ns: float, mean: Mean | None) -> RunItem:
    a_step = tree.a_step(ns)
    share = Mean(100.0 * tree.share(ns))
    if mean is not None and mean.error is not None and tree.step_mean_ns:
        share = Mean(share.amount, 100.0 * mean.error / tree.step_mean_ns, mean.freedom)
    figures = {"share_percent": share}
    if a_step is not None:
        figures["step_ns"] = mean or Mean(a_step)
    return RunItem(name, name, figures)


def _phases(subject: Subject) -> RunItems:
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
        entries[OUTSIDE] = RunItem(OUTSIDE, OUTSIDE, figures)
    return entries


def _phase(subject: Subject, name: str, rows: list[PhaseRow]) -> RunItem:
    cpu = Accumulator.merged(row.cpu for row in rows)
    wider, steps = subject.widening, subject.steps
    projected = Accumulator.merged(row.projected for row in rows)
    instances = cpu.count
    averages = {
        "cpu_avg_ns": _average(cpu, wider),
        "gpu_projected_avg_ns": _average(projected, wider),
    }
    entry = RunItem(name, rows[0].name)
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


def _kernels(subject: Subject) -> RunItems:
    if subject.run is None:
        return {}
    entries: RunItems = {}
    for row in kernel_rows(subject.session, subject.run):
        average = _average(row.times, subject.widening)
        if average is not None:
            figures = {"avg_ns": average}
            if not subject.is_estimated:
                figures["total_ns"] = Mean(float(row.total))
                figures["instances"] = Mean(float(row.instances))
            if subject.steps and not subject.is_estimated:
                figures["step_ns"] = Mean(row.total / subject.steps)
            entries[row.name] = RunItem(row.name, row.short_name, figures)
    return entries


ENTRIES_OF: dict[str, Callable[[Subject], RunItems]] = {
    "step": _steps, "cause": _causes, "metric": _metrics, "device": _devices, "phase": _phases,
    "kernel": _kernels,
}  # fmt: skip

EFFECTS = {
    "cause": ("step_ns", "share_percent"),
    "phase": ("cpu_step_ns", "cpu_total_ns"),
    "kernel": ("step_ns", "total_ns"),
}
"""The figures by which the items of a kind are sorted: the first that is known."""
