"""The energy of GPUs: by the driver's counter, else from power; of a run, its steps and phases.

The counter (nvmlDeviceGetTotalEnergyConsumption) is read at each sample and where a run starts and
ends. Where it is missing, and for the time before its first and after its last reading, the samples
of power are integrated: each is the driver's mean over the time before it.

Nothing measures the energy of a gap between two kernels. What a GPU spends there is taken as its
power at rest × the idle time, what is left is that of its kernels, and a phase has the part of that
which its share of their time comes to, with what autograd's threads launch. Power at rest is the
least sampled while the run used the GPU and nothing ran on it: with a context and raised clocks a
GPU at rest takes more than one that is not in use (an H100 127 W, not 76). Where no such sample is,
the least of all is too low, and kernels would take more than there is: never more than the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model import units
from gputui.model.events import DeviceDelta
from gputui.model.units import cost, cost_text
from gputui.report.explain.rank_waits import Place, ranks_of
from gputui.report.explain.time_tree import (
    LoopSteps,
    TimeTree,
    benchmark_rows,
    steps_of_program,
    time_tree,
)
from gputui.report.phases import phase_rows
from gputui.report.schema import ROWS, Column, TableSpec, count, if_any, text, time
from gputui.report.windows import Estimates
from gputui.state import Readings, Run, Session, Span, Total

COUNTER = "the driver's counter"
POWER = "power samples, integrated"
_POWER = "power_watts"
_ACTIVE = "utilization_percent"
# Percent of utilization up to which a GPU counts as at rest.
_IDLE = 1.0

ALIKE = 1.5
"""How many times as many operations a step of one process may have as a step of another, for both
to count as alike."""

_TOKENS_PER_S = ("tokens_per_s", "output_tokens_per_s")


def energy_of(total: Total | None) -> tuple[float, str] | None:
    """Joules, and where they come from, of a total of power; None if it is unknown."""
    if total is None:
        return None
    if not total.uncounted_ns:
        return total.amount, POWER if total.uncounted_ns is None else COUNTER
    seconds = total.uncounted_ns / 1e9
    return total.amount, f"{COUNTER}; power samples for the other {seconds:.1f} s"


def energy_joules(readings: Readings, gpu: int, span: Span) -> tuple[float, str] | None:
    """The energy of a GPU over a time, and its source; None if unknown."""
    power = readings.series(gpu, _POWER)
    return None if power is None else energy_of(power.total_over(*span))


def span_of(run: Run) -> Span:
    """The time from the start of a run's program to its end."""
    return run.started.time_ns, run.ended_ns


def used_span(device: DeviceDelta | None) -> Span | None:
    """The time from the first operation on a GPU to the end of the last; None if there is none."""
    if device is None or device.first_start_ns is None or device.last_end_ns is None:
        return None
    return device.first_start_ns, device.last_end_ns


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """The energy of one GPU over a run, in joules and watts.

    `used` is from the first operation to the last, and is what its operations took, `busy`, and
    what the time between them did, `used_idle`; `unused` is the rest of the run, before and after.
    `step` and `token` are of the time from the first steady step to the last.
    """

    gpu: int
    source: str
    joules: float
    watts: float | None
    used_joules: float | None = None
    used_watts: float | None = None
    busy_joules: float | None = None
    used_idle_joules: float | None = None
    unused_joules: float | None = None
    step_joules: float | None = None
    token_joules: float | None = None


def run_energy(run: Run, tree: TimeTree | None) -> list[RunEnergy]:
    """The energy of each GPU whose power or energy was read during the run. `tree` is the run's
    time tree."""
    readings, devices = run.readings, run.devices
    rows = []
    for gpu in sorted(readings.gpus):
        measured = energy_joules(readings, gpu, span_of(run))
        if measured is not None:
            rows.append(_of_gpu(run, gpu, measured, devices.get(gpu), tree))
    return rows


