"""In which grids and blocks kernels were launched, and what a thread and a block took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gputui.model.events import LaunchShape
from gputui.report.availability import has_shapes, no_rows_unless
from gputui.report.schema import TableSpec, count, size, text
from gputui.report.statistics import kernel_name
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One launch shape of a kernel; `name` is the kernel's, demangled."""

    name: str
    launches: int
    shape: LaunchShape

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
    for number, counted in run.shapes.items():
        shape = session.launch_shapes.get(number)
        if shape is not None:
            yield ShapeRow(kernel_name(session, shape.kernel), counted.launches, shape)


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
        text("Kernel", "name", lambda row: row.name, "The kernel's demangled name"),
    ),
    rows=shape_rows,
    order=500,
    document="launch_shapes",
    unavailable=no_rows_unless(has_shapes),
)  # fmt: skip
TABLES = (SHAPES,)
