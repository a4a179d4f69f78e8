"""A recording as OpenMetrics text: every sample of every figure, each with its moment.

The figures are those that are served to Prometheus, read again at each sample of the machine, so
that `promtool tsdb create-blocks-from openmetrics` puts the recording into a Prometheus as if it
had been scraped. A series must stand together, so what was read waits in a temporary file.
"""

from __future__ import annotations

import math
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, TextIO, TypeVar

from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gputui.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    Distribution,
    KernelDelta,
    MachineSample,
)
from gputui.export.prometheus import metrics
from gputui.session import Session

POINTS_IN_MEMORY = 1 << 20
"""More wait in a temporary file."""

Span = tuple[int, int]
"""First and last moment that are wanted, in ns since the epoch."""


@dataclass(slots=True)
class _Series:
    """One metric with its labels: its points, the oldest in the file at `written`."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    written: list[tuple[int, int]] = field(default_factory=list)
    """Offset and count of portions."""


@dataclass(slots=True)
class _Family:
    name: str
    kind: str
    help: str
    series: dict[str, _Series] = field(default_factory=dict)
    """By the text that comes before the value."""


def write_openmetrics(out: TextIO, events: Iterable[AnyEvent], span: Span | None = None) -> int:
    """Write the figures at each sample within `span`, at all where that is None; how many points.

    `events` are a whole session's from its header on.
    """
    with tempfile.TemporaryFile(prefix="gputui-") as spool:
        points = _Points(spool)
        for time_ns, session in _moments(events):
            if span is None or span[0] <= time_ns <= span[1]:
                points.add(time_ns, metrics(session))
        return points.write(out)


def _moments(events: Iterable[AnyEvent]) -> Iterator[tuple[int, Session]]:
    """The session after each sample and at its end, at moments that only grow."""
    session = Session()
    last_ns = 0
    for event in events:
        session.apply((_counts_of(event) if isinstance(event, CaptureDelta) else event,))
        if isinstance(event, MachineSample) and event.time_ns > last_ns:
            last_ns = event.time_ns
            yield last_ns, session
    if session.time_ns > last_ns:
        yield session.time_ns, session


def _counts_of(delta: CaptureDelta) -> CaptureDelta:
    """The same without what no figure is made of: values, which medians need, and timings."""
    return replace(
        delta,
        ranges=tuple(
            replace(one, cpu=_sums(one.cpu), projected=_sums(one.projected)) for one in delta.ranges
        ),
        kernels=_timed(delta.kernels),
        kernels_beside=_timed(delta.kernels_beside),
        api=_timed(delta.api),
        memory_operations=tuple(
            replace(one, time=_sums(one.time), size=_sums(one.size))
            for one in delta.memory_operations
        ),
        range_kernels=(),
        launches=(),
        shapes=(),
        streams=(),
        launching_threads=(),
        idle_ranges=(),
        marks=(),
    )


_Timed = TypeVar("_Timed", KernelDelta, ApiDelta)
_Sums = TypeVar("_Sums", Distribution, Distribution | None)


def _timed(deltas: Iterable[_Timed]) -> tuple[_Timed, ...]:
    return tuple(replace(one, time=_sums(one.time)) for one in deltas)


def _sums(times: _Sums) -> _Sums:
    return times if times is None else replace(times, values=())


class _Points:
    def __init__(self, spool: BinaryIO) -> None:
        self._names: dict[tuple[str, tuple[str, ...]], str] = {}
        self._spool = spool
        self._families: dict[str, _Family] = {}
        self._waiting = 0
        self._count = 0

    def add(self, time_ns: int, found: Iterable[Metric]) -> None:
        """What was read at one moment."""
        for metric in found:
            family = self._families.get(metric.name)
            if family is None:
                family = _Family(metric.name, metric.type, metric.documentation)
                self._families[metric.name] = family
            for sample in metric.samples:
                # Escaping costs more than all else here, and names come again at every moment.
                key = sample.name, tuple(sample.labels.values())
                name = self._names.get(key)
                if name is None:
                    name = self._names[key] = _name_of(sample)
                series = family.series.get(name)
                if series is None:
                    series = family.series[name] = _Series()
                series.times_ns.append(time_ns)
                series.values.append(sample.value)
                self._waiting += 1
        if self._waiting >= POINTS_IN_MEMORY:
            self._spill()

    def write(self, out: TextIO) -> int:
        """Write everything, family by family."""
        for family in self._families.values():
            out.write(f"# HELP {family.name} {_escaped(family.help)}\n")
            out.write(f"# TYPE {family.name} {family.kind}\n")
            for name, series in family.series.items():
                for times_ns, values in self._portions(series):
                    self._count += len(values)
                    out.writelines(
                        f"{name} {_number(value)} {time_ns // 10**9}.{time_ns % 10**9:09d}\n"
                        for time_ns, value in zip(times_ns, values, strict=True)
                    )
        out.write("# EOF\n")
        return self._count

    def _spill(self) -> None:
        self._waiting = 0
        for family in self._families.values():
            for series in family.series.values():
                if series.values:
                    series.written.append((self._spool.tell(), len(series.values)))
                    series.times_ns.tofile(self._spool)
                    series.values.tofile(self._spool)
                    del series.times_ns[:], series.values[:]

    def _portions(self, series: _Series) -> Iterator[tuple[array[int], array[float]]]:
        for offset, count in series.written:
            self._spool.seek(offset)
            times_ns, values = array("q"), array("d")
            times_ns.fromfile(self._spool, count)
            values.fromfile(self._spool, count)
            yield times_ns, values
        yield series.times_ns, series.values


def _name_of(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
    return f"{sample.name}{{{labels}}}" if labels else sample.name


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
