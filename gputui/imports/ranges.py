"""Ranges with both ends as the pushes, pops, starts, ends and marks behind them.

Files store a range as one row. Rows of a thread and domain nest, so sorting both ends restores the
order of pushes and pops, and counting them gives the levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.model.payloads import NO_PAYLOAD
from gputui.ring.layout import FLAG_COLORED, FLAG_PAYLOAD, SLOT, RecordKind

ABSENT = -(1 << 63)
"""Represents a missing number in a column of integers."""

THREAD = 0xFFFFFF
"""The bits of a task that are its thread: tids end at 2²²."""

_RGB = 0xFFFFFF
_U32 = 0xFFFF_FFFF


@dataclass(slots=True)
class RangeRows:
    """Columns of the rows that are ranges or marks, with the names they refer to."""

    start: Int64s
    end: Int64s
    kind: Int64s
    category: Int64s
    color: Int64s
    name: Int64s
    task: Int64s
    """The thread; above its lowest bits, the process as the file numbers it."""
    domain: Int64s
    """The number of the domain's name, 0 for the default one."""
    end_task: Int64s
    """The thread that ended it."""
    category_id: Int64s
    payload_type: Int64s
    payload: Int64s
    """As in a ring record, but signed."""


class RangeRecords:
    """The range records of a file, in order of time."""

    def __init__(self, rows: RangeRows, base_ns: int) -> None:
        """`base_ns` is where the file's clock begins, since the epoch."""
        self._base_ns = base_ns
        self._rows = rows
        self._steps = _Steps.of(self._rows)
        self._next = 0

    @property
    def last_ns(self) -> int:
        """The last moment of any range or mark, of any process; 0 if there is none."""
        times = self._steps.time
        return min(max(0, int(times[-1]) + self._base_ns), LATEST_NS) if len(times) else 0

    def take(self, until: int) -> tuple[Slots, Int64s]:
        """The records up to a moment of the file's clock, and the task of each."""
        steps, rows = self._steps, self._rows
        end = int(np.searchsorted(steps.time, until, side="right"))
        part = slice(self._next, max(self._next, end))
        self._next = part.stop
        row = steps.row[part]
        records = np.zeros(len(row), SLOT)
        kind = steps.kind[part]
        opens = (kind != RecordKind.RANGE_POP) & (kind != RecordKind.RANGE_END)
        records["kind"] = kind
        ends = kind == RecordKind.RANGE_END
        records["thread"] = np.where(ends, rows.end_task[row], rows.task[row]) & THREAD
        records["start"] = np.clip(steps.time[part] + self._base_ns, 0, LATEST_NS)
        records["a"] = rows.domain[row]
        records["d"] = steps.level[part]
        records["value"] = row
        records["name"][opens] = rows.name[row][opens]
        records["b"][opens] = rows.category[row][opens]
        colored = opens & (rows.color[row] != ABSENT)
        records["sub"][colored] = FLAG_COLORED
        records["c"][colored] = (rows.color[row] & _RGB)[colored]
        records["e"][opens] = np.maximum(rows.category_id[row], 0)[opens] & _U32
        told = opens & (rows.payload_type[row] != NO_PAYLOAD)
        records["sub"][told] |= FLAG_PAYLOAD
        records["source_kind"][told] = rows.payload_type[row][told]
        records["end"][told] = rows.payload[row][told].view(np.uint64)
        return records, rows.task[row]


@dataclass(slots=True)
class _Steps:
    """Events in order: when, of which row, and for pushes and pops at which level."""

    time: Int64s
    kind: Int64s
    row: Int64s
    level: Int64s

    @classmethod
    def of(cls, rows: RangeRows) -> _Steps:
        every = np.arange(len(rows.start))
        closed = every[(rows.kind != RecordKind.MARK) & (rows.end != ABSENT)]
        row = np.concatenate((every, closed))
        is_end = np.arange(len(row)) >= len(every)
        start, end = rows.start[row], np.maximum(rows.start[row], rows.end[row])
        time = np.where(is_end, end, start)
        empty = (end == start) & (rows.end[row] != ABSENT)
        # At the same moment: first ends of earlier ranges, innermost first; then starts, outermost
        # first; a range of zero length ends before the next begins.
        phase = ~is_end | empty
        first = np.where(phase, -end, -start)
        second = np.where(is_end & ~empty, -row, 2 * row + is_end)
        order = np.lexsort((second, first, phase, time))
        row, is_end, time = row[order], is_end[order], time[order]
        begin = rows.kind[row]
        ends = np.where(begin == RecordKind.RANGE_PUSH, RecordKind.RANGE_POP, RecordKind.RANGE_END)
        kind = np.where(is_end, ends, begin)
        return cls(time, kind, row, _levels(rows, row, kind))


def _levels(rows: RangeRows, row: Int64s, kind: Int64s) -> Int64s:
    """How many ranges of the same stack are open around each push, and around each pop's range."""
    level = np.zeros(len(row), np.int64)
    nests = np.flatnonzero((kind == RecordKind.RANGE_PUSH) | (kind == RecordKind.RANGE_POP))
    if not len(nests):
        return level
    order = nests[np.lexsort((rows.domain[row[nests]], rows.task[row[nests]]))]
    task, domain = rows.task[row[order]], rows.domain[row[order]]
    pushes = kind[order] == RecordKind.RANGE_PUSH
    depth = np.cumsum(np.where(pushes, 1, -1))
    new = np.flatnonzero(np.r_[True, (task[1:] != task[:-1]) | (domain[1:] != domain[:-1])])
    before = np.r_[0, depth[:-1]]
    depth = depth - np.repeat(before[new], np.diff(np.r_[new, len(order)]))
    level[order] = np.where(pushes, depth - 1, depth)
    return level
