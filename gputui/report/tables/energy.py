"""The energy of a run: by GPU, and by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model import units
from gputui.model.units import cost, cost_text
from gputui.report.energy import RunEnergy, joules_per_kernel_ns, run_energy
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows
from gputui.report.schema import ROWS, Column, TableSpec, count, if_any, text, time
from gputui.report.windows import Estimates
from gputui.state import Run, Session


def _watts(watts: float | None) -> str:
    return units.quantity(watts, "W")


WINDOWS = "only windows were traced: when the GPU was idle between them is not known"

SEVERAL = (
    "processes whose steps are not alike share the GPU: its energy is for neither's step alone"
)


def _why_none(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    if rows:
        missing = {"used_idle_joules": WINDOWS} if Estimates.of_run(run) is not None else {}
        tree = time_tree(run)
        gpus = {row.gpu for row in rows if isinstance(row, RunEnergy) and row.step_joules is None}
        if tree is not None and any(gpu in gpus for _, gpu in tree.steps_by_place):
            missing["step_joules"] = SEVERAL
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
               "The same, in the mean of its instances", float | None),
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
