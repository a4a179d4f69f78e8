"""Charts in a page: lines over time as SVG, bars as blocks; both without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from gputui.model import units
from gputui.model.metrics import Metric
from gputui.report.roofline import Roof

WIDTH, HEIGHT = 400, 150
LEFT, BOTTOM, TOP, RIGHT = 58, 22, 8, 14
_POINTS = 400
"""Points of a line: more than the width of the chart would not be visible."""

Point = tuple[int, float]
"""A moment in ns since the epoch, and a value."""


def line(metric: Metric, found: Sequence[Point], first: int, last: int, of: str) -> str:
    """A figure with a line, from moment `first` to `last`; nothing for fewer than two points."""
    if len(found) < 2:
        return ""
    # The highest of each stretch of time: people look for peaks.
    peaks: dict[int, Point] = {}
    for point in found:
        at = (point[0] - first) * _POINTS // max(1, last - first)
        if at not in peaks or peaks[at][1] < point[1]:
            peaks[at] = point
    found = list(peaks.values())
    most = metric.unit.full_scale or max(value for _, value in found) * 1.05 or 1.0
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(time_ns: int, value: float) -> str:
        x = LEFT + wide * min(1.0, (time_ns - first) / max(1, last - first))
        return f"{x:.1f},{TOP + high * (1 - min(1.0, max(0.0, value / most))):.1f}"

    marks = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + high * (1 - share)
        marks.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' class='g'/>"
            f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>"
            f"{escape(metric.unit.mean(most * share))}</text>"
        )
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        when = units.duration((last - first) * share) if share else "0"
        marks.append(
            f"<text x='{LEFT + wide * share:.1f}' y='{HEIGHT - 6}' text-anchor='{anchor}'>"
            f"{escape(when)}</text>"
        )
    places = " ".join(place(*point) for point in found)
    highest = metric.unit.mean(max(value for _, value in found))
    return (
        f"<figure><figcaption>{escape(metric.title)} <span class='note'>up to {escape(highest)}"
        f"</span></figcaption><svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{escape(f'{metric.title}, {of}', quote=True)}'>{''.join(marks)}"
        f"<polyline points='{places}' class='l'/></svg></figure>"
    )


def roof(rows: Sequence[Roof]) -> str:
    """Scopes of one card by intensity and rate, under its two roofs, both axes logarithmic; nothing
    where no rate is known."""
    known = [
        row for row in rows if _is_real(row.flops_per_byte) and _is_real(row.tensor_flops_per_s)
    ]
    peaks = [(row.peak_flops_per_s, row.peak_bytes_per_s) for row in rows]
    flops, bytes_per_s = next(
        ((f, b) for f, b in peaks if _is_real(f) and _is_real(b)), (None, None)
    )
    if not known or not flops or not bytes_per_s:
        return ""
    ridge = flops / bytes_per_s
    intensities = [ridge, *(row.flops_per_byte or ridge for row in known)]
    left, right = math.log10(min(intensities)) - 1, math.log10(max(intensities)) + 1
    top = math.log10(flops) + 0.3
    bottom = min(math.log10(row.tensor_flops_per_s or flops) for row in known) - 0.5
    bottom = min(bottom, top - 2)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(intensity: float, rate: float) -> tuple[float, float]:
        x = (math.log10(intensity) - left) / (right - left)
        y = (math.log10(rate) - bottom) / (top - bottom)
        return LEFT + wide * x, TOP + high * (1 - min(1.0, max(0.0, y)))

    corners = [
        place(10**left, max(10**bottom, 10**left * bytes_per_s)),
        place(ridge, flops),
        place(10**right, flops),
    ]
    marks = [
        f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in corners)}' class='l'/>",
        f"<text x='{LEFT}' y='{HEIGHT - 6}'>{escape(units.quantity(10**left))} FLOP/byte</text>",
        f"<text x='{WIDTH - RIGHT}' y='{HEIGHT - 6}' text-anchor='end'>"
        f"{escape(units.quantity(10**right))}</text>",
        f"<text x='{LEFT - 6}' y='{corners[1][1] + 4:.1f}' text-anchor='end'>"
        f"{escape(units.quantity(flops))}</text>",
    ]
    for row in known:
        x, y = place(row.flops_per_byte or ridge, row.tensor_flops_per_s or flops)
        words = f"{row.scope}, GPU {row.gpu}: {units.quantity(row.tensor_flops_per_s, 'FLOP/s')}"
        marks.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' class='p'><title>{escape(words)}</title>"
            f"</circle><text x='{x + 7:.1f}' y='{y + 4:.1f}'>{escape(row.scope[:24])}</text>"
        )
    return (
        "<figure><figcaption>Roofline <span class='note'>tensor operations a second by "
        f"intensity, both logarithmic</span></figcaption><svg viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"role='img' aria-label='Roofline'>{''.join(marks)}</svg></figure>"
    )


def _is_real(value: float | None) -> bool:
    """Whether it has a place on an axis: damaged recordings have figures of any size."""
    return value is not None and 1e-12 < value < 1e24


IDLE = " class='idle'"
"""Of the bars of idle time: hatched, to be told from busy time without colors too."""


class Bar(NamedTuple):
    """A bar of a chart, `share` long."""

    depth: int
    name: str
    share: float
    is_idle: bool = False


def bars(rows: Sequence[Bar]) -> str:
    """A line for each, the longest over the full width."""
    most = max([row.share for row in rows] + [1e-9])
    lines = [
        f"<span class='name' style='padding-left:{min(row.depth, 12)}em'>{escape(row.name)}</span>"
        f"<span class='bar'><i{IDLE if row.is_idle else ''} "
        f"style='width:{100 * row.share / most:.2f}%'></i></span>"
        f"<span class='n'>{escape(units.percent(row.share))}</span>"
        for row in rows
    ]
    return f"<div class='bars'>{''.join(lines)}</div>"
