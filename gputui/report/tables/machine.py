"""The tables that need no run: GPUs and host over a time, processes on the GPUs, troubles, alerts.

A recording with a run has those of its GPUs' readings and of alerts as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gputui.model import units
from gputui.model.events import DeviceDelta, GpuSample, HostSample
from gputui.model.metrics import CELSIUS, GROUPS, WATTS, Group, Metric, metrics_of
from gputui.report.alerts import amount_text
from gputui.report.machine_now import mig_instances
from gputui.report.schema import Column, TableSpec, count, if_any, percent, size, text, time
from gputui.report.tables.energy import energy_joules, span_of, used_span
from gputui.state import AlertSpan, Gpu, Occupant, Readings, Run, Series, Session, Span, gpu_metrics


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
    troubles = sorted(session.readings.troubles.items(), key=lambda item: item[1].first_ns)
    return [
        _Event(gpu, what, trouble.count, trouble.first_ns - start, trouble.last_ns - start)
        for (gpu, what), trouble in troubles
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
    """`first_ns` and `last_ns`, when it was seen, are since the session's start."""

    occupant: Occupant
    first_ns: int
    last_ns: int


def _processes(session: Session, _run: object) -> list[_Process]:
    start = session.started_ns
    return [
        _Process(occupant, occupant.first_ns - start, occupant.last_ns - start)
        for occupant in occupants(session)
    ]


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
        time("First Seen", "first_seen_ns", lambda row: row.first_ns,
             "Since the start"),
        time("Last Seen", "last_seen_ns", lambda row: row.last_ns,
             "Since the start"),
        text("Command", "command", lambda row: row.occupant.newest.command, "The command line",
             kind=str | None),
    ),
    rows=_processes,
    order=30,
    in_summary=True,
    note=_since_start,
)  # fmt: skip


# The GPUs over a time, from their readings. Throttle times are the driver's own, between its
# first and its newest reading.


class FigureReading(NamedTuple):
    """The samples of one figure. `gpu` is None for the host. `mean` is over all of the time,
    `in_use` over the time in which the run used the GPU."""

    gpu: int | None
    gpu_name: str | None
    name: str
    metric: Metric
    series: Series
    mean: float | None
    in_use: float | None = None


def _gpu_readings(session: Session, run: Run | None) -> list[FigureReading]:
    metrics = metrics_of(GpuSample)
    readings, devices = (run.readings, run.devices) if run else (session.readings, {})
    span = span_of(run) if run else (readings.first_ns, readings.last_ns)
    return [
        FigureReading(index, gpu.facts.name if gpu else None, name, metrics[name], series,
                series.mean_of_all(span), series.mean(used_span(devices.get(index))))
        for index, name, series in readings.gpu_series()
        for gpu in (session.gpus.get(index),)
    ]  # fmt: skip


def _host_readings(session: Session, _run: object) -> list[FigureReading]:
    metrics = metrics_of(HostSample)
    return [
        FigureReading(None, None, name, metrics[name], series, series.average)
        for name, series in session.readings.host.sampled()
    ]


def _figure(title: str, get: Callable[[FigureReading], float | None],
            meaning: str) -> Column[FigureReading]:  # fmt: skip
    return Column(
        title,
        units.quantity,
        title.lower(),
        get,
        meaning=f"{meaning}, in the unit that the figure's name ends in",
        kind=float | None,
        words=lambda row: row.metric.unit.mean(get(row)),
    )


_FIGURES: tuple[Column[FigureReading], ...] = (
    text("Figure", "figure", lambda row: row.name, "Its name, which ends in its unit",
         words=lambda row: row.metric.title),
    Column("In Use", units.quantity, "mean_in_use", lambda row: row.in_use,
           meaning="Mean from the run's first operation on the GPU to the end of its last, in the "
           "unit that the figure's name ends in", kind=float | None, seen=if_any,
           words=lambda row: row.metric.unit.mean(row.in_use)),
    _figure("Mean", lambda row: row.mean, "Mean of all samples, of power by the energy"),
    _figure("Min", lambda row: row.series.minimum, "The least"),
    _figure("Max", lambda row: row.series.maximum, "The most"),
    count("Samples", "samples", lambda row: row.series.count, "How many"),
)  # fmt: skip

