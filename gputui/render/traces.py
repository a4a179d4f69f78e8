"""Exports of every single event: they need the trace beside a recording, or an nsys export."""

from __future__ import annotations

import contextlib
import gzip
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gputui.imports.nsys import NsysReport
from gputui.model.events import MachineSample
from gputui.playback.loading import fold, load
from gputui.playback.opening import is_sqlite, open_recording
from gputui.render.atomic_write import atomic_write
from gputui.render.chrome import processes_of, write_chrome
from gputui.render.errors import ExportError
from gputui.render.nsys import write_nsys
from gputui.state import Run, Session
from gputui.store.journal import JournalError
from gputui.store.trace import TraceReader, TraceWriter, trace_path

FORMATS = ("chrome", "nsys")

_TEMPORARY_LIMIT = 8 << 30
"""Most that the trace of an imported report may take on disk while it is exported."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A run with its raw records. `name` is what it was opened as."""

    name: str
    session: Session
    run: Run
    trace: TraceReader
    remarks: tuple[str, ...]
    """What was odd about the file, a line each."""

    def samples(self) -> Iterator[MachineSample]:
        """The machine's readings, read from the file again."""
        if not is_sqlite(Path(self.name)):
            for event in open_recording(self.name, summed=True):
                if isinstance(event, MachineSample):
                    yield event


@contextlib.contextmanager
def open_traced(name: str, number: int | None = None) -> Iterator[Traced]:
    """Run `number` of the recording or nsys export `name`, the newest where that is None, with its
    raw records.

    Raises JournalError, one line, where it has none.
    """
    path = Path(name)
    with tempfile.TemporaryDirectory(prefix="gputui-") as folder:
        if is_sqlite(path):
            writer = TraceWriter(Path(folder, "trace"), _TEMPORARY_LIMIT)
            loaded = fold(NsysReport(path, writer), number)
            writer.close()
            if writer.failure:
                raise JournalError(writer.failure)
            trace = TraceReader(writer.path)
        else:
            beside = trace_path(path)
            if name == "-" or not beside.exists():
                load(name, number).needed_run()  # without one, no trace would help
                raise JournalError(
                    f"{name} has no trace beside it ({beside.name}): record with --trace for this"
                )
            loaded = load(name, number)
            trace = TraceReader(beside)
        remarks = loaded.remarks
        if trace.dropped:
            remarks += (
                f"{trace.path.name} is full: the oldest {trace.dropped} records were dropped",
            )
        yield Traced(name, loaded.session, loaded.needed_run(), trace, remarks)


def write_trace(traced: Traced, format_name: str, out: Path) -> list[Path]:
    """Write `out`, whole or not at all; the files that were written.

    A chrome trace of several processes becomes a file each, `-rankN` or `-pidN` before the
    suffix; one that ends in `.gz` is compressed. Raises ExportError.
    """
    if format_name == "nsys":
        write_nsys(out, traced.session, traced.run, traced.trace)
        return [out]
    # A session may have had other runs before this one.
    processes = [p for p in processes_of(traced.trace) if p in traced.run.processes]
    if not processes:
        number = traced.run.started.run
        raise ExportError(f"the trace of {traced.name} has nothing of run {number}")
    written = []
    for process in processes:
        path = out if len(processes) == 1 else _of_process(out, traced.run, process)
        with _whole(path) as file:
            write_chrome(file, traced.session, traced.run, traced.trace, process, traced.samples())
        written.append(path)
    return written


def _of_process(out: Path, run: Run, process: int) -> Path:
    known = run.processes.get(process)
    rank = known.attached.rank if known else None
    label = f"rank{rank}" if rank is not None else f"pid{known.attached.pid if known else process}"
    stem, dot, suffix = out.name.partition(".")
    return out.with_name(f"{stem}-{label}{dot}{suffix}")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name once it is complete."""
    with atomic_write(path) as place, place.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, raw) as packed, io.TextIOWrapper(packed) as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text
