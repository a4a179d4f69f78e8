"""The tables of a recording without a run."""

from __future__ import annotations

from typing import NamedTuple

from gputui.model import units
from gputui.model.metrics import CELSIUS, WATTS
from gputui.report.energy import energy_joules
from gputui.report.schema import Column, TableSpec, count, percent, size, text, time
from gputui.state import Occupant, Series, Session


class _Gpu(NamedTuple):
    gpu: int
    name: str
    series: dict[str, Series]
    energy_joules: float | None
    mean_watts: float | None

    def mean(self, figure: str) -> float | None:
        """The mean of all samples."""
        series = self.series.get(figure)
        return series.average if series else None

    def most(self, figure: str) -> float | None:
        """The most of all samples."""
        series = self.series.get(figure)
        return series.maximum if series else None


def _gpus(session: Session, _run: object) -> list[_Gpu]:
    rows = []
    for index, gpu in sorted(session.gpus.items()):
        readings = session.readings
        span = readings.first_ns, readings.last_ns
        energy = energy_joules(readings, index, span)
        figures = readings.gpus.get(index)
        series = dict(figures.sampled()) if figures is not None else {}
        power = series.get("power_watts")
        watts = power.mean_of_all(span) if power else None
        rows.append(_Gpu(index, gpu.facts.name, series, energy[0] if energy else None, watts))
    return rows


def _share(title: str, field: str, meaning: str, priority: int) -> Column[_Gpu]:
    return percent(f"{title} Mean", f"mean_{field}", lambda row: row.mean(field), meaning,
                   kind=float | None, priority=priority)  # fmt: skip


GPUS: TableSpec[_Gpu] = TableSpec(
    key="machine_gpus",
    title="GPUs Over the Recording",
    meaning="Means and peaks of each GPU, and its energy.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        text("Name", "name", lambda row: row.name, "The GPU's name"),
        _share("Util", "utilization_percent", "NVML's utilization", 2),
        _share("SM", "sm_active_percent", "SMs with a warp in flight", 0),
        _share("Tensor", "tensor_active_percent", "Tensor cores at work", 4),
        _share("DRAM", "memory_bandwidth_percent", "Of the peak memory bandwidth", 3),
        size("Memory Mean", "mean_memory_used_bytes", lambda row: row.mean("memory_used_bytes"),
             "Memory in use", kind=float | None, priority=5),
        size("Memory Peak", "peak_memory_used_bytes", lambda row: row.most("memory_used_bytes"),
             "The most memory in use", kind=float | None),
        Column("Power Mean", WATTS.mean, "mean_power_watts", lambda row: row.mean_watts,
               "W", "Its energy over the time", float | None),
        Column("Power Peak", WATTS.mean, "peak_power_watts", lambda row: row.most("power_watts"),
               "W", "The most power", float | None, priority=1),
        Column("Energy", units.watt_hours, "energy_joules", lambda row: row.energy_joules, "J",
               "By the driver's counter, or its samples of power integrated", float | None),
        Column("Hottest", CELSIUS.mean, "peak_temperature_celsius",
               lambda row: row.most("temperature_celsius"), "°C", "The highest temperature",
               float | None, priority=1),
    ),
    rows=_gpus,
    order=0,
    in_summary=True,
    note=lambda _run, _rows: "means and peaks of all samples",
)  # fmt: skip


class _Throttling(NamedTuple):
    gpu: int
    reason: str
    samples_percent: float | None
    samples: int
    held_ns: int | None


def _throttling(session: Session, _run: object) -> list[_Throttling]:
    readings = session.readings
    keys = {*readings.throttle_samples}
    keys |= {key for key, counter in readings.throttle_seconds.items() if counter.amount}
    rows = []
    for key in sorted(keys):
        seen, counter = readings.throttle_samples.get(key, 0), readings.throttle_seconds.get(key)
        seconds = counter.amount if counter else None
        rows.append(
            _Throttling(
                *key,
                100.0 * seen / readings.samples if readings.samples else None,
                seen,
                None if seconds is None else round(seconds * 1e9),
            )
        )
    return rows


