"""Opening whatever holds a session, and choosing one of its runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputui.model.units import moment
from gputui.playback.job import members_of
from gputui.playback.opening import open_recording, remarks
from gputui.state import Run, Session
from gputui.store.journal import JournalError
from gputui.store.journal.reader import RecordingReader

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


def load(name: str, number: int | None = None, *, raw_names: bool = False) -> Loaded:
    """Run `number` of what is at `name`; if None, the newest, if any. With `raw_names`, phases are
    called as their ranges are, numbering and all.

    Raises JournalError.
    """
    with closing(open_recording(name, summed=True)) as recording:
        return fold(recording, number, raw_names=raw_names)


def is_of_one_job(folder: Path) -> bool:
    """Whether all recordings in it are of ranks of one job."""
    members, left_out = members_of(folder, partial(open_recording, summed=True))
    return bool(members) and not left_out and all(one.rank is None for one in members)


def fold(
    recording: RecordingReader, number: int | None = None, *, raw_names: bool = False
) -> Loaded:
    """The same for an open recording. Raises JournalError."""
    session = Session.of(recording)
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
            f"{known} ({found.started.name}, {moment(found.started.time_ns)[:19]})"
            for known, found in session.runs.items()
        ]
        more = f" and {len(runs) - LISTED} more" if len(runs) > LISTED else ""
        raise JournalError(f"{name} has no run {number}; it has {', '.join(runs[:LISTED])}{more}")
    return run
