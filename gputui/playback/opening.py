"""Opening whatever holds a session, a journal or what another tool wrote, and choosing one of its
runs.

For all that reads a recording: commands, formats, the library, the player.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from gputui.base import JournalError
from gputui.base.standard_streams import standard_input
from gputui.model.events import About, AnyEvent, CaptureDelta, MachineSample, RunEnded, Scope
from gputui.model.units import moment
from gputui.playback.job_members import members_of
from gputui.state import Run, Session
from gputui.state.fold import gpu_of
from gputui.store import open_regular, trace_path
from gputui.store.journal import CompressionError, expanded, is_compressed
from gputui.store.journal.reader import HEADER_BEGINS, JournalReader, RecordingReader, open_journal

if TYPE_CHECKING:
    from gputui.imports.kineto import KinetoTrace
    from gputui.imports.nsys import NsysReport
    from gputui.store.trace import TraceReader, TraceWriter

# How such a file begins (sqlite.org/fileformat.html).
_SQLITE = b"SQLite format 3\x00"

_NSYS_SUFFIXES = (".nsys-rep", ".qdrep")
_CHROME_SUFFIXES = (".json", ".json.gz", ".json.zst")
# Enough of a file, expanded where it is compressed, to see what it is.
_HEAD_BYTES = 1 << 16


def open_recording(
    path: str, *, summed: bool = False, tables: Sequence[str] = ()
) -> RecordingReader:
    """What is at `path`; "-" is a journal on standard input. `summed` is for callers that fold all
    of it and only look at the end: a journal, or a large file of another tool, opens much faster.
    With `tables`, what it gives may be only what those show: a report of nsys then opens faster
    still.

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

        csv_tables = NsysTables.find(place)
        if csv_tables is not None:
            return csv_tables
        if place.is_dir():
            return _job(place, summed=summed)
    elif (imported := open_import(place, summed=summed, tables=tables)) is not None:
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
    tables: Sequence[str] = (),
) -> NsysReport | KinetoTrace | None:
    """What another tool wrote, with every single event; None for anything else. With `trace`,
    these also go there; `summed` and `tables` as in `open_recording`. Raises JournalError, one
    line."""
    if path.suffix in _NSYS_SUFFIXES:
        from gputui.imports.nsys import exported_report

        return exported_report(path, trace, summed=summed)
    kind = import_kind(path)
    if kind == "packed sqlite":
        from gputui.imports.nsys import unpacked_report

        return unpacked_report(path, trace, summed=summed)
    if kind == "sqlite":
        from gputui.imports.nsys import NsysReport

        return NsysReport(path, trace, summed=summed, tables=tables)
    if kind == "chrome":
        from gputui.imports.kineto import KinetoTrace

        return KinetoTrace(path, trace, summed=summed)
    return None


TEMPORARY_BYTES = 8 << 30
"""Disk space for the trace of another tool's file while it is read."""


def trace_of(path: Path, place: Path, most_bytes: int = TEMPORARY_BYTES) -> TraceReader:
    """The trace beside a recording, or the one of another tool's file, which is then written to
    `place`. Raises JournalError, one line, if there is none."""
    from gputui.store.trace import TraceReader, TraceWriter

    with closing(TraceWriter(place, most_bytes)) as writer:
        imported = open_import(path, writer, summed=True)
        if imported is not None:
            with closing(imported):
                for _ in imported:
                    pass
    if imported is not None:
        if writer.failure:
            raise JournalError(writer.failure)
        return TraceReader(place)
    place.unlink()
    beside = trace_path(path)
    if not beside.exists():
        raise JournalError(
            f"{path} has no trace beside it ({beside.name}): record with --trace for this"
        )
    return TraceReader(beside)


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
    """A folded session and one of its runs; None if no run was recorded. `remarks` are lines about
    what was odd in the file."""

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
    name: str, number: int | None = None, *, raw_names: bool = False, tables: Sequence[str] = ()
) -> Loaded:
    """Loads run `number` of the recording at `name`; without a number the newest run, if there is
    one. With `raw_names`, phases keep the full names of their ranges, numbers included. With
    `tables`, the session may hold only what these tables show. Raises JournalError."""
    with closing(open_recording(name, summed=True, tables=tables)) as recording:
        return fold_recording(recording, number, raw_names=raw_names)


def is_of_one_job(folder: Path) -> bool:
    """Whether all recordings in it are of ranks of one job."""
    members, left_out = members_of(folder, partial(open_recording, summed=True))
    return bool(members) and not left_out and all(member.rank is None for member in members)


def fold_recording(
    recording: RecordingReader, number: int | None = None, *, raw_names: bool = False
) -> Loaded:
    """Loads a run of an open recording. Raises JournalError."""
    session = Session.from_events(recording)
    for run in session.runs.values():
        run.raw_names = raw_names
    return Loaded(
        recording.name, session, chosen_run(session, recording.name, number), remarks(recording)
    )


def chosen_run(session: Session, name: str, number: int | None) -> Run | None:
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


