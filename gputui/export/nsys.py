"""A run as SQLite in nsys's export schema, so that what was written for nsys reads it.

The columns are those of `nsys export --type sqlite`, schema 3.28; those that were not captured
are NULL, or 0 where nsys has NOT NULL. Times are relative to the session's
start, as in nsys. Calls keep the names that `nsys stats` prints.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gputui import __version__
from gputui.export.whole import whole
from gputui.naming import short_name
from gputui.session import Run, Session
from gputui.sources.capture.names import COPY_KINDS, MEMORY_KINDS
from gputui.sources.capture.numbering import MAX_SHAPES
from gputui.sources.trace import TraceKind, TraceReader
from gputui.sources.trace.layout import Int64s, Slots

SCHEMA = "3.28.1"

_OPERATION = "start end deviceId contextId greenContextId streamId correlationId globalPid"
TABLES = {
    "StringIds": "id value:TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": "vmId id name:TEXT busLocation:TEXT totalMemory memoryBandwidth smCount "
    "uuid:TEXT cuDevice computeMajor computeMinor",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT name:TEXT nameEnum value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT value:TEXT",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId priority globalTid",
    "ENUM_NSYS_EVENT_TYPE": "id name:TEXT label:TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id name:TEXT label:TEXT",
    "ENUM_CUDA_MEM_KIND": "id name:TEXT label:TEXT",
    "NVTX_EVENTS": "start end eventType rangeId category color text:TEXT globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value "
    "floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_OPERATION} demangledName shortName mangledName launchType "
    "cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
    "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId "
    "clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_OPERATION} bytes copyKind deprecatedSrcId srcKind dstKind "
    "srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress "
    "copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OPERATION} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_OPERATION} graphId graphExecId",
}
"""Columns by table, INTEGER where nothing else is said."""

_MACHINE = 1 << 48
_PUSH_POP, _START_END, _DOMAIN, _MARK = 59, 60, 75, 34
_MEMORY_KINDS = np.array([7, 0, 1, 2, 3, 4, 5, 6])
"""CUpti_ActivityMemoryKind → ENUM_CUDA_MEM_KIND."""

_SHAPE = (
    "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory "
    "dynamicSharedMemory"
)
_KERNEL_ZEROS = (
    "launchType", "cacheConfig", "localMemoryPerThread", "localMemoryTotal", "gridId",
)  # fmt: skip
"""Columns that nsys has NOT NULL and that were not captured."""


def write_nsys(path: Path, session: Session, run: Run, trace: TraceReader) -> int:
    """Write the SQLite file, whole or not at all; how many records went in. Raises
    ExportError."""
    with whole(path) as place:
        try:
            with contextlib.closing(sqlite3.connect(place)) as connection:
                return _Export(connection, session, run, trace).write()
        except sqlite3.Error as error:
            raise OSError(None, str(error)) from None


class _Export:
    def __init__(
        self, connection: sqlite3.Connection, session: Session, run: Run, trace: TraceReader
    ) -> None:
        self._connection = connection
        self._session = session
        self._run = run
        self._trace = trace
        self._base_ns = session.header.time_ns if session.header else 0
        self._strings: dict[str, int] = {}
        self._domains: dict[tuple[int, str], int] = {}
        self._pids = {
            number: process.attached.pid & 0xFFFFFF for number, process in run.processes.items()
        }
        most = max([0, *session.kernel_names])
        self._kernels = np.zeros((most + 1, 3), np.int64)
        for number, kernel in session.kernel_names.items():
            if number < 1 << 24:
                names = (kernel.name, short_name(kernel.name), kernel.mangled)
                self._kernels[number] = [self._string(name) for name in names]
        self._shapes = _shape_columns(session)
        self._calls = np.zeros(max(trace.call_names) + 1, np.int64)
        for number, name in trace.call_names.items():
            self._calls[number] = self._string(name)
        self._is_driver = np.array(
            [not trace.call_names.get(i, "").startswith("cuda") for i in range(len(self._calls))]
        )

    def write(self) -> int:
        run = self._connection.execute
        # The file is not there until it is whole, so nothing needs to be undone.
        run("PRAGMA journal_mode = OFF")
        run("PRAGMA synchronous = OFF")
        for table, columns in TABLES.items():
            run(f"CREATE TABLE {table} ({', '.join(map(_column, columns.split()))})")
        count = 0
        # A session may have had other runs before this one.
        ours = np.array(sorted(self._run.processes), np.uint32)
        for portion in self._trace.portions():
            part = portion[np.isin(portion["process"], ours)]
            count += len(part)
            self._portion(part)
        self._facts()
        self._connection.executemany(
            "INSERT INTO StringIds (id, value) VALUES (?, ?)",
            ((number, text) for text, number in self._strings.items()),
        )
        self._connection.commit()
        return count

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _insert(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
        names = columns.split()
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(map(_quoted, names))}) "
            f"VALUES ({', '.join('?' * len(names))})",
            rows,
        )

    # --- records

    def _portion(self, records: Slots) -> None:
        kinds = records["kind"]
        for kind, write in (
            (TraceKind.RANGE, self._range_rows),
            (TraceKind.CALL, self._call_rows),
            (TraceKind.KERNEL, self._kernel_rows),
            (TraceKind.COPY, self._copy_rows),
            (TraceKind.SET, self._set_rows),
            (TraceKind.GRAPH, self._graph_rows),
        ):
            part = records[kinds == kind]
            if len(part):
                write(part)

    def _pid_of(self, records: Slots) -> Int64s:
        most = int(records["process"].max())
        table = np.zeros(min(most, 1 << 20) + 1, np.int64)
        for number, pid in self._pids.items():
            if number < len(table):
                table[number] = pid
        places = np.minimum(records["process"], len(table) - 1)
        pids: Int64s = table[places]
        return pids

    def _times(self, records: Slots) -> tuple[list[int], list[int]]:
        starts = records["start"] - self._base_ns
        return starts.tolist(), (records["end"] - self._base_ns).tolist()

    def _range_rows(self, records: Slots) -> None:
        starts, ends = self._times(records)
        columns = zip(
            starts,
            ends,
            records["range"].tolist(),
            records["thread"].tolist(),
            records["sub"].tolist(),
            strict=True,
        )
        rows = (self._range_row(*row) for row in columns)
        self._insert(
            "NVTX_EVENTS",
            "start end eventType color category textId globalTid domainId endGlobalTid",
            (row for row in rows if row is not None),
        )

    def _range_row(
        self, start: int, end: int, number: int, end_thread: int, unended: int
    ) -> tuple[Any, ...] | None:
        node = self._run.ranges.get(number)
        if node is None:
            return None
        known = node.definition
        pid = self._pids.get(known.process, 0)
        return (
            start,
            None if unended else end,
            _PUSH_POP if known.style == "PushPop" else _START_END,
            known.color,
            None,
            self._string(known.name),
            _MACHINE | pid << 24 | known.thread & 0xFFFFFF,
            self._domain(known.process, known.domain),
            _MACHINE | pid << 24 | end_thread & 0xFFFFFF if end_thread else None,
        )

    def _domain(self, process: int, name: str) -> int:
        if not name:
            return 0
        return self._domains.setdefault((process, name), len(self._domains) + 1)

    def _call_rows(self, records: Slots) -> None:
        names = np.minimum(records["name"], len(self._calls) - 1)
        task = _MACHINE | self._pid_of(records) << 24 | records["thread"] & 0xFFFFFF
        columns = (
            *self._times(records),
            self._is_driver[names].astype(np.int64).tolist(),
            task.tolist(),
            records["correlation"].tolist(),
            self._calls[names].tolist(),
        )
        self._insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "start end eventClass globalTid correlationId nameId returnValue",
            ((*row, 0) for row in zip(*columns, strict=True)),
        )

    def _operation(self, records: Slots) -> tuple[list[int], ...]:
        process = _MACHINE | self._pid_of(records) << 24
        return (
            *self._times(records),
            records["device"].tolist(),
            records["context"].tolist(),
            records["stream"].tolist(),
            records["correlation"].tolist(),
            process.tolist(),
        )

    def _kernel_rows(self, records: Slots) -> None:
        names = self._kernels[np.minimum(records["name"], len(self._kernels) - 1)]
        shapes = self._shapes[
            np.minimum(records["bytes"], np.uint64(len(self._shapes) - 1)).astype(np.int64)
        ]
        columns = (*self._operation(records), *names.T.tolist(), *shapes.T.tolist())
        zeros = (0,) * len(_KERNEL_ZEROS)
        self._insert(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            f"{_OPERATIONS} demangledName shortName mangledName {_SHAPE} {' '.join(_KERNEL_ZEROS)}",
            ((*row, *zeros) for row in zip(*columns, strict=True)),
        )

    def _copy_rows(self, records: Slots) -> None:
        columns = (
            *self._operation(records),
            records["bytes"].astype(np.int64).tolist(),
            records["sub"].tolist(),
            _MEMORY_KINDS[records["source_kind"] & 7].tolist(),
            _MEMORY_KINDS[records["destination_kind"] & 7].tolist(),
        )
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            f"{_OPERATIONS} bytes copyKind srcKind dstKind copyCount",
            ((*row, 1) for row in zip(*columns, strict=True)),
        )

    def _set_rows(self, records: Slots) -> None:
        columns = (
            *self._operation(records),
            records["bytes"].astype(np.int64).tolist(),
            _MEMORY_KINDS[records["destination_kind"] & 7].tolist(),
        )
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            f"{_OPERATIONS} bytes memKind value",
            ((*row, 0) for row in zip(*columns, strict=True)),
        )

    def _graph_rows(self, records: Slots) -> None:
        columns = (*self._operation(records), records["graph"].tolist())
        self._insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            f"{_OPERATIONS} graphId",
            zip(*columns, strict=True),
        )

    # --- facts

    def _facts(self) -> None:
        started, header = self._run.started, self._session.header
        self._insert("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", [(self._base_ns,)])
        self._insert("TARGET_INFO_GPU", "vmId id name busLocation totalMemory memoryBandwidth "
                     "smCount uuid cuDevice computeMajor computeMinor", self._gpus())  # fmt: skip
        facts = {
            "Hostname": header.host.hostname if header else None,
            "OsDescription": header.host.system if header else None,
            "CpuCores": str(header.host.cpu_count) if header else None,
            "CpuDescription": header.host.cpu_model if header else None,
            "NvDriverVersion": header.driver_version if header else None,
        }
        known = [(_MACHINE, name, value) for name, value in facts.items() if value]
        self._insert("TARGET_INFO_SYSTEM_ENV", "globalVid name value", known)
        words = list(started.arguments) or [started.name]
        capture = [("PROCESS_0:COMMAND", words[0])]
        capture += [(f"PROCESS_0:ARGUMENT_{i}", word) for i, word in enumerate(words[1:])]
        self._insert("META_DATA_CAPTURE", "name value", capture)
        self._insert("META_DATA_EXPORT", "name value", [
            ("EXPORT_PRODUCT_NAME", "gputui"), ("EXPORT_PRODUCT_VERSION", __version__),
            ("EXPORT_SCHEMA_VERSION", SCHEMA),
            ("GPUTUI_DROPPED_RECORDS", str(self._trace.dropped)),
        ])  # fmt: skip
        self._insert("PROCESSES", "globalPid pid name", (
            (_MACHINE | self._pids[number] << 24, process.attached.pid, process.attached.command)
            for number, process in self._run.processes.items()
        ))  # fmt: skip
        self._insert("ThreadNames", "nameId priority globalTid", (
            (self._string(named.name), 20,
             _MACHINE | self._pids[number] << 24 | named.thread & 0xFFFFFF)
            for number, process in self._run.processes.items()
            for named in process.threads.values()
        ))  # fmt: skip
        self._insert("NVTX_EVENTS", "start eventType text globalTid domainId", (
            (0, _DOMAIN, name, _MACHINE | (pid := self._pids.get(process, 0)) << 24 | pid, number)
            for (process, name), number in self._domains.items()
        ))  # fmt: skip
        self._insert("NVTX_EVENTS", "start eventType textId globalTid domainId", (
            (mark.time_ns - self._base_ns, _MARK, self._string(mark.name),
             _MACHINE | self._pids.get(mark.process, 0) << 24 | mark.thread & 0xFFFFFF,
             self._domain(mark.process, mark.domain))
            for mark in self._run.marks
        ))  # fmt: skip
        self._insert("ENUM_NSYS_EVENT_TYPE", "id name label", [
            (_MARK, "NvtxMark", "NvtxMark"), (_PUSH_POP, "NvtxPushPopRange", "NvtxPushPopRange"),
            (_START_END, "NvtxStartEndRange", "NvtxStartEndRange"),
            (_DOMAIN, "NvtxDomainCreate", "NvtxDomainCreate"),
        ])  # fmt: skip
        copies = {0: "Unknown", **COPY_KINDS}
        self._insert("ENUM_CUDA_MEMCPY_OPER", "id name label",
                     ((number, name, name) for number, name in copies.items()))  # fmt: skip
        kinds = {0: "unknown", **MEMORY_KINDS}
        self._insert("ENUM_CUDA_MEM_KIND", "id name label", (
            (int(_MEMORY_KINDS[number]), name, name.title()) for number, name in kinds.items()
        ))  # fmt: skip

    def _gpus(self) -> Iterator[tuple[Any, ...]]:
        for index, gpu in sorted(self._session.gpus.items()):
            facts = gpu.facts
            major, _, minor = (facts.compute_capability or "").partition(".")
            bandwidth = facts.peak_memory_bandwidth_bytes_per_s
            yield (
                _MACHINE, index, facts.name, facts.pci_bus_id, facts.memory_total_bytes,
                None if bandwidth is None else int(bandwidth), facts.sm_count,
                facts.uuid.removeprefix("GPU-"), index, major or None, minor or None,
            )  # fmt: skip


_OPERATIONS = _OPERATION.replace(" greenContextId", "")


def _shape_columns(session: Session) -> Int64s:
    """The columns of _SHAPE by number of launch shape; zeros where there is none."""
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


def _quoted(name: str) -> str:
    return f'"{name}"'


def _column(word: str) -> str:
    name, _, kind = word.partition(":")
    return f'"{name}" {kind or "INTEGER"}{" PRIMARY KEY" if name == "id" and not kind else ""}'
