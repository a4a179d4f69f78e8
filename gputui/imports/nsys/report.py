"""A report written by `nsys export --type sqlite`, as the events of a session.

Rows are read in order of time and become records of the capture library. Reports that are no SQLite
file yet are handled here, too: compressed exports, and nsys's own format, which only nsys converts.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.attribute.records import NO_STRING
from gputui.base.sanitize import sanitize
from gputui.base.version import VERSION
from gputui.imports.nsys.database import Database
from gputui.imports.reading import (
    ABSENT,
    Clock,
    ImportedReading,
    LaunchShapes,
    ProcessFacts,
    RangeRecords,
    RangeRows,
    Texts,
)
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    GpuFacts,
    Header,
    HostFacts,
    KernelDefined,
    RunEnded,
    RunStarted,
)
from gputui.model.payloads import NO_PAYLOAD, PayloadType
from gputui.ring.layout import SLOT, RecordKind
from gputui.store.journal import JournalError
from gputui.store.journal.compression import CompressionError, expanded
from gputui.store.places import open_regular
from gputui.store.trace import TraceWriter

# Strings of a report by the report's own string ids.


class Names(Texts):
    """Texts by number, and the numbers of the report's own string ids."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._of_ids: dict[int, int] = {}

    def of_id(self, identifier: int) -> int:
        """The number of the text with this id in StringIds."""
        number = self._of_ids.get(identifier)
        if number is None:
            text = self._database.text("StringIds", "id", identifier, "value")
            number = self.of_text(text if text is not None else f"(string {identifier})")
            self._of_ids[identifier] = number
        return number

    def of_ids(self, identifiers: Int64s) -> Int64s:
        """The numbers of the texts with these ids."""
        different, inverse = np.unique(identifiers, return_inverse=True)
        numbers = np.array([self.of_id(identifier) for identifier in different.tolist()], np.int64)
        return numbers[inverse]


# The ranges and marks of NVTX_EVENTS.

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


# The rows of an nsys report, in order of time, as records of the capture library.

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


