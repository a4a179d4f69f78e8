"""The GPUs over a time, from their readings.

Energy is the driver's counter (nvmlDeviceGetTotalEnergyConsumption) if its readings span at least
half of the time, extrapolated to all of it at the same rate; otherwise mean power × time. Throttle
times are the driver's own, between its first and its newest reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from gputui.model import units
from gputui.model.events import GpuSample, HostSample
from gputui.model.metrics import Metric, metrics_of
from gputui.report.schema import Column, TableSpec, count, text
from gputui.state import BatchMeans, Device, Readings, Session


def energy_joules(readings: Readings, gpu: int) -> tuple[float, str] | None:
    """The energy of a GPU, and its source; None if unknown."""
    counter, power = readings.energy_joules.get(gpu), readings.gpu_spreads.get((gpu, "power_watts"))
    length_ns = readings.duration_ns
    if counter is not None and counter.amount is not None:
        read_ns = counter.last_ns - counter.first_ns
        if 2 * read_ns >= length_ns:
            return counter.amount * max(length_ns, read_ns) / read_ns, "the driver's counter"
    if power is None or power.average is None or not length_ns:
        return None
    return power.average * length_ns / 1e9, "mean power × time"


class Reading(NamedTuple):
    """The samples of one figure; `gpu` is None for the host's."""

    gpu: int | None
    gpu_name: str | None
    name: str
    metric: Metric
    spread: BatchMeans


def _gpu_readings(session: Session, readings: Readings) -> list[Reading]:
    metrics = metrics_of(GpuSample)
    return [
        Reading(index, gpu.facts.name if gpu else None, name, metrics[name], spread)
        for (index, name), spread in sorted(readings.gpu_spreads.items())
        for gpu in (session.gpus.get(index),)
    ]


def _host_readings(session: Session, _run: object) -> list[Reading]:
    spreads, metrics = sorted(session.readings.host_spreads.items()), metrics_of(HostSample)
    return [Reading(None, None, name, metrics[name], spread) for name, spread in spreads]


def _figure(title: str, get: Callable[[BatchMeans], float | None],
            meaning: str) -> Column[Reading]:  # fmt: skip
    return Column(
        title,
        units.quantity,
        title.lower(),
        lambda row: get(row.spread),
        meaning=f"{meaning}, in the unit that the figure's name ends in",
        kind=float | None,
        words=lambda row: row.metric.unit.mean(get(row.spread)),
    )


_FIGURES: tuple[Column[Reading], ...] = (
    text("Figure", "figure", lambda row: row.name, "Its name, which ends in its unit",
         words=lambda row: row.metric.title),
    _figure("Mean", lambda spread: spread.average, "Mean of the samples"),
    _figure("Min", lambda spread: spread.minimum, "The least"),
    _figure("Max", lambda spread: spread.maximum, "The most"),
    count("Samples", "samples", lambda row: row.spread.count, "How many"),
)  # fmt: skip

DEVICES: TableSpec[Reading] = TableSpec(
    key="devices",
    title="GPUs During the Run",
    meaning="Every figure of every GPU, as sampled.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int),
        text("Name", "name", lambda row: row.gpu_name, "The GPU's name", kind=str | None),
        *_FIGURES,
    ),
    rows=lambda session, run: _gpu_readings(session, run.readings),
    order=800,
    in_summary=True,
)  # fmt: skip

TABLES = (DEVICES,)

MACHINE_TABLES = (
    TableSpec(
        key="machine_host",
        title="The Host",
        meaning="Every figure of the computer around the GPUs, as sampled.",
        columns=_FIGURES,
        rows=_host_readings,
        order=50,
        in_summary=True,
    ),
    replace(
        DEVICES,
        title="Figures of the GPUs",
        rows=lambda session, _run: _gpu_readings(session, session.readings),
        order=60,
    ),
)


class FigureSpread(msgspec.Struct, frozen=True):
    """The samples of one figure, in the unit that its name ends in."""

    mean: float | None
    min: float
    max: float
    samples: int


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
    session: Session, readings: Readings, captured: Mapping[int, Device]
) -> list[DeviceReadings]:
    rows = []
    for index, gpu in sorted(session.gpus.items()):
        device = captured.get(index)
        joules, source = energy_joules(readings, index) or (None, None)
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
                    name: figure_spread(spread)
                    for (where, name), spread in sorted(readings.gpu_spreads.items())
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


def figure_spread(spread: BatchMeans) -> FigureSpread:
    """Mean, least and most of samples."""
    return FigureSpread(spread.average, spread.minimum, spread.maximum, spread.count)
