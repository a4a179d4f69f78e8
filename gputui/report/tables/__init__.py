"""Every table by name: a module each or a family, found by their TABLES and MACHINE_TABLES."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from functools import cache
from typing import Any

from gputui.report.schema import AnyTable, TableSpec
from gputui.report.tables.workload import own_tables
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
    specs: list[TableSpec[Any]] = [
        spec
        for name in names
        for spec in getattr(importlib.import_module(f"{__name__}.{name}"), attribute, ())
    ]
    keys = Counter(spec.key for spec in specs)
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
