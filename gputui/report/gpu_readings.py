"""The GPUs over a time, from what was read of them.

Energy is the driver's counter (nvmlDeviceGetTotalEnergyConsumption) where its readings span at
least half of the time, carried on to all of it at the same rate; otherwise mean power × time.
Throttle times are the driver's own, between its first and its newest reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.model.events import GpuSample
from gputui.model.metrics import Metric, metrics_of
from gputui.report.columns import Cell, Table, count, figure, text
from gputui.state import BatchMeans, Device, Readings, Session


def energy_joules(readings: Readings, gpu: int) -> tuple[float, str] | None:
    """What a GPU took, and where that is known from; None where nothing tells."""
    counter, power = readings.energy_joules.get(gpu), readings.gpu_spreads.get((gpu, "power_watts"))
    length_ns = readings.duration_ns
    if counter is not None and counter.amount is not None:
        read_ns = counter.last_ns - counter.first_ns
        if 2 * read_ns >= length_ns:
            return counter.amount * max(length_ns, read_ns) / read_ns, "the driver's counter"
    if power is None or power.average is None or not length_ns:
        return None
    return power.average * length_ns / 1e9, "mean power × time"


def devices_table(
    session: Session, readings: Readings, title: str = "GPUs During the Run"
) -> Table:
    """Every figure of every GPU, as sampled."""
    rows: list[tuple[Cell, ...]] = []
    words: list[tuple[Cell, ...]] = []
    metrics = metrics_of(GpuSample)
    for (index, name), spread in sorted(readings.gpu_spreads.items()):
        gpu = session.gpus.get(index)
        which = index, gpu.facts.name if gpu else None
        rows.append((*which, *spread_cells(name, spread)))
        words.append((*which, *spread_words(metrics[name], spread)))
    return Table(
        "devices",
        title,
        (
            text("GPU"),
            text("Name"),
            *SPREAD_COLUMNS,
        ),
        tuple(rows),
        in_words=tuple(words),
    )


SPREAD_COLUMNS = (text("Figure"), figure("Mean"), figure("Min"), figure("Max"), count("Samples"))


def spread_cells(name: str, spread: BatchMeans) -> tuple[Cell, ...]:
    """One figure's samples under SPREAD_COLUMNS."""
    mean = None if spread.average is None else round(spread.average, 1)
    return name, mean, spread.minimum, spread.maximum, spread.count


def spread_words(metric: Metric, spread: BatchMeans) -> tuple[Cell, ...]:
    """The same as people read it."""
    values = spread.average, spread.minimum, spread.maximum
    return metric.title, *map(metric.unit.mean, values), spread.count


def devices_document(
    session: Session, readings: Readings, captured: Mapping[int, Device]
) -> list[dict[str, Any]]:
    """Every GPU: what was captured of its work, its figures, energy and throttling."""
    documents = []
    for index, gpu in sorted(session.gpus.items()):
        device = captured.get(index)
        energy = energy_joules(readings, index)
        documents.append(
            {
                "index": index,
                "uuid": gpu.facts.uuid,
                "name": gpu.facts.name,
                "gpu_busy_ns": device.busy_ns if device else None,
                "operations": device.operations if device else None,
                "energy_joules": energy[0] if energy else None,
                "energy_source": energy[1] if energy else None,
                "figures": {
                    name: spread_document(spread)
                    for (where, name), spread in sorted(readings.gpu_spreads.items())
                    if where == index
                },
                "throttle_samples": {
                    reason: count
                    for (where, reason), count in sorted(readings.throttle_samples.items())
                    if where == index
                },
                "throttle_seconds": {
                    reason: counter.amount
                    for (where, reason), counter in sorted(readings.throttle_seconds.items())
                    if where == index
                },
            }
        )
    return documents


def spread_document(spread: BatchMeans) -> dict[str, Any]:
    """Mean, least and most of samples."""
    return {
        "mean": spread.average,
        "min": spread.minimum,
        "max": spread.maximum,
        "samples": spread.count,
    }
