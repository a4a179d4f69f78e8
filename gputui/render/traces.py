"""Exports of every single event: they need the trace beside a recording, or another tool's file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gputui.model.events import MachineSample
from gputui.playback.job import JobRecording
from gputui.playback.job.trace import write_job_trace
from gputui.playback.loading import Loaded, fold, load
from gputui.playback.opening import open_import, open_recording
from gputui.state import Run, Session
from gputui.store.journal import JournalError
from gputui.store.trace import TraceReader, TraceWriter, trace_path

_TEMPORARY_LIMIT = 8 << 30
"""Maximum disk space for the trace of an imported report while it is exported."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A run with its raw records. `name` is what it was opened as."""

    name: str
    session: Session
    run: Run
    trace: TraceReader
    remarks: tuple[str, ...]
    """Remarks about the file, one line each."""
    has_samples: bool
    """Whether the file can hold readings of the machine."""

    def samples(self) -> Iterator[MachineSample]:
        """The machine's readings, read again from the file."""
        if self.has_samples:
            with closing(open_recording(self.name, summed=True)) as recording:
                for event in recording:
                    if isinstance(event, MachineSample):
                        yield event


@contextmanager
def open_traced(name: str, number: int | None = None) -> Iterator[Traced]:
    """Run `number` of the recording or of another tool's file `name`, or the newest if None, with
    its raw records.

    Raises JournalError, one line, if it has none.
    """
    with tempfile.TemporaryDirectory(prefix="gputui-") as folder:
        with closing(TraceWriter(Path(folder, "trace"), _TEMPORARY_LIMIT)) as writer:
            written = None if name == "-" else _written(Path(name), number, writer, Path(folder))
        if written is None:
            loaded, trace = _recorded(name, number)
            dropped, has_samples = trace.dropped, True
        else:
            loaded, dropped, has_samples = written
            if writer.failure:
                raise JournalError(writer.failure)
            trace = TraceReader(writer.path)
            dropped += trace.dropped
        remarks = loaded.remarks
        if dropped:
            remarks += (f"{trace.path.name} is full: the oldest {dropped} records were dropped",)
        yield Traced(name, loaded.session, loaded.needed_run(), trace, remarks, has_samples)


def _written(
    path: Path, number: int | None, writer: TraceWriter, folder: Path
) -> tuple[Loaded, int, bool] | None:
    """Write the trace of another tool's file, or of a job's folder; how many of its records had
    been dropped, and whether it may have samples. None for a recording."""
    if path.is_dir():
        with closing(open_recording(str(path), summed=True)) as job:
            if isinstance(job, JobRecording):
                loaded = fold(job, number)
                loaded.needed_run()
                return loaded, write_job_trace(job, writer, folder), True
    imported = open_import(path, writer)
    if imported is None:
        return None
    with closing(imported):
        return fold(imported, number), 0, False


def _recorded(name: str, number: int | None) -> tuple[Loaded, TraceReader]:
    """A recording with the trace beside it."""
    beside = trace_path(Path(name))
    if name == "-" or not beside.exists():
        load(name, number).needed_run()  # without one, a trace would not help
        raise JournalError(
            f"{name} has no trace beside it ({beside.name}): record with --trace for this"
        )
    return load(name, number), TraceReader(beside)
