"""In which grids and blocks kernels were launched, and what a thread and a block took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gputui.model.events import LaunchShape
from gputui.report.availability import has_shapes, without_rows
from gputui.report.columns import Table, count, size, spare, text
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
    for number, launches in run.shape_launches.items():
        shape = session.launch_shapes.get(number)
        if shape is not None:
            yield ShapeRow(kernel_name(session, shape.kernel), launches, shape)


def shapes_table(session: Session, run: Run) -> Table:
    """A line a kernel and shape."""
    table = Table(
        "kernel_shapes",
        "Launch Shapes of Kernels",
        (
            count("Launches"),
            text("Grid"),
            text("Block"),
            spare(1, count("Registers/Thread")),
            spare(2, size("Static Shared (bytes)")),
            spare(3, size("Dynamic Shared (bytes)")),
            text("Kernel"),
        ),
        tuple(
            (
                row.launches,
                row.grid,
                row.block,
                row.shape.registers_per_thread,
                row.shape.static_shared_bytes,
                row.shape.dynamic_shared_bytes,
                row.name,
            )
            for row in shape_rows(session, run)
        ),
    )
    return table if has_shapes(run) else without_rows(table)
