"""The charts of a GPU, and of any other thing, laid out on one time axis."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from math import ceil

import msgspec

from gputui.model.events import GpuSample
from gputui.model.metrics import charted_fields, metrics_of
from gputui.model.units import MISSING, clock_text, percent, rate, size, watts, whole_percent
from gputui.report.alerts import link_text
from gputui.report.machine_now import memory_fraction, memory_role, memory_text
from gputui.state import Gpu, Session, Track
from gputui.tui.model import Model
from gputui.tui.source import Playback
from gputui.tui.widgets.canvas import Row, beside, clip, labelled
from gputui.tui.widgets.chart import NOW, USUAL, Chart, Look, TimeAxis, chart_rows, label_width
from gputui.tui.widgets.view import View

# The host as rows.


def link_rows(model: Model, width: int) -> list[Row]:
    """How the link to the host is that is shown, if it is another one and not up; else how far its
    clock is from this one's.
    """
    if model.hosts is None:
        return []
    host = model.hosts[model.host]
    if not host.is_up:
        text = link_text(host, time.time_ns())
        is_over = host.link.state == "ended"
        role = "hot" if host.link.reason and not is_over else "dim"
        return [clip(((f"  {'■' if is_over else '✗'} {host.name}: {text}", role),), width)]
    its = host.link.clock
    clock: Row = (("link ", "label"), (host.name, "text"), ("   clock ", "label"))
    missing: Row = ((f"   {host.link.reason}", "warn"),) if host.link.reason else ()
    return [clip((*clock, (MISSING if its is None else its.text, "value"), *missing), width)]


def host_items(session: Session) -> list[Row]:
    """The host's figures, one after another."""
    host = session.host
    header = session.header
    if host is None or header is None:
        return [(("host: no reading yet", "dim"),)]
    total = header.host.memory_total_bytes
    load = MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
    items: list[Row] = [
        (("host ", "label"), (header.host.hostname[:40], "text")),
        # In whole percent: tenths only flicker, and each change is bytes to the terminal.
        (("CPU ", "label"), (f"{whole_percent(host.cpu_percent):>5}", "value")),
        (("memory ", "label"), (f"{size(host.memory_used_bytes)} of {size(total)}", "value")),
        (("load ", "label"), (load, "value"), (f" on {header.host.cpu_count} CPUs", "dim")),
    ]
    if host.swap_used_bytes:
        items.append((("swap ", "label"), (size(host.swap_used_bytes), "value")))
    if host.infiniband_sent_bytes_per_s is not None:
        moved = f"{rate(host.infiniband_sent_bytes_per_s)} out"
        moved += f", {rate(host.infiniband_received_bytes_per_s)} in"
        items.append((("InfiniBand ", "label"), (moved, "value")))
    if session.own_cpu_percent is not None:
        own = f"{whole_percent(session.own_cpu_percent):>4}"  # what follows stays where it is
        items.append((("gputui ", "label"), (own, "value"), (" CPU", "dim")))
    if header.driver_version:
        items.append((("driver ", "label"), (header.driver_version, "text")))
    if header.cuda_driver_version:
        items.append((("CUDA ", "label"), (header.cuda_driver_version, "text")))
    return items


def host_charts(session: Session) -> list[Chart]:
    """CPU and memory over time."""
    header, host = session.header, session.host
    total = header.host.memory_total_bytes if header else 0
    used = host.memory_used_bytes if host else None
    track = session.host_samples.track
    return [
        Chart(
            (("CPU", percent(host.cpu_percent if host else None)),),
            "utilization",
            100.0,
            percent,
            track("cpu_percent"),
        ),
        Chart(
            (("Memory", f"{size(used)} of {size(total)}"), ("Memory", size(used))),
            "memory",
            float(total) or None,
            size,
            track("memory_used_bytes"),
        ),
    ]


def host_details(session: Session) -> tuple[Row, ...]:
    """The host's facts, and the reasons for what is missing."""
    if session.header is None:
        return ()
    host = session.header.host
    facts = (
        ("host", host.hostname),
        ("system", host.system),
        ("CPU", host.cpu_model or MISSING),
        ("cores", str(host.cpu_count)),
        ("memory", size(host.memory_total_bytes)),
    )
    missing = [(field, f"n/a: {reason}") for field, reason in session.host_unavailable.items()]
    return (*labelled(facts, 14), *labelled(missing, 14, "dim"))


# Shared by views with charts: the displayed time, and the moment being read.


_MARKS = 40
"""Starts of phases on a time axis: there is no room for more."""


class ChartedView(View):
    """A view whose charts have one time axis, in `look`."""

    offers = View.offers | {"zoom(-1)", "scale"}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.look = Look()

    def zoom(self, step: int) -> str:
        text = self.look.zoom(step)
        self.draw()
        return f"charts show {text}"

    def step(self, columns: int) -> None:
        session = self.model.session
        kept = [gpu.samples.history for gpu in session.gpus.values()]
        last = next(filter(None, kept), session.host_samples.history).newest
        if last:
            self.look.step(columns, last[0])
        self.draw()

    def follow(self) -> None:
        self.look.at_ns = None

    def mark_phases(self) -> None:
        """Mark on the time axes when phases of the run began, and where they end."""
        run, source = self.model.run, self.model.source
        self.look.end = NOW
        self.look.own_scale = self.model.own_scale
        if isinstance(source, Playback):
            self.look.end = clock_text(source.position_s).partition(".")[0]
        self.look.marks = tuple(run.phase_starts)[-_MARKS:] if run is not None else ()

    def moment_note(self) -> str:
        """The moment at which charts are read, "" if that is the newest."""
        if self.look.at_ns is None:
            return ""
        when = datetime.fromtimestamp(self.look.at_ns / 1e9).astimezone()
        return f"charts at {when:%H:%M:%S}, 0 is {self.look.end}"


