"""nsys's cuda_kern_exec_sum: each kernel's launch call, its time in the queue and its run."""

from __future__ import annotations

from collections import defaultdict

from gputui.model.sketch import Accumulator
from gputui.report.availability import empty_of_kernels
from gputui.report.columns import Cell, Table, count, number, spread_cells, text, time
from gputui.report.statistics import NameStyle, kernel_name
from gputui.state import LaunchTimes, Run, Session

_Key = tuple[int, int, int, str, str]
"""(pid, tid, device, call, kernel)."""


def kernel_execution_table(style: NameStyle, session: Session, run: Run) -> Table:
    """T from call to end, A in the call, Q in the queue (where there was one), K running."""
    sums: dict[_Key, LaunchTimes] = defaultdict(LaunchTimes)
    for key, times in run.launches.items():
        pid = run.processes[key.process].attached.pid
        label = kernel_name(session, key.kernel, style)
        entry = sums[pid, key.thread, key.device, key.name, label]
        for name in ("total", "call", "queue", "kernel"):
            getattr(entry, name).add(getattr(times, name).freeze())
    ordered = sorted(sums.items(), key=lambda item: (-(item[1].total.average or 0.0), item[0]))
    exact = all(
        part.exact
        for _, times in ordered
        for part in (times.total, times.call, times.queue, times.kernel)
    )
    table = Table(
        "cuda_kern_exec_sum" if style == "full" else f"cuda_kern_exec_sum:{style}",
        "CUDA Kernel Launch & Exec Time Summary",
        (
            *(number(header) for header in ("PID", "TID", "DevId")),
            count("Count"),
            count("QCount"),
            *(
                time(f"{clock}{figure} (ns)")
                for clock in "TAQK"
                for figure in ("Avg", "Med", "Min", "Max", "StdDev")
            ),
            text("API Name"),
            text("Kernel Name"),
        ),
        tuple(
            (
                *key[:3],
                times.total.count,
                times.queue.count,
                *_spread(times.total),
                *_spread(times.call),
                *_spread(times.queue),
                *_spread(times.kernel),
                *key[3:],
            )
            for key, times in ordered
        ),
        "" if exact else "medians within 1 %",
    )
    return empty_of_kernels(run, table)


def _spread(times: Accumulator) -> tuple[Cell, ...]:
    if not times.count:
        return None, None, None, None, 0.0  # as nsys prints it
    return spread_cells(times)
