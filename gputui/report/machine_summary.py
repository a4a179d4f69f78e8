"""A recording without a run: the machine over all of it, as tables and as a document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputui.model import units
from gputui.model.events import SCHEMA_VERSION, HostSample
from gputui.model.metrics import CELSIUS, WATTS, metrics_of
from gputui.model.units import moment
from gputui.report.columns import (
    Cell,
    Column,
    Table,
    count,
    percent,
    size,
    spare,
    text,
    time,
)
from gputui.report.explain import insight_documents, machine_insights
from gputui.report.gpu_readings import (
    SPREAD_COLUMNS,
    devices_document,
    devices_table,
    energy_joules,
    spread_cells,
    spread_document,
    spread_words,
)
from gputui.state import Occupant, Session

NO_RUN = "no run was recorded, the machine alone"

_OF_RUNS = (
    "phases",
    "marks",
    "kernels",
    "launch_shapes",
    "api",
    "memops_time",
    "memops_size",
    "all",
    "metrics",
    "tables",
    "timing",
    "dropped_events",
    "overhead",
)
"""What the document of a run has, and that of a machine has as null."""


def machine_summary(session: Session) -> dict[str, Any]:
    """The document of `summary --format json` where there is no run: `run` is None, `machine`
    holds what was read. Times in ns, sizes in bytes, missing is None."""
    readings, header = session.readings, session.header
    return {
        "schema": SCHEMA_VERSION,
        "run": None,
        "machine": {
            "hostname": header.host.hostname if header else None,
            "system": header.host.system if header else None,
            "driver_version": header.driver_version if header else None,
            "cuda_driver_version": header.cuda_driver_version if header else None,
            "gputui_version": header.gputui_version if header else None,
            "gpu_unavailable_reason": header.gpu_unavailable_reason if header else None,
            "started": moment(started_ns(session)),
            "duration_ns": readings.duration_ns,
            "samples": readings.samples,
            "recorded_bytes": session.recorded_bytes,
            "host": {
                name: spread_document(spread)
                for name, spread in sorted(readings.host_spreads.items())
            },
            "events": [
                {
                    "gpu": gpu,
                    "event": what,
                    "count": trouble.count,
                    "first": moment(trouble.first_ns),
                    "last": moment(trouble.last_ns),
                }
                for (gpu, what), trouble in sorted(readings.troubles.items())
            ],
            "processes": [_process(occupant) for occupant in _occupants(session)],
        },
        "memory": {
            "peak_used_bytes": {
                f"gpu{index}": int(spread.maximum)
                for (index, name), spread in sorted(readings.gpu_spreads.items())
                if name == "memory_used_bytes"
            }
        },
        "devices": devices_document(session, readings, {}),
        "insights": insight_documents(machine_insights(session, readings)),
        **dict.fromkeys(_OF_RUNS),
        "unavailable": dict.fromkeys(("run", *_OF_RUNS), NO_RUN),
    }


def started_ns(session: Session) -> int:
    """When the recording begins."""
    return session.header.time_ns if session.header else session.readings.first_ns


def _process(occupant: Occupant) -> dict[str, Any]:
    process = occupant.newest
    return {
        "pid": process.pid,
        "gpu": process.gpu,
        "user": process.user,
        "command": process.command,
        "peak_gpu_memory_bytes": occupant.peak_memory_bytes,
        "mean_sm_percent": occupant.use.average,
        "first_seen": moment(occupant.first_ns),
        "last_seen": moment(occupant.last_ns),
    }


def _occupants(session: Session) -> list[Occupant]:
    """The largest first."""
    found = session.readings.occupants.values()
    return sorted(found, key=lambda one: (-(one.peak_memory_bytes or 0), one.first_ns))


def gpus_table(session: Session) -> Table:
    """A line a GPU: means, peaks, energy."""
    spreads = session.readings.gpu_spreads

    def mean(index: int, name: str) -> float | None:
        spread = spreads.get((index, name))
        average = spread.average if spread else None
        return None if average is None else round(average, 3)

    def most(index: int, name: str) -> float | None:
        spread = spreads.get((index, name))
        return spread.maximum if spread else None

    rows: list[tuple[Cell, ...]] = []
    for index, gpu in sorted(session.gpus.items()):
        energy = energy_joules(session.readings, index)
        rows.append(
            (
                index,
                gpu.facts.name,
                mean(index, "utilization_percent"),
                mean(index, "sm_active_percent"),
                mean(index, "tensor_active_percent"),
                mean(index, "memory_bandwidth_percent"),
                mean(index, "memory_used_bytes"),
                most(index, "memory_used_bytes"),
                mean(index, "power_watts"),
                most(index, "power_watts"),
                None if energy is None else round(energy[0], 1),
                most(index, "temperature_celsius"),
            )
        )
    columns = (
        text("GPU"),
        text("Name"),
        spare(2, percent("Util Mean (%)")),
        percent("SM Mean (%)"),
        spare(4, percent("Tensor Mean (%)")),
        spare(3, percent("DRAM Mean (%)")),
        spare(5, size("Memory Mean (bytes)")),
        size("Memory Peak (bytes)"),
        Column("Power Mean (W)", WATTS.mean),
        spare(1, Column("Power Peak (W)", WATTS.mean)),
        Column("Energy (J)", _energy),
        spare(1, Column("Hottest (°C)", CELSIUS.mean)),
    )
    note = "means and peaks of all samples"
    return Table("machine_gpus", "GPUs Over the Recording", columns, tuple(rows), note)


def _energy(joules: float | None) -> str:
    return units.quantity(None if joules is None else joules / 3600, "Wh")


def host_table(session: Session) -> Table:
    """The computer around the GPUs."""
    spreads, metrics = sorted(session.readings.host_spreads.items()), metrics_of(HostSample)
    return Table(
        "machine_host",
        "The Host",
        SPREAD_COLUMNS,
        tuple(spread_cells(name, spread) for name, spread in spreads),
        in_words=tuple(spread_words(metrics[name], spread) for name, spread in spreads),
    )


def throttling_table(session: Session) -> Table:
    """What held the clocks back: in how many samples, and how long as the driver counts it."""
    readings = session.readings
    keys = {*readings.throttle_samples}
    keys |= {key for key, counter in readings.throttle_seconds.items() if counter.amount}
    rows = []
    for key in sorted(keys):
        seen, counter = readings.throttle_samples.get(key, 0), readings.throttle_seconds.get(key)
        seconds = counter.amount if counter else None
        share = 100.0 * seen / readings.samples if readings.samples else None
        held_ns = None if seconds is None else round(seconds * 1e9)
        rows.append((*key, None if share is None else round(share, 3), seen, held_ns))
    columns = (
        text("GPU"),
        text("Clocks Held Back By"),
        percent("Samples (%)"),
        count("Samples"),
        time("Time (ns)"),
    )
    note = "time: the driver's own count, where it keeps one"
    return Table("machine_throttling", "Throttling", columns, tuple(rows), note)


def events_table(session: Session) -> Table:
    """What befell the GPUs."""
    start = started_ns(session)
    rows = tuple(
        (gpu, what, trouble.count, trouble.first_ns - start, trouble.last_ns - start)
        for (gpu, what), trouble in sorted(
            session.readings.troubles.items(), key=lambda item: item[1].first_ns
        )
    )
    columns = (text("GPU"), text("Event"), count("Times"), time("First (ns)"), time("Last (ns)"))
    note = "times since the start of the recording"
    return Table("machine_events", "Events", columns, rows, note)


def occupants_table(session: Session) -> Table:
    """The processes that were seen on the GPUs."""
    start = started_ns(session)
    rows = tuple(
        (
            occupant.newest.pid,
            occupant.newest.gpu,
            occupant.newest.user,
            occupant.peak_memory_bytes,
            None if occupant.use.average is None else round(occupant.use.average, 3),
            occupant.first_ns - start,
            occupant.last_ns - start,
            occupant.newest.command,
        )
        for occupant in _occupants(session)
    )
    columns = (
        text("PID"),
        text("GPU"),
        text("User"),
        size("Peak Memory (bytes)"),
        percent("SM Mean (%)"),
        time("First Seen (ns)"),
        time("Last Seen (ns)"),
        text("Command"),
    )
    note = "times since the start of the recording"
    return Table("machine_processes", "Processes on the GPUs", columns, rows, note)


MACHINE_TABLES: dict[str, Callable[[Session], Table]] = {
    "machine_gpus": gpus_table,
    "machine_throttling": throttling_table,
    "machine_events": events_table,
    "machine_processes": occupants_table,
    "machine_host": host_table,
    "devices": lambda session: devices_table(session, session.readings, "Figures of the GPUs"),
}
"""The tables of a recording without a run, in the order the summary prints them."""