# --- Some steps of a run, read again from its recording: what a session adds up over the whole run
# (phases, kernels, calls, copies) is folded from what was read while they went on, by the same
# fold.

Loops = Mapping[tuple[int, int], int]
"""The loop whose steps are counted, by process and the machine's index of the device."""


class ReadStretch(NamedTuple):
    """A run with only some of its steps, in a session of its own. It lies between two readings of
    records, those nearest to the beginning and the end of the steps."""

    session: Session
    run: Run


def read_stretch(path: str, number: int, loops: Loops, first: int, last: int) -> ReadStretch:
    """Loads steps `first` to `last` of run `number` of the recording at `path`: steady steps of
    `loops`, counted from 1. Reads the recording twice. Raises JournalError, one line."""
    with closing(_opened(path)) as recording:
        span = _span(recording, number, loops, first, last)
    if span is None:
        raise JournalError(f"{path} does not hold these steps")
    with closing(_opened(path)) as recording:
        return _folded(recording, number, span)


def _opened(path: str) -> RecordingReader:
    recording = open_recording(path)
    if recording.damage:  # files that are missing: steps would be counted wrong
        recording.close()
        raise JournalError(recording.damage)
    return recording


def _span(
    recording: RecordingReader, number: int, loops: Loops, first: int, last: int
) -> tuple[int, int] | None:
    """From when to when these steps ran, if the steps of one reading are taken to be equally
    long."""
    session = Session()
    counted = dict.fromkeys(loops, 0)
    begins: list[int] = []
    ends: list[int] = []
    for event in recording:
        if event.defines:
            session.apply((event,))
        if not isinstance(event, CaptureDelta):
            continue
        run = session.holder_of(event.process)
        if run is None or run.started.run != number:
            continue
        for turns in event.loops:
            place = event.process, gpu_of(session, run, event.process, turns.device)
            if turns.scope != Scope.STEADY or loops.get(place) != turns.loop or not turns.steps:
                continue
            before = counted[place]
            counted[place] += turns.steps
            low = max(0.0, (first - 1 - before) / turns.steps)
            high = min(1.0, (last - before) / turns.steps)
            if low < high:
                length_ns = turns.last_ns - turns.first_ns
                begins.append(turns.first_ns + round(low * length_ns))
                ends.append(turns.first_ns + round(high * length_ns))
        if counted and min(counted.values()) >= last:
            break
    return (min(begins), max(ends)) if begins else None


def _folded(recording: RecordingReader, number: int, span: tuple[int, int]) -> ReadStretch:
    begin_ns, end_ns = span
    session = Session()
    read_ns: dict[int, int] = {}
    """The time until which the records of each process were read."""
    first_ns, last_ns = end_ns, begin_ns
    for event in recording:
        is_inside = begin_ns <= event.time_ns <= end_ns
        # Medians are not exported: adding up what they are made of took 15 of 39 s for an hour of
        # 300 kernels.
        if isinstance(event, CaptureDelta):
            holder = session.holder_of(event.process)
            if holder is None or holder.started.run != number:
                continue
            since_ns = read_ns.get(event.process, holder.started.time_ns)
            read_ns[event.process] = event.time_ns
            if not _is_in(since_ns, event.time_ns, span):
                continue
            first_ns, last_ns = min(first_ns, since_ns), max(last_ns, event.time_ns)
            session.apply((event,))
        elif event.defines or (is_inside and _is_reading(event)):
            session.apply((event,))
    run = session.runs.get(number)
    if run is None or last_ns <= first_ns:
        raise JournalError(f"{recording.name}: nothing was read while these steps went on")
    _drop_unseen(run)
    run.started = replace(run.started, time_ns=first_ns)
    session.apply((RunEnded(time_ns=last_ns, run=number, reason="the end of the scope"),))
    return ReadStretch(session, run)


def _is_reading(event: AnyEvent) -> bool:
    """Whether it says how the machine or a GPU is at its moment."""
    return isinstance(event, MachineSample) or event.about is About.GPU


def _is_in(since_ns: int, until_ns: int, span: tuple[int, int]) -> bool:
    """Whether more of a reading is inside than outside, or all of the span is in it."""
    begin_ns, end_ns = span
    is_most = begin_ns <= (since_ns + until_ns) // 2 <= end_ns
    return is_most or since_ns < (begin_ns + end_ns) // 2 <= until_ns


def _drop_unseen(run: Run) -> None:
    """Leave out ranges of which nothing was seen, nor of any inside. Sums over their operations
    may come a reading later."""
    kept: set[int] = set()
    for number, node in reversed(run.ranges.items()):  # parents come before what is inside them
        is_open = node.open_since_ns is not None
        launched = node.launched.kernels or node.inherited is not None
        if number in kept or is_open or node.cpu.count or launched:
            kept |= {number, node.definition.parent}
    run.ranges = {number: node for number, node in run.ranges.items() if number in kept}
    run.roots = [number for number in run.roots if number in kept]
    for node in run.ranges.values():
        node.children = [number for number in node.children if number in kept]
