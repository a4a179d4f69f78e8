"""The machine as it is now: what `--once` prints and writes as JSON.

Kept apart from the tables of a recording without a run (`tables/machine.py`), which are of all its
samples: these are of the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from textwrap import wrap
from typing import Any, NamedTuple

import msgspec

from gputui.model import units
from gputui.model.cards import HARMLESS_THROTTLING
from gputui.model.events import (
    SCHEMA_VERSION,
    GpuSample,
    GpuStatus,
    HostSample,
    MigFacts,
    MigSample,
)
from gputui.model.metrics import GROUPS, PERCENT, Metric, OnceTable
from gputui.model.units import moment
from gputui.report.schema import AnyTable, Column, Show, TableSpec, rate, text, whole_number
from gputui.report.tables.processes import PROCESSES_NOW
from gputui.state import Gpu, Run, Session, gpu_metrics, mig_metrics
from gputui.state.session import Hosts

# Columns of the terminal from which `wide` columns of a table have room.
_WIDE = 100


def newest_sample(gpu: Gpu) -> GpuSample:
    """The GPU's sample, or an empty one."""
    return gpu.sample or GpuSample(index=gpu.facts.index)


class MigInstance(NamedTuple):
    """A MIG instance with its newest sample."""

    gpu: int
    facts: MigFacts
    sample: MigSample


def mig_instances(gpu: Gpu) -> list[MigInstance]:
    """Each MIG instance with its sample, an empty one where there is none."""
    samples = {sample.index: sample for sample in newest_sample(gpu).mig_instances}
    return [
        MigInstance(gpu.facts.index, facts, samples.get(facts.index, MigSample(index=facts.index)))
        for facts in gpu.facts.mig_instances
    ]


# --- cells


def of_whole(value: float | None, whole: float | None, show: Show, unit: str = "") -> str:
    """A part and its total: "612/700 W"."""
    if value is None:
        return units.MISSING
    shown, all_of_it = show(value), "" if whole is None else show(whole)
    if all_of_it and shown.rpartition(" ")[2] == all_of_it.rpartition(" ")[2] and " " in shown:
        shown = shown.rpartition(" ")[0]
    return f"{shown}{'/' if all_of_it else ''}{all_of_it}{unit}"


def _of_memory(sample: GpuSample | MigSample, total_bytes: int | None) -> str:
    total = sample.memory_total_bytes or total_bytes
    return of_whole(sample.memory_used_bytes, total, units.size)


def _on(value: bool | None) -> str:
    return units.MISSING if value is None else "on" if value else "off"


def _pending(count: int | None, pending: bool | None) -> str:
    return units.MISSING if count is None else f"{count}{' + pending' if pending else ''}"


def _status(gpu: Gpu) -> GpuStatus:
    return gpu.status or GpuStatus(time_ns=0, gpu=gpu.facts.index)


def _throttled(gpu: Gpu) -> str:
    reasons = newest_sample(gpu).throttle_reasons
    return units.MISSING if reasons is None else ", ".join(reasons) or "no"


def _pcie(gpu: Gpu) -> str:
    generation, width = _status(gpu).pcie_link_generation, _status(gpu).pcie_link_width
    return units.MISSING if None in (generation, width) else f"gen {generation} x{width}"


def _remapped(gpu: Gpu) -> str:
    status = _status(gpu)
    rows = (status.remapped_rows_corrected, status.remapped_rows_uncorrected)
    count = None if None in rows else sum(row or 0 for row in rows)
    return _pending(count, status.row_remapping_pending)


def _xids(gpu: Gpu) -> str | None:
    status = _status(gpu)
    if status.xid_count is None:
        return None
    return str(status.xid_count) if status.last_xid is None else f"last {status.last_xid}"


# --- tables


def _gpus(session: Session, _run: object) -> list[Gpu]:
    return [gpu for _, gpu in sorted(session.gpus.items())]


def _instances(session: Session, _run: object) -> list[MigInstance]:
    return [instance for gpu in _gpus(session, None) for instance in mig_instances(gpu)]


def _place(declared: tuple[str, Metric]) -> tuple[int, int]:
    group, place = declared[1].details or (GROUPS[-1], 0)
    return GROUPS.index(group), place


def _declared(table: OnceTable) -> list[Column[Gpu]]:
    """The columns of a table that figures declare, in the order of the details page."""

    def column(field: str, metric: Metric, title: str) -> Column[Gpu]:
        return Column(title, metric.unit.show, field, lambda gpu: gpu.figure(field))

    return [
        column(field, metric, metric.once[1])
        for field, metric in sorted(gpu_metrics().items(), key=_place)
        if metric.once and metric.once[0] == table
    ]


