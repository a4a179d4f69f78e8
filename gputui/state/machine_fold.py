"""How events of the machine change the session: readings of GPUs, host and servers, alerts, clocks.

What captured programs and runs change is in `fold`.
"""

from __future__ import annotations

from msgspec.structs import replace

from gputui.model.events import (
    Alert,
    ClockCompared,
    ClockRead,
    GpuEnergy,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostUnavailable,
    MachineSample,
    ServerSample,
)
from gputui.model.metrics import metrics_of
from gputui.state.history import Samples
from gputui.state.readings import THROTTLED, AlertSpan, Gpu, Readings, grown
from gputui.state.serving import MOST_SERVERS, Server
from gputui.state.session import Session, folds

# Counters that should stand still.
_TROUBLES = tuple((f, metric) for f, metric in metrics_of(GpuStatus).items() if metric.trouble)

_ENERGY = "energy_joules"


@folds(Header)
def header(session: Session, event: Header) -> None:
    """The machine's facts; what is known of a GPU stays."""
    session.header = event
    for facts in event.gpus:
        gpu = session.gpus.get(facts.index)
        if gpu is None:
            session.gpus[facts.index] = Gpu(
                facts, samples=Samples.empty(GpuSample, session.most_samples)
            )
        else:
            gpu.facts = facts


@folds(ClockCompared)
def clock_compared(session: Session, event: ClockCompared) -> None:
    """The newest of each host."""
    own = session.header.host.hostname if session.header is not None else ""
    session.clocks[event.host or own] = event


@folds(MachineSample)
def sample(session: Session, event: MachineSample) -> None:
    """One tick: the newest values, the histories, and the readings of the current period."""
    session.samples += 1
    session.sampled_ns = event.time_ns
    session.latest_sample_ns = max(session.latest_sample_ns, event.time_ns)
    session.host_samples.add(event.time_ns, event.host)
    session.own_cpu_percent = event.own_cpu_percent
    session.recorded_bytes = event.recorded_bytes
    session.traced_bytes = event.traced_bytes
    if event.processes is not None:
        session.processes = event.processes
        session.launchers = event.launchers
    if (active := session.active_run) is not None:
        # A program that prints nothing is running all the same.
        active.updated_ns = max(active.updated_ns, event.time_ns)
        active.clock_set_ns += abs(event.clock_set_ns or 0)
    readings = session.current_readings
    readings.count_sample(event.time_ns)
    readings.read_host(event.host, event.time_ns)
    for process in event.processes or ():
        readings.occupied(process, event.time_ns)
    if active is not None and event.processes:
        own = {process.attached.pid for process in active.processes.values()}
        readings.share(event.processes, own)
    has_left = active is not None and active.has_left_gpus
    for figures in event.gpus:
        gpu = session.gpus.get(figures.index)
        if gpu is None:
            session.unknown_references += 1
            continue
        of_run = replace(figures, memory_used_bytes=None) if has_left else figures
        _read(readings, of_run, gpu.sample, event.time_ns)
        if "device" not in gpu.unavailable:
            gpu.sample_ns = event.time_ns
        gpu.samples.add(event.time_ns, figures)


def _read(readings: Readings, figures: GpuSample, before: GpuSample | None, time_ns: int) -> None:
    index = figures.index
    readings.read(figures, time_ns)
    reasons_before = (before.throttle_reasons if before else None) or ()
    for reason in figures.throttle_reasons or ():
        key = index, reason
        readings.throttle_samples[key] = readings.throttle_samples.get(key, 0) + 1
        if reason not in reasons_before:
            readings.suffered(index, f"{THROTTLED}{reason}", time_ns)


@folds(GpuStatus)
def gpu_status(session: Session, gpu: Gpu, event: GpuStatus) -> None:
    """What is read seldom of one GPU."""
    readings = session.current_readings
    if event.energy_joules is not None:
        _count_energy(session, event.gpu, event.time_ns, event.energy_joules)
    for reason, seconds in (event.throttle_seconds or {}).items():
        grown(readings.throttle_seconds, (event.gpu, reason), seconds, event.time_ns)
    for field, metric in _TROUBLES:
        now, before = getattr(event, field), getattr(gpu.status, field, None)
        if now is not None and before is not None and now > before:
            what = metric.trouble
            if field == "xid_count" and event.last_xid is not None:
                what = f"{what} {event.last_xid}"
            readings.suffered(event.gpu, what, event.time_ns, now - before)
    gpu.status = event


@folds(GpuEnergy)
def gpu_energy(session: Session, _: Gpu, event: GpuEnergy) -> None:
    """The energy counter of one GPU."""
    _count_energy(session, event.gpu, event.time_ns, event.joules)


def _count_energy(session: Session, gpu: int, time_ns: int, joules: float) -> None:
    """Add a reading where it belongs, and to a run that it is the first one after: what the GPU
    took until the run's end lies between the last reading before that and this one.
    """
    run = session.run
    if run is not None and run.ended is not None:
        of_run = run.readings.counter(gpu, _ENERGY)
        if of_run is not None and of_run.newest_ns < run.ended_ns:
            of_run.add_total(time_ns, joules)
    readings = session.current_readings
    # The last reading before the run is as near to its start as the first one in it.
    if (before := session.gpus[gpu].energy) and readings.counter(gpu, _ENERGY) is None:
        readings.count(gpu, _ENERGY, *before)
    readings.count(gpu, _ENERGY, time_ns, joules)
    session.gpus[gpu].energy = time_ns, joules


@folds(GpuUnavailable)
def gpu_unavailable(session: Session, gpu: Gpu, event: GpuUnavailable) -> None:
    """Why figures of one GPU are missing."""
    lost = event.reasons.get("device")
    if lost is not None and "device" not in gpu.unavailable:
        session.current_readings.suffered(event.gpu, f"not readable: {lost}", event.time_ns)
    gpu.unavailable = dict(event.reasons)


@folds(HostUnavailable)
def host_unavailable(session: Session, event: HostUnavailable) -> None:
    """Why figures of the host are missing."""
    session.host_unavailable = dict(event.reasons)


MAX_ALERTS = 1000
"""Alerts kept, the newest."""


@folds(Alert)
def alert(session: Session, event: Alert) -> None:
    """An alert begins or is over. What a file of a rotated recording repeats is known."""
    lasting = next(
        (
            span
            for span in reversed(session.alerts)
            if span.lasts
            and (span.raised.condition, span.raised.subject) == (event.condition, event.subject)
        ),
        None,
    )
    if lasting is None and event.raised:
        session.alerts.append(AlertSpan(event, event.since_ns, event.worst))
        del session.alerts[:-MAX_ALERTS]
    elif lasting is not None and not event.raised:
        lasting.until_ns = max(event.since_ns, lasting.since_ns)
        lasting.worst = event.worst


def lasting_alerts(session: Session) -> list[AlertSpan]:
    """Those that are not over, the oldest first."""
    return [span for span in session.alerts if span.lasts]


@folds(ServerSample)
def server_sample(session: Session, event: ServerSample) -> None:
    """A reading of a serving engine's metrics, or why there is none."""
    server = session.servers.get(event.url)
    if server is None:
        if len(session.servers) >= MOST_SERVERS:
            session.unknown_references += 1
            return
        server = session.servers[event.url] = Server(
            event.url, samples=Samples.empty(ServerSample, session.most_samples)
        )
    server.add(event)


@folds(ClockRead)
def clock_read(_session: Session, _event: ClockRead) -> None:
    """Nothing: it is about the link to this host, not about the host."""
