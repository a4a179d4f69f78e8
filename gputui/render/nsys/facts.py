"""What ran where, and nsys's own enumerations, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputui import __version__
from gputui.model.cuda_names import COPY_KINDS, MEMORY_KINDS
from gputui.render.nsys.rows import Rows
from gputui.render.nsys.schema import EVENT_TYPES, MEMORY_KIND_NUMBERS, SCHEMA
from gputui.state import Run, Session


def write_facts(rows: Rows, session: Session, run: Run, dropped: int) -> None:
    """Write the tables other than events; `dropped` counts the trace's lost records."""
    started, header = run.started, session.header
    machine = rows.process(-1)
    rows.insert("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", [(rows.base_ns,)])
    rows.insert("TARGET_INFO_GPU", "vmId id name busLocation totalMemory memoryBandwidth "
                "clockRate smCount uuid chipName cuDevice computeMajor computeMinor l2CacheSize",
                ((machine, *gpu) for gpu in _gpus(session)))  # fmt: skip
    # Devices are numbered as the machine's here, in every process.
    rows.insert("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", (
        (key.device, key.device, run.processes[key.process].attached.pid)
        for key in sorted(run.timing.devices)
    ))  # fmt: skip
    facts = {
        "Hostname": header.host.hostname if header else None,
        "OsDescription": header.host.system if header else None,
        "CpuCores": str(header.host.cpu_count) if header else None,
        "CpuDescription": header.host.cpu_model if header else None,
        "NvDriverVersion": header.driver_version if header else None,
    }
    known = [(machine, name, value) for name, value in facts.items() if value]
    rows.insert("TARGET_INFO_SYSTEM_ENV", "globalVid name value", known)
    words = list(started.arguments) or [started.name]
    capture = [("PROCESS_0:COMMAND", words[0])]
    capture += [(f"PROCESS_0:ARGUMENT_{i}", word) for i, word in enumerate(words[1:])]
    rows.insert("META_DATA_CAPTURE", "name value", capture)
    rows.insert("META_DATA_EXPORT", "name value", [
        ("EXPORT_PRODUCT_NAME", "gputui"), ("EXPORT_PRODUCT_VERSION", __version__),
        ("EXPORT_SCHEMA_VERSION", SCHEMA),
        ("GPUTUI_DROPPED_RECORDS", str(dropped)),
    ])  # fmt: skip
    rows.insert("PROCESSES", "globalPid pid name", (
        (rows.process(number), process.attached.pid, process.attached.command)
        for number, process in run.processes.items()
    ))  # fmt: skip
    rows.insert("ENUM_NSYS_EVENT_TYPE", "id name label",
                ((number, name, name) for number, name in EVENT_TYPES.items()))  # fmt: skip
    copies = {0: "Unknown", **COPY_KINDS}
    rows.insert("ENUM_CUDA_MEMCPY_OPER", "id name label",
                ((number, name, name) for number, name in copies.items()))  # fmt: skip
    kinds = {0: "unknown", **MEMORY_KINDS}
    rows.insert("ENUM_CUDA_MEM_KIND", "id name label", (
        (int(MEMORY_KIND_NUMBERS[number]), name, name.title()) for number, name in kinds.items()
    ))  # fmt: skip


_CHIPS = {"6.0": "GP100", "7.0": "GV100", "8.0": "GA100", "9.0": "GH100"}
"""Compute capability → chip, where there is one of it (CUDA C++ Programming Guide)."""


def _gpus(session: Session) -> Iterator[tuple[Any, ...]]:
    for index, gpu in sorted(session.gpus.items()):
        facts = gpu.facts
        major, _, minor = (facts.compute_capability or "").partition(".")
        bandwidth = facts.peak_memory_bandwidth_bytes_per_s
        yield (
            index, facts.name, facts.pci_bus_id, facts.memory_total_bytes,
            None if bandwidth is None else int(bandwidth),
            None if facts.max_sm_clock_mhz is None else facts.max_sm_clock_mhz * 1_000_000,
            facts.sm_count, facts.uuid.removeprefix("GPU-"),
            _CHIPS.get(facts.compute_capability or ""), index, major or None, minor or None,
            facts.l2_cache_bytes,
        )  # fmt: skip
