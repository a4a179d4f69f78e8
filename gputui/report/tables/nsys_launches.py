"""nsys's cuda_kern_exec_sum: each kernel's launch call, its time in the queue and its run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gputui.model.sketch import Accumulator
from gputui.report.availability import empty_of_kernels
from gputui.report.schema import Column, TableSpec, count, number, text
from gputui.report.statistics import NameStyle, kernel_name, medians_note, spread_columns
from gputui.report.tables.nsys import STYLES, styled
from gputui.state import LaunchTimes, Run, Session

_Key = tuple[int, int, int, str, str]
"""(pid, tid, device, call, kernel)."""


@dataclass(frozen=True, slots=True)
class _Row:
    key: _Key
    times: LaunchTimes

    @property
    def exact(self) -> bool:
        """Whether all its medians are."""
        times = self.times
        return all(one.exact for one in (times.total, times.call, times.queue, times.kernel_time))


def _rows(style: NameStyle, session: Session, run: Run) -> list[_Row]:
    sums: dict[_Key, LaunchTimes] = defaultdict(LaunchTimes)
    for key, times in run.launches.items():
        pid = run.processes[key.process].attached.pid
        label = kernel_name(session, key.kernel, style)
        entry = sums[pid, key.thread, key.device, key.name, label]
        for name in ("total", "call", "queue", "kernel_time"):
            getattr(entry, name).add(getattr(times, name))
    rows = [_Row(*item) for item in sums.items()]
    return sorted(rows, key=lambda row: (-(row.times.total.average or 0.0), row.key))


def _spread(
    get: Callable[[_Row], Accumulator], letter: str, key: str, meaning: str, priority: int
) -> tuple[Column[_Row], ...]:
    *columns, deviation = spread_columns(get, letter, key, meaning, priority=priority)
    # Of no launch it is 0, as nsys prints it.
    return *columns, msgspec.structs.replace(deviation, value=lambda row: get(row).deviation or 0.0)


def _spec(style: NameStyle) -> TableSpec[_Row]:
    return TableSpec(
        key=styled("cuda_kern_exec_sum", style),
        title="CUDA Kernel Launch & Exec Time Summary",
        meaning="Each kernel from its launch call to its end: T in all, A in the call, Q in the "
        "queue (where there was one), K running.",
        columns=(
            number("PID", "pid", lambda row: row.key[0], "The launching process"),
            number("TID", "tid", lambda row: row.key[1], "The launching thread"),
            number("DevId", "gpu", lambda row: row.key[2], "The GPU's index"),
            count("Count", "count", lambda row: row.times.total.count, "Launches"),
            count("QCount", "queued", lambda row: row.times.queue.count,
                  "Launches that waited in the queue"),
            *_spread(lambda row: row.times.total, "T", "total", "Call's start to kernel's end", 1),
            *_spread(lambda row: row.times.call, "A", "call", "In the launch call", 3),
            *_spread(lambda row: row.times.queue, "Q", "queue", "Call's end to kernel's start", 5),
            *_spread(lambda row: row.times.kernel_time, "K", "kernel", "Running", 1),
            text("API Name", "call", lambda row: row.key[3], "The launching function"),
            text("Kernel Name", "name", lambda row: row.key[4], "The kernel"),
        ),
        rows=lambda session, run: _rows(style, session, run),
        order=490 + STYLES.index(style),
        note=lambda _run, rows: medians_note(row.exact for row in rows),
        unavailable=empty_of_kernels,
        is_traced=True,
    )  # fmt: skip


TABLES = tuple(map(_spec, STYLES))
