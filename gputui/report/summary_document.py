"""The summary of one run as a document for programs: the names of `summary --format json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gputui.model.events import SCHEMA_VERSION, Payload, ResultTable
from gputui.model.kernel_categories import category
from gputui.model.naming import short_name
from gputui.model.units import moment
from gputui.report.availability import REASON, has_shapes
from gputui.report.cost import cost_of
from gputui.report.explain import insight_documents, insights
from gputui.report.gpu_readings import devices_document
from gputui.report.gpu_timing import timing_document
from gputui.report.launch_shapes import shape_rows
from gputui.report.marks import MarkRow, mark_rows
from gputui.report.phases import phase_rows
from gputui.report.process_rows import TracedRow, traced_rows
from gputui.report.statistics import (
    TableRow,
    all_rows,
    api_rows,
    kernel_rows,
    memory_size_rows,
    memory_time_rows,
)
from gputui.report.workload_metrics import is_memory_metric
from gputui.state import Run, Session, remarks

Document = dict[str, Any]


def summary_document(session: Session, run: Run) -> Document:
    """Everything the summary says of `run`. Times in ns, sizes in bytes, missing is None."""
    return {
        "schema": SCHEMA_VERSION,
        "run": _run(session, run),
        "phases": _phases(run),
        "marks": [_mark(row) for row in mark_rows(run)],
        "kernels": [
            _statistics(row)
            | {
                "name": row.name,
                "short_name": short_name(row.name),
                "category": category(row.name),
                "instances": row.instances,
            }
            for row in kernel_rows(session, run)
        ],
        "launch_shapes": [
            {
                "name": row.name,
                "launches": row.launches,
                "grid": row.shape.grid,
                "block": row.shape.block,
                "registers_per_thread": row.shape.registers_per_thread,
                "static_shared_bytes": row.shape.static_shared_bytes,
                "dynamic_shared_bytes": row.shape.dynamic_shared_bytes,
            }
            for row in shape_rows(session, run)
        ]
        if has_shapes(run)
        else None,
        "api": [
            _statistics(row) | {"name": row.name, "num_calls": row.instances}
            for row in api_rows(run)
        ],
        "memops_time": [
            _statistics(row) | {"operation": row.name, "count": row.instances}
            for row in memory_time_rows(run)
        ],
        "memops_size": [
            {
                "operation": row.name,
                "count": row.instances,
                "total_bytes": row.total,
                "avg_bytes": row.average,
                "med_bytes": row.median,
                "min_bytes": row.minimum,
                "max_bytes": row.maximum,
                "stddev_bytes": row.deviation,
            }
            for row in memory_size_rows(run)
        ],
        "all": [
            _statistics(row)
            | {"category": row.category, "operation": row.name, "instances": row.instances}
            for row in all_rows(session, run)
        ],
        "metrics": dict(run.metrics),
        "tables": [_result_table(table) for table in (run.result.tables if run.result else ())],
        "memory": _memory(run),
        "devices": devices_document(session, run.readings, run.devices),
        "timing": timing_document(run),
        "insights": insight_documents(insights(session, run)),
        "dropped_events": sum(process.dropped for process in run.processes.values()),
        "overhead": asdict(cost_of(session, run)),
        "unavailable": {} if has_shapes(run) else {"launch_shapes": REASON},
    }


def _result_table(table: ResultTable) -> Document:
    return {
        "name": table.name,
        "title": table.title,
        "columns": [
            {"name": column.name, "unit": column.unit, "help": column.help}
            for column in table.columns
        ],
        "rows": [list(row) for row in table.rows],
    }


def _run(session: Session, run: Run) -> Document:
    started, ended, header = run.started, run.ended, session.header
    return {
        "number": started.run,
        "kind": started.kind,
        "name": started.name,
        "arguments": list(started.arguments),
        "parameters": dict(run.parameters),
        "complete": run.result.complete if run.result else None,
        "unavailable": run.result.unavailable if run.result else {},
        "pid": started.pid,
        "started": moment(started.time_ns),
        "duration_ns": run.duration_ns,
        "exit_code": ended.exit_code if ended else None,
        "signal": ended.signal if ended else None,
        "stopped": ended.stopped if ended else None,
        "reason": ended.reason if ended else "the recording ends before the run does",
        "hostname": header.host.hostname if header else None,
        "system": header.host.system if header else None,
        "driver_version": header.driver_version if header else None,
        "cuda_driver_version": header.cuda_driver_version if header else None,
        "gputui_version": header.gputui_version if header else None,
        "gpu_unavailable_reason": header.gpu_unavailable_reason if header else None,
        "capture_unavailable_reason": started.capture_unavailable_reason,
        "remarks": [remark.line for remark in remarks(run)],
        "processes": [_process(row) for row in traced_rows(run)],
    }


def _process(row: TracedRow) -> Document:
    process = row.process
    attached, detached = process.attached, process.detached
    return {
        "pid": attached.pid,
        "parent_pid": attached.parent_pid,
        "rank": attached.rank,
        "local_rank": attached.local_rank,
        "command": attached.command,
        "cuda_status": attached.cuda_status,
        "cupti_version": attached.cupti_version,
        "started": moment(process.began_ns),
        "ended": moment(process.ended_ns) if process.ended_ns else None,
        "start_ns": row.start_ns,
        "end_ns": row.end_ns,
        "state": row.how_ended,
        "records": process.records,
        "dropped": process.dropped,
        "losses": [
            {"cause": cause, "domain": domain, "records": records}
            for (cause, domain), records in sorted(process.losses.items())
        ],
        "resources": [
            {"kind": kind, "number": number, "gpu": gpu, "name": named.name}
            for (kind, number, gpu), named in process.resources.items()
        ],
        "threads": {str(thread): named.name for thread, named in sorted(process.threads.items())},
        "gpus": list(row.gpus),
        "ended_cleanly": detached.clean if detached else None,
    }


def _phases(run: Run) -> list[Document]:
    on_gpu = bool(run.devices)
    return [
        {
            "path": row.path,
            "domain": row.domain,
            "style": row.style,
            "category": row.category,
            "payload": _payload(row.payload),
            "threads": list(row.threads),
            "rank": row.rank,
            "pid": row.pid,
            "depth": row.depth,
            "instances": row.instances,
            "cpu_total_ns": row.cpu_total_ns,
            "cpu_exclusive_ns": row.cpu_exclusive_ns,
            "cpu_avg_ns": row.cpu.average,
            "cpu_med_ns": row.cpu.median,
            "cpu_min_ns": row.cpu.minimum,
            "cpu_max_ns": row.cpu.maximum,
            "cpu_stddev_ns": row.cpu.deviation,
            "cpu_per_step_ns": row.per_step_ns,
            "gpu_busy_ns": row.gpu_busy_ns if on_gpu else None,
            "gpu_idle_ns": row.gpu_idle_ns,
            "gpu_total_ns": row.gpu_total_ns if on_gpu else None,
            "gpu_projected_ns": row.projected.total if row.projected.count else None,
            "kernels": row.kernels if on_gpu else None,
            "kernel_total_ns": row.kernel_ns if on_gpu else None,
            "launches": row.known_launches if on_gpu else None,
            "memcpy_bytes": row.memcpy_bytes if on_gpu else None,
            "share_percent": row.share_percent,
            "share_of": "gpu_busy" if on_gpu else "cpu",
        }
        for row in phase_rows(run)
    ]


def _mark(row: MarkRow) -> Document:
    return asdict(row) | {"payload": _payload(row.payload)}


def _payload(payload: Payload | None) -> Document | None:
    return {"type": payload.type, "value": payload.value} if payload else None


def _statistics(row: TableRow) -> Document:
    return {
        "total_ns": row.total,
        "time_percent": row.percent,
        "avg_ns": row.average,
        "med_ns": row.median,
        "min_ns": row.minimum,
        "max_ns": row.maximum,
        "stddev_ns": row.deviation,
        "median_exact": row.exact,
    }


def _memory(run: Run) -> Document:
    used = {
        f"gpu{index}": int(spread.maximum)
        for (index, name), spread in sorted(run.readings.gpu_spreads.items())
        if name == "memory_used_bytes"
    }
    reported = {name: value for name, value in run.metrics.items() if is_memory_metric(name)}
    return {"peak_used_bytes": used, **reported}