def _shares_of_instances() -> list[Column[MigInstance]]:
    def column(field: str, metric: Metric, title: str) -> Column[MigInstance]:
        return Column(title, metric.unit.show, field, lambda row: getattr(row.sample, field))

    return [
        column(field, metric, metric.once[1])
        for field, metric in sorted(mig_metrics().items(), key=_place)
        if metric.once and metric.unit is PERCENT
    ]


_NUMBER: Column[Gpu] = text("#", "index", lambda gpu: gpu.facts.index)

GPUS_NOW: TableSpec[Gpu] = TableSpec(
    key="gpus",
    title="GPUs",
    meaning="What each GPU does, holds and draws now.",
    columns=(
        _NUMBER,
        text("Name", "name", lambda gpu: gpu.facts.name.removeprefix("NVIDIA ")),
        *_declared("gpus"),
        text("Memory", "memory",
             lambda gpu: _of_memory(newest_sample(gpu), gpu.facts.memory_total_bytes)),
        text("Power", "power", lambda gpu: of_whole(
            newest_sample(gpu).power_watts, newest_sample(gpu).power_limit_watts, whole_number,
            " W")),
        text("Temp", "temperature",
             lambda gpu: units.celsius(newest_sample(gpu).temperature_celsius)),
    ),
    rows=_gpus,
    order=0,
)  # fmt: skip

INSTANCES_NOW: TableSpec[MigInstance] = TableSpec(
    key="mig",
    title="MIG instances",
    meaning="The parts that GPUs are divided into.",
    columns=(
        text("#", "index", lambda row: f"{row.gpu}:{row.facts.index}"),
        text("Profile", "profile", lambda row: row.facts.name),
        text("Size", "size",
             lambda row: "all" if row.facts.sm_count is None else f"{row.facts.sm_count} SMs"),
        *_shares_of_instances(),
        text("Memory", "memory", lambda row: _of_memory(row.sample, row.facts.memory_total_bytes)),
    ),
    rows=_instances,
    order=1,
)  # fmt: skip

PIPES_NOW: TableSpec[Gpu] = TableSpec(
    key="pipes",
    title="Pipes and memory",
    meaning="Shares of the time in which parts of each GPU worked.",
    columns=(_NUMBER, *_declared("pipes")),
    rows=_gpus,
    order=2,
)

CLOCKS_NOW: TableSpec[Gpu] = TableSpec(
    key="state",
    title="Clocks and heat",
    meaning="Clocks, temperatures, and what holds clocks back.",
    columns=(
        _NUMBER,
        text("P", "performance_state", lambda gpu: units.MISSING
             if (state := newest_sample(gpu).performance_state) is None else f"P{state}"),
        text("SM MHz", "sm_clock", lambda gpu: of_whole(
            newest_sample(gpu).sm_clock_mhz, gpu.facts.max_sm_clock_mhz, whole_number)),
        text("Mem MHz", "memory_clock", lambda gpu: of_whole(
            newest_sample(gpu).memory_clock_mhz, gpu.facts.max_memory_clock_mhz, whole_number)),
        text("Margin", "temperature_margin",
             lambda gpu: units.celsius(_status(gpu).temperature_margin_celsius)),
        text("Mem temp", "memory_temperature",
             lambda gpu: units.celsius(newest_sample(gpu).memory_temperature_celsius)),
        Column("Fan", units.percent, "fan_percent", lambda gpu: _status(gpu).fan_percent),
        Column("Energy", units.watt_hours, "energy_joules",
               lambda gpu: _status(gpu).energy_joules),
        text("Throttled", "throttled", _throttled),
    ),
    rows=_gpus,
    order=3,
)  # fmt: skip

LINKS_NOW: TableSpec[Gpu] = TableSpec(
    key="links",
    title="Links",
    meaning="PCIe and NVLink: their state, what they carry, and the way to each other GPU.",
    columns=(
        _NUMBER,
        text("PCIe", "pcie", _pcie),
        rate("In", "pcie_rx", lambda gpu: newest_sample(gpu).pcie_rx_bytes_per_s),
        rate("Out", "pcie_tx", lambda gpu: newest_sample(gpu).pcie_tx_bytes_per_s),
        text("NVLink", "nvlink", lambda gpu: of_whole(
            _status(gpu).nvlink_active_count, gpu.facts.nvlink_count, whole_number)),
        rate("In", "nvlink_rx", lambda gpu: newest_sample(gpu).nvlink_rx_bytes_per_s),
        rate("Out", "nvlink_tx", lambda gpu: newest_sample(gpu).nvlink_tx_bytes_per_s),
        text("To GPUs", "topology", lambda gpu: " ".join(
            f"{other}:{way}" for other, way in sorted(gpu.facts.topology.items()))),
    ),
    rows=_gpus,
    order=4,
)  # fmt: skip

