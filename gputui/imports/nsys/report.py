"""A report written by `nsys export --type sqlite`, as the events of a session.

Its rows become records of the capture library in `rows`. Reports that are no SQLite file yet are
handled here, too: compressed exports, and nsys's own format, which only nsys converts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gputui.attribute import LATEST_NS, Int64s, Strings, durations_ns
from gputui.attribute.distributions import ValueSums
from gputui.base import VERSION
from gputui.base.sanitize import sanitize
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.rows import (
    CUDA_TABLES,
    IS_EVENT,
    IS_RANGE_OR_MARK,
    MARK,
    PUSH_POP,
    Names,
    NsysReading,
    RangeNames,
    range_selection,
    ranges_and_marks,
)
from gputui.imports.nsys.table_pages import UnusualTable
from gputui.imports.reading import Clock, number_distinct
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    GpuFacts,
    Header,
    HostFacts,
    KernelDefined,
    KernelDelta,
    MemoryOperationDelta,
    ProcessAttached,
    ProcessDetached,
    RangeDefined,
    RangeDelta,
    RunEnded,
    RunStarted,
)
from gputui.model.hub import Numbering
from gputui.model.naming import COPY_KINDS, MEMSET, api_name, copy_name, demangle
from gputui.store import open_regular
from gputui.store.journal import JournalError
from gputui.store.journal.files import CompressionError, expanded
from gputui.store.trace import TraceWriter

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
        table: str | None = None,
    ) -> None:
        """With `trace`, every row also goes there. `name` is what it is called, if not `path`.
        `summed` is for callers that look only at what all events come to, `table` for those that
        make only this table of it."""
        self.name = name or str(path)
        self.folder: TemporaryDirectory[str] | None = None
        """The temporary folder it lies in, which goes with it."""
        self._trace = trace
        self._summed = summed
        self._table = table
        self._reading: NsysReading | None = None
        self._stopped = False
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

    @property
    def share_read(self) -> float:
        """How much of the report's time has been read, from 0 to 1."""
        return self._reading.share_read if self._reading is not None else 0.0

    def stop(self) -> None:
        """End reading soon, from any thread: what was read stays, and `damage` says so."""
        self._stopped = True
        if self._reading is not None:
            self._reading.stop()
        self._database.interrupt()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        yield self._run_started()
        try:
            sums = None
            if self._table is not None:
                sums = TableSums(self._database, self._clock).events(self._table)
            if sums is not None:
                yield from sums
            else:
                names = Names(self._database)
                self._reading = NsysReading(
                    self._database, self._clock, names, self._trace, summed=self._summed
                )
                if self._stopped:
                    self._reading.stop()
                yield from self._reading.events()
                self.skipped = self._reading.skipped
        except JournalError as error:
            self.damage = f"{error}; read until there"
        finally:
            self.close()
        # Whoever reads may end the reading, and sees how much was read.
        if self._stopped and self.share_read < 1:
            self.damage = f"{self.name}: reading was stopped at {self.share_read:.0%}"
        # A report does not contain the program's exit status.
        yield RunEnded(
            time_ns=self._clock.epoch_ns(self._clock.last),
            run=1,
            reason="the nsys report ends here",
        )

    def _spans(self) -> list[tuple[int, int]]:
        spans = [self._database.span(table) for table in CUDA_TABLES]
        if "eventType" in self._database.columns("NVTX_EVENTS"):
            spans.append(self._database.span("NVTX_EVENTS", ranges_and_marks, IS_RANGE_OR_MARK))
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


# --- One table of sums of an nsys report, from the columns of its own rows: what it does not show,
# to which range a kernel belongs or which call launched it, is not found out.
#
# Where a caller wants one table: its events come to the same sums as those of all
# rows.

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
        try:
            events = read(self)
        except UnusualTable:
            return None
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
        selection = range_selection(self._database, self._names)
        if selection is None:
            return None
        sums = ValueSums()
        keys: dict[tuple[int, int, int], int] = {}

        def number(style: int, domain: int, name: int) -> int:
            return keys.setdefault((style, domain, name), len(keys))

        for rows in self._database.decoded(selection):
            rows = rows[rows[:, 3] != MARK]
            _, _, _, style, _, _, text_id, task, domain, _, text, _, _ = rows.T
            name = naming.names(text, text_id)
            ranges = number_distinct((style, naming.domains(task >> 24, domain), name), number)
            sums.add(ranges, self._durations_ns(rows[:, [0, 2]]))
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