DEVICES: TableSpec[FigureReading] = TableSpec(
    key="devices",
    title="GPUs During the Run",
    meaning="Every figure of every GPU, as sampled.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        text("Name", "name", lambda row: row.gpu_name, "The GPU's name", kind=str | None),
        *_FIGURES,
    ),
    rows=_gpu_readings,
    order=800,
    in_summary=True,
)  # fmt: skip


HOST: TableSpec[FigureReading] = TableSpec(
    key="machine_host",
    title="The Host",
    meaning="Every figure of the computer around the GPUs, as sampled.",
    columns=_FIGURES,
    rows=_host_readings,
    order=50,
    in_summary=True,
)

GPU_FIGURES = msgspec.structs.replace(DEVICES, title="Figures of the GPUs", order=60)


class FigureSpread(msgspec.Struct, frozen=True):
    """The samples of one figure, in the unit in which its name ends. `mean_in_use` is from the
    start of the run's first operation on the GPU to the end of its last, if there is a run."""

    mean: float | None
    min: float
    max: float
    samples: int
    mean_in_use: float | None | msgspec.UnsetType = msgspec.UNSET


class DeviceReadings(msgspec.Struct, frozen=True):
    """One GPU: its captured work, its figures, energy and throttling.

    `energy_joules` covers the whole time, `energy_source` says where it comes from.
    """

    index: int
    uuid: str
    name: str
    gpu_busy_ns: int | None
    operations: int | None
    energy_joules: float | None
    energy_source: str | None
    figures: dict[str, FigureSpread]
    throttle_samples: dict[str, int]
    throttle_seconds: dict[str, float | None]


def device_readings(
    session: Session, readings: Readings, captured: Mapping[int, DeviceDelta] | None, span: Span
) -> list[DeviceReadings]:
    rows = []
    for index, gpu in sorted(session.gpus.items()):
        device = captured.get(index) if captured else None
        joules, source = energy_joules(readings, index, span) or (None, None)
        rows.append(
            DeviceReadings(
                index=index,
                uuid=gpu.facts.uuid,
                name=gpu.facts.name,
                gpu_busy_ns=device.busy_ns if device else None,
                operations=device.operations if device else None,
                energy_joules=joules,
                energy_source=source,
                figures={
                    name: figure_spread(
                        series,
                        series.mean_of_all(span),
                        msgspec.UNSET if captured is None else series.mean(used_span(device)),
                    )
                    for where, name, series in readings.gpu_series()
                    if where == index
                },
                throttle_samples={
                    reason: count
                    for (where, reason), count in sorted(readings.throttle_samples.items())
                    if where == index
                },
                throttle_seconds={
                    reason: counter.amount
                    for (where, reason), counter in sorted(readings.throttle_seconds.items())
                    if where == index
                },
            )
        )
    return rows


def figure_spread(
    series: Series,
    mean: float | None,
    in_use: float | None | msgspec.UnsetType = msgspec.UNSET,
) -> FigureSpread:
    """Mean, least and most of samples."""
    return FigureSpread(mean, series.minimum, series.maximum, series.count, in_use)


# Alerts raised during a run, or over a recording without one.


class AlertRow(NamedTuple):
    """An alert, and the moment its times count from."""

    span: AlertSpan
    start_ns: int

    @property
    def since_ns(self) -> int:
        """When the first reading over the limit was, from the start."""
        return self.span.since_ns - self.start_ns

    @property
    def held_ns(self) -> int | None:
        """How long it lasted, None if it was not over at the end."""
        until_ns = self.span.until_ns
        return None if until_ns is None else until_ns - self.span.since_ns

    @property
    def worst(self) -> str:
        """The reading furthest from the limit, in words."""
        return amount_text(self.span.raised.what, self.span.worst)