def _of_gpu(
    run: Run,
    gpu: int,
    measured: tuple[float, str],
    device: DeviceDelta | None,
    tree: TimeTree | None,
) -> RunEnergy:
    joules, source = measured
    watts = joules * 1e9 / run.duration_ns if run.duration_ns else None
    span = used_span(device)
    while_used = energy_joules(run.readings, gpu, span) if span else None
    if device is None or span is None or while_used is None:
        return RunEnergy(gpu, source, joules, watts)
    used = min(while_used[0], joules)
    length_ns = span[1] - span[0]
    used_watts = used * 1e9 / length_ns if length_ns else None
    rest = _watts_at_rest(run.readings, gpu, span) if Estimates.of_run(run) is None else None
    idle_s = max(0, length_ns - device.busy_ns) / 1e9
    busy = max(0.0, used - rest * idle_s) if rest is not None else None
    limit = run.readings.power_limits_watts.get(gpu)
    if busy is not None and limit is not None:
        # Where nothing was sampled at rest, an H100's decode of 31 ms of kernels drew 874 W of 700.
        busy = min(busy, limit * device.busy_ns / 1e9)
    step = _step_joules(run, gpu, tree)
    return RunEnergy(
        gpu,
        source,
        joules,
        watts,
        used,
        used_watts,
        busy,
        used - busy if busy is not None else None,
        joules - used,
        step,
        _token_joules(run, step, used_watts),
    )


def _watts_at_rest(readings: Readings, gpu: int, used: Span) -> float | None:
    """The least mean power between two readings while used and idle; else the least of all."""
    power, active = readings.series(gpu, _POWER), readings.series(gpu, _ACTIVE)
    if power is not None and active is not None:
        idle = [
            watts
            for first_ns, last_ns, watts in power.integral.rates(*used)
            if (active.integral.between(first_ns, last_ns) or 0.0) * 1e9
            <= _IDLE * (last_ns - first_ns)
        ]
        if idle:
            return min(idle)
    return power.minimum if power is not None and power.count else None


def _step_joules(run: Run, gpu: int, tree: TimeTree | None) -> float | None:
    # Between the rows of a benchmark lie compiling, warm-up and graphs, which are in no step.
    if tree is None or not tree.has_steps or tree.benchmark_rows:
        return None
    measured = energy_joules(run.readings, gpu, (tree.first_ns, tree.last_ns))
    on_gpu = {place: loop for place, loop in tree.steps_by_place.items() if place[1] == gpu}
    if not _are_one_kind(run, on_gpu):
        return None
    steps = steps_of_program(run, on_gpu or tree.steps_by_place)
    return measured[0] / steps if measured else None


def _are_one_kind(run: Run, steps: Mapping[Place, LoopSteps]) -> bool:
    """Whether all that share a GPU take a like step. If not, as with a trainer and an evaluation
    beside it, what the GPU spends is for neither's step alone."""
    ranks = ranks_of(run)
    sizes = [loop.operations / loop.steps for (process, _), loop in steps.items()
             if process not in ranks]  # fmt: skip
    if len(sizes) < len(steps):
        sizes.append(max(loop.operations / loop.steps for (process, _), loop in steps.items()
                         if process in ranks))  # fmt: skip
    return not sizes or max(sizes) <= ALIKE * min(sizes)


def _token_joules(run: Run, step: float | None, used_watts: float | None) -> float | None:
    """The energy of a token: by the tokens of a step, otherwise by the tokens of a second, of all
    GPUs together."""
    tokens = _figure(run.metrics, "tokens_per_step")
    if step is not None and tokens:
        return step / tokens
    if benchmark_rows(run):
        return None
    per_s = next(filter(None, (_figure(run.metrics, name) for name in _TOKENS_PER_S)), None)
    return used_watts / per_s if used_watts is not None and per_s else None


def _figure(metrics: Mapping[str, object], name: str) -> float | None:
    value = metrics.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if is_number else None  # type: ignore[arg-type]


def joules_per_kernel_ns(run: Run, tree: TimeTree | None) -> float | None:
    """What a nanosecond of a kernel costs on the run's GPUs, in the mean; None if unknown."""
    busy_joules = {
        row.gpu: row.busy_joules for row in run_energy(run, tree) if row.busy_joules is not None
    }
    whole_ns = sum(kernel.time.total for kernel in run.kernels.values())
    if not whole_ns or run.devices.keys() - busy_joules.keys():
        return None
    return sum(busy_joules[gpu] for gpu in run.devices) / whole_ns


# --- tables


def _watts(watts: float | None) -> str:
    return units.quantity(watts, "W")


WINDOWS = "only windows were traced: when the GPU was idle between them is not known"

SEVERAL = (
    "processes whose steps are not alike share the GPU: its energy is for neither's step alone"
)

OF_ROWS = "these are steps of rows of different work, between which energy is spent, too"


