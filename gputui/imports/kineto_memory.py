"""Memory by operator, from a trace of torch.profiler with `profile_memory`: each allocation and
release counts for the innermost operator or annotation that was open on its thread.

A table of the run, as workloads report them: only such a trace has it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.base.sanitize import sanitize
from gputui.imports.reading import RangeRows
from gputui.model.events import ResultColumn, ResultTable

TABLE = "memory_by_operator"

MOST_ROWS = 1000
"""Operators in the table, those that took most."""

MOST_LETTERS = 200
OUTSIDE = "(no operator)"

_CPU = 0
"""c10's DeviceType."""


class OperatorMemory:
    """Allocations and releases in, each with its thread; the table out."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(4))

    def add(self, time_ns: int, thread: int, device_type: int, size_bytes: int) -> None:
        """Add one: `size_bytes` is negative where memory is released."""
        for column, value in zip(
            self._columns, (time_ns, thread, device_type, size_bytes), strict=True
        ):
            column.append(value)

    def table(self, rows: RangeRows, names: Mapping[int, str]) -> ResultTable | None:
        """By operator and kind of device; None if nothing was allocated. `names` are those that the
        rows' numbers stand for."""
        times, threads, devices, sizes = (np.frombuffer(one, np.int64) for one in self._columns)
        if not len(times):
            return None
        within = np.full(len(times), -1, np.int64)
        for thread in np.unique(threads).tolist():
            its = np.flatnonzero(threads == thread)
            of_thread = np.flatnonzero(rows.task == thread)
            within[its] = _innermost(rows, of_thread, times[its])
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        columns = (within.tolist(), devices.tolist(), sizes.tolist())
        for row, device, size in zip(*columns, strict=True):
            name = names.get(int(rows.name[row]), "") if row >= 0 else OUTSIDE
            name = sanitize(name, MOST_LETTERS)
            entry = sums[name, "CPU" if device == _CPU else "GPU"]
            entry[0] += size > 0
            entry[1] += max(0, size)
            entry[2] += max(0, -size)
            entry[3] += size
        ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
        return ResultTable(
            name=TABLE,
            title="Memory by operator, its own without those inside it",
            columns=_COLUMNS,
            rows=tuple((name, device, *entry) for (name, device), entry in ordered[:MOST_ROWS]),
        )


def _innermost(rows: RangeRows, numbers: Int64s, moments: Int64s) -> Int64s:
    """Of each moment the row, one of `numbers`, that was open last; -1 where none was."""
    order = numbers[np.lexsort((-rows.end[numbers], rows.start[numbers]))]
    starts, ends = rows.start[order].tolist(), rows.end[order].tolist()
    found = np.full(len(moments), -1, np.int64)
    open_rows: list[int] = []
    place = 0
    for at in np.argsort(moments, kind="stable").tolist():
        moment = int(moments[at])
        while place < len(starts) and starts[place] <= moment:
            while open_rows and ends[open_rows[-1]] <= starts[place]:
                open_rows.pop()
            open_rows.append(place)
            place += 1
        while open_rows and ends[open_rows[-1]] < moment:
            open_rows.pop()
        if open_rows:
            found[at] = order[open_rows[-1]]
    return found


_COLUMNS = (
    ResultColumn(name="operator", help="or annotation, by its name"),
    ResultColumn(name="memory", help="of the CPU or a GPU"),
    ResultColumn(name="allocations", help="how many"),
    ResultColumn(name="allocated_bytes", unit="bytes", help="all of them together"),
    ResultColumn(name="freed_bytes", unit="bytes", help="released in it"),
    ResultColumn(name="net_bytes", unit="bytes", help="the profiler's self memory usage"),
)
