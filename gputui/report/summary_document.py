"""The summary of one run, or of the machine if no run was recorded, as a document for programs
(`summary --format json`). It has the rows of each table whose spec names a `document`."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from gputui.model.events import (
    SCHEMA_VERSION,
    ResultTable,
)
from gputui.model.units import moment
from gputui.report.answer import Job, job_of
from gputui.report.explain import Analysis, MachineAnalysis, conclusion, findings, machine_findings
from gputui.report.explain.finding import FindingDocument, finding_documents
from gputui.report.explain.verdict import VerdictDocument, verdict_document
from gputui.report.phases import shares_error_points
from gputui.report.schema import ROWS, Cell, TableSpec
from gputui.report.tables import is_memory_metric, machine_tables, run_tables
from gputui.report.tables.energy import span_of
from gputui.report.tables.machine import (
    DeviceReadings,
    FigureSpread,
    device_readings,
    figure_spread,
    occupants,
)
from gputui.report.tables.processes import TracedRow, traced_rows
from gputui.report.tables.timing import Timing, timing_of
from gputui.report.windows import Cost, cost_of
from gputui.state import Readings, Run, Session, remarks

Document = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)

NO_RUN = "no run was recorded, only the machine"


class LostRecords(msgspec.Struct, frozen=True):
    """Records of one process lost for one cause; `domain` is the NVTX domain, if any."""

    cause: str
    domain: str
    records: int


class NamedObject(msgspec.Struct, frozen=True):
    """A stream, context, … named by the program."""

    kind: str
    number: int
    gpu: int | None
    name: str


class CapturedProcess(msgspec.Struct, frozen=True):
    """A process that loaded the capture library. `host` is where it runs, of several hosts;
    `start_ns` and `end_ns` are since the run's start; `threads` are names by id."""

    pid: int
    parent_pid: int
    rank: int | None
    host: str | None
    local_rank: int | None
    command: str
    cuda_status: str
    cupti_version: int | None
    started: str
    ended: str | None
    start_ns: int
    end_ns: int | None
    state: str
    records: int
    dropped: int
    losses: list[LostRecords]
    resources: list[NamedObject]
    threads: dict[str, str]
    gpus: list[int]
    ended_cleanly: bool | None


class RunFacts(msgspec.Struct, frozen=True):
    """The run: what was started, where, and how it ended. Moments are ISO 8601, in UTC."""

    number: int
    kind: Literal["workload", "command"]
    name: str
    arguments: list[str]
    parameters: dict[str, Cell]
    complete: bool | None
    unavailable: dict[str, str]
    pid: int | None
    started: str
    duration_ns: int
    exit_code: int | None
    signal: int | None
    stopped: bool | None
    reason: str
    hostname: str | None
    system: str | None
    driver_version: str | None
    cuda_driver_version: str | None
    gputui_version: str | None
    gpu_unavailable_reason: str | None
    capture_unavailable_reason: str | None
    remarks: list[str]
    processes: list[CapturedProcess]
    job: Job | None


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


class WorkloadColumn(msgspec.Struct, frozen=True):
    """A column of a workload's own table."""

    name: str
    unit: str | None
    help: str


