"""The GPUs over a time, from their readings. Throttle times are the driver's own, between its first
and its newest reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from gputui.model import units
from gputui.model.events import DeviceDelta, GpuSample, HostSample
from gputui.model.metrics import Metric, metrics_of
from gputui.report.energy import energy_joules, span_of, used_span
from gputui.report.schema import Column, TableSpec, count, if_any, text
from gputui.state import Readings, Run, Series, Session, Span


class Reading(NamedTuple):
    """The samples of one figure; `gpu` is None for the host's, `mean` is that of all the time,
    `in_use` that of the time in which the run used the GPU.
    """

    gpu: int | None
    gpu_name: str | None
    name: str
    metric: Metric
    series: Series
    mean: float | None
    in_use: float | None = None


def _gpu_readings(session: Session, run: Run | None) -> list[Reading]:
    metrics = metrics_of(GpuSample)
    readings, devices = (run.readings, run.devices) if run else (session.readings, {})
    span = span_of(run) if run else (readings.first_ns, readings.last_ns)
    return [
        Reading(index, gpu.facts.name if gpu else None, name, metrics[name], series,
                series.mean_of_all(span), series.mean(used_span(devices.get(index))))
        for index, name, series in readings.gpu_series()
        for gpu in (session.gpus.get(index),)
    ]  # fmt: skip


def _host_readings(session: Session, _run: object) -> list[Reading]:
    metrics = metrics_of(HostSample)
    return [
        Reading(None, None, name, metrics[name], series, series.average)
        for name, series in session.readings.host.sampled()
    ]


def _figure(title: str, get: Callable[[Reading], float | None],
            meaning: str) -> Column[Reading]:  # fmt: skip
    return Column(
        title,
        units.quantity,
        title.lower(),
        get,
        meaning=f"{meaning}, in the unit that the figure's name ends in",
        kind=float | None,
        words=lambda row: row.metric.unit.mean(get(row)),
    )


_FIGURES: tuple[Column[Reading], ...] = (
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

DEVICES: TableSpec[Reading] = TableSpec(
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
    msgspec.structs.replace(
        DEVICES,
        title="Figures of the GPUs",
        order=60,
    ),
)


class FigureSpread(msgspec.Struct, frozen=True):
    """The samples of one figure, in the unit that its name ends in; `mean_in_use` is from the run's
    first operation on the GPU to the end of its last, where there is a run.
    """

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