_NARROWEST_CHART = 25


def charts(gpu: Gpu) -> list[Chart]:
    """The charts this GPU can fill, the most telling first; none as long as it was not read, as of
    an imported file it never is."""
    sample = gpu.sample
    if sample is None:
        return []
    return [
        _chart(gpu, sample, field)
        for field, metric in charted_fields(GpuSample).items()
        if metric.chart is not None and metric.chart.on_screen and _can_fill(gpu, sample, field)
    ]


def chart_of(gpu: Gpu, field: str) -> Chart:
    """The chart of one figure."""
    return _chart(gpu, gpu.sample or GpuSample(index=gpu.facts.index), field)


def _can_fill(gpu: Gpu, sample: GpuSample, field: str) -> bool:
    """Whether there is a chart of a field: the load is SM active if there are counters, otherwise
    the driver's utilization, and a GPU without counters has no charts of others."""
    if field == "utilization_percent":
        return not _can_fill(gpu, sample, "sm_active_percent")
    if field in _IN_FULL:
        return True
    known = gpu.facts.gpm_supported or getattr(sample, field) is not None
    return known and field not in gpu.unavailable


def _chart(gpu: Gpu, sample: GpuSample, field: str) -> Chart:
    metric = metrics_of(GpuSample)[field]
    chart = Chart(
        ((metric.title, metric.unit.show(getattr(sample, field))),),
        metric.chart.role if metric.chart else "utilization",
        metric.unit.full_scale,
        metric.unit.show,
        gpu.samples.track(field),
        reason=gpu.unavailable.get(field, ""),
    )
    return _IN_FULL[field](gpu, sample, chart) if field in _IN_FULL else chart


def _power(gpu: Gpu, sample: GpuSample, chart: Chart) -> Chart:
    limit = sample.power_limit_watts or gpu.facts.power_limit_watts
    ((title, now),) = chart.titles
    return msgspec.structs.replace(
        chart,
        titles=((title, now + (f" of {watts(limit)}" if limit else "")), (title, now)),
        maximum=limit,
        reason=chart.reason or gpu.unavailable.get("power_limit_watts", ""),
    )


def _memory(gpu: Gpu, sample: GpuSample, chart: Chart) -> Chart:
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    fraction = memory_fraction(sample)
    full = "  NEARLY FULL" if fraction is not None and fraction >= 0.97 else ""
    share = f"  {percent(100 * fraction)}" if fraction is not None else ""
    name = "Memory of the host" if gpu.facts.memory_kind == "unified" else "Memory"
    return msgspec.structs.replace(
        chart,
        titles=(
            (name, f"{memory_text(sample)}{share}{full}"),
            ("Memory", f"{size(sample.memory_used_bytes)}{share}{full}"),
            ("Memory", f"{share}{full}".strip() or MISSING),
        ),
        maximum=float(total) if total else None,
        value_role=memory_role(sample),
    )


def _bandwidth(gpu: Gpu, sample: GpuSample, chart: Chart) -> Chart:
    ((title, moved),) = chart.titles
    speed = sample.memory_bandwidth_bytes_per_s
    peak = gpu.facts.peak_memory_bandwidth_bytes_per_s
    of_peak = f" of {rate(peak)}" if speed and peak else ""
    return msgspec.structs.replace(
        chart,
        titles=(
            (title, moved + (f"  {rate(speed)}{of_peak}" if speed else "")),
            (title, moved + (f"  {rate(speed)}" if speed else "")),
            (title, moved),
            ("Bandwidth", moved),
        ),
    )


_IN_FULL: dict[str, Callable[[Gpu, GpuSample, Chart], Chart]] = {
    "memory_used_bytes": _memory,
    "memory_bandwidth_percent": _bandwidth,
    "power_watts": _power,
}
"""Charts with more in their titles than the figure; where it is missing they say why."""


def chart_grid(
    shown: list[Chart], width: int, height: int, interval_s: float, look: Look
) -> list[Row]:
    """As many of `shown` as fit with axes that can be read, on one common time axis."""
    columns, charts_left = _grid(len(shown), width, height) if shown else (0, 0)
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


def time_axis(shown: Track, columns: int, interval_s: float, look: Look) -> TimeAxis:
    """The axis over a series. While the usual time is shown, a young session fills it."""
    interval_ns = int(interval_s * 1e9)
    if look.level == USUAL:
        first_ns, last_ns = shown.first_ns, shown.last_ns
        moves = look.end == NOW
        return TimeAxis.over(first_ns, last_ns, columns, interval_ns, look.window_ns, moves=moves)
    return TimeAxis.of_window(shown.last_ns, columns, interval_ns, look.window_ns)
