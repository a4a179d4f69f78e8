"""A run's memory: what it copied and set, between which memories, what it allocated, and where.

Allocations are seen as CUDA calls (cudaMalloc, cudaFree, the pools of cudaMallocAsync, pinned host
memory): how often and how long, but not how much. How much a device held comes from the driver, at
each sample.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from gputui.model.events import MemoryOperationDelta
from gputui.model.events.distributions import Statistics
from gputui.model.naming import DEVICE_TO_HOST
from gputui.report.phase_tree import PhaseKey, phase_path, phase_tree, phases_around
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.schema import (
    Cell,
    Column,
    TableSpec,
    count,
    for_programs,
    if_any,
    if_differs,
    number,
    rate,
    size,
    text,
    time,
)
from gputui.state import Gpu, Run

# cuMemCreate too: PyTorch's expandable segments grow by the driver's virtual memory.
_ALLOCATION = re.compile(r"^(cudaMalloc|cudaHostAlloc|cudaHostRegister|cuMemAlloc|cuMemCreate)")
_RELEASE = re.compile(r"^(cudaFree|cudaHostUnregister|cuMemFree|cuMemRelease)")

Direction = Literal["to device", "to host", "on device", "set", "other"]

OUTSIDE = "(outside every phase)"

_DIRECTIONS: tuple[tuple[str, Direction], ...] = (
    ("Host-to-Device", "to device"),
    (DEVICE_TO_HOST, "to host"),
    ("Device-to-Device", "on device"),
    ("memset", "set"),
)


def is_allocation(call: str) -> bool:
    """Whether a CUDA call of this name allocates memory, on a device or pinned on the host."""
    return bool(_ALLOCATION.match(call))


def is_release(call: str) -> bool:
    """Whether a CUDA call of this name frees memory."""
    return bool(_RELEASE.match(call))


def called_in(run: Run, calls: Iterable[tuple[int, Statistics]]) -> list[tuple[str, int, int]]:
    """In which phases what has these ranges and times was called: the phase's path, how often, and
    ns in all, the longest first."""
    sums: dict[str, tuple[int, int]] = {}
    for range_number, times in calls:
        path = phase_path(run, range_number) or OUTSIDE
        count, total_ns = sums.get(path, (0, 0))
        sums[path] = count + times.count, total_ns + times.total
    return sorted(((path, *amounts) for path, amounts in sums.items()), key=lambda part: -part[2])


@dataclass(slots=True)
class Transfer:
    """Copies or memsets of one kind between one pair of kinds of memory."""

    operation: str
    source: str | None
    destination: str | None
    count: int = 0
    total_bytes: int = 0
    total_ns: int = 0
    largest_bytes: int = 0

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second while copying."""
        return self.total_bytes / (self.total_ns / 1e9) if self.total_ns else None

    @property
    def average_bytes(self) -> float:
        """Mean size of one copy."""
        return self.total_bytes / self.count if self.count else 0.0

    @property
    def is_pageable(self) -> bool:
        """Whether pageable host memory is at one end: the driver copies it twice."""
        return "pageable" in (self.source, self.destination)


def transfers(run: Run) -> list[Transfer]:
    """What was copied and set, by operation and kinds of memory; most bytes first."""
    by_way: dict[tuple[str, str | None, str | None], Transfer] = {}
    for copies in run.memory_operations.values():
        ends = (copies.operation, copies.source_kind, copies.destination_kind)
        row = by_way.setdefault(ends, Transfer(*ends))
        row.count += copies.size.count
        row.total_bytes += copies.size.total
        row.total_ns += copies.time.total
        row.largest_bytes = max(row.largest_bytes, copies.size.maximum or 0)
    return sorted(by_way.values(), key=lambda row: (-row.total_bytes, row.operation))


