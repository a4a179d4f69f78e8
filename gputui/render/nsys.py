"""A run as SQLite in nsys's export schema, for tools made for nsys. The columns are those of `nsys
export --type sqlite`, schema 3.28. A column that was not captured is NULL, or 0 if nsys has NOT
NULL. Times are relative to the session's start, as in nsys. Calls have the names that `nsys stats`
prints."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gputui.base import VERSION
from gputui.model.events import (
    MAX_SHAPES,
    NO_PAYLOAD,
    PAYLOAD_NAMES,
    MarkDefined,
    PayloadType,
    RangeDefined,
    payload_number,
)
from gputui.model.naming import COPY_KINDS, MEMORY_KINDS, NO_NAME, short_name
from gputui.render import atomic_write
from gputui.state import Run, Session
from gputui.store.trace import Int64s, Slots, TraceKind, TraceReader

SCHEMA = "3.28.1"

OPERATION = "start end deviceId contextId greenContextId streamId correlationId globalPid"
TABLES = {
    "StringIds": "id value:TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": "vmId id name:TEXT busLocation:TEXT totalMemory memoryBandwidth clockRate "
    "smCount uuid:TEXT chipName:TEXT cuDevice computeMajor computeMinor l2CacheSize",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
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
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{OPERATION} demangledName shortName mangledName launchType "
    "cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
    "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId "
    "clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{OPERATION} bytes copyKind deprecatedSrcId srcKind dstKind "
    "srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress "
    "copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{OPERATION} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{OPERATION} graphId graphExecId",
}
"""Columns by table, INTEGER unless stated otherwise."""

CATEGORY, MARK, THREAD, PUSH_POP, START_END, DOMAIN = 33, 34, 39, 59, 60, 75
RESOURCES = {"device": 97, "context": 98, "stream": 99}
EVENT_TYPES = {
    CATEGORY: "NvtxCategory",
    MARK: "NvtxMark",
    THREAD: "NvtxThread",
    PUSH_POP: "NvtxPushPopRange",
    START_END: "NvtxStartEndRange",
    DOMAIN: "NvtxDomainCreate",
    97: "NvtxNameCudaDevice",
    98: "NvtxNameCudaContext",
    99: "NvtxNameCudaStream",
}
"""ENUM_NSYS_EVENT_TYPE."""

MEMORY_KIND_NUMBERS = np.array([7, 0, 1, 2, 3, 4, 5, 6])
"""CUpti_ActivityMemoryKind → ENUM_CUDA_MEM_KIND."""


def create_statements() -> list[str]:
    """The statements that create the tables."""
    return [
        f"CREATE TABLE {table} ({', '.join(map(_column, columns.split()))})"
        for table, columns in TABLES.items()
    ]


def _column(word: str) -> str:
    name, _, kind = word.partition(":")
    return f'"{name}" {kind or "INTEGER"}{" PRIMARY KEY" if name == "id" and not kind else ""}'


# --- rows on their way into the file, and what they share: strings, times, ids


# nsys's 64-bit ids: hardware 8 bits | VM 8 | pid 24 | tid 24. Ours are of hardware 0, VM 1.
_MACHINE = 1 << 48
_24_BITS = 0xFFFFFF


class TableWriter:
    """Writes rows of any table. Texts become numbers of StringIds, which are written last."""

    def __init__(self, connection: sqlite3.Connection, session: Session, run: Run) -> None:
        self._connection = connection
        self._strings: dict[str, int] = {}
        self.base_ns = session.header.time_ns if session.header else 0
        self._pids = {
            number: process.attached.pid & _24_BITS for number, process in run.processes.items()
        }
        # The file does not exist until it is complete, so nothing needs to be undone.
        for statement in (
            "PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", *create_statements(),
        ):  # fmt: skip
            connection.execute(statement)

    def insert(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows with these columns; the others are NULL."""
        names = columns.split()
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(map(_quoted, names))}) "
            f"VALUES ({', '.join('?' * len(names))})",
            rows,
        )

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def times(self, records: Slots) -> tuple[list[int], list[int]]:
        """Starts and ends, since the session's start."""
        starts = records["start"] - self.base_ns
        return starts.tolist(), (records["end"] - self.base_ns).tolist()

    def process(self, number: int) -> int:
        """nsys's 64-bit id of a process; of the machine where it is unknown."""
        return _MACHINE | self._pids.get(number, 0) << 24

    def task(self, number: int, thread: int) -> int:
        """nsys's 64-bit id of a thread."""
        return self.process(number) | thread & _24_BITS

    def processes(self, records: Slots) -> Int64s:
        """The ids of the processes of records."""
        most = int(records["process"].max())
        table = np.full(min(most, 1 << 20) + 1, _MACHINE)
        for number in self._pids:
            if number < len(table):
                table[number] = self.process(number)
        processes: Int64s = table[np.minimum(records["process"], len(table) - 1)]
        return processes

    def tasks(self, records: Slots) -> Int64s:
        """The ids of the threads of records."""
        tasks: Int64s = self.processes(records) | records["thread"] & _24_BITS
        return tasks

    def finish(self) -> None:
        """Write the strings, and what was written before them is whole."""
        strings = ((number, text) for text, number in self._strings.items())
        self.insert("StringIds", "id value", strings)
        self._connection.commit()


