"""One GPU as rows: a card with charts, one line of a list, and everything that is known of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import ceil

from gputui.analysis.formats import MISSING, percent, quantity, rate, size
from gputui.events import GpuSample, HostSample
from gputui.session import Gpu
from gputui.ui.widgets.chart import Chart, TimeAxis, chart_rows, label_width, spark
from gputui.ui.widgets.lines import Row, beside, flow, heading
from gputui.ui.widgets.table import Column

History = deque[tuple[int, GpuSample]] | deque[tuple[int, HostSample]]
"""What charts read: (time, sample) pairs, oldest first."""

CARD_HEIGHT = 9
"""Fewer lines than these cannot hold a card with charts."""

WINDOW_NS = 300 * 1_000_000_000
_NARROWEST_CHART = 25
_WORD = {
    "utilization_percent": "GPU utilization",
    "memory_used_bytes": "memory used",
    "memory_reserved_bytes": "memory reserved",
    "memory_total_bytes": "memory in all",
    "memory_bandwidth_percent": "memory bandwidth",
    "memory_bandwidth_bytes_per_s": "memory bandwidth",
    "sm_active_percent": "SM active",
    "sm_occupancy_percent": "SM occupancy",
    "tensor_active_percent": "tensor cores active",
    "power_watts": "power",
    "power_limit_watts": "power limit",
    "temperature_celsius": "temperature",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "pcie_rx_bytes_per_s": "PCIe received",
    "pcie_tx_bytes_per_s": "PCIe sent",
    "nvlink_rx_bytes_per_s": "NVLink received",
    "nvlink_tx_bytes_per_s": "NVLink sent",
    "throttle_reasons": "throttling",
}
_HARMLESS = ("idle", "none", "applications clocks")


def watts(value: float | None) -> str:
    """ "312 W"."""
    return MISSING if value is None else f"{value:.0f} W"


def temperature(gpu: Gpu) -> tuple[str, str]:
    """The temperature and how it is to be seen: hot only near the slowdown threshold."""
    value = gpu.sample.temperature_celsius if gpu.sample else None
    if value is None:
        return MISSING, "dim"
    slowdown = gpu.facts.temperature_slowdown_celsius
    text = f"{value:.0f} °C"
    if slowdown is None:
        return text, "value"
    if value >= slowdown - 3:
        return f"{text} (HOT: slows at {slowdown:.0f})", "hot"
    return f"{text} (slows at {slowdown:.0f})", "warn" if value >= slowdown - 8 else "value"


def throttling(sample: GpuSample | None) -> tuple[str, str]:
    """Why clocks are held down, in words."""
    reasons = sample.throttle_reasons if sample else None
    if reasons is None:
        return MISSING, "dim"
    real = [r for r in reasons if not any(word in r.lower() for word in _HARMLESS)]
    if real:
        return f"THROTTLED: {', '.join(real)}", "hot"
    return (reasons[0], "dim") if reasons else ("none", "good")


def memory_role(sample: GpuSample | None) -> str:
    """Red only where memory is about to run out."""
    fraction = memory_fraction(sample)
    if fraction is None:
        return "dim"
    return "hot" if fraction >= 0.97 else "warn" if fraction >= 0.9 else "value"


def memory_fraction(sample: GpuSample | None) -> float | None:
    """Used memory over all of it."""
    if sample is None or sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / sample.memory_total_bytes


def memory_text(sample: GpuSample | None) -> str:
    """ "45.2 of 141 GiB"."""
    if sample is None or sample.memory_used_bytes is None:
        return MISSING
    if not sample.memory_total_bytes:
        return size(sample.memory_used_bytes)
    return f"{size(sample.memory_used_bytes)} of {size(sample.memory_total_bytes)}"


def _busy(sample: GpuSample | None) -> float | None:
    if sample is None:
        return None
    busy = sample.sm_active_percent
    return busy if busy is not None else sample.utilization_percent


def _history(
    gpu: Gpu, figure: Callable[[GpuSample], float | None]
) -> Iterator[tuple[int, float | None]]:
    return ((time_ns, figure(sample)) for time_ns, sample in reversed(gpu.history))


def charts(gpu: Gpu) -> list[Chart]:
    """The charts this GPU can fill, the most telling first."""
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    gone = gpu.unavailable
    busy = sample.sm_active_percent is not None or (
        gpu.facts.gpm_supported and "sm_active_percent" not in gone
    )
    fraction = memory_fraction(sample)
    full = "  NEARLY FULL" if fraction is not None and fraction >= 0.97 else ""
    share = f"  {percent(100 * fraction)}" if fraction is not None else ""
    speed = sample.memory_bandwidth_bytes_per_s
    moved = percent(sample.memory_bandwidth_percent)
    limit = sample.power_limit_watts or gpu.facts.power_limit_watts
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    result = [
        Chart(
            (
                ("SM active", percent(sample.sm_active_percent))
                if busy
                else ("GPU utilization", percent(sample.utilization_percent)),
            ),
            "utilization",
            100.0,
            lambda value: f"{value:.0f} %",
            _history(gpu, lambda s: s.sm_active_percent if busy else s.utilization_percent),
            reason=gone.get("sm_active_percent" if busy else "utilization_percent", ""),
        ),
        Chart(
            (
                ("Memory", f"{memory_text(sample)}{share}{full}"),
                ("Memory", f"{size(sample.memory_used_bytes)}{share}{full}"),
                ("Memory", f"{share}{full}".strip() or MISSING),
            ),
            "memory",
            float(total) if total else None,
            size,
            _history(gpu, lambda s: s.memory_used_bytes),
            reason=gone.get("memory_used_bytes", ""),
            value_role=memory_role(sample),
        ),
        Chart(
            (
                ("Memory bandwidth", moved + (f"  {rate(speed)}" if speed else "")),
                ("Memory bandwidth", moved),
                ("Bandwidth", moved),
            ),
            "bandwidth",
            100.0,
            lambda value: f"{value:.0f} %",
            _history(gpu, lambda s: s.memory_bandwidth_percent),
            reason=gone.get("memory_bandwidth_percent", ""),
        ),
        Chart(
            (
                ("Power", watts(sample.power_watts) + (f" of {watts(limit)}" if limit else "")),
                ("Power", watts(sample.power_watts)),
            ),
            "power",
            limit,
            watts,
            _history(gpu, lambda s: s.power_watts),
            reason=gone.get("power_watts", "") or gone.get("power_limit_watts", ""),
        ),
    ]
    for title, role, field, figure in (
        (
            "Tensor cores",
            "tensor",
            "tensor_active_percent",
            lambda s: s.tensor_active_percent,
        ),
        (
            "SM occupancy",
            "occupancy",
            "sm_occupancy_percent",
            lambda s: s.sm_occupancy_percent,
        ),
    ):
        if field not in gone and (gpu.facts.gpm_supported or getattr(sample, field) is not None):
            result.append(
                Chart(
                    ((title, percent(getattr(sample, field))),),
                    role,
                    100.0,
                    lambda value: f"{value:.0f} %",
                    _history(gpu, figure),
                )
            )
    return result


def figures(gpu: Gpu) -> list[Row]:
    """The figures beside the charts, the most telling first; what is not there is left out."""
    sample = gpu.sample
    if sample is None:
        return [(("no reading yet", "dim"),)]
    result: list[Row] = []

    def add(label: str, value: str, role: str = "value") -> None:
        if value != MISSING:
            result.append(((f"{label} ", "label"), (value, role)))

    state, state_role = throttling(sample)
    add("throttling", state, state_role)
    add("temperature", *temperature(gpu))
    if sample.sm_active_percent is not None:
        add("utilization", percent(sample.utilization_percent))
    add("SM clock", _clock(sample.sm_clock_mhz, gpu.facts.max_sm_clock_mhz))
    add("memory clock", _clock(sample.memory_clock_mhz, gpu.facts.max_memory_clock_mhz))
    add("PCIe", _both(sample.pcie_rx_bytes_per_s, sample.pcie_tx_bytes_per_s))
    add("NVLink", _both(sample.nvlink_rx_bytes_per_s, sample.nvlink_tx_bytes_per_s))
    add("reserved", size(sample.memory_reserved_bytes))
    if gpu.unavailable:
        result.append(((f"{len(gpu.unavailable)} figures n/a: Enter says why", "dim"),))
    return result


def _clock(value: int | None, maximum: int | None) -> str:
    if value is None:
        return MISSING
    return f"{value} of {maximum} MHz" if maximum else f"{value} MHz"


def _both(received: float | None, sent: float | None) -> str:
    if received is None and sent is None:
        return MISSING
    return f"in {rate(received)} out {rate(sent)}"


def card_rows(gpu: Gpu, width: int, height: int, interval_s: float) -> list[Row]:
    """A card in exactly `width` × `height`."""
    facts = gpu.facts
    about = [size(facts.memory_total_bytes) if facts.memory_total_bytes else ""]
    about.append(f"{facts.sm_count} SMs" if facts.sm_count else "")
    about.append(f"compute {facts.compute_capability}" if facts.compute_capability else "")
    note = " · ".join(part for part in about if part)
    rows = [heading(f"GPU {facts.index}  {facts.name}", width, note)]
    rows += flow(figures(gpu), width, 1 if height < 14 else 2)
    rows += chart_grid(charts(gpu), gpu.history, width, height - len(rows), interval_s)
    return (rows + [()] * height)[:height]


def chart_grid(
    shown: list[Chart],
    history: History,
    width: int,
    height: int,
    interval_s: float,
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
    axis = time_axis(history, max(1, chart_width - labels - 1), interval_s)
    rows: list[Row] = []
    for line in range(lines):
        chart_height = height // lines + (line < height % lines)
        block = shown[line * columns : (line + 1) * columns]
        rows += beside(
            [
                (chart_rows(chart, axis, chart_width, chart_height, labels), chart_width)
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


def time_axis(history: History, columns: int, interval_s: float) -> TimeAxis:
    """The axis over a history of (time, sample) pairs."""
    first, last = (history[0][0], history[-1][0]) if history else (0, 0)
    return TimeAxis.over(first, last, columns, int(interval_s * 1e9), WINDOW_NS)


def list_columns(interval_s: float, spark_width: int) -> list[Column[Gpu]]:
    """One GPU a line: the compact list."""

    def trend(gpu: Gpu) -> str:
        axis = time_axis(gpu.history, spark_width, interval_s)
        return spark(axis.columns(_history(gpu, _busy), spark_width), 100.0)

    def of(figure: Callable[[GpuSample], str]) -> Callable[[Gpu], str]:
        return lambda gpu: figure(gpu.sample) if gpu.sample else MISSING

    return [
        Column("GPU", lambda gpu: str(gpu.facts.index), 0),
        Column("name", lambda gpu: gpu.facts.name, 6, flexible=True, right=False, width=8),
        Column("busy", lambda gpu: percent(_busy(gpu.sample)), 0, width=5),
        Column("busy, last 5 min", trend, 5, right=False, width=spark_width, role="utilization"),
        Column("memory", of(memory_text), 1, role=lambda gpu: memory_role(gpu.sample)),
        Column("bandwidth", of(lambda s: percent(s.memory_bandwidth_percent)), 4),
        Column("tensor", of(lambda s: percent(s.tensor_active_percent)), 7),
        Column("power", of(lambda s: watts(s.power_watts)), 3, width=5),
        Column(
            "temp",
            of(
                lambda s: (
                    MISSING if s.temperature_celsius is None else f"{s.temperature_celsius:.0f} °C"
                )
            ),
            2,
            role=lambda gpu: temperature(gpu)[1],
        ),
        Column("SM clock", of(lambda s: _clock(s.sm_clock_mhz, None)), 8),
        Column(
            "throttling",
            lambda gpu: throttling(gpu.sample)[0].removeprefix("THROTTLED: "),
            6,
            right=False,
            role=lambda gpu: throttling(gpu.sample)[1],
        ),
    ]


def detail_rows(gpu: Gpu) -> tuple[Row, ...]:
    """Every figure and fact of a GPU; what is not there says why."""
    facts = gpu.facts
    rows: list[Row] = []

    def add(label: str, value: str, role: str = "text") -> None:
        rows.append(((f"{label:<22}", "label"), (value, role)))

    add("UUID", facts.uuid)
    add("PCI bus", facts.pci_bus_id or MISSING)
    add("compute capability", facts.compute_capability or MISSING)
    add("SMs", quantity(facts.sm_count))
    if facts.pcie_generation and facts.pcie_width:
        add("PCIe link", f"generation {facts.pcie_generation} × {facts.pcie_width}")
    if facts.peak_memory_bandwidth_bytes_per_s:
        source = facts.peak_memory_bandwidth_source
        peak = rate(facts.peak_memory_bandwidth_bytes_per_s)
        add("peak bandwidth", f"{peak} ({source})" if source else peak)
    for field, word in _WORD.items():
        value = getattr(gpu.sample, field, None)
        if value is None:
            add(word, f"n/a: {gpu.unavailable.get(field, 'not read yet')}", "dim")
        else:
            add(word, _figure(field, value))
    for field, reason in gpu.unavailable.items():
        if field not in _WORD:
            add(field, f"n/a: {reason}", "dim")
    return tuple(rows)


def _figure(field: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if not isinstance(value, int | float):
        return str(value)
    for suffix, form in (
        ("_percent", percent),
        ("_bytes_per_s", rate),
        ("_bytes", size),
        ("_watts", watts),
    ):
        if field.endswith(suffix):
            return form(value)
    return f"{value:.0f} °C" if field.endswith("_celsius") else f"{value} MHz"
