"""Everything that is known of a GPU, in groups; what is not there says why."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from gputui.model.metrics import GROUPS, Group, Metric
from gputui.model.units import MISSING, duration, percent, quantity, size
from gputui.report.machine_now import mig_instances
from gputui.report.schema import Column
from gputui.state import Gpu, gpu_metrics
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.gpu_figures import trouble
from gputui.tui.widgets.table import column, table_rows

_LABEL = 25


def detail_rows(gpu: Gpu, now_ns: int, interval_s: float) -> tuple[Row, ...]:
    """Every figure and fact of a GPU; what is not there says why."""
    rows: list[Row] = []
    problem = trouble(gpu, now_ns, interval_s)
    if problem:
        rows += [((f"! {problem}", "hot"),), ()]
    named = set()
    for title in GROUPS:
        rows.append(((title, "head"),))
        for field, metric in _group(title):
            named.add(field)
            value = gpu.figure(field)
            if value is not None:
                rows.append(_line(metric.label, _text(gpu, field, value)))
            elif not metric.optional:
                reason = gpu.unavailable.get(field, "not reported by the driver")
                rows.append(_line(metric.label, f"n/a: {reason}", "dim"))
        if title == "Links":
            rows += topology_rows(gpu)
        rows.append(())
    rows += _instances(gpu)
    others = [(f, why) for f, why in gpu.unavailable.items() if f not in named and f != "device"]
    if others:
        rows.append((("Not available either", "head"),))
        rows += [_line(field, f"n/a: {reason}", "dim") for field, reason in others]
    if gpu.status is not None:
        age = duration(max(0, now_ns - gpu.status.time_ns) // 10**9 * 10**9)
        rows.append(((f"links, energy and health were read {age} ago", "dim"),))
    return tuple(rows)


def topology_rows(gpu: Gpu) -> list[Row]:
    """The ways to other GPUs, those of one kind together."""
    ways: dict[str, list[str]] = {}
    for other, way in sorted(gpu.facts.topology.items()):
        ways.setdefault(way, []).append(str(other))
    return [_line(f"to GPU {', '.join(others)}", way) for way, others in ways.items()]


def instance_rows(gpu: Gpu, width: int) -> list[Row]:
    """A line for each MIG instance, below a header; empty without any."""
    instances = mig_instances(gpu)
    if not instances:
        return []
    columns: list[Column[int]] = [
        column("MIG", lambda n: str(instances[n][0].index), 0),
        column("profile", lambda n: instances[n][0].name, 0, right=False),
        column("SMs", lambda n: quantity(instances[n][0].sm_count), 4),
        column("SM active", lambda n: percent(instances[n][1].sm_active_percent), 1),
        column("occupancy", lambda n: percent(instances[n][1].sm_occupancy_percent), 5),
        column("tensor", lambda n: percent(instances[n][1].tensor_active_percent), 3),
        column("bandwidth", lambda n: percent(instances[n][1].memory_bandwidth_percent), 2),
        column("memory", lambda n: _instance_memory(gpu, n), 1),
    ]
    return table_rows(columns, range(len(instances)), width)


def _instance_memory(gpu: Gpu, number: int) -> str:
    facts, sample = mig_instances(gpu)[number]
    total = sample.memory_total_bytes or facts.memory_total_bytes
    used = size(sample.memory_used_bytes)
    return f"{used} of {size(total)}" if total and used != MISSING else used


def _instances(gpu: Gpu) -> Sequence[Row]:
    rows = instance_rows(gpu, 90)
    if not rows:
        return ()
    uuids = [_line(f"{facts.index} {facts.name}", facts.uuid) for facts, _ in mig_instances(gpu)]
    return [(("MIG instances", "head"),), *rows, *uuids, ()]


def _line(label: str, value: str, role: str = "text") -> Row:
    return ((f"{label:<{_LABEL}}", "label"), (value, role))


@functools.cache
def _group(title: Group) -> tuple[tuple[str, Metric], ...]:
    """The figures and facts of one section, from top to bottom."""
    placed = [
        (metric.details[1], field, metric)
        for field, metric in gpu_metrics().items()
        if metric.details is not None and metric.details[0] == title
    ]
    return tuple((field, metric) for _, field, metric in sorted(placed, key=itemgetter(0)))


def _text(gpu: Gpu, field: str, value: Any) -> str:
    """A figure with its unit, and what belongs beside it."""
    text = gpu_metrics()[field].unit.show(value)
    if field == "peak_memory_bandwidth_bytes_per_s" and gpu.facts.peak_memory_bandwidth_source:
        return f"{text} ({gpu.facts.peak_memory_bandwidth_source})"
    if field == "last_xid" and gpu.status and gpu.status.last_xid_time_ns is not None:
        when = datetime.fromtimestamp(gpu.status.last_xid_time_ns / 1e9).astimezone()
        return f"{text} at {when:%Y-%m-%d %H:%M:%S}"
    return text
