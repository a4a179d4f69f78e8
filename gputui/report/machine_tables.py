"""The machine at one moment as tables for people: what `--once` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.model import units
from gputui.model.events import GpuSample, GpuStatus, MigFacts, MigSample
from gputui.model.metrics import GROUPS, PERCENT, Metric, OnceTable
from gputui.report.process_table import OUTSIDE, ProcessRow, process_rows
from gputui.report.schema import AnyColumn, AnyTable, Cell, Column, Table, plain, text
from gputui.state import Gpu, Session, gpu_metrics, mig_metrics

_WIDE = 100
"""Columns from which a process line has room for all its fields."""


def machine_tables(session: Session, width: int | None = None) -> list[AnyTable]:
    """Everything worth a line, in tables that fit 80 columns; empty ones are left out.

    `width` is that of the terminal, None for a file.
    """
    tables = (
        _load_table(session),
        _instance_table(session),
        _pipe_table(session),
        _state_table(session),
        _link_table(session),
        _health_table(session),
        _process_table(session, width is None or width >= _WIDE),
    )
    return [table for table in tables if table.rows]


def _gpus(session: Session) -> list[Gpu]:
    return [gpu for _, gpu in sorted(session.gpus.items())]


def _table(
    name: str, title: str, columns: Sequence[AnyColumn], rows: Sequence[tuple[Cell, ...]]
) -> AnyTable:
    return Table(name, title, tuple(columns), tuple(rows))


def _load_table(session: Session) -> AnyTable:
    shares = _declared("gpus")

    def cells(gpu: Gpu) -> tuple[Cell, ...]:
        sample = newest_sample(gpu)
        total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
        return (
            gpu.facts.index,
            gpu.facts.name.removeprefix("NVIDIA "),
            *(gpu.figure(field) for field in shares),
            of_whole(sample.memory_used_bytes, total, units.size),
            of_whole(sample.power_watts, sample.power_limit_watts, plain, " W"),
            _with_unit(sample.temperature_celsius, "°C"),
        )

    texts: list[AnyColumn] = [text(name) for name in ("Memory", "Power", "Temp")]
    columns: tuple[AnyColumn, ...] = (text("#"), text("Name"), *shares.values(), *texts)
    return _table("gpus", "GPUs", columns, [cells(gpu) for gpu in _gpus(session)])


def _instance_table(session: Session) -> AnyTable:
    shares: dict[str, AnyColumn] = {
        field: Column(metric.once[1], metric.unit.show)
        for field, metric in sorted(mig_metrics().items(), key=_place)
        if metric.once and metric.unit is PERCENT
    }
    rows: list[tuple[Cell, ...]] = []
    for gpu in _gpus(session):
        for facts, sample in mig_instances(gpu):
            total = sample.memory_total_bytes or facts.memory_total_bytes
            rows.append(
                (
                    f"{gpu.facts.index}:{facts.index}",
                    facts.name,
                    "all" if facts.sm_count is None else f"{facts.sm_count} SMs",
                    *(getattr(sample, field) for field in shares),
                    of_whole(sample.memory_used_bytes, total, units.size),
                )
            )
    names: tuple[AnyColumn, ...] = (text("#"), text("Profile"), text("Size"))
    columns = (*names, *shares.values(), text("Memory"))
    return _table("mig", "MIG instances", columns, rows)


def _pipe_table(session: Session) -> AnyTable:
    columns = _declared("pipes")
    rows = [(gpu.facts.index, *(gpu.figure(field) for field in columns)) for gpu in _gpus(session)]
    return _table("pipes", "Pipes and memory", (text("#"), *columns.values()), rows)


def _declared(table: OnceTable) -> dict[str, AnyColumn]:
    """The columns of a table that figures declare, in the order of the details page."""
    return {
        field: Column(metric.once[1], metric.unit.show)
        for field, metric in sorted(gpu_metrics().items(), key=_place)
        if metric.once and metric.once[0] == table
    }


def _place(declared: tuple[str, Metric]) -> tuple[int, int]:
    group, place = declared[1].details or (GROUPS[-1], 0)
    return GROUPS.index(group), place


def _state_table(session: Session) -> AnyTable:
    def cells(gpu: Gpu) -> tuple[Cell, ...]:
        sample, facts = newest_sample(gpu), gpu.facts
        status = gpu.status or GpuStatus(time_ns=0, gpu=facts.index)
        energy = status.energy_joules
        state = sample.performance_state
        reasons = sample.throttle_reasons
        return (
            facts.index,
            units.MISSING if state is None else f"P{state}",
            of_whole(sample.sm_clock_mhz, facts.max_sm_clock_mhz, plain),
            of_whole(sample.memory_clock_mhz, facts.max_memory_clock_mhz, plain),
            _with_unit(status.temperature_margin_celsius, "°C"),
            _with_unit(sample.memory_temperature_celsius, "°C"),
            status.fan_percent,
            None if energy is None else energy / 3600,
            units.MISSING if reasons is None else ", ".join(reasons) or "no",
        )

    columns: tuple[AnyColumn, ...] = (
        text("#"),
        text("P"),
        text("SM MHz"),
        text("Mem MHz"),
        text("Margin"),
        text("Mem temp"),
        Column("Fan", units.percent),
        Column("Energy", lambda hours: units.quantity(hours, "Wh")),
        text("Throttled"),
    )
    return _table("state", "Clocks and heat", columns, [cells(gpu) for gpu in _gpus(session)])


def _link_table(session: Session) -> AnyTable:
    def cells(gpu: Gpu) -> tuple[Cell, ...]:
        sample, facts, status = newest_sample(gpu), gpu.facts, gpu.status
        active = status.nvlink_active_count if status else None
        generation = status.pcie_link_generation if status else None
        width = status.pcie_link_width if status else None
        ways = " ".join(f"{other}:{way}" for other, way in sorted(facts.topology.items()))
        return (
            facts.index,
            units.MISSING if generation is None or width is None else f"gen {generation} x{width}",
            sample.pcie_rx_bytes_per_s,
            sample.pcie_tx_bytes_per_s,
            of_whole(active, facts.nvlink_count, plain),
            sample.nvlink_rx_bytes_per_s,
            sample.nvlink_tx_bytes_per_s,
            ways,
        )

    rate = units.rate
    columns: tuple[AnyColumn, ...] = (
        text("#"),
        text("PCIe"),
        Column("In", rate),
        Column("Out", rate),
        text("NVLink"),
        Column("In", rate),
        Column("Out", rate),
        text("To GPUs"),
    )
    return _table("links", "Links", columns, [cells(gpu) for gpu in _gpus(session)])


def _health_table(session: Session) -> AnyTable:
    def cells(gpu: Gpu) -> tuple[Cell, ...]:
        status = gpu.status or GpuStatus(time_ns=0, gpu=gpu.facts.index)
        rows = (status.remapped_rows_corrected, status.remapped_rows_uncorrected)
        remapped = None if None in rows else sum(row or 0 for row in rows)
        xids = str(status.xid_count) if status.last_xid is None else f"last {status.last_xid}"
        return (
            gpu.facts.index,
            _on(status.ecc_enabled),
            status.ecc_corrected,
            status.ecc_uncorrected,
            _pending(remapped, status.row_remapping_pending),
            _pending(status.retired_pages, status.page_retirement_pending),
            None if status.xid_count is None else xids,
            _on(status.persistence_mode),
            status.compute_mode,
            _on(gpu.facts.mig_enabled),
        )

    names = (
        "#",
        "ECC",
        "Corr",
        "Uncorr",
        "Remapped",
        "Retired",
        "Xid",
        "Persist",
        "Compute",
        "MIG",
    )
    columns: list[AnyColumn] = [text(name) for name in names]
    return _table("health", "Health and modes", columns, [cells(gpu) for gpu in _gpus(session)])


def _process_table(session: Session, wide: bool) -> AnyTable:
    """One line per process, with all its GPUs; a narrow one drops columns."""

    def cells(row: ProcessRow) -> tuple[Cell, ...]:
        narrow = (
            ",".join(str(gpu) for gpu in row.gpus) or units.MISSING,
            str(row.pid),
            row.kind or units.MISSING,
            row.user or units.MISSING,
            row.gpu_memory_bytes,
            row.sm_percent,
        )
        more = (row.memory_bandwidth_percent,) if wide else ()
        rest = (
            row.cpu_percent,
            row.host_memory_bytes,
            None if row.run_time_ns is None else float(row.run_time_ns),
            row.command or OUTSIDE,
        )
        return (*narrow, *more, *rest)

    columns: list[AnyColumn] = [
        text("GPU"),
        text("PID"),
        text("T"),
        text("User"),
        Column("GPU mem", units.size),
        Column("SM", units.percent),
        *([Column("Mem BW", units.percent)] if wide else []),
        Column("CPU", units.percent),
        Column("Memory", units.size),
        Column("Time", units.duration),
        text("Command"),
    ]
    rows = [cells(row) for row in process_rows(session)]
    return _table("processes", "GPU processes", columns, rows)


def of_whole(
    value: float | None, whole: float | None, show: Callable[[float | None], str], unit: str = ""
) -> str:
    """A part and its total: "612/700 W"."""
    if value is None:
        return units.MISSING
    shown, all_of_it = show(value), "" if whole is None else show(whole)
    if all_of_it and shown.rpartition(" ")[2] == all_of_it.rpartition(" ")[2] and " " in shown:
        shown = shown.rpartition(" ")[0]
    return f"{shown}{'/' if all_of_it else ''}{all_of_it}{unit}"


def _with_unit(value: float | None, unit: str) -> str:
    return units.MISSING if value is None else f"{value:.0f} {unit}"


def _on(value: bool | None) -> str:
    return units.MISSING if value is None else "on" if value else "off"


def _pending(count: int | None, pending: bool | None) -> str:
    return units.MISSING if count is None else f"{count}{' + pending' if pending else ''}"


def newest_sample(gpu: Gpu) -> GpuSample:
    """The GPU's sample, or an empty one."""
    return gpu.sample or GpuSample(index=gpu.facts.index)


def mig_instances(gpu: Gpu) -> list[tuple[MigFacts, MigSample]]:
    """Each MIG instance with its sample."""
    told = {one.index: one for one in newest_sample(gpu).mig_instances}
    return [
        (facts, told.get(facts.index, MigSample(index=facts.index)))
        for facts in gpu.facts.mig_instances
    ]
