"""What a figure of the machine is: declared once, on the field of the event that carries it.

A field says `Annotated[float | None, Metric(...)]` in `gputui/model/events/machine.py`. The details
page, charts, summaries, `--once`, Prometheus, Chrome counters, Parquet and recording.md read these
declarations through `metrics_of`, so that a new figure needs its field and the code that reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from gputui.model import units


class Unit(Struct, frozen=True, gc=False):
    """What a figure is counted in, and how people and Prometheus read it."""

    symbol: str
    """The unit's name in tables and counter tracks; empty for a count."""
    show: Callable[[Any], str]
    """One reading in words."""
    base: str = ""
    """The ending of the names of Prometheus metrics; empty where the name says what is counted."""
    factor: float = 1
    """The factor from this unit to Prometheus's base unit."""
    show_mean: Callable[[Any], str] | None = None
    """A mean in words, where it deserves more digits than a reading."""
    full_scale: float | None = None
    """The top of a chart, None where it follows the data."""

    def mean(self, value: float | None) -> str:
        """A mean, or another figure computed of many readings."""
        return (self.show_mean or self.show)(value)


def _number(text: str) -> Callable[[float | None], str]:
    return lambda value: units.MISSING if value is None else text.format(value)


def _either(yes: str, no: str) -> Callable[[bool | None], str]:
    return lambda value: units.MISSING if value is None else yes if value else no


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or "nothing"


def _grouped(value: int | None) -> str:
    return units.MISSING if value is None else f"{value:,}".replace(",", " ")


def _seconds(value: float | None) -> str:
    return units.MISSING if value is None else units.duration(round(value * 1e9))


def _energy(joules: float | None) -> str:
    if joules is None:
        return units.MISSING
    return f"{units.quantity(joules, 'J')} ({units.watt_hours(joules)})"


PERCENT = Unit("%", units.percent, "ratio", 0.01, full_scale=100.0)
BYTES = Unit("bytes", units.size, "bytes")
BYTES_PER_S = Unit("bytes/s", units.rate, "bytes_per_second")
WATTS = Unit("W", units.watts, "watts", show_mean=lambda value: units.quantity(value, "W"))
JOULES = Unit("J", _energy, "joules")
CELSIUS = Unit("°C", units.celsius, "celsius", show_mean=lambda value: units.quantity(value, "°C"))
MHZ = Unit("MHz", _number("{:.0f} MHz"), "hertz", 1e6)
BITS = Unit("bits", _number("{:.0f} bits"), "bits")
COUNT = Unit("", _grouped)
PER_SECOND = Unit("1/s", _number("{:.3g}/s"), "per_second")
SECONDS = Unit("s", _seconds, "seconds")
LOAD_AVERAGE = Unit("", _number("{:.2f}"))
PERFORMANCE_STATE = Unit("", _number("P{}"))
ON_OFF = Unit("", _either("on", "off"))
YES_NO = Unit("", _either("yes", "no"))
TEXT = Unit("", str)
REASONS = Unit("", _listed)
SECONDS_BY_REASON = Unit("s", units.times_by_reason, "seconds")

Group = Literal["Chip", "Load", "Memory", "Power and heat", "Clocks", "Links", "Health"]
"""A section of the details page."""

GROUPS: tuple[Group, ...] = (
    "Chip", "Load", "Memory", "Power and heat", "Clocks", "Links", "Health",
)  # fmt: skip
"""The sections from top to bottom."""

OnceTable = Literal["gpus", "pipes"]
"""A table of `--once` that has a column for a figure."""


class Chart(Struct, frozen=True, gc=False):
    """A chart over time, for which the figure is kept for a day."""

    place: int
    """The chart's place among the charts; the first are shown where not all fit."""
    role: str = "utilization"
    """The chart's color, a role of the theme."""
    on_screen: bool = True
    """False for a chart that is only on the html page."""


class Metric(Struct, frozen=True, gc=False):
    """A figure. Its field's name ends in its unit."""

    label: str
    """The figure's name within its group."""
    help: str
    """What the figure means, in a sentence without a full stop; also Prometheus's help text."""
    unit: Unit
    source: str
    """What the figure is read with: the NVML call, GPM metric, or function of psutil or the
    system."""
    details: tuple[Group, int] | None = None
    """The figure's section of the details page, and its place there; lower places are higher up."""
    title: str = ""
    """The figure's name where it stands by itself: over a chart, in a summary, as a counter
    track."""
    optional: bool = False
    """None means that there is nothing to show, not that a reading failed."""
    chart: Chart | None = None
    spread: bool = False
    """Whether mean, least and most over a run are kept, for summaries and comparisons."""
    total: str = ""
    """The driver's counter of its integral over time, as energy is of power: its mean over a run is
    then that total over the time, so that the two agree."""
    trouble: str = ""
    """What is wrong when this counter grows, for counters that should stand still."""
    counter_track: bool = False
    """Whether a Chrome trace has it as a counter."""
    prometheus: str | None = None
    """The name in Prometheus without `gputui_`, without what the metric is of, and without a
    counter's `_total`; None: the figure is not exported."""
    prometheus_kind: Literal["gauge", "counter"] = "gauge"
    prometheus_label: tuple[str, str] | None = None
    """The label, with its value, that distinguishes this field from others with the same Prometheus
    name."""
    prometheus_key: str = ""
    """The label for the keys of a mapping, or for each entry of a tuple, which reads 1."""
    once: tuple[OnceTable, str] | None = None
    """The table of `--once` and the heading there, if it has a column of this figure."""
    card: str = ""
    """The figure's name on a GPU's card, which shows it while it is not 0."""


@functools.cache
def metrics_of(*kinds: type[Struct]) -> Mapping[str, Metric]:
    """Field → its declaration, in the order of the fields; the first of `kinds` to declare one
    wins."""
    metrics: dict[str, Metric] = {}
    for kind in kinds:
        for name, annotation in kind.__annotations__.items():
            for part in getattr(annotation, "__metadata__", ()):
                if isinstance(part, Metric):
                    metrics.setdefault(name, part)
    return metrics


@functools.cache
def charted_fields(kind: type[Struct]) -> Mapping[str, Metric]:
    """The fields with a chart, the first of them first."""
    places = {
        field: metric.chart.place for field, metric in metrics_of(kind).items() if metric.chart
    }
    return {field: metrics_of(kind)[field] for field in sorted(places, key=places.__getitem__)}


@functools.cache
def spread_fields(kind: type[Struct]) -> tuple[str, ...]:
    """The fields whose mean, least and most are kept."""
    return tuple(field for field, metric in metrics_of(kind).items() if metric.spread)
