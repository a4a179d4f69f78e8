"""The rows of an nsys report, in order of time, as records of the capture library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.names import Names
from gputui.imports.nsys.ranges import read_ranges
from gputui.imports.ranges import RangeRecords
from gputui.imports.reading import Clock, ProcessFacts, Reading
from gputui.imports.shapes import LaunchShapes
from gputui.model.events import AnyEvent, KernelDefined
from gputui.ring.layout import SLOT, RecordKind
from gputui.store.trace import TraceWriter

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


class NsysReading(Reading):
    """One pass over the rows in order of time."""

    def __init__(
        self, database: Database, clock: Clock, names: Names, trace: TraceWriter | None
    ) -> None:
        super().__init__(clock, names, trace, LaunchShapes())
        self._names = names
        self._nvtx = RangeRecords(read_ranges(database, names), clock.base_ns)
        self._calls = database.stream("CUPTI_ACTIVITY_KIND_RUNTIME", _CALLS)
        self._kernels = database.stream("CUPTI_ACTIVITY_KIND_KERNEL", _KERNELS)
        self._copies = database.stream("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIES)
        self._sets = database.stream("CUPTI_ACTIVITY_KIND_MEMSET", _SETS)
        self._graphs = database.stream("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPHS)
        self._mangled: dict[str, str] = {}
        self._commands = {
            key >> 24: sanitize(name, 500)
            for key, name in database.rows("PROCESSES", "globalPid", "name")
            if isinstance(key, int) and isinstance(name, str)
        }
        self._threads = {
            task: names.texts[names.of_id(name)]
            for name, task in islice(database.rows("ThreadNames", "nameId", "globalTid"), MOST)
            if isinstance(name, int) and isinstance(task, int)
        }
        self._traced_cuda = any(database.columns(table) for table in CUDA_TABLES)

    def _horizon(self, tick: int) -> int:
        streams = (self._calls, self._kernels, self._copies, self._sets, self._graphs)
        at_hand = [stream.horizon for stream in streams]
        return min([tick, *(moment for moment in at_hand if moment is not None)])

    def _take(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        nvtx, tasks = self._nvtx.take(until)
        return [
            (nvtx, tasks >> 24),
            self._call_records(self._calls.take(until)),
            self._kernel_records(self._kernels.take(until)),
            self._memory_records(self._copies.take(until), RecordKind.MEMCPY),
            self._memory_records(self._sets.take(until), RecordKind.MEMSET),
            self._graph_records(self._graphs.take(until)),
        ]

    def _last_range_ns(self) -> int:
        return self._nvtx.last_ns

    def _facts(self, owner: int) -> ProcessFacts:
        return ProcessFacts(
            owner & 0xFFFFFF,
            self._commands.get(owner, ""),
            "tracing" if self._traced_cuda else "the report holds no CUDA activity",
        )

    def _thread_name(self, owner: int, thread: int) -> str | None:
        return self._threads.get(owner << 24 | thread)

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
        base_ns = self._clock.base_ns
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
