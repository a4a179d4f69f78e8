"""One table of sums of an nsys report, from the columns of its own rows: what it does not show, to
which range a kernel belongs or which call launched it, is not found out.

For `report`, where a caller wants one table: its events come to the same sums as those of all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, durations_ns
from gputui.attribute.distributions import ValueSums
from gputui.attribute.numbering import Numbering
from gputui.attribute.records import Strings
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.rows import (
    CUDA_TABLES,
    IS_EVENT,
    IS_RANGE_OR_MARK,
    MARK,
    PUSH_POP,
    WHOLE,
    Names,
    RangeNames,
    TextNumbers,
    integers,
    or_default,
    text_bytes,
)
from gputui.imports.reading import Clock, number_distinct
from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    KernelDefined,
    KernelDelta,
    MemoryOperationDelta,
    ProcessAttached,
    ProcessDetached,
    RangeDefined,
    RangeDelta,
)
from gputui.model.naming import COPY_KINDS, MEMSET, api_name, copy_name, demangle

RUNTIME, KERNELS, COPIES, SETS, GRAPHS = CUDA_TABLES

MOST_NAMES = 4096
"""Distinct names up to which a table is made this way: all rows together keep no more of some."""

# ENUM_NSYS_EVENT_CLASS of calls of the driver; those of the runtime are 0.
_DRIVER = 1

_MOST_BYTES = 1 << 62


class TableSums:
    """The events of one table: definitions, one delta."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._names = Names(database)
        self._end_ns = clock.epoch_ns(clock.last)

    def events(self, table: str) -> list[AnyEvent] | None:
        """The events between the run's start and its end; None for a table, or of a report, that
        needs all rows. Raises JournalError."""
        report, _, style = table.partition(":")
        read = _READ.get(report)
        if read is None or style not in _STYLES.get(report, {""}):
            return None
        traced_cuda = any(self._database.columns(name) for name in CUDA_TABLES)
        events = read(self)
        if events is None:
            return None
        attached = ProcessAttached(
            time_ns=self._clock.epoch_ns(self._clock.first),
            run=1,
            process=1,
            pid=0,
            parent_pid=0,
            command="",
            cuda_status="tracing" if traced_cuda else "the report holds no CUDA activity",
        )
        return [
            attached, *events, ProcessDetached(time_ns=self._end_ns, process=1, clean=True)
        ]  # fmt: skip

    def _durations_ns(self, rows: Int64s) -> Int64s:
        """How long each row lasted, of start and end in the first two columns."""
        starts, ends = np.clip(rows[:, :2].T + self._clock.base_ns, 0, LATEST_NS)
        return durations_ns(starts, ends)

    def _kernels(self) -> list[AnyEvent] | None:
        if self._database.has_rows(GRAPHS, "1"):
            return None  # whole graphs count among the kernels
        sums = ValueSums()
        mangled: dict[int, int] = {}

        def mangle(name: int, symbol: int) -> int:
            if symbol:
                mangled.setdefault(name, symbol)
            return name

        columns = ("start", "end", "demangledName", "mangledName")
        for rows in self._database.arrays(KERNELS, columns):
            keys = number_distinct((rows[:, 2], rows[:, 3]), mangle)
            sums.add(keys, self._durations_ns(rows))
            if sums.counted_keys > MOST_NAMES:
                return None
        by_name = [*sums.take()]
        if len(by_name) > MOST_NAMES:
            return None
        numbering = Numbering()
        events: list[AnyEvent] = []
        deltas = []
        for key, time in by_name:
            text = self._text(key)
            number, text, is_new = numbering.kernel(text)
            if is_new:
                symbol = sanitize(self._text(mangled[key])) if key in mangled else text
                events.append(
                    KernelDefined(
                        time_ns=self._end_ns, kernel=number, name=demangle(text), mangled=symbol
                    )
                )
            deltas.append(KernelDelta(process=1, range=0, kernel=number, device=0, time=time))
        delta = CaptureDelta(time_ns=self._end_ns, process=1, kernels=tuple(deltas))
        return [*events, delta]

    def _calls(self) -> list[AnyEvent] | None:
        sums = ValueSums()
        runtime_ids: list[Int64s] = []
        driver: list[Int64s] = []
        has_driver = self._database.has_rows(RUNTIME, f'"eventClass" = {_DRIVER}')
        columns = ("start", "end", "nameId", *(("eventClass", "correlationId", "globalTid")
                   if has_driver else ()))  # fmt: skip
        for rows in self._database.arrays(RUNTIME, columns):
            names, durations = rows[:, 2], self._durations_ns(rows)
            if has_driver:
                ids = (rows[:, 5] >> 24 << 32) | (rows[:, 4] & 0xFFFF_FFFF)
                is_driver = rows[:, 3] == _DRIVER
                runtime_ids.append(ids[~is_driver])
                driver.append(np.array((ids, names, durations))[:, is_driver])
                names, durations = names[~is_driver], durations[~is_driver]
            if len(names):
                sums.add(names.copy(), durations)
            if sums.counted_keys > MOST_NAMES:
                return None
        if has_driver:
            # A driver call that a runtime call made has its id, and is not listed.
            ids, names, durations = np.concatenate(driver, axis=1)
            alone = ~np.isin(ids, np.concatenate(runtime_ids))
            sums.add(names[alone], durations[alone])
        deltas = tuple(
            ApiDelta(process=1, range=0, name=api_name(self._text(key)), time=time)
            for key, time in sums.take()
        )
        if len(deltas) > MOST_NAMES:
            return None
        return [CaptureDelta(time_ns=self._end_ns, process=1, api=deltas)]

    def _memory(self) -> list[AnyEvent] | None:
        times, sizes = ValueSums(), ValueSums()
        unknown, memset = 0, -1
        for table, kind in ((COPIES, "copyKind"), (SETS, "")):
            columns = ("start", "end", "bytes", *((kind,) if kind else ()))
            for rows in self._database.arrays(table, columns):
                keys = np.full(len(rows), memset)
                if kind:
                    kinds = np.clip(rows[:, 3], 0, 255)
                    keys = np.where(kinds <= max(COPY_KINDS), kinds, unknown)
                times.add(keys, self._durations_ns(rows))
                sizes.add(keys, np.clip(rows[:, 2], 0, _MOST_BYTES))
        deltas = tuple(
            MemoryOperationDelta(
                process=1,
                range=0,
                operation=MEMSET if key == memset else copy_name(key),
                device=0,
                time=time,
                size=size,
            )
            for (key, time), (_, size) in zip(times.take(), sizes.take(), strict=True)
        )
        return [CaptureDelta(time_ns=self._end_ns, process=1, memory_operations=deltas)]

    def _ranges(self) -> list[AnyEvent] | None:
        present = self._database.columns("NVTX_EVENTS")
        if not {"eventType", "start", "end", "globalTid"} <= present:
            return None
        if self._database.has_rows(
            "NVTX_EVENTS", f'{IS_EVENT} AND "eventType" <> {MARK} AND typeof("end") <> \'integer\''
        ):
            return None  # one that never ended lasts as long as its process
        naming = RangeNames(self._database, self._names)
        texts = TextNumbers(self._names, self._database.encoding)
        sums = ValueSums()
        keys: dict[tuple[int, int, int], int] = {}

        def number(style: int, domain: int, name: int) -> int:
            return keys.setdefault((style, domain, name), len(keys))

        whole = ("start", "end", "eventType", "globalTid", "domainId", "textId")
        sql = (
            f"SELECT {', '.join(or_default(name, present) for name in whole)}, "
            f"{text_bytes(present)} FROM "
            f'"NVTX_EVENTS" WHERE {IS_RANGE_OR_MARK} AND "eventType" <> {MARK}'
        )
        for block in self._database.blocks(sql, at_once=1 << 14):
            *columns, names = zip(*block, strict=True)
            start, end, style, task, domain, text_id = (
                integers(column, WHOLE[name]) for name, column in zip(whole, columns, strict=True)
            )
            name = naming.names(
                np.fromiter(map(texts.__getitem__, names), np.int64, len(block)), text_id
            )
            ranges = number_distinct((style, naming.domains(task >> 24, domain), name), number)
            sums.add(ranges, self._durations_ns(np.column_stack((start, end))))
            if len(keys) > MOST_NAMES:
                return None
        strings = Strings()
        strings.add(self._names.texts)
        events: list[AnyEvent] = [
            RangeDefined(
                time_ns=self._end_ns,
                range=place + 1,
                process=1,
                thread=0,
                parent=0,
                domain=strings.domain(domain_name),
                name=strings.label(range_name),
                style="PushPop" if kind == PUSH_POP else "StartEnd",
            )
            for (kind, domain_name, range_name), place in keys.items()
        ]
        ranges_of = tuple(RangeDelta(range=key + 1, cpu=time) for key, time in sums.take())
        return [*events, CaptureDelta(time_ns=self._end_ns, process=1, ranges=ranges_of)]

    def _text(self, identifier: int) -> str:
        return self._names.texts.get(self._names.of_id(identifier), "")


_READ: dict[str, Callable[[TableSums], list[AnyEvent] | None]] = {
    "cuda_gpu_kern_sum": TableSums._kernels,
    "cuda_api_sum": TableSums._calls,
    "cuda_gpu_mem_time_sum": TableSums._memory,
    "cuda_gpu_mem_size_sum": TableSums._memory,
    "nvtx_sum": TableSums._ranges,
    "nvtx_pushpop_sum": TableSums._ranges,
    "nvtx_startend_sum": TableSums._ranges,
}

_STYLES = {"cuda_gpu_kern_sum": {"", "base", "mangled"}}
