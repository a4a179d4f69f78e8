"""GPU time by the line of Python that launched it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.report.schema import TableSpec, count, percent, text, time
from gputui.state import Run

Z95 = 1.96
"""Standard errors on either side within which 95 % of estimates lie."""


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line and its part of the GPU time. `margin_percent` is half of the 95 % interval, as if
    every reading weighed the same: 1.96 √(p (1 − p) / n)."""

    place: str
    function: str
    gpu_time_percent: float
    margin_percent: float
    readings: int
    gpu_ns: float


def line_rows(run: Run) -> list[LineRow]:
    """The lines that launch, the largest first."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for seen in run.line_launches.values():
        of = sums[seen.process, seen.line]
        of[0] += seen.readings
        of[1] += seen.gpu_ns
    whole, readings = sum(of[1] for of in sums.values()), sum(of[0] for of in sums.values())
    gpu_ns = sum(use.busy_ns for use in run.timing.devices.values())
    rows = []
    for place, (seen_often, launched_ns) in sums.items():
        line = run.lines.get(place)
        if line is None or not whole:
            continue
        share = launched_ns / whole
        rows.append(
            LineRow(
                f"{line.path}:{line.number}",
                line.function,
                100 * share,
                100 * Z95 * math.sqrt(share * (1 - share) / readings),
                seen_often,
                share * gpu_ns,
            )
        )
    return sorted(rows, key=lambda row: -row.gpu_time_percent)


def _note(_run: Run, rows: Sequence[LineRow]) -> str:
    readings = sum(row.readings for row in rows)
    return f"estimated from {readings} readings of the lines of launching threads, 10 a second"


LINES: TableSpec[LineRow] = TableSpec(
    key="lines",
    title="Lines that launch",
    meaning="GPU time by the line of Python that launched it, estimated from readings.",
    columns=(
        percent(
            "GPU Time",
            "gpu_time_percent",
            lambda row: row.gpu_time_percent,
            "Of the GPU time of all lines",
        ),
        percent("±", "margin_percent", lambda row: row.margin_percent, "Half of its 95 % interval"),
        time("GPU", "gpu_ns", lambda row: row.gpu_ns, "Its part of the time that ran"),
        count("Readings", "readings", lambda row: row.readings, "That saw it launch"),
        text("Line", "line", lambda row: row.place, "File and line", flexible=True),
        text("Function", "function", lambda row: row.function, "The function it is in"),
    ),
    rows=lambda _session, run: line_rows(run),
    order=2,
    note=_note,
)
TABLES = (LINES,)
