"""A Grafana dashboard of what `--prometheus` serves, made from the declarations of the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.model.events import GpuSample, HostSample
from gputui.model.metrics import charted
from gputui.render.prometheus import (
    BUSY_SECONDS,
    CAUSE_SHARE,
    CPU_SECONDS,
    DROPPED,
    RUN_METRIC,
    STEP_SECONDS,
    Family,
    series_name,
)

_SCHEMA_VERSION = 39
"""Of dashboards, as Grafana 10 has it."""

_UNITS = {
    "_ratio": "percentunit", "_bytes": "bytes", "_bytes_per_second": "Bps", "_watts": "watt",
    "_celsius": "celsius", "_hertz": "hertz", "_seconds": "s", "_joules": "joule",
}  # fmt: skip
"""Grafana's names, by how names of metrics end."""

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WHERE = '{instance=~"$instance"}'
_WIDTH, _HEIGHT, _A_ROW = 12, 8, 2


class _Panel(NamedTuple):
    title: str
    query: str
    legend: str
    unit: str
    stacked: bool = False


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports; its variables are the data source and the instances."""
    return {
        "uid": "gputui",
        "title": "gputui",
        "tags": ["gpu", "gputui"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_variable_source(), _variable_instance()]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    numbers = count(1)
    top = 0
    for title, panels in (
        ("Where each step goes", _OF_RUNS),
        ("GPUs", [*_machine(GpuSample, "gpu_", "GPU {{gpu}}")]),
        ("Host", [*_machine(HostSample, "host_", "{{instance}}")]),
    ):
        where = {"x": 0, "y": top, "w": _WIDTH * _A_ROW, "h": 1}
        yield {"id": next(numbers), "type": "row", "title": title, "gridPos": where, "panels": []}
        top += 1
        for place, panel in enumerate(panels):
            row, column = divmod(place, _A_ROW)
            where = {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": next(numbers), "gridPos": where, **_time_series(panel)}
        top += -(-len(panels) // _A_ROW) * _HEIGHT


def _time_series(panel: _Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10}
    if panel.stacked:
        custom = {"fillOpacity": 60, "stacking": {"mode": "normal"}}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": panel.query,
                "legendFormat": panel.legend,
            }
        ],
    }


def _machine(kind: type[Struct], prefix: str, legend: str) -> Iterator[_Panel]:
    """A panel for each figure that has a chart."""
    seen = set()
    for metric in charted(kind).values():
        if metric.prometheus is None or metric.prometheus in seen:
            continue
        seen.add(metric.prometheus)
        name = f"gputui_{prefix}{metric.prometheus}"
        yield _Panel(metric.title or metric.label, f"{name}{_WHERE}", legend, _unit(name))


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "short")


def _selector(family: Family) -> str:
    return f"{series_name(family)}{_WHERE}"


def _spent(family: Family) -> str:
    """Seconds a second in the phases that take most."""
    return f"topk(12, sum by (phase) (rate({_selector(family)}[$__rate_interval])))"


_OF_RUNS = [
    _Panel("Where each step goes", f"avg by (cause) ({_selector(CAUSE_SHARE)}) > 0", "{{cause}}",
           "percentunit", stacked=True),
    _Panel("Step time", _selector(STEP_SECONDS), "run {{run}} GPU {{gpu}}", "s"),
    _Panel("CPU time by phase", _spent(CPU_SECONDS), "{{phase}}", "percentunit"),
    _Panel("GPU busy by phase", _spent(BUSY_SECONDS), "{{phase}}", "percentunit"),
    _Panel("What the workload reports", _selector(RUN_METRIC), "{{metric}}", "short"),
    _Panel("Records lost", f"rate({_selector(DROPPED)}[$__rate_interval])", "pid {{pid}}", "short"),
]  # fmt: skip


def _variable_source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable_instance() -> dict[str, Any]:
    query = "label_values(gputui_build_info, instance)"
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "refresh": 2,
    }