class WorkloadTable(msgspec.Struct, frozen=True):
    """A table that the workload made."""

    name: str
    title: str
    columns: list[WorkloadColumn]
    rows: list[list[Cell]]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The document's content beside its tables. Times are in ns, sizes in bytes; missing values are
    null, and `unavailable` says why. Without a run there is `machine`.
    """

    schema: int = SCHEMA_VERSION
    run: RunFacts | None
    machine: Machine | msgspec.UnsetType = msgspec.UNSET
    metrics: dict[str, Cell] | None
    tables: list[WorkloadTable] | None
    memory: dict[str, dict[str, int] | Cell]
    devices: list[DeviceReadings]
    timing: Timing | None
    verdict: VerdictDocument | None
    findings: list[FindingDocument]
    dropped_events: int | None
    overhead: Cost | None
    unavailable: dict[str, str]


def document_tables() -> dict[str, TableSpec[Any]]:
    """The tables whose rows are in the document, by their names in it."""
    return {spec.document: spec for spec in run_tables().values() if spec.document}


def summary_document(session: Session, run: Run | None) -> Document:
    """The whole summary of `run`, or of the machine if none was recorded."""
    return _machine_summary(session) if run is None else _run_summary(session, run)


def _run_summary(session: Session, run: Run) -> Document:
    tables = {name: spec.table(session, run) for name, spec in document_tables().items()}
    reasons = {
        name: table.unavailable[ROWS] for name, table in tables.items() if ROWS in table.unavailable
    }
    analysis = Analysis(session, run)
    summary = Summary(
        run=_run(session, run),
        metrics=dict(run.metrics),
        tables=[_workload_table(table) for table in (run.result.tables if run.result else ())],
        memory=_memory(run.readings)
        | {name: value for name, value in run.metrics.items() if is_memory_metric(name)},
        devices=device_readings(session, run.readings, run.devices, span_of(run)),
        timing=timing_of(run),
        verdict=verdict_document(conclusion(analysis)),
        findings=finding_documents(findings(analysis)),
        dropped_events=sum(process.dropped for process in run.processes.values()),
        overhead=cost_of(session, run, shares_error_points(run)),
        unavailable=reasons,
    )
    rows = {name: None if name in reasons else table.records() for name, table in tables.items()}
    return _document(summary, rows)


def _machine_summary(session: Session) -> Document:
    readings = session.readings
    specs, of_machine = document_tables(), machine_tables()
    rows = {
        name: spec.table(session, None).records() if spec.key in of_machine else None
        for name, spec in specs.items()
    }
    missing = [name for name, table_rows in rows.items() if table_rows is None]
    missing += ["run", "verdict", "metrics", "tables", "timing", "dropped_events", "overhead"]
    summary = Summary(
        run=None,
        machine=_machine(session),
        metrics=None,
        tables=None,
        memory=_memory(readings),
        devices=device_readings(session, readings, None, (readings.first_ns, readings.last_ns)),
        timing=None,
        verdict=None,
        findings=finding_documents(machine_findings(MachineAnalysis(session))),
        dropped_events=None,
        overhead=None,
        unavailable=dict.fromkeys(missing, NO_RUN),
    )
    return _document(summary, rows)


def _document(summary: Summary, rows: dict[str, Any]) -> Document:
    document: Document = msgspec.to_builtins(summary)
    return {name: document.pop(name) for name in ("schema", "run")} | rows | document


def _filled(kind: type[S], *sources: object, **own: Any) -> S:
    """A `kind` whose fields are `own`, and each other one the attribute of its name of the first of
    `sources` that has one. A source may be None: what only it could have is None, too. Raises
    TypeError for a field that no source has.
    """
    for name in kind.__struct_fields__:
        if name not in own:
            values = [getattr(source, name) for source in sources if hasattr(source, name)]
            if not values and None not in sources:
                raise TypeError(f"nothing has {name} for {kind.__name__}")
            own[name] = values[0] if values else None
    return kind(**own)


def _run(session: Session, run: Run) -> RunFacts:
    started, header = run.started, session.header
    return _filled(
        RunFacts,
        started,
        run.ended,
        header,
        header.host if header else None,
        number=started.run,
        arguments=list(started.arguments),
        parameters=dict(run.parameters),
        complete=run.result.complete if run.result else None,
        unavailable=run.result.unavailable if run.result else {},
        started=moment(started.time_ns),
        duration_ns=run.duration_ns,
        reason=run.end_reason,
        remarks=[remark.line for remark in remarks(run)],
        processes=[_process(row) for row in traced_rows(run)],
        job=job_of(session, run),
    )


def _process(row: TracedRow) -> CapturedProcess:
    process = row.process
    return _filled(
        CapturedProcess,
        process.attached,
        process,
        row,
        started=moment(process.began_ns),
        ended=moment(process.ended_ns) if process.ended_ns else None,
        state=row.how_ended,
        losses=[
            LostRecords(lost.cause, lost.domain, lost.records)
            for _, lost in sorted(process.losses.items())
        ],
        resources=[
            NamedObject(kind, number, gpu, named.name)
            for (kind, number, gpu), named in process.resources.items()
        ],
        threads={str(thread): named.name for thread, named in sorted(process.threads.items())},
        gpus=list(row.gpus),
        ended_cleanly=process.detached.clean if process.detached else None,
    )


def _machine(session: Session) -> Machine:
    readings, header = session.readings, session.header
    return _filled(
        Machine,
        header,
        header.host if header else None,
        readings,
        started=moment(session.started_ns),
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
        processes=[
            _filled(
                MachineProcess,
                occupant.newest,
                peak_gpu_memory_bytes=occupant.peak_memory_bytes,
                mean_sm_percent=occupant.use.average,
                first_seen=moment(occupant.first_ns),
                last_seen=moment(occupant.last_ns),
            )
            for occupant in occupants(session)
        ],
    )


def _workload_table(table: ResultTable) -> WorkloadTable:
    columns = [WorkloadColumn(column.name, column.unit, column.help) for column in table.columns]
    return WorkloadTable(table.name, table.title, columns, [list(row) for row in table.rows])


def _memory(readings: Readings) -> dict[str, dict[str, int] | Cell]:
    used = {
        f"gpu{index}": int(series.maximum)
        for index, name, series in readings.gpu_series()
        if name == "memory_used_bytes"
    }
    return {"peak_used_bytes": used}
