"""The machine at one moment: `--once` as a document for programs and as tables for people."""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.analysis import formats
from gputui.analysis.report import Cell, Column, Table
from gputui.analysis.summary import moment
from gputui.events import SCHEMA_VERSION, GpuSample, HostSample
from gputui.session import Gpu, Session


def machine_document(session: Session) -> dict[str, Any]:
    """The newest sample of everything, missing as null with its reason beside it."""
    header = session.header
    host = session.host or HostSample()
    facts = msgspec.to_builtins(header.host) if header else {}
    versions = {
        "driver_version": header.driver_version if header else None,
        "cuda_driver_version": header.cuda_driver_version if header else None,
    }
    return {
        "schema": SCHEMA_VERSION,
        "time": moment(session.time_ns),
        "host": facts | versions | _fields(host) | {"unavailable": dict(session.host_unavailable)},
        "gpu_unavailable_reason": header.gpu_unavailable_reason if header else None,
        "gpus": [_gpu(gpu) for _, gpu in sorted(session.gpus.items())],
        "processes": [_fields(process) for process in session.processes],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    facts = _fields(gpu.facts)
    return {
        "index": facts.pop("index"),
        "uuid": facts.pop("uuid"),
        "name": facts.pop("name"),
        **_fields(sample),
        "facts": facts,
        "unavailable": dict(gpu.unavailable),
    }


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    """Every field, those at their default too; tuples as lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in record.__struct_fields__
        for value in (getattr(record, name),)
    }


def gpu_table(session: Session) -> Table:
    """A line a GPU, within 80 columns."""

    def cells(gpu: Gpu) -> tuple[Cell, ...]:
        sample = gpu.sample or GpuSample(index=gpu.facts.index)
        power = formats.MISSING if sample.power_watts is None else f"{sample.power_watts:.0f}"
        limit = "" if sample.power_limit_watts is None else f"/{sample.power_limit_watts:.0f}"
        used = sample.memory_used_bytes
        total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
        memory = formats.MISSING if used is None else formats.size(used)
        return (
            gpu.facts.index,
            gpu.facts.name.removeprefix("NVIDIA "),
            sample.utilization_percent,
            sample.sm_active_percent,
            sample.tensor_active_percent,
            sample.memory_bandwidth_percent,
            memory + (f"/{formats.size(total)}" if total else ""),
            f"{power}{limit} W",
            _celsius(sample.temperature_celsius),
        )

    return Table(
        "gpus",
        "GPUs",
        (
            Column("#"),
            Column("Name"),
            Column("Util", formats.percent),
            Column("SM", formats.percent),
            Column("Tensor", formats.percent),
            Column("DRAM", formats.percent),
            Column("Memory"),
            Column("Power"),
            Column("Temp"),
        ),
        tuple(cells(gpu) for _, gpu in sorted(session.gpus.items())),
    )


def _celsius(value: float | None) -> str:
    return formats.MISSING if value is None else f"{value:.0f} °C"


def process_table(session: Session) -> Table:
    """A line a process and GPU."""
    return Table(
        "processes",
        "GPU processes",
        (
            Column("GPU"),
            Column("PID"),
            Column("User"),
            Column("GPU memory", formats.size),
            Column("SM", formats.percent),
            Column("CPU", formats.percent),
            Column("Memory", formats.size),
            Column("Command"),
        ),
        tuple(
            (
                process.gpu,
                str(process.pid),
                process.user,
                process.gpu_memory_bytes,
                process.sm_percent,
                process.cpu_percent,
                process.host_memory_bytes,
                process.command or "(outside this container)",
            )
            for process in session.processes
        ),
    )


def machine_lines(session: Session) -> list[str]:
    """The host in a line, why there is no GPU, and what could not be read, a line each."""
    header, host = session.header, session.host
    if header is None:
        return []
    driver = f"driver {header.driver_version}" if header.driver_version else "no driver"
    cuda = f", CUDA {header.cuda_driver_version}" if header.cuda_driver_version else ""
    lines = [
        f"{moment(session.time_ns)}  {header.host.hostname}  {header.host.system}  {driver}{cuda}"
    ]
    if host:
        load = formats.MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
        lines.append(
            f"CPU {formats.percent(host.cpu_percent)} of {header.host.cpu_count} cores, "
            f"load {load}, memory {formats.size(host.memory_used_bytes)} of "
            f"{formats.size(header.host.memory_total_bytes)}"
        )
    if header.gpu_unavailable_reason:
        lines.append(f"no GPU: {header.gpu_unavailable_reason}")
    reasons: dict[str, list[str]] = {}
    for index, gpu in sorted(session.gpus.items()):
        for field, reason in gpu.unavailable.items():
            reasons.setdefault(f"GPU {index}: {reason}", []).append(field)
    lines += [f"n/a  {where} ({', '.join(fields)})" for where, fields in reasons.items()]
    lines += [f"n/a  {field}: {reason}" for field, reason in session.host_unavailable.items()]
    return lines
