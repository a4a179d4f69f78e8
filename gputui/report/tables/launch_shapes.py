"""In which grids and blocks kernels were launched, and what a thread and a block took."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gputui.model.events import LaunchShape
from gputui.model.naming import short_name
from gputui.report.availability import has_shapes, no_rows_unless
from gputui.report.occupancy import Occupancy, occupancy
from gputui.report.schema import TableSpec, count, if_any, percent, size, text
from gputui.report.statistics import kernel_name
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One launch shape of a kernel; `name` is the kernel's, demangled."""

    name: str
    launches: int
    shape: LaunchShape
    occupancy: Occupancy | None = None

    @property
    def grid(self) -> str:
        """Blocks, as "7x8x9"."""
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
    found = {gpu.facts.compute_capability or "" for gpu in used}
    return found.pop() if len(found) == 1 else ""


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
TABLES = (SHAPES,)
