"""Exports of every sample: they need no run, and are written while the recording is read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gputui.model.events import AnyEvent, MachineSample
from gputui.playback.loading import chosen, load
from gputui.playback.opening import open_recording, remarks
from gputui.render.atomic_write import atomic_write
from gputui.render.errors import ExportError
from gputui.render.openmetrics import write_openmetrics
from gputui.render.parquet import write_parquet
from gputui.render.write import tables_with_rows
from gputui.report.summary_tables import Table
from gputui.state import Session

Span = tuple[int, int]
"""First and last moment of a run, in ns since the epoch."""


def export_openmetrics(name: str, number: int | None, out: Path | None) -> tuple[str, ...]:
    """Write `out`, standard output where that is None; what was odd about the recording.

    With `number` the samples of that run alone. Raises ExportError and JournalError.
    """
    span = _span(name, number)
    # Not summed: how far each phase was at each sample is what is asked for.
    recording = open_recording(name)
    if out is None:
        write_openmetrics(sys.stdout, recording, span)
        return remarks(recording)
    with atomic_write(out) as place, place.open("w", encoding="utf-8", newline="\n") as file:
        write_openmetrics(file, recording, span)
    return remarks(recording)


def export_parquet(name: str, number: int | None, out: Path) -> tuple[str, ...]:
    """Write the folder `out`, which must not exist; what was odd about the recording.

    With `number` the samples and tables of that run, otherwise all samples and the tables of the
    newest run, of the machine where there is none. Raises ExportError and JournalError.
    """
    span = _span(name, number)
    recording = open_recording(name, summed=True)
    session = Session()

    def samples() -> Iterator[MachineSample]:
        for event in _folding(recording, session):
            if isinstance(event, MachineSample) and (
                span is None or span[0] <= event.time_ns <= span[1]
            ):
                yield event

    def tables() -> Iterable[Table]:
        yield from tables_with_rows(session, chosen(session, name, number))

    write_parquet(out, tables(), samples())
    return remarks(recording)


def _folding(events: Iterable[AnyEvent], session: Session) -> Iterator[AnyEvent]:
    for event in events:
        session.apply((event,))
        yield event


def _span(name: str, number: int | None) -> Span | None:
    if number is None:
        return None
    if name == "-":
        raise ExportError(
            "--run reads a recording twice, and standard input cannot be: give a file"
        )
    run = load(name, number).needed_run()
    return run.started.time_ns, run.started.time_ns + run.duration_ns
