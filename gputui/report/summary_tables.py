"""A run's summary as named tables: what `summary`, the exports and the screen's end page print.

Tables that nsys has too are in `gputui.report.nsys_tables`.
"""

from __future__ import annotations

from collections.abc import Callable

from gputui.report.columns import (
    Cell,
    Column,
    Table,
    count,
    for_programs,
    number,
    percent,
    size,
    spare,
    text,
    time,
)
from gputui.report.domains import DEFAULT
from gputui.report.gpu_readings import devices_table
from gputui.report.gpu_timing import TIMING_TABLES
from gputui.report.launch_shapes import shapes_table
from gputui.report.marks import marks_table
from gputui.report.memory_tables import copies_table
from gputui.report.memory_tables import phases_table as memory_phases_table
from gputui.report.nsys_tables import NSYS_TABLES, marked
from gputui.report.phases import PhaseRow, phase_rows, share_note
from gputui.report.process_rows import processes_table
from gputui.report.statistics import category_rows, kernel_rows
from gputui.report.workload_metrics import metric_text
from gputui.state import Run, Session

__all__ = ["SUMMARY", "TABLES", "Cell", "Column", "Table"]


def phases_table(_session: Session, run: Run) -> Table:
    """The range tree with its three clocks; people see whose a range is where that differs."""
    rows = phase_rows(run)
    domains = len({row.domain for row in rows}) > 1
    ranks = any(row.rank is not None for row in rows)
    threads = any(row.threads for row in rows)
    processes = len({row.pid for row in rows}) > 1

    def cells(row: PhaseRow) -> tuple[Cell, ...]:
        return (
            "  " * row.depth + row.name,
            row.domain or DEFAULT,
            row.rank,
            row.pid,
            ", ".join(row.threads) or None,
            row.share_percent,
            row.instances,
            row.cpu_total_ns,
            row.cpu_exclusive_ns,
            None if row.per_step_ns is None else round(row.per_step_ns, 1),
            row.gpu_busy_ns if run.devices else None,
            row.gpu_idle_ns,
            row.projected.total if row.projected.count else None,
            row.kernels if run.devices else None,
            row.known_launches if run.devices else None,
            row.memcpy_bytes if run.devices else None,
            row.path,
            row.depth,
        )

    columns = (
        text("Phase"),
        for_programs(text("Domain"), not domains),
        for_programs(number("Rank"), not ranks),
        for_programs(number("PID"), not processes),
        for_programs(spare(3, text("Thread")), not threads),
        percent("Share (%)", 3),
        spare(2, count("Instances")),
        time("CPU Total (ns)"),
        spare(5, time("CPU Exclusive (ns)")),
        spare(1, time("CPU / Step (ns)")),
        time("GPU Busy (ns)"),
        spare(3, time("GPU Idle (ns)")),
        spare(7, time("GPU Projected (ns)")),
        count("Kernels"),
        spare(4, count("Launches")),
        spare(6, size("Memcpy (bytes)")),
        for_programs(text("Path")),
        for_programs(text("Depth")),
    )
    return Table(
        "phases", "Phases (NVTX ranges)", columns, tuple(map(cells, rows)), share_note(run, rows)
    )


def categories_table(session: Session, run: Run) -> Table:
    """GPU kernel time by what kind of work it is."""
    rows = category_rows(kernel_rows(session, run))
    return Table(
        "kernel_categories",
        "GPU Kernel Time by Category",
        (percent("Time (%)"), time("Total Time (ns)"), count("Instances"), text("Category")),
        tuple((share, total, count, name) for name, count, total, share in rows),
    )


def metrics_table(_session: Session, run: Run) -> Table:
    """What the workload reported of itself."""
    return Table(
        "metrics",
        "Metrics",
        (text("Metric"), text("Value")),
        tuple((name, value) for name, value in run.metrics.items()),
        in_words=tuple((name, metric_text(name, value)[1]) for name, value in run.metrics.items()),
    )


TABLES: dict[str, Callable[[Session, Run], Table]] = {
    "metrics": metrics_table,
    "phases": phases_table,
    "nvtx_marks": marks_table,
    "kernel_categories": categories_table,
    **NSYS_TABLES,
    "kernel_shapes": shapes_table,
    "memory_copies": copies_table,
    "memory_phases": memory_phases_table,
    **{name: marked(make) for name, make in TIMING_TABLES.items()},
    "devices": lambda session, run: devices_table(session, run.readings, "GPUs During the Run"),
    "processes": processes_table,
}
"""Every table by name, in the order the summary prints them."""

SUMMARY = (
    "metrics",
    "phases",
    "nvtx_marks",
    "kernel_categories",
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "gpu_idle",
    "devices",
    "processes",
)
"""The tables of the summary; the others are there for the asking."""