def _why_none(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    if rows:
        missing = {"used_idle_joules": WINDOWS} if Estimates.of_run(run) is not None else {}
        tree = time_tree(run)
        gpus = {row.gpu for row in rows if isinstance(row, RunEnergy) and row.step_joules is None}
        if tree is not None and any(gpu in gpus for _, gpu in tree.steps_by_place):
            missing["step_joules"] = OF_ROWS if tree.benchmark_rows else SEVERAL
        return missing
    return {ROWS: "no GPU's power or energy was read while the run went on"}


GPU_ENERGY: TableSpec[RunEnergy] = TableSpec(
    key="energy",
    title="Energy",
    meaning="The energy of each GPU over the run, and how much of it while it was idle or unused.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        Column("Energy", units.joules, "energy_joules", lambda row: row.joules, "J",
               "From the start of the run to its end", float),
        Column("Mean", _watts, "mean_watts", lambda row: row.watts, "W",
               "Over the same time", float | None, priority=3),
        Column("In Use", units.joules, "used_joules", lambda row: row.used_joules, "J",
               "From its first operation to the end of its last", float | None, priority=2),
        Column("Mean in Use", _watts, "used_mean_watts", lambda row: row.used_watts, "W",
               "Over the same time", float | None),
        Column("Idle in Use", units.joules, "used_idle_joules", lambda row: row.used_idle_joules,
               "J", "The part of it between operations, at the least power sampled at rest",
               float | None),
        Column("Not in Use", units.joules, "unused_joules", lambda row: row.unused_joules, "J",
               "The rest of the run: before its first operation, and after its last",
               float | None),
        Column("A Step", units.joules, "step_joules", lambda row: row.step_joules, "J",
               "Mean of the steady steps, with what lies between them", float | None),
        Column("A Token", units.joules, "token_joules", lambda row: row.token_joules, "J",
               "By the workload's `tokens_per_step`, else by its `tokens_per_s`", float | None),
        Column("Cost", cost_text, "cost", lambda row: cost(row.joules), "",
               "At the price of `energy_price`", float | None, seen=if_any),
        text("Source", "source", lambda row: row.source,
             "The driver's counter, or its samples of power where that is missing", priority=4),
    ),
    rows=lambda _session, run: run_energy(run, time_tree(run)),
    order=780,
    in_summary=True,
    document="energy",
    note=lambda run, rows: _why_none(run, rows).get("step_joules", ""),
    unavailable=_why_none,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhaseEnergyRow:
    """One phase: its part of the energy of the GPUs' kernels."""

    path: str
    rank: int | None
    instances: int
    kernel_ns: int
    joules: float


def _phases(_session: Session, run: Run) -> list[PhaseEnergyRow]:
    per_ns = joules_per_kernel_ns(run, time_tree(run))
    if per_ns is None:
        return []
    return [
        PhaseEnergyRow(row.path, row.rank, row.instances, row.kernel_ns, row.kernel_ns * per_ns)
        for row in phase_rows(run)
        if row.kernel_ns
    ]


def _no_phases(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    if rows:
        return {}
    if Estimates.of_run(run) is not None:
        return {ROWS: WINDOWS}
    return _why_none(run, run_energy(run, time_tree(run))) or {ROWS: "no phase ran a kernel"}


PHASE_ENERGY: TableSpec[PhaseEnergyRow] = TableSpec(
    key="phase_energy",
    title="Energy by Phase",
    meaning="The energy of the GPUs' kernels, by the share that phases have of their time.",
    columns=(
        text("Phase", "path", lambda row: row.path, "Names from the outermost range on"),
        Column("Rank", None, "rank", lambda row: row.rank, "", "The process's rank", int | None,
               seen=if_any),
        count("Instances", "instances", lambda row: row.instances, "How many have ended"),
        time("Kernel Total", "kernel_total_ns", lambda row: row.kernel_ns,
             "Times of its kernels added up, also of those launched by threads without ranges "
             "while it was open (autograd)"),
        Column("Energy", units.joules, "energy_joules", lambda row: row.joules, "J",
               "Kernel time × the mean power of kernels: an estimate, which takes no account of "
               "phases that draw more than others", float),
        Column("An Instance", units.joules, "instance_joules",
               lambda row: row.joules / row.instances if row.instances else None, "J",
               "That energy over its instances: the mean of one", float | None),
        Column("Cost", cost_text, "cost", lambda row: cost(row.joules), "",
               "At the price of `energy_price`", float | None, seen=if_any),
    ),
    rows=_phases,
    order=785,
    document="phase_energy",
    note=lambda _run, rows: "estimated from kernel time" if rows else "",
    unavailable=_no_phases,
)  # fmt: skip

TABLES = (GPU_ENERGY, PHASE_ENERGY)
