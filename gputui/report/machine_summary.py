"""A recording without a run: the machine over all of it, as a document for programs."""

from __future__ import annotations

import msgspec

from gputui.model.units import moment
from gputui.report.tables.gpu_readings import FigureSpread, figure_spread
from gputui.state import Occupant, Session

NO_RUN = "no run was recorded, only the machine"


class MachineEvent(msgspec.Struct, frozen=True):
    """Something that happened to a GPU."""

    gpu: int
    event: str
    count: int
    first: str
    last: str


class MachineProcess(msgspec.Struct, frozen=True):
    """A process seen on a GPU."""

    pid: int
    gpu: int
    user: str | None
    command: str | None
    peak_gpu_memory_bytes: int | None
    mean_sm_percent: float | None
    first_seen: str
    last_seen: str


class Machine(msgspec.Struct, frozen=True):
    """The machine over a recording. Moments are ISO 8601, in UTC."""

    hostname: str | None
    system: str | None
    driver_version: str | None
    cuda_driver_version: str | None
    gputui_version: str | None
    gpu_unavailable_reason: str | None
    started: str
    duration_ns: int
    samples: int
    recorded_bytes: int | None
    host: dict[str, FigureSpread]
    events: list[MachineEvent]
    processes: list[MachineProcess]


def machine_of(session: Session) -> Machine:
    """The `machine` of `summary --format json`."""
    readings, header = session.readings, session.header
    return Machine(
        hostname=header.host.hostname if header else None,
        system=header.host.system if header else None,
        driver_version=header.driver_version if header else None,
        cuda_driver_version=header.cuda_driver_version if header else None,
        gputui_version=header.gputui_version if header else None,
        gpu_unavailable_reason=header.gpu_unavailable_reason if header else None,
        started=moment(started_ns(session)),
        duration_ns=readings.duration_ns,
        samples=readings.samples,
        recorded_bytes=session.recorded_bytes,
        host={
            name: figure_spread(series, series.average) for name, series in readings.host.sampled()
        },
        events=[
            MachineEvent(
                gpu, what, trouble.count, moment(trouble.first_ns), moment(trouble.last_ns)
            )
            for (gpu, what), trouble in sorted(readings.troubles.items())
        ],
        processes=[_process(occupant) for occupant in occupants(session)],
    )


def started_ns(session: Session) -> int:
    return session.header.time_ns if session.header else session.readings.first_ns


def _process(occupant: Occupant) -> MachineProcess:
    process = occupant.newest
    return MachineProcess(
        pid=process.pid,
        gpu=process.gpu,
        user=process.user,
        command=process.command,
        peak_gpu_memory_bytes=occupant.peak_memory_bytes,
        mean_sm_percent=occupant.use.average,
        first_seen=moment(occupant.first_ns),
        last_seen=moment(occupant.last_ns),
    )


def occupants(session: Session) -> list[Occupant]:
    """The processes seen on the GPUs, largest first."""
    found = session.readings.occupants.values()
    return sorted(found, key=lambda one: (-(one.peak_memory_bytes or 0), one.first_ns))