THROTTLING: TableSpec[_Throttling] = TableSpec(
    key="machine_throttling",
    title="Throttling",
    meaning="Throttling by reason: the share of samples, and the time counted by the driver.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        text("Clocks Held Back By", "reason", lambda row: row.reason, "NVML's reason"),
        percent("Samples", "samples_percent", lambda row: row.samples_percent, "Of all samples",
                kind=float | None),
        count("Samples", "samples", lambda row: row.samples, "Samples that had the reason"),
        time("Time", "throttled_ns", lambda row: row.held_ns,
             "The driver's own count, where it keeps one", kind=int | None),
    ),
    rows=_throttling,
    order=10,
    in_summary=True,
    note=lambda _run, _rows: "time: the driver's own count, where it keeps one",
)  # fmt: skip


class _Event(NamedTuple):
    gpu: int
    what: str
    times: int
    first_ns: int
    last_ns: int


def _events(session: Session, _run: object) -> list[_Event]:
    start = session.started_ns
    found = sorted(session.readings.troubles.items(), key=lambda item: item[1].first_ns)
    return [
        _Event(gpu, what, trouble.count, trouble.first_ns - start, trouble.last_ns - start)
        for (gpu, what), trouble in found
    ]


def _since_start(_run: object, _rows: object) -> str:
    return "times since the start of the recording"


EVENTS: TableSpec[_Event] = TableSpec(
    key="machine_events",
    title="Events",
    meaning="Xid errors and lost GPUs.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        text("Event", "event", lambda row: row.what, "What happened"),
        count("Times", "count", lambda row: row.times, "How often"),
        time("First", "first_ns", lambda row: row.first_ns, "The first, since the start"),
        time("Last", "last_ns", lambda row: row.last_ns, "The last, since the start"),
    ),
    rows=_events,
    order=20,
    in_summary=True,
    note=_since_start,
)


def occupants(session: Session) -> list[Occupant]:
    """The processes seen on the GPUs, largest first."""
    seen = session.readings.occupants.values()
    return sorted(seen, key=lambda process: (-(process.peak_memory_bytes or 0), process.first_ns))


class _Process(NamedTuple):
    occupant: Occupant
    start_ns: int


def _processes(session: Session, _run: object) -> list[_Process]:
    start = session.started_ns
    return [_Process(occupant, start) for occupant in occupants(session)]


PROCESSES: TableSpec[_Process] = TableSpec(
    key="machine_processes",
    title="Processes on the GPUs",
    meaning="The processes seen on the GPUs, largest first.",
    columns=(
        text("PID", "pid", lambda row: row.occupant.newest.pid, "The process", kind=int),
        text("GPU", "gpu", lambda row: row.occupant.newest.gpu, "The GPU's index", kind=int),
        text("User", "user", lambda row: row.occupant.newest.user, "Who started it",
             kind=str | None),
        size("Peak Memory", "peak_gpu_memory_bytes", lambda row: row.occupant.peak_memory_bytes,
             "The most it held of the GPU", kind=int | None),
        percent("SM Mean", "mean_sm_percent", lambda row: row.occupant.use.average,
                "Time in which it ran kernels", kind=float | None),
        time("First Seen", "first_seen_ns", lambda row: row.occupant.first_ns - row.start_ns,
             "Since the start"),
        time("Last Seen", "last_seen_ns", lambda row: row.occupant.last_ns - row.start_ns,
             "Since the start"),
        text("Command", "command", lambda row: row.occupant.newest.command, "The command line",
             kind=str | None),
    ),
    rows=_processes,
    order=30,
    in_summary=True,
    note=_since_start,
)  # fmt: skip

MACHINE_TABLES = (GPUS, THROTTLING, EVENTS, PROCESSES)
