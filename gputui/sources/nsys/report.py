"""A report that `nsys export --type sqlite` wrote, as the events of a session.

Its rows become the records that the capture library would have written, in order of time, and
go through the same attribution: a kernel belongs to the range around its launch, as in nsys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from gputui import __version__
from gputui.capture.layout import SLOT, RecordKind
from gputui.events import (
    SCHEMA_VERSION,
    AnyEvent,
    GpuFacts,
    Header,
    HostFacts,
    KernelDefined,
    ProcessAttached,
    ProcessDetached,
    RunEnded,
    RunStarted,
)
from gputui.journal import JournalError
from gputui.sources.capture.arrays import LATEST_NS, Int64s, Slots
from gputui.sources.capture.numbering import Numbering
from gputui.sources.capture.process import TracedProcess
from gputui.sources.nsys.database import Database
from gputui.sources.nsys.names import Names
from gputui.sources.nsys.ranges import IS_EVENT, Nvtx
from gputui.sources.trace import TraceWriter
from gputui.text import clean

TICKS = 600
SHORTEST_TICK_NS = 100_000_000
"""A report becomes this many ticks at most, none shorter than this."""

MAX_PROCESSES = 1024

_CALLS = ("start", "end", "correlationId", "globalTid", "nameId", "eventClass", "returnValue")
_KERNELS = ("start", "end", "correlationId", "globalPid", "demangledName", "deviceId", "streamId",
            "contextId", "mangledName")  # fmt: skip
_COPIES = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
           "contextId", "copyKind", "srcKind", "dstKind")  # fmt: skip
_SETS = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
         "contextId", "memKind")  # fmt: skip
_GRAPHS = ("start", "end", "correlationId", "globalPid", "graphId", "deviceId", "streamId",
           "contextId")  # fmt: skip
_CUDA_TABLES = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)

_MEMORY_KINDS = np.array([1, 2, 3, 4, 5, 6, 7, 0])
"""ENUM_CUDA_MEM_KIND → CUpti_ActivityMemoryKind."""

_U32 = 0xFFFF_FFFF


class NsysReport:
    """The events of one report, read once. Raises JournalError when the file is no report.

    `damage` and `skipped` are as those of a JournalReader: rows of more processes than are kept
    are counted as skipped.
    """

    def __init__(self, path: Path, trace: TraceWriter | None = None) -> None:
        """With `trace` every row also goes there."""
        self.name = str(path)
        self.trace = trace
        self.damage: str | None = None
        self.skipped = 0
        self._database = Database(path)
        spans = self._spans()
        if not spans:
            self._database.close()
            raise JournalError(
                f"{path} holds no NVTX ranges and no CUDA activity of nsys: give what "
                "`nsys export --type sqlite` made of a report with --trace=cuda,nvtx"
            )
        self._first = min(start for start, _ in spans)
        self._last = max(end for _, end in spans)
        self._base_ns = self._session_start_ns(path)
        self._names = Names(self._database)
        self.header = self._header()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        yield self._run_started()
        try:
            yield from _Reading(self).events()
        except JournalError as error:
            self.damage = f"{error}; read until there"
        finally:
            self._database.close()
        yield RunEnded(
            time_ns=self.at(self._last), run=1, reason="the nsys report ends here", stopped=False
        )

    def at(self, time: int) -> int:
        """A moment of the report's clock as nanoseconds since the epoch."""
        return min(max(0, time + self._base_ns), 4_102_444_800_000_000_000)

    def _spans(self) -> list[tuple[int, int]]:
        spans = [self._database.span(table) for table in _CUDA_TABLES]
        if "eventType" in self._database.columns("NVTX_EVENTS"):
            spans.append(self._database.span("NVTX_EVENTS", IS_EVENT))
        return [span for span in spans if span is not None]

    def _session_start_ns(self, path: Path) -> int:
        row = next(self._database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"), (None,))
        if isinstance(row[0], int) and 0 < row[0] < 4_000_000_000_000_000_000:
            return row[0]
        # Older exports do not say when; the file cannot be older than the session.
        return path.stat().st_mtime_ns - max(0, self._last)

    # --- what was run, and where

    def _facts(self, table: str) -> dict[str, str]:
        return {
            name: clean(str(value), 500)
            for name, value in self._database.rows(table, "name", "value")
            if isinstance(name, str) and value is not None
        }

    def _header(self) -> Header:
        facts = self._facts("TARGET_INFO_SYSTEM_ENV")
        driver = facts.get("CudaDriverVersion", "")
        return Header(
            time_ns=self.at(min(0, self._first)),
            schema=SCHEMA_VERSION,
            gputui_version=__version__,
            python_version="",
            monotonic_ns=0,
            arguments=("nsys", self._facts("META_DATA_EXPORT").get("EXPORT_PRODUCT_VERSION", "")),
            interval_s=self.tick_ns / 1e9,
            host=HostFacts(
                hostname=facts.get("Hostname", "unknown host"),
                system=facts.get("OsDescription", "unknown system"),
                cpu_model=facts.get("CpuDescription"),
                cpu_count=int(cores) if (cores := facts.get("CpuCores", "")).isdecimal() else 0,
                memory_total_bytes=0,
            ),
            driver_version=facts.get("NvDriverVersion"),
            cuda_driver_version=(
                f"{int(driver) // 1000}.{int(driver) % 1000 // 10}" if driver.isdecimal() else None
            ),
            gpus=self._gpus(),
            gpu_unavailable_reason=None,
        )

    def _gpus(self) -> tuple[GpuFacts, ...]:
        numbers = {
            gpu: cuda
            for gpu, cuda in self._database.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId")
            if isinstance(gpu, int) and isinstance(cuda, int)
        }
        rows = self._database.rows(
            "TARGET_INFO_GPU", "id", "name", "busLocation", "totalMemory", "memoryBandwidth",
            "smCount", "uuid", "computeMajor", "computeMinor",
        )  # fmt: skip
        gpus: dict[int, GpuFacts] = {}
        for number, name, bus, memory, bandwidth, sms, uuid, major, minor in rows:
            if not isinstance(number, int) or len(gpus) >= 256:
                continue
            index = numbers.get(number, number)
            gpus[index] = GpuFacts(
                index=index,
                uuid=clean(f"GPU-{uuid}", 64) if isinstance(uuid, str) else "",
                name=clean(name, 200) if isinstance(name, str) else "unknown GPU",
                pci_bus_id=clean(bus, 64) if isinstance(bus, str) else None,
                compute_capability=f"{major}.{minor}" if isinstance(major, int) else None,
                sm_count=sms if isinstance(sms, int) else None,
                memory_total_bytes=memory if isinstance(memory, int) else None,
                peak_memory_bandwidth_bytes_per_s=(
                    float(bandwidth) if isinstance(bandwidth, int) else None
                ),
                peak_memory_bandwidth_source=(
                    "the nsys report" if isinstance(bandwidth, int) else None
                ),
            )
        return tuple(gpu for _, gpu in sorted(gpus.items()))

    def _run_started(self) -> RunStarted:
        facts = self._facts("META_DATA_CAPTURE")
        command = facts.get("PROCESS_0:COMMAND") or "nsys report"
        arguments = [command]
        while (word := facts.get(f"PROCESS_0:ARGUMENT_{len(arguments) - 1}")) is not None:
            arguments.append(word)
        return RunStarted(
            time_ns=self.at(self._first),
            run=1,
            kind="command",
            name=command.rsplit("/", 1)[-1] or command,
            arguments=tuple(arguments),
            pid=None,
        )

    @property
    def tick_ns(self) -> int:
        """How much of the report one tick covers."""
        return max(SHORTEST_TICK_NS, -(-(self._last - self._first) // TICKS))

    # --- for the reading

    @property
    def database(self) -> Database:
        """The file."""
        return self._database

    @property
    def names(self) -> Names:
        """Its strings."""
        return self._names

    @property
    def span(self) -> tuple[int, int]:
        """First and last moment, on the report's clock."""
        return self._first, self._last


class _Reading:
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
        self._processes: dict[int, tuple[TracedProcess, set[int]]] = {}
        self._mangled: dict[str, str] = {}
        self._commands = {
            key >> 24: clean(name, 500)
            for key, name in database.rows("PROCESSES", "globalPid", "name")
            if isinstance(key, int) and isinstance(name, str)
        }
        self._traced_cuda = any(database.columns(table) for table in _CUDA_TABLES)

    def events(self) -> Iterator[AnyEvent]:
        first, last = self._report.span
        tick = first
        while tick < last:
            tick = min(last, tick + self._report.tick_ns)
            yield from self._until(tick)
            for process, _ in self._processes.values():
                yield from self._mended(process.collect(self._report.at(tick)))
        end_ns = self._report.at(last)
        for process, _ in self._processes.values():
            yield from self._mended(process.collect(end_ns, ended=True))
            yield ProcessDetached(time_ns=end_ns, process=process.number, clean=True)

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
        # Ranges before the calls inside them, calls before what they launched: parts are in
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

    def _give(self, process: tuple[TracedProcess, set[int]], records: Slots, now_ns: int) -> None:
        traced, known = process
        wanted = {
            number
            for column in ("name", "a", "b")
            for number in np.unique(records[column]).tolist()
        } - known
        known |= wanted
        texts = self._names.texts
        traced.feed(
            records, {number: texts[number] for number in wanted if number in texts}, now_ns
        )

    def _attach(
        self, owner: int, now_ns: int
    ) -> tuple[tuple[TracedProcess, set[int]], ProcessAttached]:
        pid = owner & 0xFFFFFF
        traced = TracedProcess(
            self._numbering.process(), pid, self._numbering, trace=self._report.trace
        )
        process: tuple[TracedProcess, set[int]] = (traced, set())
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
        """Kernels are told apart by nsys's demangled names; the mangled ones go with them."""
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
        for demangled, mangled in np.unique(rows[:, (4, 8)], axis=0).tolist():
            texts = self._names.texts
            name = texts.get(self._names.of_id(demangled))
            raw = texts.get(self._names.of_id(mangled)) if mangled else None
            if name and raw:
                self._mangled.setdefault(name, clean(raw))
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
