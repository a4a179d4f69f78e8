"""How full the memory of each GPU is and was: bars, and charts whose scale fits what is held."""

from __future__ import annotations

from math import ceil

import msgspec

from gputui.model.events import GpuSample
from gputui.model.units import percent, size
from gputui.state import Gpu, Session
from gputui.tui.widgets.canvas import Row, Span, bar, clip, row_width
from gputui.tui.widgets.chart import Chart
from gputui.tui.widgets.gpu_charts import bandwidth_chart, chart_grid
from gputui.tui.widgets.gpu_figures import memory_fraction, memory_role
from gputui.tui.widgets.host import host_charts
from gputui.tui.widgets.series import Look

_NARROWEST_BAR = 12


def device_rows(
    session: Session, width: int, height: int, interval_s: float, look: Look
) -> list[Row]:
    """A bar for each GPU, and as many charts as there is room for, in at most `height` rows: of
    a single GPU its bandwidth too. Without a GPU the host's memory."""
    gpus = list(session.gpus.values())
    if not gpus:
        charts = [
            _of_host(chart)
            for chart in host_charts(session)
            if chart.role == "memory" and chart.series.extremes(0, 1) is not None
        ]
        return chart_grid(charts, width, height, interval_s, look) if charts else []
    rows = [bar_row(gpu, width) for gpu in gpus][:height]
    charts = [_chart(gpu) for gpu in gpus]
    if len(gpus) == 1:
        charts.append(bandwidth_chart(gpus[0]))
    return rows + chart_grid(charts, width, height - len(rows), interval_s, look)


def bar_row(gpu: Gpu, width: int) -> Row:
    """One line: what is used, what the driver keeps, what is left."""
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    used, reserved = sample.memory_used_bytes, sample.memory_reserved_bytes
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    name: Row = ((f"GPU {gpu.facts.index} ", "label"),)
    if used is None or not total:
        reason = gpu.unavailable.get("memory_used_bytes", "no reading yet")
        return clip((*name, (f"memory n/a: {reason}", "dim")), width)
    free = max(0, total - used - (reserved or 0))
    full = "  NEARLY FULL" if (memory_fraction(sample) or 0) >= 0.97 else ""
    figures: list[Row] = [
        ((f"used {size(used):>8} {percent(100 * used / total):>6}{full}", memory_role(sample)),),
        ((f"driver keeps {size(reserved):>7}", "label"),),
        ((f"free {size(free):>8}", "text"),),
        ((f"of {size(total)}", "dim"),),
    ]
    left = width - row_width(name) - _NARROWEST_BAR - 3
    kept: list[Span] = []
    for figure in figures:
        if row_width(figure) + 2 <= left:
            kept += [("  ", "text"), *figure]
            left -= row_width(figure) + 2
    meter = min(40, _NARROWEST_BAR + max(0, left))
    taken = bar(used / total, meter)
    filled = len(taken.rstrip())
    edge = min(meter, max(filled, ceil(meter * (used + (reserved or 0)) / total)))
    return (
        *name,
        ("▕", "dim"),
        (taken[:filled], "memory"),
        ("·" * (edge - filled), "dim"),
        (" " * (meter - edge), "text"),
        ("▏", "dim"),
        *kept,
    )


def _of_host(chart: Chart) -> Chart:
    (name, text), *others = chart.titles
    titles = ((f"{name} used", text), *others)
    return msgspec.structs.replace(chart, titles=titles)


def _chart(gpu: Gpu) -> Chart:
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    used = gpu.samples.track("memory_used_bytes")
    name = f"GPU {gpu.facts.index} memory used"
    of = f" of {size(total)}" if total else ""
    held_now = size(sample.memory_used_bytes)
    return Chart(
        ((name, f"{held_now}{of}"), (name, held_now), ("", held_now)),
        "memory",
        float(total) if total else None,
        size,
        used,
        reason=gpu.unavailable.get("memory_used_bytes", ""),
        value_role=memory_role(sample),
    )
