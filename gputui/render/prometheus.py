"""A session's figures for Prometheus, as a scrape of now and as OpenMetrics of every sample.

Names and meanings are in base units: shares are ratios from 0 to 1, clocks are in hertz. Counters
are the driver's own, or the run's. Missing values are left out, never 0; `gputui_gpu_up` says
whether a GPU answers.
"""

from __future__ import annotations

import functools
import math
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, BinaryIO, Literal, TextIO

from gputui.model.events import (
    AnyEvent,
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineSample,
    ProcessSample,
    ServerSample,
)
from gputui.model.leaves import LEAVES
from gputui.model.metrics import Metric, metrics_of
from gputui.report.explain.analysis import Analysis
from gputui.report.phases import PhaseRow, phase_rows
from gputui.state import Gpu, Run, Session, mig_metrics


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """A metric with any labels. `name` is without the `_total` that is added to a counter's."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str


Figures = list[tuple[Family, float]]
"""The values for one set of labels."""

Labels = tuple[tuple[str, str], ...]
"""Names and values."""

Found = Iterator[tuple[Labels, Figures]]


def gauge(name: str, text: str) -> Family:
    return Family(f"gputui_{name}", "gauge", text)


def counter(name: str, text: str) -> Family:
    return Family(f"gputui_{name}", "counter", text)


class Exported:
    """The figures of one kind of record whose declarations name a metric."""

    def __init__(self, prefix: str, fields: Mapping[str, Metric]) -> None:
        """`prefix` comes before the declared names: "gpu_"."""
        self._keyed: list[tuple[str, Family, str]] = []
        families: dict[str, Family] = {}
        alike: dict[Labels, list[tuple[str, Family, float]]] = {}
        for attribute, metric in fields.items():
            if metric.prometheus is None:
                continue
            name = f"gputui_{prefix}{metric.prometheus}"
            family = families.setdefault(name, Family(name, metric.prometheus_kind, metric.help))
            if metric.prometheus_key:
                self._keyed.append((attribute, family, metric.prometheus_key))
            else:
                labels = (metric.prometheus_label,) if metric.prometheus_label else ()
                alike.setdefault(labels, []).append((attribute, family, metric.unit.factor))
        self._alike = [
            (
                labels,
                _reader([attribute for attribute, _, _ in values]),
                [value[1:] for value in values],
            )
            for labels, values in alike.items()
        ]

    def figures_of(self, record: object, labels: Labels = ()) -> Found:
        """The metrics of `record` that are not None, with `labels` and the labels that distinguish
        them."""
        for more, read, families in self._alike:
            yield (
                labels + more,
                [
                    (family, value * factor)
                    for (family, factor), value in zip(families, read(record), strict=True)
                    if value is not None
                ],
            )
        for attribute, family, label in self._keyed:
            keyed_values = getattr(record, attribute) or ()
            for key in keyed_values:
                value = keyed_values[key] if isinstance(keyed_values, dict) else 1
                yield (*labels, (label, key)), [(family, value)]


def _reader(attributes: list[str]) -> Callable[[object], tuple[Any, ...]]:
    if len(attributes) > 1:
        return attrgetter(*attributes)
    return lambda record: tuple(getattr(record, attribute) for attribute in attributes)


def series_name(family: Family) -> str:
    """The name of a family's series in both text formats."""
    return f"{family.name}_total" if family.kind == "counter" else family.name


def labels_text(labels: Labels) -> str:
    """What follows it: the labels in braces, or nothing."""
    text = ",".join([f'{label}="{escaped(value)}"' for label, value in labels])
    return f"{{{text}}}" if text else ""


