"""Every table by name: the TABLES and MACHINE_TABLES of the modules here, and the tables that a
workload reports itself, whose columns are known only when it runs."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter
from functools import cache
from typing import Any

from gputui.model import units
from gputui.model.events import ResultTable
from gputui.report.schema import AnyColumn, AnyTable, Column, Show, Table, TableSpec, text
from gputui.state import Run, Session


@cache
def run_tables() -> dict[str, TableSpec[Any]]:
    """The tables of a run, in their order."""
    return _named("TABLES")


@cache
def machine_tables() -> dict[str, TableSpec[Any]]:
    """The tables of a recording without a run, in their order."""
    return _named("MACHINE_TABLES")


def _named(attribute: str) -> dict[str, TableSpec[Any]]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [sys.modules[__name__], *(importlib.import_module(f"{__name__}.{n}") for n in names)]
    specs: list[TableSpec[Any]] = [
        spec for module in modules for spec in getattr(module, attribute, ())
    ]
    keys = Counter(spec.key for spec in specs)
    # A table of a workload's may have any name, but of ours the later would silently hide the
    # other.
    if twice := sorted(key for key, count in keys.items() if count > 1):
        raise ValueError(f"two tables are called {twice[0]!r}: keys must differ")
    return {spec.key: spec for spec in sorted(specs, key=lambda spec: spec.order)}


def table_names(run: Run | None) -> list[str]:
    """The tables that can be requested, a workload's own first."""
    if run is None:
        return list(machine_tables())
    return list(dict.fromkeys([*(table.name for table in own_tables(run)), *run_tables()]))


def table(session: Session, run: Run | None, name: str) -> AnyTable:
    """One table of a run, or of the machine if none was recorded. gputui's take precedence over a
    workload's of that name. Raises KeyError.
    """
    specs = machine_tables() if run is None else run_tables()
    if name in specs or run is None:
        return specs[name].table(session, run)
    return {table.name: table for table in own_tables(run)}[name]


def summary_tables(session: Session, run: Run | None) -> list[AnyTable]:
    """The tables of the summary, the workload's own after its metrics; some may have no rows."""
    specs = machine_tables() if run is None else run_tables()
    tables_of_run = [spec.table(session, run) for spec in specs.values() if spec.in_summary]
    return (
        tables_of_run if run is None else [*tables_of_run[:1], *own_tables(run), *tables_of_run[1:]]
    )


# --- What a workload reports, in words: the end of a metric's name is its unit.

Value = float | int | str | bool | None

_TIMES = (("_ns", 1.0), ("_us", 1e3), ("_ms", 1e6), ("_seconds", 1e9), ("_s", 1e9))
_UNITS = (("_watts", "W"), ("_celsius", "°C"))
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "kv": "KV", "sm": "SM", "cpu": "CPU"}


def metric_text(name: str, value: Value) -> tuple[str, str]:
    """A reported metric as (label, figure): "peak_memory_bytes" is ("peak memory", "1.2 GiB")."""
    label, text = name, str(value)
    if value is None:
        text = units.MISSING
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int | float):
        label, text = _with_unit(name, float(value))
    words = [_SHORT.get(word, word) for word in label.split("_") if word]
    return " ".join(words), text


def is_memory_metric(name: str) -> bool:
    """Whether a metric is memory held: in bytes, and neither a rate nor traffic."""
    is_rate = name.endswith("_per_s") or "bandwidth" in name
    return not is_rate and (name.endswith("_bytes") or "memory" in name)


def _with_unit(name: str, value: float) -> tuple[str, str]:
    if name.endswith("_bytes_per_s"):
        return name.removesuffix("_bytes_per_s"), units.rate(value)
    if name.endswith("_per_s"):
        return f"{name.removesuffix('_per_s')}/s", units.quantity(value)
    for suffix, factor in _TIMES:
        if name.endswith(suffix):
            return name.removesuffix(suffix), units.duration(value * factor)
    if name.endswith("_joules"):
        return name.removesuffix("_joules"), units.joules(value)
    for suffix, unit in _UNITS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), units.quantity(value, unit)
    if name.endswith("_mhz"):
        return name.removesuffix("_mhz"), f"{value:.0f} MHz"
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), units.size(value)
    if "_bytes_per_" in name:
        return name, units.size(value)
    if name.endswith("_percent"):
        return name.removesuffix("_percent"), units.percent(value)
    return name, units.quantity(value)


# A workload's own tables, whose columns are known only when it runs.

_SHOWN_BY_UNIT: dict[str, Show] = {
    "bytes": units.size,
    "bytes/s": units.rate,
    "flops/s": lambda value: units.quantity(value, "FLOP/s"),
    "percent": units.percent,
}


def own_tables(run: Run) -> list[AnyTable]:
    """What the workload made of its result, formats by the units it names; often none."""
    return [] if run.result is None else [_table(table) for table in run.result.tables]


def _table(reported: ResultTable) -> Table[tuple[str | int | float | bool | None, ...]]:
    width = len(reported.columns)
    # A recording may come from anywhere: rows are made as long as the header says.
    rows = tuple((*row, *[None] * (width - len(row)))[:width] for row in reported.rows)
    columns: list[AnyColumn] = []
    for i, column in enumerate(reported.columns):
        cells = [row[i] for row in rows]
        is_text = any(isinstance(cell, str | bool) for cell in cells)
        show = _SHOWN_BY_UNIT.get(column.unit, _number) if column.unit else _plain
        columns.append(
            Column(
                column.name,
                None if is_text else show,
                column.name,
                unit=column.unit or "",
                meaning=column.help,
                kind=str | int | float | bool | None,
                flexible=is_text,
            )
        )
    return Table(reported.name, reported.title, tuple(columns), rows)


def _plain(value: float | None) -> str:
    """A figure without a unit, to six digits: sums of short number formats differ in the fifth."""
    if value is None or isinstance(value, int) or abs(value) >= 10_000:
        return _number(value)
    return f"{value:.6g}"


def _number(value: float | None) -> str:
    """A figure whose unit its column names: whole ones in full, others to four digits or more."""
    if value is None:
        return units.MISSING
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"


METRICS: TableSpec[tuple[str, Any]] = TableSpec(
    key="metrics",
    title="Metrics",
    meaning="What the workload reports; names end in their unit.",
    columns=(
        text("Metric", "name", lambda row: row[0], "Its name"),
        Column(
            "Value",
            None,
            "value",
            lambda row: row[1],
            meaning="The newest value",
            kind=float | int | str | bool | None,
            words=lambda row: metric_text(*row)[1],
            flexible=True,
        ),
    ),
    rows=lambda _session, run: list(run.metrics.items()),
    order=0,
    in_summary=True,
)

TABLES = (METRICS,)
