"""Reports of nsys as the events of a session: its SQLite export, read here, whose rows become
records of the capture library in `rows`; the CSV tables of `nsys stats` are read in `stats_csv`.

Reports that are no SQLite file yet are handled here, too: compressed exports, and nsys's own
format, which only nsys converts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from gputui.base import VERSION, JournalError
from gputui.base.sanitize import sanitize
from gputui.imports import Clock
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.rows import CUDA_TABLES, RANGES_AND_MARKS, Names, NsysReading
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    GpuFacts,
    Header,
    HostFacts,
    RunEnded,
    RunStarted,
)
from gputui.store import open_regular
from gputui.store.journal import CompressionError, expanded
from gputui.store.trace import TraceWriter


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
        tables: Sequence[str] = (),
    ) -> None:
        """With `trace`, every row also goes there. `name` is what it is called, if not `path`.
        `summed` is for callers that look only at what all events come to, `tables` for those that
        make only these of it."""
        self.name = name or str(path)
        self.folder: TemporaryDirectory[str] | None = None
        """The temporary folder it lies in, which goes with it."""
        self._trace = trace
        self._summed = summed
        self._tables = tables
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
            if self._tables:
                from gputui.imports.nsys.table_sums import TableSums

                sums = TableSums(self._database, self._clock).events(self._tables)
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
            spans.append(self._database.span("NVTX_EVENTS", RANGES_AND_MARKS))
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
    folder = tempfile.TemporaryDirectory(prefix="gputui-unpacked-")
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
    folder = tempfile.TemporaryDirectory(prefix="gputui-export-")
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
