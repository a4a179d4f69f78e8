"""The rows of an nsys report, in order of time, as records of the capture library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.attribute.numbering import Numbering
from gputui.attribute.traced_process import TracedProcess
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.ranges import Nvtx
from gputui.imports.nsys.shapes import LaunchShapes
from gputui.model.events import AnyEvent, KernelDefined, ProcessAttached, ProcessDetached
from gputui.ring.layout import SLOT, RecordKind

if TYPE_CHECKING:
    from gputui.imports.nsys.report import NsysReport

MAX_PROCESSES = 1024

MOST = 100_000
"""Thread names read."""

_CALLS = ("start", "end", "correlationId", "globalTid", "nameId", "eventClass", "returnValue")
_KERNELS = ("start", "end", "correlationId", "globalPid", "demangledName", "deviceId", "streamId",
            "contextId", "mangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
            "registersPerThread", "staticSharedMemory", "dynamicSharedMemory")  # fmt: skip
_SHAPE = slice(9, 18)
_COPIES = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
           "contextId", "copyKind", "srcKind", "dstKind")  # fmt: skip
_SETS = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
         "contextId", "memKind")  # fmt: skip
_GRAPHS = ("start", "end", "correlationId", "globalPid", "graphId", "deviceId", "streamId",
           "contextId")  # fmt: skip
CUDA_TABLES = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
"""Where nsys keeps CUPTI's records."""

_MEMORY_KINDS = np.array([1, 2, 3, 4, 5, 6, 7, 0])
"""ENUM_CUDA_MEM_KIND → CUpti_ActivityMemoryKind."""

_U32 = 0xFFFF_FFFF


@dataclass(slots=True)
class _Process:
    """A process of the report, and the strings and launch shapes already defined for it."""

    traced: TracedProcess
    strings: set[int] = field(default_factory=set)
    shapes: set[int] = field(default_factory=lambda: {0})


