"""How kernels were launched: in which grids and blocks, and by which lines of Python; and what else
lines of a Python program call: what copies, waits or frees, and garbage collections."""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gputui.model.events import LaunchShape
from gputui.model.naming import short_name
from gputui.report.explain.lines import CalledLine, called_lines, printed_line
from gputui.report.schema import (
    TableSpec,
    count,
    has_shapes,
    if_any,
    no_rows_unless,
    percent,
    size,
    text,
    time,
)
from gputui.report.statistics import kernel_name
from gputui.state import Run, Session

# How many warps of a kernel an SM can hold, and what keeps it from more.
#
# Theoretical: from the launch and the limits of the chip, as NVIDIA's occupancy calculator has
# it. What was reached, a profiler of kernels measures (`ncu`).

# What the occupancy calculator reckons with; `_LIMITS` has what differs between chips.
_WARP = 32
# Of an SM, from compute capability 7.0 to 12.0.
_REGISTERS = 65_536
# Registers are given to a warp in such portions, and to four warps at a time.
_REGISTER_UNIT = 256
_WARP_UNIT = 4


class _Limits(NamedTuple):
    """What an SM can hold. CUDA takes `reserved_bytes` of shared memory in each block for
    itself."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = 1024


_KIB = 1024
# CUDA C++ Programming Guide, technical specifications per compute capability.
_LIMITS = {
    "7.0": _Limits(64, 32, 96 * _KIB, 256, 0),
    "7.5": _Limits(32, 16, 64 * _KIB, 256, 0),
    "8.0": _Limits(64, 32, 164 * _KIB),
    "8.6": _Limits(48, 16, 100 * _KIB),
    "8.7": _Limits(48, 16, 164 * _KIB),
    "8.9": _Limits(48, 24, 100 * _KIB),
    "9.0": _Limits(64, 32, 228 * _KIB),
    "10.0": _Limits(64, 32, 228 * _KIB),
    "10.3": _Limits(64, 32, 228 * _KIB),
    "12.0": _Limits(48, 24, 100 * _KIB),
}


class Occupancy(NamedTuple):
    """The occupancy: the share of the warps that an SM can hold. `limiter` is the resource that
    allows the fewest blocks."""

    percent: float
    blocks: int
    limiter: str


def occupancy(capability: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """The occupancy of blocks with so many threads, registers a thread and bytes of shared memory.
    None if the limits of the compute capability are not known, or if no SM can hold such a
    block."""
    limits = _LIMITS.get(capability)
    if limits is None or threads < 1:
        return None
    warps = -(-threads // _WARP)
    most = {"blocks": limits.blocks, "warps": limits.warps // warps}
    if registers > 0:
        of_warp = _up(registers * _WARP, _REGISTER_UNIT)
        most["registers"] = _REGISTERS // of_warp // _WARP_UNIT * _WARP_UNIT // warps
    of_block = _up(max(0, shared_bytes) + limits.reserved_bytes, limits.shared_unit)
    if of_block:
        most["shared memory"] = limits.shared_bytes // of_block
    limiter = min(most, key=lambda name: most[name])
    if not most[limiter]:
        return None
    percent = 100.0 * most[limiter] * warps / limits.warps
    return Occupancy(percent, most[limiter], "nothing" if percent == 100.0 else limiter)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# In which grids and blocks kernels were launched, and what a thread and a block took.


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One launch shape of a kernel; `name` is the kernel's, demangled."""

    name: str
    launches: int
    shape: LaunchShape
    occupancy: Occupancy | None = None

    @property
    def grid(self) -> str:
        """The grid's dimensions in blocks, such as "7x8x9"."""
        return "x".join(map(str, self.shape.grid))

    @property
    def block(self) -> str:
        """Threads of a block, as "128x1x1"."""
        return "x".join(map(str, self.shape.block))


def shape_rows(session: Session, run: Run) -> list[ShapeRow]:
    """The launch shapes of a run, the most launched first."""
    return sorted(_rows(session, run), key=lambda row: (-row.launches, row.name, row.shape.shape))


