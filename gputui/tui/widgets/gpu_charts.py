"""The charts of a GPU, and of any other thing, laid out on one time axis."""

from __future__ import annotations

from math import ceil

from gputui.model.events import GpuSample
from gputui.model.units import MISSING, percent, rate, size
from gputui.state import Gpu
from gputui.tui.widgets.canvas import Row, beside
from gputui.tui.widgets.chart import Chart, TimeAxis, chart_rows, label_width
from gputui.tui.widgets.gpu_figures import memory_fraction, memory_role, memory_text, watts
from gputui.tui.widgets.series import USUAL, Look, Series

_NARROWEST_CHART = 25


def series(gpu: Gpu, field: str) -> Series:
    """One figure of a GPU over time."""
    return Series(gpu.history, gpu.long_history, field)


def charts(gpu: Gpu) -> list[Chart]:
    """The charts this GPU can fill, the most telling first."""
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    gone = gpu.unavailable
    busy = sample.sm_active_percent is not None or (
        gpu.facts.gpm_supported and "sm_active_percent" not in gone
    )
    load = "sm_active_percent" if busy else "utilization_percent"
    limit = sample.power_limit_watts or gpu.facts.power_limit_watts
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    result = [
        _share("SM active" if busy else "GPU utilization", "utilization", load, gpu, sample),
        _memory(gpu, sample, float(total) if total else None),
        bandwidth_chart(gpu, sample),
        Chart(
            (
                ("Power", watts(sample.power_watts) + (f" of {watts(limit)}" if limit else "")),
                ("Power", watts(sample.power_watts)),
            ),
            "power",
            limit,
            watts,
            series(gpu, "power_watts"),
            reason=gone.get("power_watts", "") or gone.get("power_limit_watts", ""),
        ),
    ]
    for title, role, field in (
        ("Tensor cores", "tensor", "tensor_active_percent"),
        ("SM occupancy", "occupancy", "sm_occupancy_percent"),
    ):
        if field not in gone and (gpu.facts.gpm_supported or getattr(sample, field) is not None):
            result.append(_share(title, role, field, gpu, sample))
    return result


def _share(title: str, role: str, field: str, gpu: Gpu, sample: GpuSample) -> Chart:
    return Chart(
        ((title, percent(getattr(sample, field))),),
        role,
        100.0,
        percent,
        series(gpu, field),
        reason=gpu.unavailable.get(field, ""),
    )


def _memory(gpu: Gpu, sample: GpuSample, total: float | None) -> Chart:
    fraction = memory_fraction(sample)
    full = "  NEARLY FULL" if fraction is not None and fraction >= 0.97 else ""
    share = f"  {percent(100 * fraction)}" if fraction is not None else ""
    name = "Memory of the host" if gpu.facts.memory_kind == "unified" else "Memory"
    return Chart(
        (
            (name, f"{memory_text(sample)}{share}{full}"),
            ("Memory", f"{size(sample.memory_used_bytes)}{share}{full}"),
            ("Memory", f"{share}{full}".strip() or MISSING),
        ),
        "memory",
        total,
        size,
        series(gpu, "memory_used_bytes"),
        reason=gpu.unavailable.get("memory_used_bytes", ""),
        value_role=memory_role(sample),
    )


def bandwidth_chart(gpu: Gpu, sample: GpuSample) -> Chart:
    """How much of the memory's bandwidth is used."""
    moved = percent(sample.memory_bandwidth_percent)
    speed = sample.memory_bandwidth_bytes_per_s
    peak = gpu.facts.peak_memory_bandwidth_bytes_per_s
    of_peak = f" of {rate(peak)}" if speed and peak else ""
    return Chart(
        (
            ("Memory bandwidth", moved + (f"  {rate(speed)}{of_peak}" if speed else "")),
            ("Memory bandwidth", moved + (f"  {rate(speed)}" if speed else "")),
            ("Memory bandwidth", moved),
            ("Bandwidth", moved),
        ),
        "bandwidth",
        100.0,
        percent,
        series(gpu, "memory_bandwidth_percent"),
        reason=gpu.unavailable.get("memory_bandwidth_percent", ""),
    )


def chart_grid(
    shown: list[Chart], width: int, height: int, interval_s: float, look: Look
) -> list[Row]:
    """As many of `shown` as fit with axes that can be read, on one common time axis."""
    columns, charts_left = _grid(len(shown), width, height)
    if not columns:
        return []
    shown = shown[:charts_left]
    lines = ceil(len(shown) / columns)
    gap = 2
    chart_width = (width - gap * (columns - 1)) // columns
    labels = label_width(shown)
    axis = time_axis(shown[0].series, max(1, chart_width - labels - 1), interval_s, look)
    look.column_ns = axis.column_ns
    rows: list[Row] = []
    for line in range(lines):
        chart_height = height // lines + (line < height % lines)
        block = shown[line * columns : (line + 1) * columns]
        rows += beside(
            [
                (chart_rows(chart, axis, chart_width, chart_height, labels, look), chart_width)
                for chart in block
            ],
            gap,
        )
    return rows


def _grid(count: int, width: int, height: int) -> tuple[int, int]:
    """(columns, charts shown): few wide columns where the charts are still high enough."""
    most = max(1, min(count, width // _NARROWEST_CHART))
    for least in (5, 4, 3):
        for columns in range(2 if most >= 2 else 1, most + 1):
            lines = ceil(count / columns)
            if height // lines >= least and not (lines > 1 and count % columns):
                return columns, count
    return (most, min(count, most)) if height >= 3 else (0, 0)


def time_axis(shown: Series, columns: int, interval_s: float, look: Look) -> TimeAxis:
    """The axis over a series. While the usual time is shown, a young session fills it."""
    interval_ns = int(interval_s * 1e9)
    if look.level == USUAL:
        first_ns, last_ns = shown.first_ns, shown.last_ns
        return TimeAxis.over(first_ns, last_ns, columns, interval_ns, look.window_ns)
    return TimeAxis.of_window(shown.last_ns, columns, interval_ns, look.window_ns)
