"""A run as one page: no scripts, no external styles or images, every string escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from gputui.model import units
from gputui.model.events import GpuSample, HostSample, ServerSample
from gputui.model.leaves import LEAVES, PALETTE, Leaf
from gputui.model.metrics import Metric, Unit, charted_fields
from gputui.render.summary import title_of
from gputui.render.text_tables import header, shortened
from gputui.report.answer import Group
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows, share_of
from gputui.report.roofline import Roof, roofline
from gputui.report.schema import AnyColumn, AnyTable
from gputui.report.tables.time import divide_by_kernel, icicle_of_step
from gputui.state import Run, Samples, Session

WIDTH, HEIGHT = 400, 150
LEFT, BOTTOM, TOP, RIGHT = 58, 22, 8, 14
# Points of a line: more than the width of the chart would not be visible.
_POINTS = 400

Point = tuple[int, float]
"""A moment in ns since the epoch, and a value."""


def line(metric: Metric, points: Sequence[Point], first: int, last: int, where: str) -> str:
    """A figure with a line, from moment `first` to `last`; nothing for fewer than two points."""
    if len(points) < 2:
        return ""
    # The highest of each stretch of time: people look for peaks.
    peaks: dict[int, Point] = {}
    for point in points:
        bin = (point[0] - first) * _POINTS // max(1, last - first)
        if bin not in peaks or peaks[bin][1] < point[1]:
            peaks[bin] = point
    points = list(peaks.values())
    most = metric.unit.full_scale or max(value for _, value in points) * 1.05 or 1.0
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
    places = " ".join(place(*point) for point in points)
    highest = metric.unit.mean(max(value for _, value in points))
    return (
        f"<figure><figcaption>{escape(metric.title)} <span class='note'>up to {escape(highest)}"
        f"</span></figcaption><svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{escape(f'{metric.title}, {where}', quote=True)}'>{''.join(marks)}"
        f"<polyline points='{places}' class='l'/></svg></figure>"
    )


def roof(rows: Sequence[Roof]) -> str:
    """Scopes of one card by intensity and rate, under its two roofs, both axes logarithmic; nothing
    where no rate is known."""
    drawn = [
        row for row in rows if _is_real(row.flops_per_byte) and _is_real(row.tensor_flops_per_s)
    ]
    peaks = [(row.peak_flops_per_s, row.peak_bytes_per_s) for row in rows]
    flops, bytes_per_s = next(
        ((f, b) for f, b in peaks if _is_real(f) and _is_real(b)), (None, None)
    )
    if not drawn or not flops or not bytes_per_s:
        return ""
    ridge = flops / bytes_per_s
    intensities = [ridge, *(row.flops_per_byte or ridge for row in drawn)]
    left, right = math.log10(min(intensities)) - 1, math.log10(max(intensities)) + 1
    top = math.log10(flops) + 0.3
    bottom = min(math.log10(row.tensor_flops_per_s or flops) for row in drawn) - 0.5
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
    for row in drawn:
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
"""The style of the bars of idle time: hatched, so that they differ from busy time without colors,
too."""


def _kind(leaf: Leaf) -> str:
    """The attributes of a leaf's bars: idle or not, and the color it has everywhere."""
    return f"{IDLE * LEAVES[leaf].is_idle} data-c='{LEAVES[leaf].color}'"


def _colors(shade: int) -> str:
    return "".join(
        f"[data-c={name}]{{--c:{shades[shade]};--a:{15 * place % 180}deg}}"
        for place, (name, shades) in enumerate(PALETTE.items())
    )


class ShareBar(NamedTuple):
    """A bar of a chart, `share` long."""

    depth: int
    name: str
    share: float
    kind: str = ""


def bars(rows: Sequence[ShareBar]) -> str:
    """A line for each, the longest over the full width."""
    most = max([row.share for row in rows] + [1e-9])
    lines = [
        f"<span class='name' style='padding-left:{min(row.depth, 12)}em'>{escape(row.name)}</span>"
        f"<span class='bar'><i{row.kind} "
        f"style='width:{100 * row.share / most:.2f}%'></i></span>"
        f"<span class='n'>{escape(units.percent(row.share))}</span>"
        for row in rows
    ]
    return f"<div class='bars'>{''.join(lines)}</div>"


# --- tables of a workload whose rows are moments, as charts
#
# Parts in bytes one on the other, anything else as a line.


# First columns that make a table one of moments.
_NS = {"time_s": 1e9, "time_ms": 1e6, "time_us": 1e3}

