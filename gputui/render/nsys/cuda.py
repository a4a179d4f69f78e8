"""Calls and GPU operations as rows."""

from __future__ import annotations

import numpy as np

from gputui.model.events.definitions import MAX_SHAPES
from gputui.model.naming import short_name
from gputui.render.nsys.rows import Rows
from gputui.render.nsys.schema import MEMORY_KIND_NUMBERS, OPERATION
from gputui.state import Session
from gputui.store.trace import TraceKind, TraceReader
from gputui.store.trace.layout import Int64s, Slots

_OPERATIONS = OPERATION.replace(" greenContextId", "")
_SHAPE = (
    "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory "
    "dynamicSharedMemory"
)
_KERNEL_ZEROS = (
    "launchType", "cacheConfig", "localMemoryPerThread", "localMemoryTotal", "gridId",
)  # fmt: skip
"""Columns that are NOT NULL in nsys and were not captured."""


class CudaRows:
    """CUPTI's records."""

    def __init__(self, rows: Rows, session: Session, trace: TraceReader) -> None:
        self._rows = rows
        most = max([0, *session.kernel_names])
        self._kernels = np.zeros((most + 1, 3), np.int64)
        for number, kernel in session.kernel_names.items():
            if number < 1 << 24:
                names = (kernel.name, short_name(kernel.name), kernel.mangled)
                self._kernels[number] = [rows.string(name) for name in names]
        self._shapes = _shape_columns(session)
        self._calls = np.zeros(max(trace.call_names) + 1, np.int64)
        for number, name in trace.call_names.items():
            self._calls[number] = rows.string(name)
        self._is_driver = np.array(
            [not trace.call_names.get(i, "").startswith("cuda") for i in range(len(self._calls))]
        )

    def write(self, records: Slots) -> None:
        """Write those in a portion of the trace."""
        kinds = records["kind"]
        for kind, write in (
            (TraceKind.CALL, self._call_rows),
            (TraceKind.KERNEL, self._kernel_rows),
            (TraceKind.COPY, self._copy_rows),
            (TraceKind.SET, self._set_rows),
            (TraceKind.GRAPH, self._graph_rows),
        ):
            part = records[kinds == kind]
            if len(part):
                write(part)

    def _call_rows(self, records: Slots) -> None:
        names = np.minimum(records["name"], len(self._calls) - 1)
        columns = (
            *self._rows.times(records),
            self._is_driver[names].astype(np.int64).tolist(),
            self._rows.tasks(records).tolist(),
            records["correlation"].tolist(),
            self._calls[names].tolist(),
        )
        self._rows.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "start end eventClass globalTid correlationId nameId returnValue",
            ((*row, 0) for row in zip(*columns, strict=True)),
        )

    def _operation(self, records: Slots) -> tuple[list[int], ...]:
        return (
            *self._rows.times(records),
            records["device"].tolist(),
            records["context"].tolist(),
            records["stream"].tolist(),
            records["correlation"].tolist(),
            self._rows.processes(records).tolist(),
        )

    def _kernel_rows(self, records: Slots) -> None:
        names = self._kernels[np.minimum(records["name"], len(self._kernels) - 1)]
        shapes = self._shapes[
            np.minimum(records["bytes"], np.uint64(len(self._shapes) - 1)).astype(np.int64)
        ]
        columns = (*self._operation(records), *names.T.tolist(), *shapes.T.tolist())
        zeros = (0,) * len(_KERNEL_ZEROS)
        self._rows.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            f"{_OPERATIONS} demangledName shortName mangledName {_SHAPE} {' '.join(_KERNEL_ZEROS)}",
            ((*row, *zeros) for row in zip(*columns, strict=True)),
        )

    def _copy_rows(self, records: Slots) -> None:
        columns = (
            *self._operation(records),
            records["bytes"].astype(np.int64).tolist(),
            records["sub"].tolist(),
            MEMORY_KIND_NUMBERS[records["source_kind"] & 7].tolist(),
            MEMORY_KIND_NUMBERS[records["destination_kind"] & 7].tolist(),
        )
        self._rows.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            f"{_OPERATIONS} bytes copyKind srcKind dstKind copyCount",
            ((*row, 1) for row in zip(*columns, strict=True)),
        )

    def _set_rows(self, records: Slots) -> None:
        columns = (
            *self._operation(records),
            records["bytes"].astype(np.int64).tolist(),
            MEMORY_KIND_NUMBERS[records["destination_kind"] & 7].tolist(),
        )
        self._rows.insert(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            f"{_OPERATIONS} bytes memKind value",
            ((*row, 0) for row in zip(*columns, strict=True)),
        )

    def _graph_rows(self, records: Slots) -> None:
        columns = (*self._operation(records), records["graph"].tolist())
        self._rows.insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            f"{_OPERATIONS} graphId",
            zip(*columns, strict=True),
        )


def _shape_columns(session: Session) -> Int64s:
    """The columns of _SHAPE by number of launch shape; zeros if there is none."""
    numbers = [number for number in session.launch_shapes if number <= MAX_SHAPES]
    columns = np.zeros((max(numbers, default=0) + 2, 9), np.int64)
    for number in numbers:
        shape = session.launch_shapes[number]
        columns[number] = (
            *shape.grid,
            *shape.block,
            shape.registers_per_thread,
            shape.static_shared_bytes,
            shape.dynamic_shared_bytes,
        )
    return columns
