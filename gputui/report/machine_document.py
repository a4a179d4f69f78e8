"""The machine at one moment: the document of `--once`, and the lines around its tables."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import msgspec

from gputui.model import units
from gputui.model.events import SCHEMA_VERSION, GpuStatus, HostSample
from gputui.model.units import moment
from gputui.report.machine_tables import mig_instances, newest_sample, of_whole
from gputui.state import Gpu, Session
from gputui.state.hosts import Hosts


def machine_document(session: Session) -> dict[str, Any]:
    """The newest sample of everything, missing values as null with a reason."""
    header = session.header
    host = session.host or HostSample()
    facts = msgspec.to_builtins(header.host) if header else {}
    versions = {
        "driver_version": header.driver_version if header else None,
        "cuda_driver_version": header.cuda_driver_version if header else None,
    }
    return {
        "schema": SCHEMA_VERSION,
        "time": moment(session.now_ns),
        "host": facts | versions | _fields(host) | {"unavailable": dict(session.host_unavailable)},
        "gpu_unavailable_reason": header.gpu_unavailable_reason if header else None,
        "gpus": [_gpu(gpu) for _, gpu in sorted(session.gpus.items())],
        "processes": [_fields(process) for process in session.processes],
        "launchers": [_fields(launcher) for launcher in session.launchers],
    }


def hosts_document(hosts: Hosts) -> dict[str, Any]:
    """Every host with its machine's document, null with a reason where there is none."""
    return {
        "schema": SCHEMA_VERSION,
        "hosts": [
            {
                "name": host.name,
                "unavailable_reason": None if host.session.samples else host.link.reason,
                "clock_offset_ns": host.link.clock.offset_ns if host.link.clock else None,
                "clock_error_ns": host.link.clock.error_ns if host.link.clock else None,
                "machine": machine_document(host.session) if host.session.samples else None,
            }
            for host in hosts.values()
        ],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    facts = _fields(gpu.facts)
    status = _fields(gpu.status or GpuStatus(time_ns=0, gpu=gpu.facts.index))
    del status["gpu"], status["time_ns"]
    return {
        "index": facts.pop("index"),
        "uuid": facts.pop("uuid"),
        "name": facts.pop("name"),
        **_fields(newest_sample(gpu)),
        "mig_instances": [_fields(one) | _fields(sample) for one, sample in mig_instances(gpu)],
        "status_time": moment(gpu.status.time_ns) if gpu.status else None,
        **status,
        "facts": facts | {"mig_instances": [_fields(one) for one in gpu.facts.mig_instances]},
        "unavailable": dict(gpu.unavailable),
    }


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    """Every field, including those at their default; tuples as lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in record.__struct_fields__
        for value in (getattr(record, name),)
    }


def machine_lines(session: Session) -> list[str]:
    """The host in two lines, and why there is no GPU."""
    header, host = session.header, session.host
    if header is None:
        return []
    driver = f"driver {header.driver_version}" if header.driver_version else "no driver"
    cuda = f"  CUDA {header.cuda_driver_version}" if header.cuda_driver_version else ""
    time = moment(session.now_ns).replace("T", " ")[:19]
    lines = [f"{time}  {header.host.hostname}  {header.host.system}  {driver}{cuda}"]
    if host:
        load = units.MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
        memory = of_whole(host.memory_used_bytes, header.host.memory_total_bytes, units.size)
        swap = f", swap {units.size(host.swap_used_bytes)}" if host.swap_used_bytes else ""
        lines.append(
            f"CPU {units.percent(host.cpu_percent)} of {header.host.cpu_count} cores, "
            f"load {load}, memory {memory}{swap}"
        )
    if header.gpu_unavailable_reason:
        lines.append(f"no GPU: {header.gpu_unavailable_reason}")
    return lines


def reason_lines(session: Session, width: int | None = None) -> list[str]:
    """Why values are n/a: each reason with the GPUs and the fields it applies to, wrapped to
    `width`.
    """
    fields_of: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, gpu in sorted(session.gpus.items()):
        by_reason: dict[str, list[str]] = {}
        for field, reason in gpu.unavailable.items():
            by_reason.setdefault(reason, []).append(field)
        for reason, names in by_reason.items():
            fields_of.setdefault((reason, tuple(sorted(names))), []).append(index)
    lines = []
    for (reason, fields), gpus in fields_of.items():
        where = "" if len(gpus) == len(session.gpus) else f"GPU {', '.join(map(str, gpus))}: "
        what = "everything" if "device" in fields else ", ".join(fields)
        lines.append(f"n/a  {where}{what}: {reason}")
    lines += [f"n/a  {field}: {why}" for field, why in session.host_unavailable.items()]
    if width is None:
        return lines
    indent = " " * 5
    return [part for line in lines for part in wrap(line, width, subsequent_indent=indent)]
