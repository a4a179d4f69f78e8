"""A run as one page: no script, no style or picture from elsewhere, every string escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from gputui.analysis import formats
from gputui.analysis.insights import Insight
from gputui.analysis.machine_alone import started_ns
from gputui.analysis.phases import phase_rows
from gputui.analysis.report import Column, Table
from gputui.export.facts import title_of
from gputui.export.tables import headers, shown_cell
from gputui.session import Gpu, Run, Session

WIDTH, HEIGHT = 520, 140
BARS_WIDTH = 640
_LEFT, _BOTTOM, _TOP, _RIGHT = 64, 22, 8, 8
_POINTS = 600
"""Points of a line: more than the picture is wide would not be seen."""

BARS = 20
"""Bars of a chart: the phases with the largest shares; the table below has all."""

_STYLE = """
:root{color-scheme:light dark;--line:#0b6e4f;--grid:#8884;--bar:#2a7de1;--soft:#8882}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin:2rem 0 .4rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
.scroll{overflow-x:auto}th,td{padding:.2rem .6rem;text-align:left;white-space:pre}
td.n,th.n{text-align:right}tr:nth-child(even) td{background:var(--soft)}
td:last-child{white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:.5rem 0;display:inline-block}figcaption{font-weight:600;font-size:13px}
svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:currentColor}
.note{opacity:.75;font-size:13px}li{margin:.3rem 0}
"""


@dataclass(frozen=True, slots=True)
class _Series:
    title: str
    field: str
    show: Callable[[float | None], str]
    most: float | None = None


_SERIES = (
    _Series("Utilization", "utilization_percent", formats.percent, 100.0),
    _Series("SM active", "sm_active_percent", formats.percent, 100.0),
    _Series("Tensor cores active", "tensor_active_percent", formats.percent, 100.0),
    _Series("Memory bandwidth", "memory_bandwidth_percent", formats.percent, 100.0),
    _Series("Memory used", "memory_used_bytes", formats.size),
    _Series("Power", "power_watts", lambda value: f"{value:.0f} W" if value is not None else ""),
    _Series("Temperature", "temperature_celsius", lambda value: f"{value:.0f} °C" if value else ""),
)


def page(
    session: Session,
    run: Run | None,
    facts: Sequence[str],
    found: Sequence[Insight],
    tables: Sequence[Table],
) -> str:
    """The page: `facts` a line each, charts of the GPUs, of phases and kernels, then `tables`."""
    title = f"gputui: {title_of(run)}"
    parts = [
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(f"<p class='note'>{escape(line)}</p>" for line in facts),
        *_insights(found),
        *_machine(session, run),
        *(_phases(run) if run else ()),
        *map(_table, tables),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _insights(found: Sequence[Insight]) -> Iterator[str]:
    if found:
        yield "<h2>What stands out</h2><ul>"
        for insight in found:
            yield f"<li>{escape(insight.verdict)}<br><span class='note'>{escape(insight.advice)}"
            yield "</span></li>"
        yield "</ul>"


def _machine(session: Session, run: Run | None) -> Iterator[str]:
    first = run.started.time_ns if run else started_ns(session)
    last = first + run.duration_ns if run else session.readings.last_ns
    for index, gpu in sorted(session.gpus.items()):
        charts = [chart for series in _SERIES if (chart := _line(gpu, series, first, last))]
        if charts:
            yield f"<h2>GPU {index}: {escape(gpu.facts.name)}</h2>"
            yield from charts


def _line(gpu: Gpu, series: _Series, first: int, last: int) -> str:
    points = [
        (time_ns, float(value))
        for time_ns, sample in gpu.history
        if first <= time_ns <= last and (value := getattr(sample, series.field)) is not None
    ]
    if len(points) < 2:
        return ""
    step = -(-len(points) // _POINTS)
    # Of each stretch the highest: a peak is what people look for.
    points = [
        max(points[at : at + step], key=lambda point: point[1])
        for at in range(0, len(points), step)
    ]
    most = series.most or max(value for _, value in points) * 1.05 or 1.0
    begin, end = points[0][0], points[-1][0]
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def place(time_ns: int, value: float) -> str:
        x = _LEFT + wide * (time_ns - begin) / max(1, end - begin)
        return f"{x:.1f},{_TOP + high * (1 - min(1.0, max(0.0, value / most))):.1f}"

    grid = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + high * (1 - share)
        label = escape(series.show(most * share if share else 0.0) or "0")
        grid.append(
            f"<line x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' "
            f"stroke='var(--grid)'/><text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>"
            f"{label}</text>"
        )
    for share in (0.0, 0.5, 1.0):
        seconds = ((begin - first) + (end - begin) * share) / 1e9
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        grid.append(
            f"<text x='{_LEFT + wide * share:.1f}' y='{HEIGHT - 6}' text-anchor='{anchor}'>"
            f"{seconds:.3g} s</text>"
        )
    line = " ".join(place(*point) for point in points)
    title = f"{series.title} (GPU {gpu.facts.index})"
    return (
        f"<figure><figcaption>{escape(series.title)}</figcaption>"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{escape(title, quote=True)}'>{''.join(grid)}"
        f"<polyline points='{line}' fill='none' stroke='var(--line)' stroke-width='1.5'/>"
        "</svg></figure>"
    )


def _phases(run: Run) -> Iterator[str]:
    rows = [row for row in phase_rows(run) if row.share_percent]
    if not rows:
        return
    least = sorted((row.share_percent or 0.0 for row in rows), reverse=True)[:BARS][-1]
    rows = [row for row in rows if (row.share_percent or 0.0) >= least][:BARS]
    basis = "GPU busy time" if run.devices else "time in outermost ranges"
    yield f"<h2>Phases by share of {basis}</h2>"
    yield _bars([("  " * row.depth + row.name, row.share_percent or 0.0) for row in rows])


def _bars(bars: Sequence[tuple[str, float]]) -> str:
    high, label_width = 22, 260
    wide = BARS_WIDTH - label_width - 70
    most = max([value for _, value in bars] + [1e-9])
    lines = []
    for number, (name, value) in enumerate(bars):
        y = number * high
        length = wide * value / most
        indent = 10 * (len(name) - len(name.lstrip(" "))) // 2
        shown = name.strip()
        shown = shown if len(shown) <= 36 else shown[:35] + "…"
        lines.append(
            f"<text x='{indent}' y='{y + 15}'>{escape(shown)}</text>"
            f"<rect x='{label_width}' y='{y + 4}' width='{length:.1f}' height='{high - 8}' "
            f"fill='var(--bar)'/><text x='{label_width + length + 6:.1f}' y='{y + 15}'>"
            f"{escape(formats.percent(value))}</text>"
        )
    height = high * len(bars) + 4
    return (
        f"<figure><svg viewBox='0 0 {BARS_WIDTH} {height}' width='{BARS_WIDTH}' height='{height}' "
        f"role='img' aria-label='bars'>{''.join(lines)}</svg></figure>"
    )


def _table(table: Table) -> str:
    table = table.for_people()
    heads = "".join(
        f"<th{_number(column)}>{escape(header)}</th>"
        for column, header in zip(table.columns, headers(table.columns), strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_number(column)}>{escape(shown_cell(column, cell))}</td>"
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    return (
        f"<h2>{escape(table.title)}</h2>{note}<div class='scroll'><table><thead><tr>{heads}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _number(column: Column) -> str:
    return "" if column.show is None else " class='n'"