def _rows(session: Session, run: Run) -> Iterator[ShapeRow]:
    capability = _capability(session, run)
    for counted in run.shapes.values():
        shape = session.launch_shapes.get(counted.shape)
        if shape is not None:
            held = occupancy(
                capability,
                math.prod(shape.block),
                shape.registers_per_thread,
                shape.static_shared_bytes + shape.dynamic_shared_bytes,
            )
            yield ShapeRow(kernel_name(session, shape.kernel), counted.launches, shape, held)


def _capability(session: Session, run: Run) -> str:
    """That of the GPUs that the run used; "" where they differ or it is unknown."""
    used = [session.gpus[index] for index in run.devices or session.gpus if index in session.gpus]
    capabilities = {gpu.facts.compute_capability or "" for gpu in used}
    return capabilities.pop() if len(capabilities) == 1 else ""


def _how_to_look(run: Run, rows: Sequence[ShapeRow]) -> str:
    """The command that measures inside the kernel launched most often."""
    if not rows:
        return ""
    name = re.escape(short_name(rows[0].name).split("<")[0].split("(")[0])
    command = " ".join(shlex.quote(word) for word in run.started.arguments) or "PROGRAM"
    return f"to look into one: ncu --set full -c 1 -k regex:{shlex.quote(name)} {command}"


SHAPES: TableSpec[ShapeRow] = TableSpec(
    key="kernel_shapes",
    title="Launch Shapes of Kernels",
    meaning="Grids and blocks that kernels were launched in, and what a thread and a block took.",
    columns=(
        count("Launches", "launches", lambda row: row.launches, "How many"),
        text("Grid", "grid", lambda row: row.grid, "Blocks: x, y, z", kind=tuple[int, int, int],
             document=lambda row: row.shape.grid),
        text("Block", "block", lambda row: row.block, "Threads of a block: x, y, z",
             kind=tuple[int, int, int], document=lambda row: row.shape.block),
        count("Registers/Thread", "registers_per_thread",
              lambda row: row.shape.registers_per_thread, "Registers of a thread", priority=1),
        size("Static Shared", "static_shared_bytes", lambda row: row.shape.static_shared_bytes,
             "Shared memory of a block that the kernel declares", priority=2),
        size("Dynamic Shared", "dynamic_shared_bytes", lambda row: row.shape.dynamic_shared_bytes,
             "Shared memory of a block that the launch asks for", priority=3),
        percent("Occupancy", "occupancy_percent",
                lambda row: row.occupancy.percent if row.occupancy else None,
                "Warps that an SM can hold of it, of those it can hold at all: theoretical",
                kind=float | None, seen=if_any),
        text("Limited By", "occupancy_limiter",
             lambda row: row.occupancy.limiter if row.occupancy else None,
             "What allows no more blocks on an SM: registers, shared memory, warps or blocks",
             kind=str | None, seen=if_any, flexible=False),
        text("Kernel", "name", lambda row: row.name, "The kernel's demangled name"),
    ),
    rows=shape_rows,
    order=500,
    document="launch_shapes",
    note=_how_to_look,
    unavailable=no_rows_unless(has_shapes),
)  # fmt: skip


# GPU time by the line of Python that launched it.

Z95 = 1.96
"""Standard errors on either side within which 95 % of estimates lie."""


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line and its part of the GPU time. `margin_percent` is half of the 95 % interval, as if
    every reading weighed the same: 1.96 √(p (1 − p) / n)."""

    place: str
    function: str
    gpu_time_percent: float
    margin_percent: float
    readings: int
    gpu_ns: float


def line_rows(run: Run) -> list[LineRow]:
    """The lines that launch, the largest first."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for seen in run.line_launches.values():
        if seen.kernel:
            continue
        line_sums = sums[seen.process, seen.line]
        line_sums[0] += seen.readings
        line_sums[1] += seen.gpu_ns
    whole, readings = (
        sum(line_sums[1] for line_sums in sums.values()),
        sum(line_sums[0] for line_sums in sums.values()),
    )
    gpu_ns = sum(use.busy_ns for use in run.timing.devices.values())
    rows = []
    for place, (seen_often, launched_ns) in sums.items():
        line = run.lines.get(place)
        if line is None or not whole:
            continue
        share = launched_ns / whole
        rows.append(
            LineRow(
                f"{line.path}:{line.number}",
                line.function,
                100 * share,
                100 * Z95 * math.sqrt(share * (1 - share) / readings),
                seen_often,
                share * gpu_ns,
            )
        )
    return sorted(rows, key=lambda row: -row.gpu_time_percent)