@dataclass(slots=True)
class Traffic:
    """What one phase, or all of a run, did with memory. `pageable_bytes` are copies with pageable
    host memory at one end, counted in their direction too.
    """

    allocations: int = 0
    releases: int = 0
    allocating_ns: int = 0
    moved_bytes: dict[Direction, int] = field(default_factory=dict)
    pageable_bytes: int = 0
    moving_ns: int = 0

    def bytes_of(self, direction: Direction) -> int:
        """How many bytes were copied in one direction."""
        return self.moved_bytes.get(direction, 0)

    def add_operation(self, copies: MemoryOperationDelta) -> None:
        """Add copies or memsets of one kind."""
        way: Direction = next((to for part, to in _DIRECTIONS if part in copies.operation), "other")
        self.moved_bytes[way] = self.moved_bytes.get(way, 0) + copies.size.total
        self.moving_ns += copies.time.total
        if "pageable" in (copies.source_kind, copies.destination_kind):
            self.pageable_bytes += copies.size.total

    def add_call(self, name: str, calls: int, total_ns: int) -> None:
        """Add calls of one name, if they allocate or free memory."""
        if is_allocation(name):
            self.allocations += calls
        elif is_release(name):
            self.releases += calls
        else:
            return
        self.allocating_ns += total_ns


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """A phase including the phases inside it. `phase` None is outside all."""

    phase: PhaseRow | None
    traffic: Traffic

    @property
    def path(self) -> str:
        """The names of the phase and of the phases around it, the outermost first."""
        return self.phase.path if self.phase else OUTSIDE

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.phase.name if self.phase else self.path

    @property
    def depth(self) -> int:
        """How many are above it."""
        return self.phase.depth if self.phase else 0


