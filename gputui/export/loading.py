"""Opening what holds a session, and choosing one of its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.analysis.summary import moment
from gputui.journal import JournalError
from gputui.session import Run, Session
from gputui.sources.recordings import Recording, open_recording, remarks

LISTED = 20
"""Runs named where one was asked for that is not there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A folded session and one run of it. `remarks` is what was odd about the file, a line each."""

    session: Session
    run: Run
    remarks: tuple[str, ...]


def load(name: str, number: int | None = None) -> Loaded:
    """Run `number` of what is at `name`, the newest where that is None. Raises JournalError."""
    return fold(open_recording(name, summed=True), number)


def fold(recording: Recording, number: int | None = None) -> Loaded:
    """The same of what is open already. Raises JournalError."""
    session = Session()
    session.apply(recording)
    return Loaded(session, chosen(session, recording.name, number), remarks(recording))


def chosen(session: Session, name: str, number: int | None) -> Run:
    """A session's run by number, the newest where that is None. Raises JournalError."""
    if session.run is None:
        raise JournalError(f"{name}: no run was recorded, so there is nothing to show")
    if number is None:
        return session.run
    run = session.runs.get(number)
    if run is None:
        runs = [
            f"{known} ({found.started.name}, {moment(found.started.time_ns)[:19]})"
            for known, found in session.runs.items()
        ]
        more = f" and {len(runs) - LISTED} more" if len(runs) > LISTED else ""
        raise JournalError(f"{name} has no run {number}; it has {', '.join(runs[:LISTED])}{more}")
    return run
