"""A run's own tables between ours: the whole summary in order, and every table by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gputui.model import units
from gputui.model.events import ResultTable
from gputui.report.summary_tables import SUMMARY, TABLES, Column, Table
from gputui.state import Run, Session

_SHOWN_BY_UNIT: dict[str, Callable[[float | None], str]] = {
    "bytes": units.size,
    "bytes/s": units.rate,
    "flops/s": lambda value: units.quantity(value, "FLOP/s"),
    "percent": units.percent,
}


def summary_tables(session: Session, run: Run) -> list[Table]:
    """The tables of the summary, the workload's own after its metrics; some may have no rows."""
    first, *others = (TABLES[name](session, run) for name in SUMMARY)
    return [first, *own_tables(run), *others]


def named_tables(run: Run) -> dict[str, Callable[[Session, Run], Table]]:
    """Every table that can be asked for by name. Ours stand before a workload's of that name."""
    own = {table.name: partial(_given, table) for table in own_tables(run)}
    return own | TABLES


def _given(table: Table, _session: Session, _run: Run) -> Table:
    return table


def own_tables(run: Run) -> list[Table]:
    """What the workload made of its result, formats by the units it names; often none."""
    return [] if run.result is None else [_table(table) for table in run.result.tables]


def _table(reported: ResultTable) -> Table:
    width = len(reported.columns)
    # A recording may come from anywhere: rows are made as long as the header says.
    rows = tuple((*row, *[None] * (width - len(row)))[:width] for row in reported.rows)
    columns = []
    for i, column in enumerate(reported.columns):
        cells = [row[i] for row in rows]
        is_text = any(isinstance(cell, str | bool) for cell in cells)
        show = _SHOWN_BY_UNIT.get(column.unit, _number) if column.unit else _plain
        columns.append(Column(column.name, None if is_text else show))
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
