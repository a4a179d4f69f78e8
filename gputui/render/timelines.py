"""Tables of a workload whose rows are moments, as charts: parts in bytes one on the other, anything
else as a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from gputui.model import units
from gputui.model.metrics import Metric, Unit
from gputui.render.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, line
from gputui.report.schema import AnyColumn, AnyTable

_NS = {"time_s": 1e9, "time_ms": 1e6, "time_us": 1e3}
"""First columns that make a table one of moments."""

_COLOURS = 5
_LONGEST_S = 1e9


def timelines(table: AnyTable) -> list[str]:
    """The figures of a table; none if its first column is no time, or has not two moments."""
    columns = [column for _, column in table.headed]
    factor = _NS.get(columns[0].key) if columns else None
    if factor is None:
        return []
    rows = table.cells
    moments = [_number(row[0]) for row in rows]
    times = [
        None if at is None or not 0 <= at * factor < 1e9 * _LONGEST_S else round(at * factor)
        for at in moments
    ]
    found: list[tuple[AnyColumn, list[Point]]] = []
    for place, column in enumerate(columns[1:], 1):
        points = sorted(
            (at, value)
            for at, row in zip(times, rows, strict=True)
            if at is not None and (value := _number(row[place])) is not None and value >= 0
        )
        if len(points) > 1:
            found.append((column, points))
    parts = [one for one in found if one[0].unit == "bytes"]
    if len(parts) < 2:
        parts = []
    return [
        *([_stack(table.title, parts)] if parts else ()),
        *_lines(table.title, [one for one in found if one not in parts]),
    ]


def _lines(title: str, found: Sequence[tuple[AnyColumn, list[Point]]]) -> Iterator[str]:
    for column, points in found:
        unit = Unit(column.unit, column.show or units.quantity)
        metric = Metric(column.key, column.meaning, unit, "", title=column.key)
        yield line(metric, points, points[0][0], points[-1][0], title)


def _stack(title: str, parts: Sequence[tuple[AnyColumn, list[Point]]]) -> str:
    """Areas one on the other: at each moment the newest value of each part."""
    moments = sorted({at for _, points in parts for at, _ in points})
    first, last = moments[0], moments[-1]
    heights = [0.0] * len(moments)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    edges = [list(heights)]
    for _, points in parts:
        known, value, at = iter([*points, (last + 1, 0.0)]), 0.0, 0
        upcoming = next(known)
        for at, moment in enumerate(moments):
            while upcoming[0] <= moment:
                value = upcoming[1]
                upcoming = next(known)
            heights[at] += value
        edges.append(list(heights))
    most = max(heights) or 1.0

    def place(at: int, value: float) -> str:
        x = LEFT + wide * (moments[at] - first) / max(1, last - first)
        return f"{x:.1f},{TOP + high * (1 - value / most):.1f}"

    marks = [
        f"<text x='{LEFT - 6}' y='{TOP + high * (1 - share) + 4:.1f}' text-anchor='end'>"
        f"{escape(units.size(most * share))}</text>"
        for share in (0.0, 0.5, 1.0)
    ]
    marks.append(
        f"<text x='{WIDTH - RIGHT}' y='{HEIGHT - 6}' text-anchor='end'>"
        f"{escape(units.duration(last - first))}</text>"
    )
    legend = []
    for number, (column, points) in enumerate(parts):
        colour = f"a{number % _COLOURS}"
        lower, upper = edges[number], edges[number + 1]
        outline = [place(at, value) for at, value in enumerate(upper)]
        outline += [place(at, lower[at]) for at in reversed(range(len(moments)))]
        name = column.key.removesuffix("_bytes")
        peak = units.size(max(value for _, value in points))
        marks.append(
            f"<polygon points='{' '.join(outline)}' class='{colour}'><title>"
            f"{escape(f'{name}, up to {peak}')}</title></polygon>"
        )
        legend.append(f"<b class='{colour}'></b>{escape(f'{name}, up to {peak}')}")
    return (
        f"<figure><figcaption>{escape(title)} <span class='note'>{' '.join(legend)}</span>"
        f"</figcaption><svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{escape(title, quote=True)}'>{''.join(marks)}</svg></figure>"
    )


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return float(cell) if math.isfinite(cell) and abs(cell) < 1e24 else None
