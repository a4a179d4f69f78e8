"""A recording as OpenMetrics text: every sample of every figure, each with its time.

The figures are those served to Prometheus, read again at each sample of the machine, so that
`promtool tsdb create-blocks-from openmetrics` imports the recording into a Prometheus as if it had
been scraped. A series must be contiguous, so what was read waits in a temporary file.
"""

from __future__ import annotations

import functools
import math
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, TextIO

from gputui.model.events import AnyEvent, MachineSample
from gputui.render.prometheus_metrics import (
    Family,
    Figures,
    Labels,
    escaped,
    labels_text,
    number,
    series_name,
)
from gputui.render.prometheus_samples import figures
from gputui.report.phases import phase_rows
from gputui.state import Session

POINTS_IN_MEMORY = 1 << 20
"""More than this waits in a temporary file."""

STAMPS = 1 << 17
"""Moments whose text is cached: a day at one per second, in some 10 MB."""

Span = tuple[int, int]
"""First and last requested moment, in ns since the epoch."""


@dataclass(slots=True)
class _Series:
    """One metric with its labels: its points, the oldest in the file at `written`."""

    name: str
    """The text before the value."""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    written: list[tuple[int, int]] = field(default_factory=list)
    """Offset and count of portions."""


def write_openmetrics(
    out: TextIO,
    events: Iterable[AnyEvent],
    span: Span | None = None,
    *,
    raw_names: bool = False,
) -> int:
    """Write the figures at each sample within `span`, or at all of them if None; how many points.

    `events` are a whole session's from its header on. With `raw_names`, phases are called as their
    ranges are.
    """
    with tempfile.TemporaryFile(prefix="gputui-") as spool:
        points = _Points(spool)
        for time_ns, session in _moments(events):
            if span is None or span[0] <= time_ns <= span[1]:
                run = session.run
                if run is not None:
                    run.raw_names = raw_names
                points.add(time_ns, figures(session, phase_rows(run) if run is not None else ()))
        return points.write(out)


def _moments(events: Iterable[AnyEvent]) -> Iterator[tuple[int, Session]]:
    """The session after each sample and at its end, at increasing moments."""
    session = Session(keeps_tables=False)
    last_ns = 0
    for event in events:
        session.apply((event,))
        if isinstance(event, MachineSample) and event.time_ns > last_ns:
            last_ns = event.time_ns
            yield last_ns, session
    if session.time_ns > last_ns:
        yield session.time_ns, session


class _Points:
    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._families: dict[Family, list[_Series]] = {}
        self._series: dict[Labels, dict[Family, _Series]] = {}
        self._waiting = 0
        self._count = 0

    def add(self, time_ns: int, found: Iterable[tuple[Labels, Figures]]) -> None:
        """Add what was read at one moment."""
        for labels, told in found:
            known = self._series.get(labels)
            if known is None:
                known = self._series[labels] = {}
            for family, value in told:
                series = known.get(family)
                if series is None:
                    series = known[family] = _Series(series_name(family) + labels_text(labels))
                    self._families.setdefault(family, []).append(series)
                series.times_ns.append(time_ns)
                series.values.append(value)
            self._waiting += len(told)
        if self._waiting >= POINTS_IN_MEMORY:
            self._spill()

    def write(self, out: TextIO) -> int:
        """Write everything, family by family."""
        for family, all_series in self._families.items():
            out.write(f"# HELP {family.name} {escaped(family.help)}\n")
            out.write(f"# TYPE {family.name} {family.kind}\n")
            for series in all_series:
                for times_ns, values in self._portions(series):
                    self._count += len(values)
                    # Finite ones, the usual case, need no look at each.
                    text = repr if math.isfinite(sum(values)) else number
                    stamped = zip(map(text, values), map(_stamp, times_ns), strict=True)
                    out.writelines([f"{series.name} {value}{stamp}" for value, stamp in stamped])
        out.write("# EOF\n")
        return self._count

    def _spill(self) -> None:
        self._waiting = 0
        for all_series in self._families.values():
            for series in all_series:
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


@functools.lru_cache(maxsize=STAMPS)
def _stamp(time_ns: int) -> str:
    """The timestamp at the end of a line; every series has the same ones."""
    return f" {time_ns // 10**9}.{time_ns % 10**9:09d}\n"
