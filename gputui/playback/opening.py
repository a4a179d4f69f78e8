"""One way to open whatever holds a session: a journal, an nsys export, tables of nsys stats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gputui.base.standard_streams import standard_input
from gputui.imports.nsys import NsysReport, NsysTables
from gputui.imports.nsys.database import MAGIC
from gputui.model.events import AnyEvent, Header
from gputui.store.journal import JournalReader, open_journal


class Recording(Protocol):
    """The events of a session, oldest first, read once.

    `skipped` counts what this version does not know, `damage` says where and why reading ended
    early; both grow while iterating.
    """

    name: str
    header: Header

    @property
    def skipped(self) -> int:
        """Events left out."""

    @property
    def damage(self) -> str | None:
        """One line."""

    def __iter__(self) -> Iterator[AnyEvent]:
        """The header first."""
        ...


def open_recording(path: str, *, summed: bool = False) -> Recording:
    """What is at `path`; "-" is a journal on standard input. `summed` is for who folds all of it
    and looks at the end alone: a journal is then opened much faster.

    `path` is a file (of a rotated recording the first, or a pattern: then all are read as one
    session), a folder with the CSV tables of one report, or what their names begin with.
    Raises JournalError, one line, where there is no session.
    """
    if path == "-":
        return JournalReader(standard_input(), "standard input", summed=summed)
    place = Path(path)
    if not place.is_file() or place.suffix == ".csv":
        tables = NsysTables.find(place)
        if tables is not None:
            return tables
    elif is_sqlite(place):
        return NsysReport(place)
    return open_journal(place, summed=summed)


def remarks(recording: Recording) -> tuple[str, ...]:
    """What is to be told of a recording that was read, a line each."""
    found = [recording.damage] if recording.damage else []
    if recording.skipped:
        found.append(
            f"{recording.name}: {recording.skipped} events of kinds this version does not know "
            "were left out"
        )
    return tuple(found)


def is_sqlite(path: Path) -> bool:
    """Whether a file is SQLite, as an nsys export is; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # whoever opens it next says why
