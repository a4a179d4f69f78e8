"""The tables of the Memory view: columns, figures, and why one is empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model.units import count, duration, percent, rate, size
from gputui.report.phase_tree import phase_path
from gputui.report.schema import AnyTable, Column
from gputui.report.statistics import TableRow
from gputui.report.tables import is_memory_metric, metric_text, own_tables
from gputui.report.tables.memory import (
    COPIES,
    OUTSIDE,
    PHASE_MEMORY,
    Direction,
    PhaseMemory,
    Transfer,
    allocation_rows,
    held_by_phase,
    phase_memory,
    transfers,
)
from gputui.state import Run, Session
from gputui.tui.widgets.canvas import Row, labelled, wrap
from gputui.tui.widgets.table import column, declared
from gputui.tui.widgets.tree import process_columns

_WAYS: tuple[Direction, ...] = ("to device", "to host", "on device", "set")


@dataclass(frozen=True, slots=True)
class Read:
    """What the tables of a run say. `most` is, by outermost phase, the most that a GPU held."""

    phases: list[PhaseMemory]
    copies: list[Transfer]
    calls: list[TableRow]
    most: dict[str, int]


def read(session: Session, run: Run) -> Read:
    """All of them."""
    most: dict[str, int] = {}
    for gpu in session.gpus.values():
        for name, used in held_by_phase(gpu, run).items():
            most[name] = max(most.get(name, 0), used)
    return Read(phase_memory(run), transfers(run), allocation_rows(run), most)


_MOVED = (
    "to_device_bytes", "to_host_bytes", "on_device_bytes", "set_bytes", "pageable_bytes",
    "moving_ns", "allocations", "frees", "allocating_ns",
)  # fmt: skip


def phase_columns(
    most: Mapping[str, int], phases: Sequence[PhaseMemory]
) -> list[Column[PhaseMemory]]:
    """What phases moved and allocated. `most` is what a device held in outermost phases."""
    columns = declared(PHASE_MEMORY, "name")
    known = [row.phase for row in phases if row.phase is not None]
    columns += process_columns(known, lambda row: row.phase)
    if most:
        columns.append(
            column(
                "GPU held",
                lambda row: "" if row.depth or not row.phase else _bytes(most.get(row.name, 0)),
                2,
                width=8,
            )
        )
    return columns + declared(PHASE_MEMORY, *_MOVED, blank=_MOVED)


def phase_details(row: PhaseMemory) -> tuple[Row, ...]:
    """Everything about one phase."""
    traffic = row.traffic
    pairs = (
        *((f"bytes {way}", size(traffic.bytes_of(way))) for way in _WAYS),
        ("bytes otherwise", size(traffic.bytes_of("other"))),
        ("of these pageable", size(traffic.pageable_bytes)),
        ("time moving them", duration(traffic.moving_ns)),
        ("calls that allocate", count(traffic.allocations)),
        ("calls that free", count(traffic.releases)),
        ("time in those calls", duration(traffic.allocating_ns)),
    )
    note = "With all that happened in phases inside it, of threads with a range of their own."
    return (*labelled(pairs, 22), (), ((note, "dim"),))


TRANSFER_SORTS = ("bytes", "count", "time", "rate")


def transfer_columns() -> list[Column[Transfer]]:
    """Copies and memsets by kind of memory at both ends."""
    kinds = ("source_kind", "destination_kind")
    figures = ("total_bytes", "count", "avg_bytes", "max_bytes", "total_ns", "bytes_per_s")
    return declared(COPIES, "operation", *kinds, *figures, blank=kinds)


def transfer_order(row: Transfer, by: str) -> float:
    """What rows are sorted by."""
    figures = (row.total_bytes, row.count, row.total_ns, row.bytes_per_s or 0.0)
    return figures[TRANSFER_SORTS.index(by)]


def transfer_details(row: Transfer) -> tuple[Row, ...]:
    """Everything about one kind of copy, and what its kind of memory means."""
    pairs = (
        ("from", row.source or "unknown"),
        ("to", row.destination or "unknown"),
        ("bytes", size(row.total_bytes)),
        ("count", count(row.count)),
        ("average", size(row.average_bytes)),
        ("largest", size(row.largest_bytes)),
        ("time on the GPU", duration(row.total_ns)),
        ("rate while copying", rate(row.bytes_per_s)),
    )
    rows = labelled(pairs, 22)
    if row.is_pageable:
        text = "Pageable memory is copied through a buffer of the driver's: pinned is faster."
        rows = (*rows, (), ((text, "dim"),))
    return rows


ALLOCATION_SORTS = ("total", "count", "average", "longest")


def allocation_order(row: TableRow, by: str) -> float:
    """What rows are sorted by."""
    figures = (row.total, row.instances, row.average, row.maximum)
    return figures[ALLOCATION_SORTS.index(by)]


def allocation_details(row: TableRow, run: Run) -> tuple[Row, ...]:
    """The call's times, and the phases it was made in."""
    pairs = (
        ("count", count(row.instances)),
        ("total", duration(row.total)),
        ("share of CUDA calls", percent(row.percent)),
        ("average", duration(row.average)),
        ("median", duration(row.median)),
        ("shortest", duration(row.minimum)),
        ("longest", duration(row.maximum)),
    )
    made: dict[str, int] = {}
    for call in run.api.values():
        if call.name == row.name:
            path = phase_path(run, call.range) or OUTSIDE
            made[path] = made.get(path, 0) + call.time.count
    rows: list[Row] = [*labelled(pairs, 22), (), (("called in", "label"),)]
    for path, calls in sorted(made.items(), key=lambda item: -item[1])[:12]:
        rows.append(((f"{count(calls):>7} ×  ", "value"), (path, "text")))
    return tuple(rows)


def reported_items(run: Run) -> list[Row]:
    """The memory figures the workload reports, one after another."""
    return [((f"{label} ", "label"), (text, "value")) for label, text in _reported(run)]


def reported_rows(run: Run, width: int) -> list[Row]:
    """The memory the workload reports: figures, and tables with a column of bytes."""
    rows = [*labelled(_reported(run), 28, "value")]
    for name, reason in (run.result.unavailable if run.result else {}).items():
        if is_memory_metric(name):
            label = metric_text(name, None)[0]
            rows += [((f"{label:<28}", "label"), *row) for row in wrap(reason, width - 28, "dim")]
    if any(_has_sizes(table) for table in own_tables(run)):
        rows += [(), (("tables of its own with sizes are in ", "dim"), ("1 1", "key"))]
    return rows


def _reported(run: Run) -> list[tuple[str, str]]:
    return [
        metric_text(name, value)
        for name, value in run.metrics.items()
        if is_memory_metric(name) and value is not None
    ]


def _has_sizes(table: AnyTable) -> bool:
    return bool(table.rows) and any(
        one.header == "bytes" or one.header.endswith("_bytes") for one in table.columns
    )


def _bytes(value: int) -> str:
    return size(value) if value else ""
