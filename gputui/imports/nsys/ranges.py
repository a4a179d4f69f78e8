"""The ranges and marks of NVTX_EVENTS."""

from __future__ import annotations

import struct
from array import array

import numpy as np

from gputui.attribute.records import NO_STRING
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.names import Names
from gputui.imports.ranges import ABSENT, RangeRows
from gputui.model.payloads import NO_PAYLOAD, PayloadType
from gputui.ring.layout import RecordKind

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


def read_ranges(database: Database, names: Names) -> RangeRows:
    """The rows that are ranges or marks, with the names they refer to."""
    domains, categories = _definitions(database, names)
    columns = [array("q") for _ in range(12)]
    if "eventType" not in database.columns("NVTX_EVENTS"):
        return RangeRows(*(np.array(column, np.int64) for column in columns))
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
    return RangeRows(*(np.array(column, np.int64) for column in columns))


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
