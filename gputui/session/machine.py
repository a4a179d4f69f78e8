"""How readings of the machine are folded in."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from gputui.events import (
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostUnavailable,
    MachineSample,
)
from gputui.session.gpu import Gpu
from gputui.session.run import Run
from gputui.session.spread import SPREAD_FIELDS, Spread

if TYPE_CHECKING:
    from gputui.session.session import Session

_spread_figures = attrgetter(*SPREAD_FIELDS)


def header(session: Session, event: Header) -> None:
    """The machine's facts; what is known of a GPU stays."""
    session.header = event
    for facts in event.gpus:
        known = session.gpus.get(facts.index)
        if known is None:
            session.gpus[facts.index] = Gpu(facts)
        else:
            known.facts = facts


def sample(session: Session, event: MachineSample) -> None:
    """One tick: the newest figures, the histories, and the spreads of a run that is active."""
    session.samples += 1
    session.sampled_ns = event.time_ns
    session.latest_sample_ns = max(session.latest_sample_ns, event.time_ns)
    session.host = event.host
    session.host_history.append((event.time_ns, event.host))
    session.host_long_history.add(event.time_ns, event.host)
    session.own_cpu_percent = event.own_cpu_percent
    session.recorded_bytes = event.recorded_bytes
    session.traced_bytes = event.traced_bytes
    if event.processes is not None:
        session.processes = event.processes
        session.launchers = event.launchers
    run = session.run
    active = run if run is not None and run.is_active else None
    if active is not None:
        # A program that says nothing is running all the same.
        active.updated_ns = max(active.updated_ns, event.time_ns)
    for figures in event.gpus:
        gpu = session.gpus.get(figures.index)
        if gpu is None:
            session.unknown_references += 1
            continue
        gpu.sample = figures
        if "device" not in gpu.unavailable:
            gpu.sample_ns = event.time_ns
        gpu.history.append((event.time_ns, figures))
        gpu.long_history.add(event.time_ns, figures)
        if active is not None:
            _spread(active, figures)


def _spread(run: Run, figures: GpuSample) -> None:
    spreads, index = run.gpu_spreads, figures.index
    for name, value in zip(SPREAD_FIELDS, _spread_figures(figures), strict=True):
        if value is not None:
            key = index, name
            spread = spreads.get(key)
            if spread is None:
                spread = spreads[key] = Spread()
            spread.add(value)
    for reason in figures.throttle_reasons or ():
        key = index, reason
        run.throttle_samples[key] = run.throttle_samples.get(key, 0) + 1


def gpu_status(session: Session, event: GpuStatus) -> None:
    """What is read seldom of one GPU."""
    gpu = session.gpus.get(event.gpu)
    if gpu is None:
        session.unknown_references += 1
    else:
        gpu.status = event


def gpu_unavailable(session: Session, event: GpuUnavailable) -> None:
    """Why figures of one GPU are missing."""
    gpu = session.gpus.get(event.gpu)
    if gpu is None:
        session.unknown_references += 1
    else:
        gpu.unavailable = dict(event.reasons)


def host_unavailable(session: Session, event: HostUnavailable) -> None:
    """Why figures of the host are missing."""
    session.host_unavailable = dict(event.reasons)
