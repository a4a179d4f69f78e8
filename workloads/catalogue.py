"""The catalogue as one JSON document: what menus, forms and scripts need of each workload."""

from __future__ import annotations

from .declaration import Figure, Parameter, Preset, Table, Workload
from .registry import Broken, Entry

SCHEMA_VERSION = 1
"""Schema of every JSON document `python -m workloads` prints. Raised when a shape changes."""

Json = dict[str, object]


def catalogue(entries: list[Entry], broken: list[Broken]) -> Json:
    """`{schema, workloads: [...], broken: [{name, error}]}`, in the order of the registry."""
    return {
        "schema": SCHEMA_VERSION,
        "workloads": [_workload(entry.workload, entry.source) for entry in entries],
        "broken": [{"name": failed.name, "error": failed.error} for failed in broken],
    }


def _workload(workload: Workload, source: str) -> Json:
    return {
        "name": workload.name,
        "source": source,
        "summary": workload.summary,
        "description": workload.description,
        "parameters": [_parameter(parameter) for parameter in workload.parameters],
        "presets": [_preset(preset) for preset in workload.presets],
        "phases": list(workload.phases),
        "step_range": workload.step_range,
        "results": [_figure(figure) for figure in workload.results],
        "tables": [table_head(table) for table in workload.tables],
    }


def table_head(table: Table) -> Json:
    """A table without its rows: `{name, title, columns: [{name, unit, help}]}`."""
    return {
        "name": table.name,
        "title": table.title,
        "columns": [_figure(column) for column in table.columns],
    }


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "kind": parameter.kind,
        "default": parameter.default,
        "cpu_default": parameter.cpu_default,
        "help": parameter.help,
        "unit": parameter.unit,
        "min": parameter.minimum,
        "max": parameter.maximum,
        "choices": list(parameter.choices),
        "aliases": dict(parameter.aliases),
        "pattern": parameter.pattern,
        "allowed": parameter.allowed,
    }


def _preset(preset: Preset) -> Json:
    return {"name": preset.name, "help": preset.help, "values": dict(preset.values)}


def _figure(figure: Figure) -> Json:
    return {"name": figure.name, "unit": figure.unit, "help": figure.help}
