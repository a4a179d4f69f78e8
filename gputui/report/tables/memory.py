"""Copies by kind of memory, and what phases moved and allocated, as tables to be asked for."""

from __future__ import annotations

from collections.abc import Callable

from gputui.report.memory import Direction, PhaseMemory, Transfer, phase_memory, transfers
from gputui.report.schema import (
    Cell,
    Column,
    TableSpec,
    count,
    if_any,
    if_differs,
    never,
    number,
    rate,
    size,
    text,
    time,
)

COPIES: TableSpec[Transfer] = TableSpec(
    key="memory_copies",
    title="Copies and Memsets by Kind of Memory",
    meaning="Copies and memsets by operation and by the kinds of memory at both ends, most bytes "
    "first.",
    columns=(
        text("Operation", "operation", lambda row: row.operation, "As nsys calls it",
             label="operation", width=26),
        text("From", "source_kind", lambda row: row.source, "The kind of memory it reads",
             kind=str | None, flexible=False, priority=2, label="from", width=8),
        text("To", "destination_kind", lambda row: row.destination,
             "The kind of memory it writes", kind=str | None, flexible=False, priority=2,
             label="to", width=8),
        count("Count", "count", lambda row: row.count, "How many", priority=1, label="count",
              width=6),
        size("Total", "total_bytes", lambda row: row.total_bytes, "Bytes of all", label="bytes",
             width=8),
        size("Avg", "avg_bytes", lambda row: row.average_bytes, "Mean of one", kind=float,
             priority=4, label="average", width=8),
        size("Max", "max_bytes", lambda row: row.largest_bytes, "The largest", priority=5,
             label="largest", width=8),
        time("Time", "total_ns", lambda row: row.total_ns, "Time on the GPU", priority=1,
             label="time", width=7),
        rate("Rate", "bytes_per_s", lambda row: row.bytes_per_s, "Bytes a second while they ran",
             kind=float | None, priority=3, label="rate", width=9),
    ),
    rows=lambda _session, run: transfers(run),
    order=510,
)  # fmt: skip


def _moved(
    way: Direction, title: str, key: str, meaning: str, priority: int
) -> Column[PhaseMemory]:
    return size(title, key, lambda row: row.traffic.bytes_of(way), meaning, priority=priority,
                label=way, width=8)  # fmt: skip


def _of_phase(attribute: str) -> Callable[[PhaseMemory], Cell]:
    return lambda row: getattr(row.phase, attribute, None)


PHASE_MEMORY: TableSpec[PhaseMemory] = TableSpec(
    key="memory_phases",
    title="Memory by Phase",
    meaning="What each phase, with those inside it, copied, set, allocated and freed.",
    columns=(
        text("Phase", "name", lambda row: "  " * row.depth + row.name, "The range's name",
             document=lambda row: row.name, label="phase", width=22),
        number("Rank", "rank", _of_phase("rank"), "The process's rank", kind=int | None,
               seen=if_any),
        number("PID", "pid", _of_phase("pid"), "The process", kind=int | None, seen=if_differs),
        _moved("to device", "To Device", "to_device_bytes", "Copied from host to device", 1),
        _moved("to host", "To Host", "to_host_bytes", "Copied from device to host", 1),
        _moved("on device", "On Device", "on_device_bytes", "Copied from device to device", 2),
        _moved("set", "Set", "set_bytes", "Set by memsets", 4),
        _moved("other", "Other", "other_bytes", "Copied in any other direction", 5),
        size("Pageable", "pageable_bytes", lambda row: row.traffic.pageable_bytes,
             "Copied with pageable host memory at one end", priority=3, label="pageable", width=8),
        time("Moving", "moving_ns", lambda row: row.traffic.moving_ns,
             "GPU time of copies and memsets", priority=3, label="moving", width=7),
        count("Allocations", "allocations", lambda row: row.traffic.allocations,
              "CUDA calls that allocate", priority=1, label="allocs", width=6),
        count("Frees", "frees", lambda row: row.traffic.releases, "CUDA calls that free",
              priority=6, label="frees", width=5),
        time("Allocating", "allocating_ns", lambda row: row.traffic.allocating_ns,
             "Time in these calls", priority=2, label="allocating", width=10),
        text("Path", "path", lambda row: row.path, "Names from the outermost range on",
             seen=never),
    ),
    rows=lambda _session, run: phase_memory(run),
    order=520,
)  # fmt: skip

TABLES = (COPIES, PHASE_MEMORY)