# The page's style declares as many (.a0 to .a4).
_COLOURS = 5
# 31 years: a first column beyond it is not a time since the start.
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
        None
        if moment is None or not 0 <= moment * factor < 1e9 * _LONGEST_S
        else round(moment * factor)
        for moment in moments
    ]
    figures: list[tuple[AnyColumn, list[Point]]] = []
    for place, column in enumerate(columns[1:], 1):
        points = sorted(
            (moment, value)
            for moment, row in zip(times, rows, strict=True)
            if moment is not None and (value := _number(row[place])) is not None and value >= 0
        )
        if len(points) > 1:
            figures.append((column, points))
    amounts = [figure for figure in figures if figure[0].unit == "bytes"]
    if len(amounts) < 2:
        amounts = []
    return [
        *([_stack(table.title, amounts)] if amounts else ()),
        *_lines(table.title, [figure for figure in figures if figure not in amounts]),
    ]


def _lines(title: str, figures: Sequence[tuple[AnyColumn, list[Point]]]) -> Iterator[str]:
    for column, points in figures:
        unit = Unit(column.unit, column.show or units.quantity)
        metric = Metric(column.key, column.meaning, unit, "", title=column.key)
        yield line(metric, points, points[0][0], points[-1][0], title)


def _stack(title: str, amounts: Sequence[tuple[AnyColumn, list[Point]]]) -> str:
    """Areas one on the other: at each moment the newest value of each part."""
    moments = sorted({place_of for _, points in amounts for place_of, _ in points})
    first, last = moments[0], moments[-1]
    heights = [0.0] * len(moments)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    edges = [list(heights)]
    for _, points in amounts:
        upcoming_points, value, place_of = iter([*points, (last + 1, 0.0)]), 0.0, 0
        upcoming = next(upcoming_points)
        for place_of, moment in enumerate(moments):
            while upcoming[0] <= moment:
                value = upcoming[1]
                upcoming = next(upcoming_points)
            heights[place_of] += value
        edges.append(list(heights))
    most = max(heights) or 1.0

    def place(place_of: int, value: float) -> str:
        x = LEFT + wide * (moments[place_of] - first) / max(1, last - first)
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
    for number, (column, points) in enumerate(amounts):
        colour = f"a{number % _COLOURS}"
        lower, upper = edges[number], edges[number + 1]
        outline = [place(place_of, value) for place_of, value in enumerate(upper)]
        outline += [place(place_of, lower[place_of]) for place_of in reversed(range(len(moments)))]
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


# --- a run as one page: no scripts, no external styles or images, every string escaped


BARS = 20
"""Bars per chart: the phases with the largest shares; the table below has all."""

FOLDED = 100
"""Letters of a cell that are seen before it is opened: kernels' names have thousands."""

