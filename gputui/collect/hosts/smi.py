"""A host without gputui, as its `nvidia-smi` prints it: its devices, and nothing else."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator
from typing import BinaryIO

from gputui.base.sanitize import sanitize
from gputui.base.version import VERSION
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    GpuFacts,
    GpuSample,
    Header,
    HostFacts,
    HostSample,
    HostUnavailable,
    MachineSample,
)

_MIB = 1 << 20
_LINE_BYTES = 4096
_MOST_GPUS = 256

_FACTS = ("index", "uuid", "name", "driver_version")
_FIGURES = {
    "utilization.gpu": ("utilization_percent", 1),
    "memory.used": ("memory_used_bytes", _MIB),
    "memory.total": ("memory_total_bytes", _MIB),
    "power.draw": ("power_watts", 1),
    "power.limit": ("power_limit_watts", 1),
    "temperature.gpu": ("temperature_celsius", 1),
    "clocks.sm": ("sm_clock_mhz", 1),
    "clocks.mem": ("memory_clock_mhz", 1),
}
"""nvidia-smi's name of each field, ours, and what one of its units is of ours."""

_WHOLE = ("memory_used_bytes", "memory_total_bytes", "sm_clock_mhz", "memory_clock_mhz")

REASON = "only nvidia-smi is there: its devices, without processes, the host and counters"


def words(interval_s: float) -> list[str]:
    """The command there."""
    return [
        "nvidia-smi",
        f"--query-gpu={','.join((*_FACTS, *_FIGURES))}",
        "--format=csv,noheader,nounits",
        f"--loop-ms={max(100, int(interval_s * 1000))}",
    ]


def events(stream: BinaryIO, name: str, interval_s: float) -> Iterator[AnyEvent]:
    """What it prints as the events of a host called `name`, by this end's clock, until it ends.

    A sample is complete when the first GPU comes again. A line that cannot be read ends it.
    """
    gpus: dict[int, tuple[GpuFacts, GpuSample, str]] = {}
    has_header = False
    while (line := stream.readline(_LINE_BYTES)).endswith(b"\n"):
        found = _gpu(line)
        if found is None or len(gpus) > _MOST_GPUS:
            return
        if found[1].index in gpus:
            if not has_header:
                has_header = True
                yield from _first(gpus, name, interval_s)
            now_ns = time.time_ns()
            samples = tuple(sample for _, sample, _ in gpus.values())
            yield MachineSample(time_ns=now_ns, host=HostSample(), gpus=samples)
            gpus.clear()
        gpus[found[1].index] = found


def _first(
    gpus: dict[int, tuple[GpuFacts, GpuSample, str]], name: str, interval_s: float
) -> Iterator[AnyEvent]:
    now_ns = time.time_ns()
    (_, _, driver), *_ = gpus.values()
    yield Header(
        time_ns=now_ns,
        schema=JOURNAL_SCHEMA,
        gputui_version=VERSION,
        python_version="",
        monotonic_ns=time.monotonic_ns(),
        interval_s=interval_s,
        host=HostFacts(hostname=name, system="unknown system", cpu_count=0, memory_total_bytes=0),
        driver_version=driver,
        gpus=tuple(facts for facts, _, _ in gpus.values()),
    )
    fields = ("processes", *HostSample.__struct_fields__)
    yield HostUnavailable(time_ns=now_ns, reasons=dict.fromkeys(fields, REASON))


def _gpu(line: bytes) -> tuple[GpuFacts, GpuSample, str] | None:
    text = sanitize(line.decode(errors="replace").rstrip("\r\n"))
    (cells,) = csv.reader([text], skipinitialspace=True)
    if len(cells) != len(_FACTS) + len(_FIGURES) or not cells[0].isdigit():
        return None
    index, uuid, name, driver = int(cells[0]), cells[1], cells[2], cells[3]
    if index >= 2**31:
        return None
    figures = {
        field: _number(cell, factor, whole=field in _WHOLE)
        for cell, (field, factor) in zip(cells[len(_FACTS) :], _FIGURES.values(), strict=True)
    }
    memory = figures["memory_total_bytes"]
    facts = GpuFacts(
        index=index,
        uuid=uuid,
        name=name,
        memory_total_bytes=None if memory is None else int(memory),
        power_limit_watts=figures["power_limit_watts"],
    )
    return facts, GpuSample(index=index, **figures), driver  # type: ignore[arg-type]


def _number(cell: str, factor: int, *, whole: bool) -> float | None:
    """None for "[N/A]" and whatever else is no figure."""
    try:
        value = float(cell) * factor
    except ValueError:
        return None
    if not math.isfinite(value) or abs(value) >= 2**63:
        return None
    return int(value) if whole else value