def number(value: float) -> str:
    """A value as both text formats write it."""
    value = float(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def escaped(text: str) -> str:
    """A label's value, so that it cannot end its line or its quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# --- a session's figures as Prometheus wants them: families, labels, values
#
# Missing values are left out, never 0; `gputui_gpu_up` says whether a GPU answers.


_OF_TICK = Exported("", metrics_of(MachineSample))
_OF_HOST = Exported("host_", metrics_of(HostSample))
_OF_FACTS = Exported("gpu_", metrics_of(GpuFacts))
_OF_SAMPLE = Exported("gpu_", metrics_of(GpuSample))
_OF_STATUS = Exported("gpu_", metrics_of(GpuStatus))
_OF_INSTANCE = Exported("mig_", mig_metrics())
_OF_PROCESS = Exported("process_", metrics_of(ProcessSample))

_OF_SERVER = Exported("server_", metrics_of(ServerSample))

_BUILD = gauge("build_info", "Versions")
_SAMPLES = counter("samples", "Samples taken")

_GPU_UP = gauge("gpu_up", "1 when the GPU answered")
_GPU_INFO = gauge("gpu_info", "What the GPU is")
_GPU_MOMENT = gauge("gpu_sample_timestamp_seconds", "When it answered last")

_SERVER_UP = gauge("server_up", "1 when the engine's page of metrics was read")

_RUN_ACTIVE = gauge("run_active", "1 while the program runs")
_RUN_DURATION = gauge("run_duration_seconds", "How long it ran")
_RUN_PROGRESS = gauge("run_progress", "How far the stage is")
RUN_METRIC = gauge("run_metric", "What the workload reports, in its own unit")
_RECORDS = counter("capture_records", "Records captured")
DROPPED = counter("capture_dropped_records", "Records lost")

_STEPS = gauge("steps", "Steady steps of the GPU so far")
STEP_SECONDS = gauge("step_seconds", "Mean length of a steady step")
CAUSE_SHARE = gauge("cause_share_ratio", "Part of the GPU's wall time in steady steps")
_CAUSE_SECONDS = gauge("cause_seconds", "Time of the GPU in steady steps")

_INSTANCES = counter("phase_instances", "Instances of the phase that have ended")
CPU_SECONDS = counter("phase_cpu_seconds", "Time inside it on the launching thread")
BUSY_SECONDS = counter("phase_gpu_busy_seconds", "Time the GPU ran its work")
_KERNELS = counter("phase_kernels", "Kernels it launched")
_LAUNCHES = counter("phase_launches", "CUDA calls that launched them")
_COPIED = counter("phase_memcpy_bytes", "Bytes it copied")


def figures(session: Session, phases: Iterable[PhaseRow]) -> Found:
    """The metrics of everything that the session knows now; `phases` are those of its newest
    run."""
    yield from _host(session)
    for _, gpu in sorted(session.gpus.items()):
        yield from _gpu(gpu)
    yield from _processes(session)
    for server in session.servers.values():
        labels = (("url", server.url), ("engine", server.engine), ("model", server.model or ""))
        yield labels, [(_SERVER_UP, server.reason is None)]
        if server.newest is not None and server.reason is None:
            yield from _OF_SERVER.figures_of(server.newest, labels)
    run = session.run
    if run is not None:
        yield from _run(run)
        yield from _causes(Analysis(session, run))
        yield from _phases(run, phases)


def _host(session: Session) -> Found:
    if session.header:
        header = session.header
        labels = (
            ("version", header.gputui_version),
            ("driver_version", header.driver_version or ""),
            ("cuda_driver_version", header.cuda_driver_version or ""),
        )
        yield labels, [(_BUILD, 1)]
    yield (), [(_SAMPLES, session.samples)]
    yield from _OF_TICK.figures_of(session)
    if session.host is not None:
        yield from _OF_HOST.figures_of(session.host)


def _gpu(gpu: Gpu) -> Found:
    facts = gpu.facts
    labels = (("gpu", str(facts.index)), ("uuid", facts.uuid))
    up = gpu.sample is not None and "device" not in gpu.unavailable
    about = (
        ("name", facts.name),
        ("pci_bus_id", facts.pci_bus_id or ""),
        ("compute_capability", facts.compute_capability or ""),
    )
    yield labels, [(_GPU_UP, up)]
    yield labels + about, [(_GPU_INFO, 1)]
    yield from _OF_FACTS.figures_of(facts, labels)
    if gpu.sample_ns:
        yield labels, [(_GPU_MOMENT, gpu.sample_ns / 1e9)]
    if gpu.sample is not None:
        yield from _OF_SAMPLE.figures_of(gpu.sample, labels)
        profiles = {profile.index: profile for profile in facts.mig_instances}
        for sample in gpu.sample.mig_instances:
            profile = profiles.get(sample.index)
            where = (
                ("mig_instance", str(sample.index)),
                ("profile", profile.name if profile else ""),
                ("mig_uuid", profile.uuid if profile else ""),
            )
            yield from _OF_INSTANCE.figures_of(sample, labels + where)
    if gpu.status is not None:
        yield from _OF_STATUS.figures_of(gpu.status, labels)


def _processes(session: Session) -> Found:
    for process in session.processes:
        instance = "" if process.gpu_instance_id is None else str(process.gpu_instance_id)
        labels = (
            ("gpu", str(process.gpu)),
            ("gpu_instance", instance),
            ("pid", str(process.pid)),
            ("user", process.user or ""),
        )
        yield from _OF_PROCESS.figures_of(process, labels)


def _run(run: Run) -> Found:
    labels = _labels(run)
    yield labels, [(_RUN_ACTIVE, run.is_active), (_RUN_DURATION, run.duration_ns / 1e9)]
    if run.progress is not None:
        stage = (("stage", run.progress.stage), ("unit", run.progress.unit))
        yield labels + stage, [(_RUN_PROGRESS, run.progress.done)]
    for name, value in run.metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*labels, ("metric", name)), [(RUN_METRIC, value)]
    for process in run.processes.values():
        attached = process.attached
        who = (("pid", str(attached.pid)), ("rank", _rank(attached.rank)))
        yield labels + who, [(_RECORDS, process.records), (DROPPED, process.dropped)]


def _causes(analysis: Analysis) -> Found:
    """Every leaf of the time tree of each GPU, also leaves without time: a series must not end."""
    run = analysis.run
    for gpu in sorted({time.device for time in run.leaf_times.values()}):
        tree = analysis.tree_of_gpu(gpu)
        if tree is None:
            continue
        labels = (*_labels(run), ("gpu", str(gpu)))
        if tree.has_steps:
            yield labels, [(_STEPS, tree.steps), (STEP_SECONDS, tree.step_mean_ns / 1e9)]
        for leaf, meaning in LEAVES.items():
            ns = tree.leaves.get(leaf, 0)
            yield (
                (*labels, ("cause", meaning.key)),
                [(CAUSE_SHARE, tree.share(ns)), (_CAUSE_SECONDS, ns / 1e9)],
            )


def _labels(run: Run) -> Labels:
    return (("run", str(run.started.run)), ("workload", run.started.name))


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _phases(run: Run, phases: Iterable[PhaseRow]) -> Found:
    labels = _labels(run)
    for phase in phases:
        values: list[tuple[Family, float | None]] = [
            (_INSTANCES, phase.instances),
            (CPU_SECONDS, phase.cpu_ended_ns / 1e9),
            (BUSY_SECONDS, phase.gpu_busy_ns / 1e9),
            (_KERNELS, phase.kernels),
            (_LAUNCHES, phase.launches),
            (_COPIED, phase.memcpy_bytes),
        ]
        yield (
            (
                *labels,
                ("phase", phase.path),
                ("domain", phase.domain),
                ("pid", str(phase.pid)),
                ("rank", _rank(phase.rank)),
            ),
            [(family, value) for family, value in values if value is not None],
        )


# --- a session in Prometheus' text format (version 0.0.4)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_SERIES = 50_000
"""Series of one scrape, which take a third of a second. Those of phases come last and are the first
to be left out; how many were is `gputui_scrape_left_out_series`."""

MOST_RANGES = 50_000
"""Ranges of a run whose phases are added up for a scrape: 0.5 s, in which events wait. More give
none, and `gputui_scrape_left_out_ranges` says how many they are."""

_RANGES_LEFT_OUT = gauge("scrape_left_out_ranges", "Ranges too many to add up their phases")
_LEFT_OUT = gauge("scrape_left_out_series", "Series of this scrape that its limit left out")


def prometheus_text(session: Session, most: int = MOST_SERIES) -> str:
    """The metrics of everything that the session knows now, but at most `most` series, and then one
    that says how many are missing."""
    run = session.run
    ranges = len(run.ranges) if run is not None else 0
    adds_up = ranges <= MOST_RANGES
    phases = phase_rows(run) if run is not None and adds_up else []
    families: dict[Family, list[str]] = {}
    count = left_out = 0
    for labels, values in figures(session, phases):
        if count + len(values) > most:
            left_out += len(values)
            continue
        count += len(values)
        text = labels_text(labels)
        for family, value in values:
            line = f"{series_name(family)}{text} {number(value)}\n"
            families.setdefault(family, []).append(line)
    families[_LEFT_OUT] = [f"{_LEFT_OUT.name} {left_out}\n"]
    families[_RANGES_LEFT_OUT] = [f"{_RANGES_LEFT_OUT.name} {0 if adds_up else ranges}\n"]
    blocks = []
    for family, lines in families.items():
        name = series_name(family)
        blocks += [f"# HELP {name} {escaped(family.help)}\n# TYPE {name} {family.kind}\n", *lines]
    return "".join(blocks)


# --- a recording as OpenMetrics text: every sample of every figure, each with its time
#
# The figures are those served to Prometheus, read again at each sample of the machine, so that
# `promtool tsdb create-blocks-from openmetrics` imports the recording into a Prometheus as if it
# had been scraped. A series must be contiguous, so what was read waits in a temporary file.


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
        # Times of a series must grow in OpenMetrics; a clock that was set back lets them fall.
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

    def add(self, time_ns: int, figures_read: Iterable[tuple[Labels, Figures]]) -> None:
        """Add what was read at one moment."""
        for labels, values in figures_read:
            by_family = self._series.get(labels)
            if by_family is None:
                by_family = self._series[labels] = {}
            for family, value in values:
                series = by_family.get(family)
                if series is None:
                    series = by_family[family] = _Series(series_name(family) + labels_text(labels))
                    self._families.setdefault(family, []).append(series)
                series.times_ns.append(time_ns)
                series.values.append(value)
            self._waiting += len(values)
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
    """The timestamp at the end of a line; all series have the same timestamps."""
    return f" {time_ns // 10**9}.{time_ns % 10**9:09d}\n"