class Reading:
    """One pass over the rows in order of time."""

    def __init__(self, report: NsysReport) -> None:
        self._report = report
        self._names = report.names
        database = report.database
        self._nvtx = Nvtx(database, report.names, report.at(0))
        self._calls = database.stream("CUPTI_ACTIVITY_KIND_RUNTIME", _CALLS)
        self._kernels = database.stream("CUPTI_ACTIVITY_KIND_KERNEL", _KERNELS)
        self._copies = database.stream("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIES)
        self._sets = database.stream("CUPTI_ACTIVITY_KIND_MEMSET", _SETS)
        self._graphs = database.stream("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPHS)
        self._numbering = Numbering()
        self._processes: dict[int, _Process] = {}
        self._mangled: dict[str, str] = {}
        self._shapes = LaunchShapes()
        self._commands = {
            key >> 24: sanitize(name, 500)
            for key, name in database.rows("PROCESSES", "globalPid", "name")
            if isinstance(key, int) and isinstance(name, str)
        }
        self._threads = {
            task: self._names.texts[self._names.of_id(name)]
            for name, task in islice(database.rows("ThreadNames", "nameId", "globalTid"), MOST)
            if isinstance(name, int) and isinstance(task, int)
        }
        self._traced_cuda = any(database.columns(table) for table in CUDA_TABLES)

    def events(self) -> Iterator[AnyEvent]:
        """The events between the run's start and its end. Raises JournalError."""
        first, last = self._report.span
        tick = first
        while tick < last:
            tick = min(last, tick + self._report.tick_ns)
            yield from self._until(tick)
            if tick == last:
                break  # what ends with the report and what it leaves open end together
            for process in self._processes.values():
                yield from self._mended(process.traced.collect(self._report.at(tick)))
        end_ns = self._report.at(last)
        for process in self._processes.values():
            yield from self._mended(
                process.traced.collect(end_ns, ended=True, open_until_ns=self._nvtx.last_ns)
            )
            yield ProcessDetached(time_ns=end_ns, process=process.traced.number, clean=True)

    def _until(self, tick: int) -> Iterator[AnyEvent]:
        streams = (self._calls, self._kernels, self._copies, self._sets, self._graphs)
        while True:
            at_hand = [stream.horizon for stream in streams]
            until = min([tick, *(moment for moment in at_hand if moment is not None)])
            yield from self._feed(until)
            if until >= tick:
                return

    def _feed(self, until: int) -> Iterator[AnyEvent]:
        nvtx, tasks = self._nvtx.take(until)
        parts = [
            (nvtx, tasks >> 24),
            self._call_records(self._calls.take(until)),
            self._kernel_records(self._kernels.take(until)),
            self._memory_records(self._copies.take(until), RecordKind.MEMCPY),
            self._memory_records(self._sets.take(until), RecordKind.MEMSET),
            self._graph_records(self._graphs.take(until)),
        ]
        records = np.concatenate([part for part, _ in parts])
        owners = np.concatenate([owner for _, owner in parts])
        if not len(records):
            return
        # Ranges before the calls inside them, calls before what they launched: the parts are in
        # that order, and the sort is stable.
        order = np.argsort(records["start"], kind="stable")
        records, owners = records[order], owners[order]
        now_ns = self._report.at(until)
        for owner in np.unique(owners).tolist():
            process = self._processes.get(owner)
            if process is None:
                if len(self._processes) >= MAX_PROCESSES:
                    self._report.skipped += int(np.count_nonzero(owners == owner))
                    continue
                process, attached = self._attach(owner, now_ns)
                yield attached
            self._give(process, records[owners == owner], now_ns)

    def _give(self, process: _Process, records: Slots, now_ns: int) -> None:
        wanted = {
            number
            for column in ("name", "a", "b")
            for number in np.unique(records[column]).tolist()
        } - process.strings
        process.strings |= wanted
        is_kernel = records["kind"] == RecordKind.KERNEL
        shapes = set(np.unique(records["d"][is_kernel]).tolist()) - process.shapes
        process.shapes |= shapes
        texts = self._names.texts
        process.traced.feed(
            np.concatenate((self._shapes.records(sorted(shapes)), records)),
            {number: texts[number] for number in wanted if number in texts},
            now_ns,
        )

    def _attach(self, owner: int, now_ns: int) -> tuple[_Process, ProcessAttached]:
        pid = owner & 0xFFFFFF
        traced = TracedProcess(
            self._numbering.process(),
            pid,
            self._numbering,
            trace=self._report.trace,
            thread_name=lambda thread: self._threads.get(owner << 24 | thread),
            nested_ns=0,
        )
        process = _Process(traced)
        self._processes[owner] = process
        return process, ProcessAttached(
            time_ns=now_ns,
            run=1,
            process=traced.number,
            pid=pid,
            parent_pid=0,
            command=self._commands.get(owner, ""),
            cuda_status="tracing" if self._traced_cuda else "the report holds no CUDA activity",
        )

    def _mended(self, events: list[AnyEvent]) -> Iterator[AnyEvent]:
        """Kernels are identified by nsys's demangled names; the mangled ones are kept with them."""
        for event in events:
            if isinstance(event, KernelDefined) and event.mangled in self._mangled:
                event = msgspec.structs.replace(event, mangled=self._mangled[event.mangled])
            yield event

    # --- rows as records

    def _records(self, rows: Int64s, kind: RecordKind) -> Slots:
        records = np.zeros(len(rows), SLOT)
        records["kind"] = kind
        base_ns = self._report.at(0)
        records["start"] = np.clip(rows[:, 0] + base_ns, 0, LATEST_NS)
        records["end"] = np.clip(rows[:, 1] + base_ns, 0, LATEST_NS)
        records["correlation"] = rows[:, 2] & _U32
        return records

    def _call_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._records(rows, RecordKind.API)
        records["thread"] = rows[:, 3] & 0xFFFFFF
        records["name"] = self._names.of_ids(rows[:, 4])
        records["sub"] = rows[:, 5] == 1
        records["a"] = rows[:, 6] & _U32
        return records, rows[:, 3] >> 24

    def _operation_records(self, rows: Int64s, kind: RecordKind) -> Slots:
        records = self._records(rows, kind)
        records["a"] = np.clip(rows[:, 5], 0, 255)
        records["b"] = rows[:, 6] & _U32
        records["c"] = rows[:, 7] & _U32
        return records

    def _kernel_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, RecordKind.KERNEL)
        records["name"] = self._names.of_ids(rows[:, 4])
        records["d"] = self._shapes.of(records["name"], rows[:, _SHAPE])
        for demangled, mangled in np.unique(rows[:, (4, 8)], axis=0).tolist():
            texts = self._names.texts
            name = texts.get(self._names.of_id(demangled))
            raw = texts.get(self._names.of_id(mangled)) if mangled else None
            if name and raw:
                self._mangled.setdefault(name, sanitize(raw))
        return records, rows[:, 3] >> 24

    def _memory_records(self, rows: Int64s, kind: RecordKind) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, kind)
        records["value"] = np.maximum(rows[:, 4], 0)
        kinds = _MEMORY_KINDS[np.clip(rows[:, 8:], 0, 7)]
        if kind == RecordKind.MEMCPY:
            records["sub"] = np.clip(rows[:, 8], 0, 255)
            records["source_kind"] = kinds[:, 1]
            records["destination_kind"] = kinds[:, 2]
        else:
            records["destination_kind"] = kinds[:, 0]
        return records, rows[:, 3] >> 24

    def _graph_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, RecordKind.GRAPH)
        records["e"] = rows[:, 4] & _U32
        return records, rows[:, 3] >> 24