HEALTH_NOW: TableSpec[Gpu] = TableSpec(
    key="health",
    title="Health and modes",
    meaning="Errors of the memory and of the driver, and the modes that are set.",
    columns=(
        _NUMBER,
        text("ECC", "ecc", lambda gpu: _on(_status(gpu).ecc_enabled)),
        text("Corr", "ecc_corrected", lambda gpu: _status(gpu).ecc_corrected),
        text("Uncorr", "ecc_uncorrected", lambda gpu: _status(gpu).ecc_uncorrected),
        text("Remapped", "remapped_rows", _remapped),
        text("Retired", "retired_pages", lambda gpu: _pending(
            _status(gpu).retired_pages, _status(gpu).page_retirement_pending)),
        text("Xid", "xid", _xids),
        text("Persist", "persistence_mode", lambda gpu: _on(_status(gpu).persistence_mode)),
        text("Compute", "compute_mode", lambda gpu: _status(gpu).compute_mode),
        text("MIG", "mig", lambda gpu: _on(gpu.facts.mig_enabled)),
    ),
    rows=_gpus,
    order=5,
)  # fmt: skip

_TABLES: tuple[TableSpec[Any], ...] = (
    GPUS_NOW,
    INSTANCES_NOW,
    PIPES_NOW,
    CLOCKS_NOW,
    LINKS_NOW,
    HEALTH_NOW,
    PROCESSES_NOW,
)


def machine_tables(session: Session, width: int | None = None) -> list[AnyTable]:
    """Everything worth a line, in tables that fit 80 columns; empty ones are left out.

    `width` is that of the terminal, None for a file.
    """
    is_wide = width is None or width >= _WIDE
    return [
        msgspec.structs.replace(
            table, columns=tuple(c for c in table.columns if is_wide or not c.wide)
        )
        for spec in _TABLES
        if (table := spec.table(session, None)).rows
    ]


# --- lines


def machine_lines(session: Session) -> list[str]:
    """The host in two lines, and why there is no GPU."""
    header, host = session.header, session.host
    if header is None:
        return []
    driver = f"driver {header.driver_version}" if header.driver_version else "no driver"
    cuda = f"  CUDA {header.cuda_driver_version}" if header.cuda_driver_version else ""
    time = moment(session.now_ns).replace("T", " ")[:19]
    lines = [f"{time}  {header.host.hostname}  {header.host.system}  {driver}{cuda}"]
    if host:
        load = units.MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
        memory = of_whole(host.memory_used_bytes, header.host.memory_total_bytes, units.size)
        swap = f", swap {units.size(host.swap_used_bytes)}" if host.swap_used_bytes else ""
        lines.append(
            f"CPU {units.percent(host.cpu_percent)} of {header.host.cpu_count} cores, "
            f"load {load}, memory {memory}{swap}{_infiniband(host)}"
        )
    if header.gpu_unavailable_reason:
        lines.append(f"no GPU: {header.gpu_unavailable_reason}")
    return lines


def _infiniband(host: HostSample) -> str:
    """What its ports move, on a host that has such."""
    sent, received = host.infiniband_sent_bytes_per_s, host.infiniband_received_bytes_per_s
    if sent is None or received is None:
        return ""
    return f", InfiniBand {units.rate(sent)} out, {units.rate(received)} in"


def reason_lines(session: Session, width: int | None = None) -> list[str]:
    """Why values are n/a: each reason with the GPUs and the fields it applies to, wrapped to
    `width`.
    """
    fields_of: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, gpu in sorted(session.gpus.items()):
        by_reason: dict[str, list[str]] = {}
        for field, reason in gpu.unavailable.items():
            by_reason.setdefault(reason, []).append(field)
        for reason, names in by_reason.items():
            fields_of.setdefault((reason, tuple(sorted(names))), []).append(index)
    lines = []
    for (reason, fields), gpus in fields_of.items():
        where = "" if len(gpus) == len(session.gpus) else f"GPU {', '.join(map(str, gpus))}: "
        what = "everything" if "device" in fields else ", ".join(fields)
        lines.append(f"n/a  {where}{what}: {reason}")
    lines += [f"n/a  {field}: {why}" for field, why in session.host_unavailable.items()]
    if width is None:
        return lines
    indent = " " * 5
    return [part for line in lines for part in wrap(line, width, subsequent_indent=indent)]


