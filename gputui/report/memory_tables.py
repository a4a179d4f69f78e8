"""Copies by kind of memory, and what phases moved and allocated, as tables to be asked for."""

from __future__ import annotations

from gputui.report.columns import (
    Cell,
    Table,
    count,
    for_programs,
    number,
    rate,
    size,
    spare,
    text,
    time,
)
from gputui.report.memory import Direction, PhaseMemory, Transfer, phase_memory, transfers
from gputui.state import Run, Session

_WAYS: tuple[tuple[Direction, str, int], ...] = (
    ("to device", "To Device (bytes)", 1),
    ("to host", "To Host (bytes)", 1),
    ("on device", "On Device (bytes)", 3),
    ("set", "Set (bytes)", 4),
    ("other", "Other (bytes)", 5),
)


def copies_table(_session: Session, run: Run) -> Table:
    """Copies and memsets by operation and by the kinds of memory at both ends, most bytes first."""

    def cells(row: Transfer) -> tuple[Cell, ...]:
        return (
            row.operation,
            row.source,
            row.destination,
            row.count,
            row.total_bytes,
            round(row.average_bytes, 1),
            row.largest_bytes,
            row.total_ns,
            None if row.bytes_per_s is None else round(row.bytes_per_s),
        )

    columns = (
        text("Operation"),
        text("From"),
        text("To"),
        count("Count"),
        size("Total (bytes)"),
        spare(2, size("Avg (bytes)")),
        spare(1, size("Max (bytes)")),
        time("Time (ns)"),
        rate("Rate (bytes/s)"),
    )
    rows = tuple(map(cells, transfers(run)))
    return Table("memory_copies", "Copies and Memsets by Kind of Memory", columns, rows)


def phases_table(_session: Session, run: Run) -> Table:
    """What each phase, with those inside it, copied, set, allocated and freed."""

    found = phase_memory(run)
    phases = [row.phase for row in found if row.phase]
    ranks = any(phase.rank is not None for phase in phases)
    processes = len({phase.pid for phase in phases}) > 1

    def cells(row: PhaseMemory) -> tuple[Cell, ...]:
        traffic = row.traffic
        return (
            "  " * row.depth + row.name,
            row.phase.rank if row.phase else None,
            row.phase.pid if row.phase else None,
            *(traffic.bytes_of(way) for way, _, _ in _WAYS),
            traffic.pageable_bytes,
            traffic.moving_ns,
            traffic.allocations,
            traffic.releases,
            traffic.allocating_ns,
            row.path,
        )

    columns = (
        text("Phase"),
        for_programs(number("Rank"), not ranks),
        for_programs(number("PID"), not processes),
        *(spare(order, size(header)) for _, header, order in _WAYS),
        size("Pageable (bytes)"),
        spare(2, time("Moving (ns)")),
        count("Allocations"),
        spare(6, count("Frees")),
        time("Allocating (ns)"),
        for_programs(text("Path")),
    )
    return Table("memory_phases", "Memory by Phase", columns, tuple(map(cells, found)))