def _quoted(name: str) -> str:
    return f'"{name}"'


# --- calls and GPU operations as rows


_OPERATIONS = OPERATION.replace(" greenContextId", "")
_SHAPE = (
    "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory "
    "dynamicSharedMemory"
)
# Columns that are NOT NULL in nsys and were not captured.
_KERNEL_ZEROS = (
    "launchType", "cacheConfig", "localMemoryPerThread", "localMemoryTotal", "gridId",
)  # fmt: skip


class CudaRows:
    """Writes CUPTI's records: calls, kernels, copies and memsets."""

    def __init__(self, writer: TableWriter, session: Session, trace: TraceReader) -> None:
        self._writer = writer
        most = max([0, *session.kernel_names])
        self._kernels = np.zeros((most + 1, 3), np.int64)
        for number, kernel in session.kernel_names.items():
            # A forged recording may number kernels as it likes, and this is an array.
            if number < 1 << 24:
                names = (kernel.name, short_name(kernel.name), kernel.mangled)
                self._kernels[number] = [writer.string(name) for name in names]
        self._shapes = _shape_columns(session)
        self._calls = np.zeros(max(trace.call_names) + 1, np.int64)
        for number, name in trace.call_names.items():
            self._calls[number] = writer.string(name)
        # nsys keeps calls of both in one table: eventClass says whose they are, and so does the
        # name.
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
            *self._writer.times(records),
            self._is_driver[names].astype(np.int64).tolist(),
            self._writer.tasks(records).tolist(),
            records["correlation"].tolist(),
            self._calls[names].tolist(),
        )
        self._writer.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "start end eventClass globalTid correlationId nameId returnValue",
            zip(*columns, records["bytes"].tolist(), strict=True),
        )

    def _operation(self, records: Slots) -> tuple[list[int], ...]:
        return (
            *self._writer.times(records),
            records["device"].tolist(),
            records["context"].tolist(),
            records["stream"].tolist(),
            records["correlation"].tolist(),
            self._writer.processes(records).tolist(),
        )

    def _kernel_rows(self, records: Slots) -> None:
        names = self._kernels[np.minimum(records["name"], len(self._kernels) - 1)]
        shapes = self._shapes[
            np.minimum(records["bytes"], np.uint64(len(self._shapes) - 1)).astype(np.int64)
        ]
        columns = (*self._operation(records), *names.T.tolist(), *shapes.T.tolist())
        zeros = (0,) * len(_KERNEL_ZEROS)
        self._writer.insert(
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
        self._writer.insert(
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
        self._writer.insert(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            f"{_OPERATIONS} bytes memKind value",
            ((*row, 0) for row in zip(*columns, strict=True)),
        )

    def _graph_rows(self, records: Slots) -> None:
        columns = (*self._operation(records), records["graph"].tolist())
        self._writer.insert(
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


# --- ranges, marks, domains, categories and names of threads as rows


# Types of payloads, and the column of each.
_PAYLOADS = {
    kind: f"{name}Value" for kind, name in PAYLOAD_NAMES.items() if kind != PayloadType.BYTES
}

_DESCRIPTION = "textId domainId color category"
_EVENT = f"start end eventType globalTid endGlobalTid {_DESCRIPTION} {' '.join(_PAYLOADS.values())}"
_NO_PAYLOADS = (None,) * len(_PAYLOADS)
# SQLite's integers are signed; nsys stores unsigned payloads by their bits.
_SIGN = 1 << 63

_Row = tuple[Any, ...]


class NvtxRows:
    """Writes the program's NVTX records: ranges, marks and their names."""

    def __init__(self, writer: TableWriter, run: Run) -> None:
        self._writer = writer
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
            *self._writer.times(part), *(part[name].tolist() for name in fields), strict=True
        )
        rows = (self._event(*row) for row in columns)
        self._writer.insert("NVTX_EVENTS", _EVENT, (row for row in rows if row is not None))

    def _event(
        self, start: int, end: int, kind: int, number: int, mark: int, thread: int, unended: int,
        payload_type: int, payload: int,
    ) -> _Row | None:  # fmt: skip
        payloads = _payload_columns(payload_type, payload)
        if kind == TraceKind.MARK:
            defined = self._run.mark_definitions.get(mark)
            if defined is None:
                return None
            task = self._writer.task(defined.process, thread)
            return (start, None, MARK, task, None, *self._description(defined), *payloads)
        node = self._run.ranges.get(number)
        if node is None:
            return None
        definition = node.definition
        return (
            start,
            None if unended else end,
            PUSH_POP if definition.style == "PushPop" else START_END,
            self._writer.task(definition.process, definition.thread),
            self._writer.task(definition.process, thread) if thread else None,
            *self._description(definition),
            *payloads,
        )

    def _description(self, definition: RangeDefined | MarkDefined) -> _Row:
        domain = self._domain(definition.process, definition.domain)
        if definition.category_id is not None and definition.category is not None:
            key = definition.process, definition.domain, definition.category_id
            self._categories.setdefault(key, definition.category)
        return self._text(definition.name), domain, definition.color, definition.category_id

    def _text(self, name: str) -> int | None:
        return None if name == NO_NAME else self._writer.string(name)

    def _domain(self, process: int, name: str) -> int:
        if not name:
            return 0
        return self._domains.setdefault((process, name), len(self._domains) + 1)

    def write_names(self) -> None:
        """Write the domains and categories of what was written, and all names of threads and of
        CUDA's resources. (No nsys export with resource names was available: their number is stored
        as a payload.)
        """
        processes, writer = self._run.processes, self._writer
        main = {
            number: writer.task(number, process.attached.pid)
            for number, process in processes.items()
        }
        writer.insert("NVTX_EVENTS", "start eventType text globalTid domainId", (
            (0, DOMAIN, name, main.get(process, 0), number)
            for (process, name), number in self._domains.items()
        ))  # fmt: skip
        writer.insert("NVTX_EVENTS", "start eventType text globalTid domainId category", (
            (0, CATEGORY, name, main.get(process, 0), self._domain(process, domain), number)
            for (process, domain, number), name in self._categories.items()
        ))  # fmt: skip
        writer.insert("NVTX_EVENTS", "start eventType text globalTid uint32Value", (
            (0, RESOURCES[named.kind], named.name, main[number], named.number)
            for number, process in processes.items()
            for named in process.resources.values()
        ))  # fmt: skip
        threads = [
            (writer.task(number, named.thread), named)
            for number, process in processes.items()
            for named in process.threads.values()
        ]
        writer.insert("NVTX_EVENTS", "start eventType text globalTid", (
            (0, THREAD, named.name, task) for task, named in threads if named.source == "nvtx"
        ))  # fmt: skip
        writer.insert("ThreadNames", "nameId priority globalTid", (
            (writer.string(named.name), 20 if named.priority is None else named.priority, task)
            for task, named in threads
        ))  # fmt: skip


def _payload_columns(kind: int, bits: int) -> _Row:
    """The payload in the column of its type. SQLite's integers have a sign."""
    if kind == NO_PAYLOAD:
        return _NO_PAYLOADS
    value = payload_number(kind, bits)
    if isinstance(value, int) and value >= _SIGN:
        value -= 2 * _SIGN
    return tuple(value if kind == column else None for column in _PAYLOADS)


# --- what ran where, and nsys's own enumerations, as rows


def write_facts(writer: TableWriter, session: Session, run: Run, dropped: int) -> None:
    """Write the tables other than events; `dropped` counts the trace's lost records."""
    started, header = run.started, session.header
    machine = writer.process(-1)
    writer.insert("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", [(writer.base_ns,)])
    writer.insert("TARGET_INFO_GPU", "vmId id name busLocation totalMemory memoryBandwidth "
                "clockRate smCount uuid chipName cuDevice computeMajor computeMinor l2CacheSize",
                ((machine, *gpu) for gpu in _gpus(session)))  # fmt: skip
    # Devices are numbered as the machine's here, in every process.
    writer.insert("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", (
        (device, device, run.processes[process].attached.pid)
        for process, device in sorted(run.timing.devices)
    ))  # fmt: skip
    facts = {
        "Hostname": header.host.hostname if header else None,
        "OsDescription": header.host.system if header else None,
        "CpuCores": str(header.host.cpu_count) if header else None,
        "CpuDescription": header.host.cpu_model if header else None,
        "NvDriverVersion": header.driver_version if header else None,
    }
    present = [(machine, name, value) for name, value in facts.items() if value]
    writer.insert("TARGET_INFO_SYSTEM_ENV", "globalVid name value", present)
    words = list(started.arguments) or [started.name]
    capture = [("PROCESS_0:COMMAND", words[0])]
    capture += [(f"PROCESS_0:ARGUMENT_{i}", word) for i, word in enumerate(words[1:])]
    writer.insert("META_DATA_CAPTURE", "name value", capture)
    writer.insert("META_DATA_EXPORT", "name value", [
        ("EXPORT_PRODUCT_NAME", "gputui"), ("EXPORT_PRODUCT_VERSION", VERSION),
        ("EXPORT_SCHEMA_VERSION", SCHEMA),
        ("GPUTUI_DROPPED_RECORDS", str(dropped)),
    ])  # fmt: skip
    writer.insert("PROCESSES", "globalPid pid name", (
        (writer.process(number), process.attached.pid, process.attached.command)
        for number, process in run.processes.items()
    ))  # fmt: skip
    writer.insert("ENUM_NSYS_EVENT_TYPE", "id name label",
                ((number, name, name) for number, name in EVENT_TYPES.items()))  # fmt: skip
    copies = {0: "Unknown", **COPY_KINDS}
    writer.insert("ENUM_CUDA_MEMCPY_OPER", "id name label",
                ((number, name, name) for number, name in copies.items()))  # fmt: skip
    kinds = {0: "unknown", **MEMORY_KINDS}
    writer.insert("ENUM_CUDA_MEM_KIND", "id name label", (
        (int(MEMORY_KIND_NUMBERS[number]), name, name.title()) for number, name in kinds.items()
    ))  # fmt: skip


# Compute capability → chip, where there is one of it (CUDA C++ Programming Guide).
_CHIPS = {"6.0": "GP100", "7.0": "GV100", "8.0": "GA100", "9.0": "GH100"}


def _gpus(session: Session) -> Iterator[tuple[Any, ...]]:
    for index, gpu in sorted(session.gpus.items()):
        facts = gpu.facts
        major, _, minor = (facts.compute_capability or "").partition(".")
        bandwidth = facts.peak_memory_bandwidth_bytes_per_s
        yield (
            index, facts.name, facts.pci_bus_id, facts.memory_total_bytes,
            None if bandwidth is None else int(bandwidth),
            None if facts.max_sm_clock_mhz is None else facts.max_sm_clock_mhz * 1_000_000,
            facts.sm_count, facts.uuid.removeprefix("GPU-"),
            _CHIPS.get(facts.compute_capability or ""), index, major or None, minor or None,
            facts.l2_cache_bytes,
        )  # fmt: skip


# --- the whole file, from a session and its trace


def write_nsys(path: Path, session: Session, run: Run, trace: TraceReader) -> int:
    """Write the SQLite file, completely or not at all; how many records it has. Raises
    ExportError.
    """
    with atomic_write(path) as place:
        try:
            with contextlib.closing(sqlite3.connect(place)) as connection:
                return _write(connection, session, run, trace)
        except sqlite3.Error as error:
            raise OSError(None, str(error)) from None


def _write(connection: sqlite3.Connection, session: Session, run: Run, trace: TraceReader) -> int:
    writer = TableWriter(connection, session, run)
    nvtx = NvtxRows(writer, run)
    cuda = CudaRows(writer, session, trace)
    # A session may have had other runs before this one.
    ours = np.array(sorted(run.processes), np.uint32)
    count = 0
    for portion in trace.portions():
        part = portion[np.isin(portion["process"], ours)]
        count += len(part)
        nvtx.write(part)
        cuda.write(part)
    nvtx.write_names()
    write_facts(writer, session, run, trace.dropped)
    writer.finish()
    return count
