"""NVTX_EVENTS as the pushes, pops, starts, ends and marks behind them.

nsys stores a range as one row with both ends. Rows of a thread and domain nest, so sorting both
ends restores the order of pushes and pops, and counting them gives the levels.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.attribute.strings import NO_STRING
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.database import ABSENT, Database
from gputui.imports.nsys.names import Names
from gputui.model.payloads import NO_PAYLOAD, PayloadType
from gputui.ring.layout import FLAG_COLORED, FLAG_PAYLOAD, SLOT, RecordKind

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN_CREATE = 33, 34, 59, 60, 75
"""ENUM_NSYS_EVENT_TYPE."""

IS_EVENT = f'"eventType" IN ({MARK}, {PUSH_POP}, {START_END})'
"""Program events, in SQL; definitions have times of their own."""

_COLUMNS = ("start", "end", "eventType", "category", "color", "text", "textId", "globalTid",
            "domainId", "endGlobalTid")  # fmt: skip
_PAYLOADS = {
    "int64Value": PayloadType.INT64, "uint64Value": PayloadType.UINT64,
    "doubleValue": PayloadType.DOUBLE, "int32Value": PayloadType.INT32,
    "uint32Value": PayloadType.UINT32, "floatValue": PayloadType.FLOAT,
}  # fmt: skip
_KINDS = {MARK: RecordKind.MARK, PUSH_POP: RecordKind.RANGE_PUSH, START_END: RecordKind.RANGE_START}
_RGB = 0xFFFFFF
_U32 = 0xFFFF_FFFF
_TID = 0xFFFFFF


@dataclass(slots=True)
class _Rows:
    """Columns of the rows that are ranges or marks, with the names they refer to."""

    start: Int64s
    end: Int64s
    kind: Int64s
    category: Int64s
    color: Int64s
    name: Int64s
    task: Int64s
    """The thread, as nsys's 64-bit global id."""
    domain: Int64s
    """The number of the domain's name, 0 for the default one."""
    end_task: Int64s
    """The thread that ended it: nsys names it only if it differs."""
    category_id: Int64s
    payload_type: Int64s
    payload: Int64s
    """As in a ring record, but signed."""


class Nvtx:
    """The range records of a report, in order of time."""

    def __init__(self, database: Database, names: Names, base_ns: int) -> None:
        self._base_ns = base_ns
        self._rows = _read(database, names)
        self._steps = _Steps.of(self._rows)
        self._next = 0

    @property
    def last_ns(self) -> int:
        """The last moment of any range or mark, of any process; 0 if there is none."""
        times = self._steps.time
        return min(max(0, int(times[-1]) + self._base_ns), LATEST_NS) if len(times) else 0

    def take(self, until: int) -> tuple[Slots, Int64s]:
        """The records up to a moment of the report's clock, and the task of each."""
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
        records["thread"] = np.where(ends, rows.end_task[row], rows.task[row]) & _TID
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
    def of(cls, rows: _Rows) -> _Steps:
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


def _levels(rows: _Rows, row: Int64s, kind: Int64s) -> Int64s:
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


def _read(database: Database, names: Names) -> _Rows:
    domains, categories = _definitions(database, names)
    columns = [array("q") for _ in range(12)]
    if "eventType" not in database.columns("NVTX_EVENTS"):
        return _Rows(*(np.array(column, np.int64) for column in columns))
    for row in database.rows("NVTX_EVENTS", *_COLUMNS, *_PAYLOADS, where=f"WHERE {IS_EVENT}"):
        start, end, event_type, category, color, text, text_id, task, domain, end_task = row[:10]
        kind = _KINDS.get(event_type) if isinstance(event_type, int) else None
        if kind is None or not isinstance(start, int) or not isinstance(task, int):
            continue
        name = NO_STRING
        if isinstance(text, str) and text:
            name = names.of_text(text)
        elif isinstance(text_id, int):
            name = names.of_id(text_id)
        process = task >> 24
        domain = _int(domain)
        number = domains.get((process, domain))
        if number is None:
            number = names.of_text(f"domain {domain}") if domain else 0
            domains[process, domain] = number
        values = (
            start,
            end if isinstance(end, int) else ABSENT,
            kind,
            categories.get((process, domain, _int(category)), 0),
            color if isinstance(color, int) else ABSENT,
            name,
            task,
            number,
            end_task if isinstance(end_task, int) else task,
            _int(category),
            *_payload(row[10:]),
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return _Rows(*(np.array(column, np.int64) for column in columns))


def _payload(values: tuple[object, ...]) -> tuple[int, int]:
    """Type and bits of the payload, from the columns of _PAYLOADS."""
    for kind, value in zip(_PAYLOADS.values(), values, strict=True):
        if isinstance(value, int | float):
            packed = struct.pack("<q" if isinstance(value, int) else "<d", value)
            return kind, struct.unpack("<q", packed)[0]
    return NO_PAYLOAD, 0


def _definitions(
    database: Database, names: Names
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int, int], int]]:
    """Names of domains and of categories, by process and id."""
    domains: dict[tuple[int, int], int] = {}
    categories: dict[tuple[int, int, int], int] = {}
    where = f'WHERE "eventType" IN ({CATEGORY}, {DOMAIN_CREATE})'
    if not {"eventType", "globalTid"} <= database.columns("NVTX_EVENTS"):
        return domains, categories
    for row in database.rows("NVTX_EVENTS", *_COLUMNS, where=where):
        _, _, event_type, category, _, text, text_id, task, domain, _ = row
        process, domain = _int(task) >> 24, _int(domain)
        number = (
            names.of_text(sanitize(text, 256))
            if isinstance(text, str)
            else names.of_id(_int(text_id))
        )
        if event_type == DOMAIN_CREATE and domain:
            domains[process, domain] = number
        elif event_type == CATEGORY:
            categories[process, domain, _int(category)] = number
    return domains, categories


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
