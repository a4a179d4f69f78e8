"""Ranges, marks, domains, categories and names of threads as rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputui.model.events import MarkDefined, RangeDefined
from gputui.model.naming import NO_NAME
from gputui.model.payloads import NAMES, NO_PAYLOAD, PayloadType, payload_number
from gputui.render.nsys.rows import Rows
from gputui.render.nsys.schema import CATEGORY, DOMAIN, MARK, PUSH_POP, RESOURCES, START_END, THREAD
from gputui.state import Run
from gputui.store.trace import TraceKind
from gputui.store.trace.layout import Slots

_PAYLOADS = {kind: f"{name}Value" for kind, name in NAMES.items() if kind != PayloadType.BYTES}
"""Types of payloads, and the column of each."""

_DESCRIPTION = "textId domainId color category"
_EVENT = f"start end eventType globalTid endGlobalTid {_DESCRIPTION} {' '.join(_PAYLOADS.values())}"
_NO_PAYLOADS = (None,) * len(_PAYLOADS)
_SIGN = 1 << 63

_Row = tuple[Any, ...]


class NvtxRows:
    """The program's NVTX records."""

    def __init__(self, rows: Rows, run: Run) -> None:
        self._rows = rows
        self._run = run
        self._domains: dict[tuple[int, str], int] = {}
        self._categories: dict[tuple[int, str, int], str] = {}

    def write(self, records: Slots) -> None:
        """Write the ranges and marks in a portion of the trace."""
        part = records[np.isin(records["kind"], (TraceKind.RANGE, TraceKind.MARK))]
        if not len(part):
            return
        fields = ("kind", "range", "name", "thread", "sub", "source_kind", "bytes")
        columns = zip(
            *self._rows.times(part), *(part[name].tolist() for name in fields), strict=True
        )
        rows = (self._event(*row) for row in columns)
        self._rows.insert("NVTX_EVENTS", _EVENT, (row for row in rows if row is not None))

    def _event(
        self, start: int, end: int, kind: int, number: int, mark: int, thread: int, unended: int,
        payload_type: int, payload: int,
    ) -> _Row | None:  # fmt: skip
        payloads = _payload_columns(payload_type, payload)
        if kind == TraceKind.MARK:
            defined = self._run.mark_definitions.get(mark)
            if defined is None:
                return None
            task = self._rows.task(defined.process, thread)
            return (start, None, MARK, task, None, *self._description(defined), *payloads)
        node = self._run.ranges.get(number)
        if node is None:
            return None
        known = node.definition
        return (
            start,
            None if unended else end,
            PUSH_POP if known.style == "PushPop" else START_END,
            self._rows.task(known.process, known.thread),
            self._rows.task(known.process, thread) if thread else None,
            *self._description(known),
            *payloads,
        )

    def _description(self, known: RangeDefined | MarkDefined) -> _Row:
        domain = self._domain(known.process, known.domain)
        if known.category_id is not None and known.category is not None:
            key = known.process, known.domain, known.category_id
            self._categories.setdefault(key, known.category)
        return self._text(known.name), domain, known.color, known.category_id

    def _text(self, name: str) -> int | None:
        return None if name == NO_NAME else self._rows.string(name)

    def _domain(self, process: int, name: str) -> int:
        if not name:
            return 0
        return self._domains.setdefault((process, name), len(self._domains) + 1)

    def write_kept_marks(self) -> None:
        """Write the newest marks, the only ones left if the trace has none."""
        self._rows.insert("NVTX_EVENTS", "start eventType textId globalTid domainId", (
            (mark.time_ns - self._rows.base_ns, MARK, self._text(mark.name),
             self._rows.task(mark.process, mark.thread), self._domain(mark.process, mark.domain))
            for mark in self._run.marks
        ))  # fmt: skip

    def write_names(self) -> None:
        """Write the domains and categories of what was written, and all names of threads and of
        CUDA's resources. (No nsys export with resource names was available: their number is stored
        as a payload.)
        """
        processes = self._run.processes
        main = {
            number: self._rows.task(number, process.attached.pid)
            for number, process in processes.items()
        }
        self._rows.insert("NVTX_EVENTS", "start eventType text globalTid domainId", (
            (0, DOMAIN, name, main.get(process, 0), number)
            for (process, name), number in self._domains.items()
        ))  # fmt: skip
        self._rows.insert("NVTX_EVENTS", "start eventType text globalTid domainId category", (
            (0, CATEGORY, name, main.get(process, 0), self._domain(process, domain), number)
            for (process, domain, number), name in self._categories.items()
        ))  # fmt: skip
        self._rows.insert("NVTX_EVENTS", "start eventType text globalTid uint32Value", (
            (0, RESOURCES[named.kind], named.name, main[number], named.number)
            for number, process in processes.items()
            for named in process.resources.values()
        ))  # fmt: skip
        threads = [
            (self._rows.task(number, named.thread), named)
            for number, process in processes.items()
            for named in process.threads.values()
        ]
        self._rows.insert("NVTX_EVENTS", "start eventType text globalTid", (
            (0, THREAD, named.name, task) for task, named in threads if named.source == "nvtx"
        ))  # fmt: skip
        self._rows.insert("ThreadNames", "nameId priority globalTid", (
            (self._rows.string(named.name), 20, task) for task, named in threads
        ))  # fmt: skip


def _payload_columns(kind: int, bits: int) -> _Row:
    """The payload in the column of its type. SQLite's integers have a sign."""
    if kind == NO_PAYLOAD:
        return _NO_PAYLOADS
    value = payload_number(kind, bits)
    if isinstance(value, int) and value >= _SIGN:
        value -= 2 * _SIGN
    return tuple(value if kind == column else None for column in _PAYLOADS)