def phase_memory(run: Run) -> list[PhaseMemory]:
    """The phases that used memory, parents before children, then what happened outside of all."""
    sums: dict[PhaseKey | None, Traffic] = {}
    # Those of libraries too: their rows are left out below, not what they did inside of phases.
    phase_of = phase_tree(run, library_domains=True).of_range

    def traffic_around(number: int) -> Iterable[Traffic]:
        phase = phase_of.get(number)
        if phase is None:
            return (sums.setdefault(None, Traffic()),)
        return [
            sums.setdefault(phase_around.key, Traffic()) for phase_around in phases_around(phase)
        ]

    for copies in run.memory_operations.values():
        for traffic in traffic_around(copies.phase):
            traffic.add_operation(copies)
    for call in run.api.values():
        if is_allocation(call.name) or is_release(call.name):
            for traffic in traffic_around(call.range):
                traffic.add_call(call.name, call.time.count, call.time.total)
    rows = [PhaseMemory(row, sums[row.key]) for row in phase_rows(run) if row.key in sums]
    return [*rows, PhaseMemory(None, sums[None])] if None in sums else rows


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of one device over a run, in bytes, from so many samples: in between there may be
    more."""

    first: int
    most: int
    samples: int


_FEW_SAMPLES = 10


def among_few(samples: int) -> str:
    """How many samples a maximum is of, where they are so few that it says little: what a program
    held between two of them, a second apart, was not read."""
    if samples >= _FEW_SAMPLES:
        return ""
    return " in one reading" if samples == 1 else f" in {samples} readings"


def memory_held(gpu: Gpu, run: Run) -> Held | None:
    """What a device held while a run's processes had CUDA, as far back as individual samples are
    kept; None before the first sample.
    """
    since_ns, until_ns = run.on_gpu_ns
    values = [
        sample.memory_used_bytes
        for time_ns, sample in gpu.samples.history
        if since_ns <= time_ns <= until_ns and sample.memory_used_bytes is not None
    ]
    if not values:
        return None
    series = run.readings.series(gpu.facts.index, "memory_used_bytes")
    if series is None:
        return Held(values[0], max(values), len(values))
    return Held(values[0], int(series.maximum), series.count)


def held_by_phase(gpu: Gpu, run: Run) -> dict[str, int]:
    """The highest sample of a device from the start of each outermost phase to the next.

    A phase without a sample is left out.
    """
    phases = sorted(run.phase_starts)
    names = {
        node.definition.name: phase.name
        for phase in phase_tree(run, library_domains=True).roots
        for node in phase.nodes
    }
    starts = [time_ns for time_ns, _ in phases]
    until_ns = run.ended.time_ns if run.ended else run.updated_ns
    bytes_by_path: dict[str, int] = {}
    for time_ns, sample in reversed(gpu.samples.history):
        place = bisect_right(starts, time_ns) - 1
        if place < 0:
            break
        used = sample.memory_used_bytes
        if time_ns <= until_ns and used is not None:
            name = names.get(phases[place][1], phases[place][1])
            bytes_by_path[name] = max(bytes_by_path.get(name, 0), used)
    return bytes_by_path


# --- copies by kind of memory, and what phases moved and allocated, as tables to be asked for


COPIES: TableSpec[Transfer] = TableSpec(
    key="memory_copies",
    title="Copies and Memsets by Kind of Memory",
    meaning="Copies and memsets by operation and by the kinds of memory at both ends, most bytes "
    "first.",
    columns=(
        text("Operation", "operation", lambda row: row.operation, "As nsys calls it",
             label="operation", width=26),
        text("From", "source_kind", lambda row: row.source, "The kind of memory it reads",
             kind=str | None, flexible=False, priority=2, label="from", width=8),
        text("To", "destination_kind", lambda row: row.destination,
             "The kind of memory it writes", kind=str | None, flexible=False, priority=2,
             label="to", width=8),
        count("Count", "count", lambda row: row.count, "How many", priority=1, label="count",
              width=6),
        size("Total", "total_bytes", lambda row: row.total_bytes, "Bytes of all", label="bytes",
             width=8),
        size("Avg", "avg_bytes", lambda row: row.average_bytes, "Mean of one", kind=float,
             priority=4, label="average", width=8),
        size("Max", "max_bytes", lambda row: row.largest_bytes, "The largest", priority=5,
             label="largest", width=8),
        time("Time", "total_ns", lambda row: row.total_ns, "Time on the GPU", priority=1,
             label="time", width=7),
        rate("Rate", "bytes_per_s", lambda row: row.bytes_per_s, "Bytes a second while they ran",
             kind=float | None, priority=3, label="rate", width=9),
    ),
    rows=lambda _session, run: transfers(run),
    order=510,
)  # fmt: skip


def _moved(
    way: Direction, title: str, key: str, meaning: str, priority: int, label: str = ""
) -> Column[PhaseMemory]:
    return size(title, key, lambda row: row.traffic.bytes_of(way), meaning, priority=priority,
                label=label or way, width=8)  # fmt: skip


def _of_phase(attribute: str) -> Callable[[PhaseMemory], Cell]:
    return lambda row: getattr(row.phase, attribute, None)


PHASE_MEMORY: TableSpec[PhaseMemory] = TableSpec(
    key="memory_phases",
    title="Memory by Phase",
    meaning="What each phase, with those inside it, copied, set, allocated and freed.",
    columns=(
        text("Phase", "name", lambda row: "  " * row.depth + row.name, "The range's name",
             document=lambda row: row.name, label="phase", width=22),
        number("Rank", "rank", _of_phase("rank"), "The process's rank", kind=int | None,
               seen=if_any),
        number("PID", "pid", _of_phase("pid"), "The process", kind=int | None, seen=if_differs),
        _moved("to device", "To Device", "to_device_bytes", "Copied from host to device", 1),
        _moved("to host", "To Host", "to_host_bytes", "Copied from device to host", 1),
        _moved("on device", "On Device", "on_device_bytes", "Copied from device to device", 2),
        _moved("set", "Set", "set_bytes", "Set by memsets", 4, "memset"),
        _moved("other", "Other", "other_bytes", "Copied in any other direction", 5),
        size("Pageable", "pageable_bytes", lambda row: row.traffic.pageable_bytes,
             "Copied with pageable host memory at one end", priority=3, label="pageable", width=8),
        time("Moving", "moving_ns", lambda row: row.traffic.moving_ns,
             "GPU time of copies and memsets", priority=3, label="moving", width=7),
        count("Allocations", "allocations", lambda row: row.traffic.allocations,
              "CUDA calls that allocate", priority=1, label="allocs", width=6),
        count("Frees", "frees", lambda row: row.traffic.releases, "CUDA calls that free",
              priority=6, label="frees", width=5),
        time("Allocating", "allocating_ns", lambda row: row.traffic.allocating_ns,
             "Time in these calls", priority=2, label="allocating", width=10),
        text("Path", "path", lambda row: row.path, "Names from the outermost range on",
             seen=for_programs),
    ),
    rows=lambda _session, run: phase_memory(run),
    order=520,
)  # fmt: skip


TABLES = (
    COPIES,
    PHASE_MEMORY,
)