def alert_rows(session: Session, run: Run | None) -> list[AlertRow]:
    """The alerts of a run, the oldest first; without a run, those of the recording."""
    if run is None:
        return [AlertRow(span, session.started_ns) for span in session.alerts]
    first_ns, last_ns = run.started.time_ns, run.started.time_ns + run.duration_ns
    return [
        AlertRow(span, first_ns)
        for span in session.alerts
        if span.since_ns <= last_ns and (span.until_ns is None or span.until_ns >= first_ns)
    ]


ALERTS: TableSpec[AlertRow] = TableSpec(
    key="alerts",
    title="Alerts",
    meaning="Conditions of `--alert` that held for as long as they say.",
    columns=(
        text("Condition", "condition", lambda row: row.span.raised.condition, "As it was typed"),
        text("Where", "subject", lambda row: row.span.raised.subject,
             "A GPU, the host, or the run whose time it is about"),
        time("Since", "since_ns", lambda row: row.since_ns,
             "The first reading over the limit, since the start"),
        time("Held", "held_ns", lambda row: row.held_ns,
             "How long; missing where it was not over at the end", kind=int | None),
        Column("Worst", None, "worst", lambda row: row.span.worst,
               meaning="The reading furthest from the limit", kind=float,
               words=lambda row: row.worst, right=True),
    ),
    rows=alert_rows,
    order=5,
    in_summary=True,
    document="alerts",
    note=lambda _run, _rows: "times since the start",
)  # fmt: skip

TABLES = (DEVICES, ALERTS)
MACHINE_TABLES = (GPUS, THROTTLING, EVENTS, PROCESSES, HOST, GPU_FIGURES, ALERTS)


# Everything that is known of a GPU, in groups; what is not there says why.


def gpu_facts(gpu: Gpu) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups with their titles, of labels and texts: every figure and fact of a GPU, and why one
    is missing."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    named = {"device"}
    for title in GROUPS:
        facts = []
        for field, metric in _group(title):
            named.add(field)
            value = gpu.figure(field)
            if value is not None:
                facts.append((metric.label, _with_source(gpu, field, metric.unit.show(value))))
            elif not metric.optional:
                reason = gpu.unavailable.get(field, "not reported by the driver")
                facts.append((metric.label, f"{units.MISSING}: {reason}"))
        if title == "Links":
            facts += _ways(gpu)
        groups.append((title, facts))
    if instances := mig_instances(gpu):
        uuids = [(f"{part.facts.index} {part.facts.name}", part.facts.uuid) for part in instances]
        groups.append(("MIG instances", uuids))
    others = [(name, why) for name, why in gpu.unavailable.items() if name not in named]
    if others:
        missing = [(name, f"{units.MISSING}: {why}") for name, why in others]
        groups.append(("Not available either", missing))
    return groups


def _ways(gpu: Gpu) -> list[tuple[str, str]]:
    """The ways to other GPUs, those of one kind together."""
    ways: dict[str, list[str]] = {}
    for other, way in sorted(gpu.facts.topology.items()):
        ways.setdefault(way, []).append(str(other))
    return [(f"to GPU {', '.join(others)}", way) for way, others in ways.items()]


@functools.cache
def _group(title: Group) -> tuple[tuple[str, Metric], ...]:
    """The figures and facts of one section, from top to bottom."""
    placed = [
        (metric.details[1], field, metric)
        for field, metric in gpu_metrics().items()
        if metric.details is not None and metric.details[0] == title
    ]
    return tuple((field, metric) for _, field, metric in sorted(placed, key=itemgetter(0)))


def _with_source(gpu: Gpu, field: str, text: str) -> str:
    """A figure, and what belongs beside it."""
    if field == "peak_memory_bandwidth_bytes_per_s" and gpu.facts.peak_memory_bandwidth_source:
        return f"{text} ({gpu.facts.peak_memory_bandwidth_source})"
    if field == "last_xid" and gpu.status and gpu.status.last_xid_time_ns is not None:
        when = datetime.fromtimestamp(gpu.status.last_xid_time_ns / 1e9).astimezone()
        return f"{text} at {when:%Y-%m-%d %H:%M:%S}"
    return text