# --- the document


def machine_document(session: Session) -> dict[str, Any]:
    """The newest sample of everything, missing values as null with a reason."""
    header = session.header
    host = session.host or HostSample()
    facts = msgspec.to_builtins(header.host) if header else {}
    versions = {
        "driver_version": header.driver_version if header else None,
        "cuda_driver_version": header.cuda_driver_version if header else None,
    }
    return {
        "schema": SCHEMA_VERSION,
        "time": moment(session.now_ns),
        "host": facts | versions | _fields(host) | {"unavailable": dict(session.host_unavailable)},
        "gpu_unavailable_reason": header.gpu_unavailable_reason if header else None,
        "gpus": [_gpu(gpu) for _, gpu in sorted(session.gpus.items())],
        "processes": [_fields(process) for process in session.processes],
        "launchers": [_fields(launcher) for launcher in session.launchers],
    }


def hosts_document(hosts: Hosts) -> dict[str, Any]:
    """Every host with its machine's document, null with a reason where there is none."""
    return {
        "schema": SCHEMA_VERSION,
        "hosts": [
            {
                "name": host.name,
                "unavailable_reason": None if host.session.samples else host.link.reason,
                "clock_offset_ns": host.link.clock.offset_ns if host.link.clock else None,
                "clock_error_ns": host.link.clock.error_ns if host.link.clock else None,
                "machine": machine_document(host.session) if host.session.samples else None,
            }
            for host in hosts.values()
        ],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    facts = _fields(gpu.facts)
    status = _fields(_status(gpu))
    del status["gpu"], status["time_ns"]
    return {
        "index": facts.pop("index"),
        "uuid": facts.pop("uuid"),
        "name": facts.pop("name"),
        **_fields(newest_sample(gpu)),
        "mig_instances": [
            _fields(part.facts) | _fields(part.sample) for part in mig_instances(gpu)
        ],
        "status_time": moment(gpu.status.time_ns) if gpu.status else None,
        **status,
        "facts": facts
        | {"mig_instances": [_fields(instance) for instance in gpu.facts.mig_instances]},
        "unavailable": dict(gpu.unavailable),
    }


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    """Every field of the object, including those at their default; tuples become lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in record.__struct_fields__
        for value in (getattr(record, name),)
    }


# What a GPU's figures say, in words, each with the role that it is to be seen in.


_STALE_INTERVALS = 3.5
"""A card silent for this many intervals is marked."""


def trouble(gpu: Gpu, now_ns: int, interval_s: float) -> str:
    """Why the card's figures are not of now: it is lost or does not answer. "" while they are."""
    age_ns = now_ns - gpu.sample_ns if gpu.sample_ns else 0
    reason = gpu.unavailable.get("device", "")
    if not reason and age_ns <= max(2.0, _STALE_INTERVALS * interval_s) * 1e9:
        return ""
    age = f"figures are {units.duration(age_ns // 10**9 * 10**9)} old" if age_ns >= 1e9 else ""
    return ": ".join(part for part in (reason or "no answer", age) if part)


def temperature(gpu: Gpu) -> tuple[str, str]:
    """The temperature and how it is to be seen: hot only near the slowdown threshold."""
    sample = gpu.sample
    value = sample.temperature_celsius if sample else None
    if sample is None or value is None:
        return units.MISSING, "dim"
    slowdown = gpu.facts.temperature_slowdown_celsius
    margin = gpu.status.temperature_margin_celsius if gpu.status else None
    if margin is None and slowdown is not None:
        margin = slowdown - value
    text = units.celsius(value)
    if margin is None:
        return text, "value"
    limit = f"slows at {value + margin:.0f}"
    if margin <= 3:
        return f"{text} (HOT: {limit})", "hot"
    return f"{text} ({limit})", "warn" if margin <= 8 else "value"


def throttling(gpu: Gpu) -> tuple[str, str]:
    """Why clocks are held down, in words; hot only if one of the reasons is a fault."""
    reasons = gpu.sample.throttle_reasons if gpu.sample else None
    if reasons is None:
        return units.MISSING, "dim"
    if faults := [reason for reason in reasons if reason not in HARMLESS_THROTTLING]:
        return f"THROTTLED: {', '.join(faults)}", "hot"
    return (", ".join(reasons), "dim") if reasons else ("none", "good")


def throttled_in(run: Run | None, index: int) -> list[str]:
    """What held the clocks of a GPU down in a run that has ended, and in how many of its readings:
    what the card says now is of a GPU that rests."""
    if run is None or run.is_active:
        return []
    memory = run.readings.series(index, "memory_used_bytes")
    whole = memory.count if memory is not None else run.readings.samples
    counts = {
        reason: count
        for (gpu, reason), count in run.readings.throttle_samples.items()
        if gpu == index and reason not in HARMLESS_THROTTLING
    }
    return [
        f"{reason} {units.percent(100 * min(1.0, count / max(1, whole)))} of the run"
        for reason, count in sorted(counts.items(), key=lambda item: -item[1])
    ]


def health(gpu: Gpu) -> list[tuple[str, str, str]]:
    """(label, figure, role) of what is wrong with the card; empty for a sound one."""
    status = gpu.status
    if status is None:
        return []
    rows = (status.remapped_rows_corrected or 0) + (status.remapped_rows_uncorrected or 0)
    figures = [
        ("Xid errors", _xid(status), "hot", bool(status.xid_count)),
        ("row remapping", "FAILED", "hot", bool(status.row_remapping_failed)),
        ("row remapping", "pending: reset the GPU", "warn", bool(status.row_remapping_pending)),
        ("page retirement", "pending: reset the GPU", "warn", bool(status.page_retirement_pending)),
        (
            "ECC uncorrected",
            units.quantity(status.ecc_uncorrected or status.ecc_uncorrected_lifetime),
            "hot" if status.ecc_uncorrected else "warn",
            bool(status.ecc_uncorrected or status.ecc_uncorrected_lifetime),
        ),
        ("ECC corrected", units.quantity(status.ecc_corrected), "warn", bool(status.ecc_corrected)),
        ("remapped rows", units.quantity(rows), "warn", bool(rows)),
        ("retired pages", units.quantity(status.retired_pages), "warn", bool(status.retired_pages)),
    ]
    return [(label, text, role) for label, text, role, holds in figures if holds]


def _xid(status: GpuStatus) -> str:
    last = "" if status.last_xid is None else f" (last {status.last_xid})"
    return f"{units.quantity(status.xid_count)}{last}"


def memory_role(sample: GpuSample | None) -> str:
    """Red only where memory is about to run out."""
    fraction = memory_fraction(sample)
    if fraction is None:
        return "dim"
    return "hot" if fraction >= 0.97 else "warn" if fraction >= 0.9 else "value"


def memory_fraction(sample: GpuSample | None) -> float | None:
    """Used memory over all of it."""
    if sample is None or sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / sample.memory_total_bytes


def memory_text(sample: GpuSample | None) -> str:
    """ "45.2 GiB of 141 GiB"."""
    if sample is None or sample.memory_used_bytes is None:
        return units.MISSING
    if not sample.memory_total_bytes:
        return units.size(sample.memory_used_bytes)
    return f"{units.size(sample.memory_used_bytes)} of {units.size(sample.memory_total_bytes)}"


def busy_percent(sample: GpuSample | None) -> float | None:
    """How much of the GPU works: SM active where it is known."""
    if sample is None:
        return None
    active = sample.sm_active_percent
    return active if active is not None else sample.utilization_percent


_RECENT = 10


_LITTLE, _MUCH = 10.0, 50.0


_HELD_BYTES = 1 << 30


def out_of_line(gpus: Sequence[Gpu]) -> list[str]:
    """GPUs that do little while the others work, and idle ones that hold memory, by their mean load
    of the last ten readings."""
    loads = {gpu.facts.index: load for gpu in gpus if (load := recent_load(gpu)) is not None}
    sentences = []
    for gpu in gpus:
        load = loads.get(gpu.facts.index)
        others = sorted(other for index, other in loads.items() if index != gpu.facts.index)
        if load is None or not others or load >= _LITTLE:
            continue
        usual = others[len(others) // 2]
        held = gpu.sample.memory_used_bytes if gpu.sample else None
        if usual >= _MUCH:
            others_busy = f"the others {units.percent(usual)}"
            sentences.append(f"GPU {gpu.facts.index} is {units.percent(load)} busy, {others_busy}")
        elif load < 1 and held is not None and held >= _HELD_BYTES:
            sentences.append(f"GPU {gpu.facts.index} is idle and holds {units.size(held)}")
    return sentences


def recent_load(gpu: Gpu) -> float | None:
    loads = []
    for _, sample in islice(reversed(gpu.samples.history), _RECENT):
        load = busy_percent(sample)
        if load is not None:
            loads.append(load)
    return sum(loads) / len(loads) if loads else None