class NsysReading(ImportedReading):
    """One pass over the rows in order of time."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        names: Names,
        trace: TraceWriter | None,
        *,
        summed: bool,
    ) -> None:
        super().__init__(clock, names, trace, LaunchShapes(), summed=summed)
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

    def _records_until(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        nvtx, tasks = self._nvtx.records_until(until)
        return [
            (nvtx, tasks >> 24),
            self._call_records(self._calls.rows_until(until)),
            self._kernel_records(self._kernels.rows_until(until)),
            self._memory_records(self._copies.rows_until(until), RecordKind.MEMCPY),
            self._memory_records(self._sets.rows_until(until), RecordKind.MEMSET),
            self._graph_records(self._graphs.rows_until(until)),
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
        records["d"] = self._shapes.number_shapes(records["name"], rows[:, _SHAPE])
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


# A report written by `nsys export --type sqlite`, as the events of a session.
#
# Its rows become the records the capture library would have written, in order of time, and go
# through the same attribution: a kernel belongs to the range around its launch, as in nsys.


class NsysReport:
    """The events of one report, read once. Raises JournalError if the file is not a report.

    `damage` and `skipped` as in JournalReader: rows of processes beyond the limit are counted as
    skipped.
    """

    def __init__(
        self,
        path: Path,
        trace: TraceWriter | None = None,
        name: str | None = None,
        *,
        summed: bool = False,
    ) -> None:
        """With `trace`, every row also goes there. `name` is what it is called, if not `path`.
        `summed` is for callers that look only at what all events come to."""
        self.name = name or str(path)
        self.folder: TemporaryDirectory[str] | None = None
        """The temporary folder it lies in, which goes with it."""
        self._trace = trace
        self._summed = summed
        self.damage: str | None = None
        self.skipped = 0
        self._database = Database(path)
        with ExitStack() as refused:
            refused.callback(self._database.close)
            spans = self._spans()
            if not spans:
                raise JournalError(
                    f"{path} has no NVTX ranges and no CUDA activity of nsys: use the output of "
                    "`nsys export --type sqlite` for a report recorded with --trace=cuda,nvtx"
                )
            first, last = min(start for start, _ in spans), max(end for _, end in spans)
            self._clock = Clock(first, last, self._session_start_ns(path, last))
            self.header = self._header()
            refused.pop_all()

    def close(self) -> None:
        """Close the file, and remove the temporary folder it lies in."""
        self._database.close()
        if self.folder is not None:
            self.folder.cleanup()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        yield self._run_started()
        try:
            names = Names(self._database)
            reading = NsysReading(
                self._database, self._clock, names, self._trace, summed=self._summed
            )
            yield from reading.events()
            self.skipped = reading.skipped
        except JournalError as error:
            self.damage = f"{error}; read until there"
        finally:
            self.close()
        # A report does not contain the program's exit status.
        yield RunEnded(
            time_ns=self._clock.epoch_ns(self._clock.last),
            run=1,
            reason="the nsys report ends here",
        )

    def _spans(self) -> list[tuple[int, int]]:
        spans = [self._database.span(table) for table in CUDA_TABLES]
        if "eventType" in self._database.columns("NVTX_EVENTS"):
            spans.append(self._database.span("NVTX_EVENTS", IS_EVENT))
        return [span for span in spans if span is not None]

    def _session_start_ns(self, path: Path, last: int) -> int:
        row = next(self._database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"), (None,))
        if isinstance(row[0], int) and 0 < row[0] < 4_000_000_000_000_000_000:
            return row[0]
        # Older exports have no date; the file cannot be older than the session.
        return path.stat().st_mtime_ns - max(0, last)

    # --- what was run, and where

    def _facts(self, table: str) -> dict[str, str]:
        return {
            name: sanitize(str(value), 500)
            for name, value in self._database.rows(table, "name", "value")
            if isinstance(name, str) and value is not None
        }

    def _header(self) -> Header:
        facts = self._facts("TARGET_INFO_SYSTEM_ENV")
        driver = facts.get("CudaDriverVersion", "")
        return Header(
            time_ns=self._clock.epoch_ns(min(0, self._clock.first)),
            schema=JOURNAL_SCHEMA,
            gputui_version=VERSION,
            python_version="",
            monotonic_ns=0,
            arguments=("nsys", self._facts("META_DATA_EXPORT").get("EXPORT_PRODUCT_VERSION", "")),
            interval_s=self._clock.tick_ns / 1e9,
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
            "smCount", "uuid", "computeMajor", "computeMinor", "clockRate", "l2CacheSize",
        )  # fmt: skip
        gpus: dict[int, GpuFacts] = {}
        for number, name, bus, memory, bandwidth, sms, uuid, major, minor, clock, cache in rows:
            if not isinstance(number, int) or len(gpus) >= 256:
                continue
            index = numbers.get(number, number)
            gpus[index] = GpuFacts(
                index=index,
                uuid=sanitize(f"GPU-{uuid}", 64) if isinstance(uuid, str) else "",
                name=sanitize(name, 200) if isinstance(name, str) else "unknown GPU",
                pci_bus_id=sanitize(bus, 64) if isinstance(bus, str) else None,
                compute_capability=f"{major}.{minor}" if isinstance(major, int) else None,
                sm_count=sms if isinstance(sms, int) else None,
                l2_cache_bytes=cache if isinstance(cache, int) else None,
                max_sm_clock_mhz=clock // 1_000_000 if isinstance(clock, int) else None,
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
            time_ns=self._clock.epoch_ns(self._clock.first),
            run=1,
            kind="command",
            name=command.rsplit("/", 1)[-1] or command,
            arguments=tuple(arguments),
            pid=None,
        )


# Reports that are no SQLite file yet: compressed exports, and nsys's own files.

MOST_BYTES = 64 << 30
"""Most of a compressed export that is unpacked."""

EXPORT_S = 3600

_PORTION_BYTES = 1 << 20


def unpacked_report(path: Path, trace: TraceWriter | None, *, summed: bool = False) -> NsysReport:
    """A compressed SQLite export, unpacked where temporary files go. Raises JournalError."""
    folder = tempfile.TemporaryDirectory(prefix="gputui-")
    place = Path(folder.name, "report.sqlite")
    try:
        with expanded(open_regular(path), str(path)) as stream, place.open("wb") as out:
            while data := stream.read(_PORTION_BYTES):
                out.write(data)
                if out.tell() > MOST_BYTES:
                    raise CompressionError(f"it is larger than {MOST_BYTES >> 30} GiB")
    except (CompressionError, OSError) as error:
        folder.cleanup()
        raise JournalError(f"{path} cannot be unpacked: {sanitize(str(error), 160)}") from None
    return _opened(place, path, folder, trace, summed)


def exported_report(path: Path, trace: TraceWriter | None, *, summed: bool = False) -> NsysReport:
    """nsys's own file, exported by the nsys that is installed. Raises JournalError."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise JournalError(
            f"{path} can be read only by nsys, which is not installed here: where it is, run "
            f"nsys export --type sqlite {sanitize(path.name, 200)}"
        )
    open_regular(path).close()
    folder = tempfile.TemporaryDirectory(prefix="gputui-")
    place = Path(folder.name, "report.sqlite")
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output",
               str(place), str(path.resolve())]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=EXPORT_S, check=False
        )
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        folder.cleanup()
        raise JournalError(f"{path}: nsys export failed: {sanitize(str(error), 160)}") from None
    if done.returncode or not place.is_file():
        folder.cleanup()
        why = sanitize(output[-1], 160) if output else f"exit status {done.returncode}"
        raise JournalError(f"{path}: nsys export failed: {why}")
    return _opened(place, path, folder, trace, summed)


def _opened(
    place: Path,
    path: Path,
    folder: tempfile.TemporaryDirectory[str],
    trace: TraceWriter | None,
    summed: bool,
) -> NsysReport:
    """The report under its own name; the folder goes when nobody reads it any more."""
    try:
        report = NsysReport(place, trace, name=str(path), summed=summed)
    except JournalError as error:
        folder.cleanup()
        raise JournalError(str(error).replace(str(place), str(path))) from None
    report.folder = folder
    return report