_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1c2128;--soft:#f3f5f7;--edge:#d8dde3;
--dim:#5b6470;--line:#0b7a56;--bar:#2a72d4;--mark:#b45309}
@media(prefers-color-scheme:dark){:root{--ground:#14171b;--ink:#e4e7eb;--soft:#1d2126;
--edge:#343a42;--dim:#9aa4b0;--line:#3ecf9a;--bar:#5b9cf5;--mark:#f0a445}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:1600px;margin:0 auto;padding:1.5rem 1rem 4rem;
background:var(--ground);color:var(--ink)}
h1{font-size:1.5rem;margin:0 0 .4rem}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}
.facts{margin:0;padding:0;list-style:none;color:var(--dim);font-size:13px}
h1,.facts,.answer,.note,.bars .name{overflow-wrap:anywhere}
.note{color:var(--dim);font-size:13px;font-weight:400}p.note{margin:.2rem 0 .5rem}
.answer{margin:0;padding:.6rem 1rem;background:var(--soft);border-left:4px solid var(--mark);
border-radius:4px;display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem}
.answer dt{font-weight:600}.answer dd{margin:0;white-space:pre-wrap}
.stack{display:flex;height:1.6rem;margin:.3rem 0 .7rem;border-radius:4px;overflow:hidden}
.stack i{border-right:1px solid var(--ground);background:var(--bar)}
.icicle{position:relative;margin:.3rem 0 .7rem}.icicle i{position:absolute;height:1.3rem;
overflow:hidden;white-space:nowrap;font:normal 12px/1.3rem system-ui,sans-serif;padding:0 .2rem;
background:var(--soft);border:1px solid var(--edge)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:.8rem}
figure{margin:0;padding:.6rem .7rem .3rem;border:1px solid var(--edge);border-radius:6px}
figcaption{font-weight:600;font-size:13px}svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}.g{stroke:var(--edge)}
.p{fill:var(--mark)}.a0{fill:var(--bar)}.a1{fill:var(--line)}.a2{fill:var(--mark)}
.a3{fill:var(--dim)}.a4{fill:var(--edge)}figcaption b{display:inline-block;width:.7em;height:.7em;
margin:0 .3em 0 .6em}b.a0{background:var(--bar)}b.a1{background:var(--line)}
b.a2{background:var(--mark)}b.a3{background:var(--dim)}b.a4{background:var(--edge)}
.l{fill:none;stroke:var(--line);stroke-width:1.6;stroke-linejoin:round}
.bars{display:grid;grid-template-columns:minmax(6rem,max-content) minmax(4rem,44rem) max-content;
gap:.15rem .7rem;align-items:center;font-size:13px}
.bar i{display:block;height:.8rem;background:var(--bar);border-radius:2px;min-width:1px}
i[data-c]{background:var(--c)!important}i.idle{background:repeating-linear-gradient(
var(--a,45deg),var(--c,var(--mark)) 0 4px,transparent 4px 7px)!important}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
.scroll{overflow-x:auto;border:1px solid var(--edge);border-radius:6px;max-width:max-content}
th,td{padding:.22rem .5rem;text-align:left;white-space:pre}
th{background:var(--soft);border-bottom:1px solid var(--edge)}
.n{text-align:right;font-variant-numeric:tabular-nums}tbody tr:nth-child(even) td{
background:var(--soft)}td:last-child:not(.n){white-space:pre-wrap;overflow-wrap:anywhere;
min-width:14rem}details[open] summary span{display:none}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
@page{size:landscape;margin:1cm}
@media print{body{max-width:none;padding:0}.scroll{overflow:visible;border:0}
th,td{font-size:8px;padding:.1rem .2rem}th{white-space:normal}td:last-child:not(.n){min-width:8rem}
h2{break-after:avoid}tr,figure,.answer{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(
    session: Session,
    run: Run | None,
    facts: Sequence[str],
    answered: Sequence[Group],
    tables: Sequence[AnyTable],
) -> str:
    """The page: `facts` one line each, the answer, where the time goes, charts of phases and of the
    machine, then `tables`.
    """
    title = f"gputui: {title_of(run)}"
    sections = [
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}{_colors(1)}",
        f"@media(prefers-color-scheme:dark){{{_colors(0)}}}</style></head><body>",
        f"<h1>{escape(title)}</h1><ul class='facts'>",
        *(f"<li>{escape(fact)}</li>" for fact in facts),
        "</ul>",
        *_answer(answered),
        *(_time(run) if run else ()),
        *(_icicle(session, run) if run else ()),
        *(_roofs(session, run) if run else ()),
        *(_phases(run) if run else ()),
        *_machine(session, run),
        *_timelines(tables),
        *map(_table, tables),
        "</body></html>\n",
    ]
    return "\n".join(sections)


def _answer(groups: Sequence[Group]) -> Iterator[str]:
    if groups:
        yield "<h2>The answer</h2><dl class='answer'>"
        for group in groups:
            for line in group:
                yield f"<dt>{escape(line.label)}</dt><dd>{escape(line.text)}</dd>"
        yield "</dl>"


def _time(run: Run) -> Iterator[str]:
    """The time tree: one bar of 100 %, then its leaves, which the table below has too."""
    tree = time_tree(run)
    if tree is None:
        return
    leaves = sorted(tree.leaves.items(), key=lambda item: (LEAVES[item[0]].is_idle, -item[1]))
    yield "<h2>Where the time goes</h2><div class='stack'>"
    for leaf, ns in leaves:
        share = 100 * tree.share(ns)
        words = escape(f"{LEAVES[leaf].label} {units.percent(share)}", quote=True)
        yield f"<i{_kind(leaf)} style='width:{share:.3f}%' title='{words}'></i>"
    yield "</div>"
    rows: list[ShareBar] = []
    for state in ("busy", "idle"):
        is_idle = state == "idle"
        of_state = [(leaf, ns) for leaf, ns in leaves if LEAVES[leaf].is_idle == is_idle]
        rows.append(
            ShareBar(0, state, 100 * tree.share(sum(ns for _, ns in of_state)), IDLE * is_idle)
        )
        rows += [ShareBar(1, LEAVES[leaf].label, 100 * tree.share(ns), _kind(leaf))
                 for leaf, ns in of_state]  # fmt: skip
    yield bars(rows)


_LEAST_BOX = 0.1
"""Percent of the width below which a box could not be seen."""
_MOST_DEPTH, _MOST_BOXES, _BOX_REM = 16, 2000, 1.35


def _icicle(session: Session, run: Run) -> Iterator[str]:
    """A step as nested boxes: phases, and in each what ran and why the GPU idled."""
    whole, steps = icicle_of_step(run, Analysis(session, run).tree)
    divide_by_kernel(whole, session, run)
    if not any(part.parts for part in whole.parts):
        return  # only causes, which the bar above has
    boxes: list[str] = []
    deepest = 0
    pending = [(whole, 0, 0.0, 100.0)]
    while pending and len(boxes) < _MOST_BOXES:
        part, depth, left, width = pending.pop(0)
        deepest = max(deepest, depth)
        kind = "" if part.leaf is None else _kind(part.leaf)
        words = f"{part.name} {units.duration(part.ns / steps)}"
        boxes.append(
            f"<i{kind} style='left:{left:.3f}%;width:{width:.3f}%;top:{depth * _BOX_REM:.2f}rem' "
            f"title='{escape(words, quote=True)}'>{escape(words)}</i>"
        )
        for inside in part.parts if depth + 1 < _MOST_DEPTH else ():
            size = width * inside.ns / part.ns
            if size >= _LEAST_BOX:
                pending.append((inside, depth + 1, left, size))
            left += size
    time_of = f"a step, the mean of {units.count(steps)}" if steps > 1 else "all that was recorded"
    yield f"<h2>{escape(whole.name)} from above</h2><p class='note'>As wide as it took on the GPU, "
    yield f"busy or idle (hatched): {escape(time_of)}.</p>"
    yield f"<div class='icicle' style='height:{(deepest + 1) * _BOX_REM:.2f}rem'>"
    yield from boxes
    yield "</div>"


def _roofs(session: Session, run: Run) -> Iterator[str]:
    rows = roofline(Analysis(session, run))
    charts = [roof([row for row in rows if row.gpu == gpu]) for gpu in {row.gpu: 0 for row in rows}]
    if any(charts):
        yield "<h2>How near the limits</h2><div class='charts'>"
        yield from charts
        yield "</div>"


def _machine(session: Session, run: Run | None) -> Iterator[str]:
    first = run.started.time_ns if run else session.started_ns
    last = first + run.duration_ns if run else session.readings.last_ns
    sampled: list[tuple[str, Mapping[str, Metric], Samples[GpuSample] | Samples[HostSample]]] = [
        (f"GPU {index}: {gpu.facts.name}", charted_fields(GpuSample), gpu.samples)
        for index, gpu in sorted(session.gpus.items())
    ]
    served: list[tuple[str, Mapping[str, Metric], Samples[ServerSample]]] = [
        (f"{server.engine} at {server.url}", charted_fields(ServerSample), server.samples)
        for server in session.servers.values()
    ]
    for name, metrics, samples in (
        *served,
        *sampled,
        ("The host", charted_fields(HostSample), session.host_samples),
    ):
        charts = [
            chart
            for field, metric in metrics.items()
            if (chart := line(metric, samples.track(field).peaks(first, last), first, last, name))
        ]
        if charts:
            yield f"<h2>{escape(name)}</h2><div class='charts'>"
            yield from charts
            yield "</div>"


def _timelines(tables: Iterable[AnyTable]) -> Iterator[str]:
    charts = [chart for table in tables for chart in timelines(table)]
    if charts:
        yield "<h2>What the workload measured over time</h2><div class='charts'>"
        yield from charts
        yield "</div>"


def _phases(run: Run) -> Iterator[str]:
    phases = phase_rows(run)
    rows = [row for row in phases if row.share_percent]
    if not rows:
        return
    # The longest phases get the bars, in the order of the tree: the first ones need not matter.
    least = sorted((row.share_percent or 0.0 for row in rows), reverse=True)[:BARS][-1]
    rows = [row for row in rows if (row.share_percent or 0.0) >= least][:BARS]
    yield f"<h2>Phases by share {escape(share_of(run, phases))}</h2>"
    if left := len(phases) - len(rows):
        yield (
            f"<p class='note'>The {len(rows)} largest; {left} more, smaller or outside the "
            "steps, are in the table of phases.</p>"
        )
    yield bars([ShareBar(row.depth, row.name, row.share_percent or 0.0) for row in rows])


def _table(whole: AnyTable) -> str:
    table, left_out = shortened(whole)
    columns, _, texts = table.for_people()
    classes = [" class='n'" if column.is_right else "" for column in columns]
    heads = "".join(
        f"<th scope='col'{kind}>{escape(header(column))}</th>"
        for kind, column in zip(classes, columns, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_cell(text)}</td>" for kind, text in zip(classes, row, strict=True))
        + "</tr>"
        for row in texts
    )
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    more = f"<p class='note'>{escape(left_out)}</p>" if left_out else ""
    return (
        f"<h2>{escape(table.title)}</h2>{note}<div class='scroll' tabindex='0' role='region' "
        f"aria-label='{escape(table.title)}'><table><caption>{escape(table.title)}</caption>"
        f"<thead><tr>{heads}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _cell(text: str) -> str:
    """A text, one of kernels' and modules' names folded behind its beginning."""
    if len(text) <= FOLDED:
        return escape(text)
    start, rest = escape(text[:FOLDED]), escape(text[FOLDED:])
    return f"<details><summary>{start}<span>…</span></summary>{rest}</details>"
