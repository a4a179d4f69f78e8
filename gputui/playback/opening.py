"""Opening whatever holds a session, a journal or what another tool wrote, and choosing one of its
runs.

For all that reads a recording: commands, formats, the library, the player.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gputui.base.standard_streams import standard_input
from gputui.model.units import moment
from gputui.playback.job_members import members_of
from gputui.state import Run, Session
from gputui.store.journal import JournalError, JournalReader, open_journal
from gputui.store.journal.compression import CompressionError, expanded, is_compressed
from gputui.store.journal.reader import HEADER_BEGINS, RecordingReader
from gputui.store.places import open_regular

if TYPE_CHECKING:
    from gputui.imports.kineto import KinetoTrace
    from gputui.imports.nsys.report import NsysReport
    from gputui.store.trace import TraceWriter


_SQLITE = b"SQLite format 3\x00"
"""How such a file begins (sqlite.org/fileformat.html)."""

_NSYS_SUFFIXES = (".nsys-rep", ".qdrep")
_CHROME_SUFFIXES = (".json", ".json.gz", ".json.zst")
_HEAD_BYTES = 1 << 16


def open_recording(path: str, *, summed: bool = False, table: str | None = None) -> RecordingReader:
    """What is at `path`; "-" is a journal on standard input. `summed` is for callers that fold all
    of it and only look at the end: a journal, or a large file of another tool, opens much faster.
    With `table`, what it gives may be only what that table shows: a report of nsys then opens
    faster still.

    `path` is a file (of a rotated recording the first, or a pattern: then all are read as one
    session), a folder with the recordings of a job's nodes or ranks, one with the CSV tables of one
    report, or the common prefix of their names. Raises JournalError, one line, if there is no
    session.
    """
    if path == "-":
        return JournalReader(standard_input(), "standard input", summed=summed)
    place = Path(path)
    # Imported where they are needed: each takes as long to load as a recording to read.
    if not place.is_file() or place.suffix == ".csv":
        from gputui.imports.nsys.stats_csv import NsysTables

        tables = NsysTables.find(place)
        if tables is not None:
            return tables
        if place.is_dir():
            return _job(place, summed=summed)
    elif (imported := open_import(place, summed=summed, table=table)) is not None:
        return imported
    return open_journal(place, summed=summed)


def check_readable(path: str) -> None:
    """Raises JournalError, one line, for a file that is not there or holds no session, of which
    only the beginning is read."""
    place = Path(path)
    if place.is_file() and place.suffix not in (".csv", *_NSYS_SUFFIXES) and not import_kind(place):
        open_journal(place).close()
    elif not place.exists():
        open_recording(path).close()


def _job(folder: Path, *, summed: bool) -> RecordingReader:
    from gputui.playback.job_recording import open_job

    in_sums = partial(open_recording, summed=True)
    job = open_job(folder, partial(open_recording, summed=summed), in_sums)
    if job is None:
        raise JournalError(f"{folder}: no recording in it is of a rank of a job; name a file")
    return job


def open_import(
    path: Path,
    trace: TraceWriter | None = None,
    *,
    summed: bool = False,
    table: str | None = None,
) -> NsysReport | KinetoTrace | None:
    """What another tool wrote, with every single event; None for anything else. With `trace`,
    these also go there; `summed` and `table` as in `open_recording`. Raises JournalError, one
    line."""
    if path.suffix in _NSYS_SUFFIXES:
        from gputui.imports.nsys.report import exported_report

        return exported_report(path, trace, summed=summed)
    kind = import_kind(path)
    if kind == "packed sqlite":
        from gputui.imports.nsys.report import unpacked_report

        return unpacked_report(path, trace, summed=summed)
    if kind == "sqlite":
        from gputui.imports.nsys.report import NsysReport

        return NsysReport(path, trace, summed=summed, table=table)
    if kind == "chrome":
        from gputui.imports.kineto import KinetoTrace

        return KinetoTrace(path, trace, summed=summed)
    return None


def remarks(recording: RecordingReader) -> tuple[str, ...]:
    """Remarks about a recording after reading it, one line each."""
    lines = [*getattr(recording, "left_out", ())]
    lines += [recording.damage] if recording.damage else []
    if recording.skipped:
        lines.append(
            f"{recording.name}: {recording.skipped} events of kinds this version does not know "
            "were left out"
        )
    return tuple(lines)


def import_kind(path: Path) -> Literal["sqlite", "packed sqlite", "chrome"] | None:
    """What another tool wrote to a file, by its name and its beginning: an export of nsys, a trace
    of torch.profiler; None for anything else, and where it cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
            is_packed = is_compressed(head)
            if is_packed:
                file.seek(0)
                with expanded(file, str(path)) as stream:
                    head = stream.read(_HEAD_BYTES)
    except (JournalError, CompressionError, OSError):
        return None  # whoever opens it next reports why
    if head.startswith(_SQLITE):
        return "packed sqlite" if is_packed else "sqlite"
    begin = head.lstrip()
    if begin.startswith(HEADER_BEGINS) or not begin.startswith((b"{", b"[")):
        return None
    named = path.name.endswith(_CHROME_SUFFIXES)
    return "chrome" if named or b'"traceEvents"' in head else None


# Opening whatever holds a session, and choosing one of its runs.

LISTED = 20
"""Runs listed in the error for a missing run."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A folded session and one run of it, None if none was recorded. `remarks` is what was odd
    about the file, one line each.
    """

    name: str
    session: Session
    run: Run | None
    remarks: tuple[str, ...]

    def needed_run(self) -> Run:
        """The run. Raises JournalError if none was recorded."""
        if self.run is None:
            raise JournalError(
                f"{self.name} has no run, only the machine: this needs the recording of a "
                "workload or a command"
            )
        return self.run


def load(
    name: str, number: int | None = None, *, raw_names: bool = False, table: str | None = None
) -> Loaded:
    """Run `number` of what is at `name`; if None, the newest, if any. With `raw_names`, phases are
    called as their ranges are, numbering and all. With `table`, the session may hold only what this
    table shows.

    Raises JournalError.
    """
    with closing(open_recording(name, summed=True, table=table)) as recording:
        return fold(recording, number, raw_names=raw_names)


def is_of_one_job(folder: Path) -> bool:
    """Whether all recordings in it are of ranks of one job."""
    members, left_out = members_of(folder, partial(open_recording, summed=True))
    return bool(members) and not left_out and all(member.rank is None for member in members)


def fold(
    recording: RecordingReader, number: int | None = None, *, raw_names: bool = False
) -> Loaded:
    """The same for an open recording. Raises JournalError."""
    session = Session.from_events(recording)
    for run in session.runs.values():
        run.raw_names = raw_names
    return Loaded(
        recording.name, session, chosen(session, recording.name, number), remarks(recording)
    )


def chosen(session: Session, name: str, number: int | None) -> Run | None:
    """A session's run by number; if that is None, the newest, if any. Raises JournalError."""
    if number is None:
        return session.run
    run = session.runs.get(number)
    if run is None:
        if not session.runs:
            raise JournalError(
                f"{name} has no run {number}: it holds only the machine; leave out --run"
            )
        runs = [
            f"{other} ({started.started.name}, {moment(started.started.time_ns)[:19]})"
            for other, started in session.runs.items()
        ]
        more = f" and {len(runs) - LISTED} more" if len(runs) > LISTED else ""
        raise JournalError(f"{name} has no run {number}; it has {', '.join(runs[:LISTED])}{more}")
    return run