def _note(_run: Run, rows: Sequence[LineRow]) -> str:
    readings = sum(row.readings for row in rows)
    return f"estimated from {readings} readings of the lines of launching threads"


LINES: TableSpec[LineRow] = TableSpec(
    key="lines",
    title="Lines that launch",
    meaning="GPU time by the line of Python that launched it, estimated from readings.",
    columns=(
        percent(
            "GPU Time",
            "gpu_time_percent",
            lambda row: row.gpu_time_percent,
            "Of the GPU time of all lines",
        ),
        percent("±", "margin_percent", lambda row: row.margin_percent, "Half of its 95 % interval"),
        time("GPU", "gpu_ns", lambda row: row.gpu_ns, "Its part of the time that ran"),
        count("Readings", "readings", lambda row: row.readings, "That saw it launch"),
        text("Line", "line", lambda row: row.place, "File and line", flexible=True),
        text("Function", "function", lambda row: row.function, "The function it is in"),
    ),
    rows=lambda _session, run: line_rows(run),
    order=2,
    note=_note,
)


# --- What a Python program says that it does: calls that copy, wait or free by line, and its
# garbage collections.

# Calls that copy, wait for a GPU or give its memory back.


FACTS = ("attention.", "beginning.", "gradients.", "layers.", "optimizer.", "tokens.")


class _Every:
    """A set that every call is in, but no fact that is written as one is (`gradients.unused`)."""

    def __contains__(self, call: object) -> bool:
        return not str(call).startswith(FACTS)


def call_rows(run: Run) -> list[CalledLine]:
    """Every line and call, those for the most bytes first."""
    return called_lines(run, _Every())


CALLS: TableSpec[CalledLine] = TableSpec(
    key="calls_by_line",
    title="Calls that copy or wait",
    meaning="Calls of Python that copy, wait for a GPU or free its memory, by the line that makes "
    "them. Python 3.12 on, and torch 2.9 on where it is used.",
    columns=(
        count("Calls", "calls", lambda row: row.calls, "How many"),
        size("Bytes", "tensor_bytes", lambda row: row.tensor_bytes,
             "Of the tensors that they were called for"),
        text("Call", "call", lambda row: row.call, "A tensor's method, or a function"),
        text("Tensor", "tensor", lambda row: row.shape or None,
             "Shape, type and place of a late one", kind=str | None, seen=if_any, priority=1),
        text("Line", "line", lambda row: row.where, "File, line and function", flexible=True),
    ),
    rows=lambda _session, run: call_rows(run),
    order=3,
)  # fmt: skip


# Garbage collections.


@dataclass(frozen=True, slots=True)
class GarbageRow:
    """Collections of one generation that began at one line, empty where it is not known."""

    generation: int
    line: str
    collections: int
    total_ns: int
    longest_ns: int
    objects: int


def garbage_rows(run: Run) -> list[GarbageRow]:
    """The garbage collections of each process, generation and line, those that took the most time
    first."""
    rows = []
    for row in run.garbage_collections.values():
        line = run.lines.get((row.process, row.line))
        where = printed_line(line.path, line.number, line.function) if line is not None else ""
        rows.append(
            GarbageRow(
                row.generation, where, row.collections, row.total_ns, row.longest_ns, row.objects
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.generation, row.line))


GARBAGE: TableSpec[GarbageRow] = TableSpec(
    key="garbage_collections",
    title="Garbage collections",
    meaning="Garbage that Python collected since the program launched something.",
    columns=(
        time("Total", "total_ns", lambda row: row.total_ns, "Time in them"),
        count("Collections", "collections", lambda row: row.collections, "How many"),
        count("Generation", "generation", lambda row: row.generation,
              "0: the youngest objects; 2: all of them"),
        time("Longest", "longest_ns", lambda row: row.longest_ns, "The longest one"),
        count("Objects", "objects", lambda row: row.objects, "That were freed"),
        text("Line", "line", lambda row: row.line or None, "Where they began, where that is known",
             kind=str | None, seen=if_any, flexible=True),
    ),
    rows=lambda _session, run: garbage_rows(run),
    order=4,
)  # fmt: skip

TABLES = (SHAPES, LINES, CALLS, GARBAGE)
