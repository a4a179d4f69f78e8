"""One way to open whatever holds a session: a journal, an nsys export, tables of nsys stats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gputui.base.standard_streams import standard_input
from gputui.model.events import AnyEvent, Header
from gputui.store.journal import JournalError, JournalReader, open_journal
from gputui.store.regular_file import open_regular

_SQLITE = b"SQLite format 3\x00"
"""How such a file begins (sqlite.org/fileformat.html)."""


class Recording(Protocol):
    """The events of a session, oldest first, read once.

    `skipped` counts events this version does not know, `damage` says where and why reading ended
    early; both change while iterating.
    """

    name: str
    header: Header

    @property
    def skipped(self) -> int:
        """Events left out so far."""

    @property
    def damage(self) -> str | None:
        """Where and why reading ended early, in one line; None if it did not."""

    def __iter__(self) -> Iterator[AnyEvent]:
        """The events, the header first."""
        ...


def open_recording(path: str, *, summed: bool = False) -> Recording:
    """What is at `path`; "-" is a journal on standard input. `summed` is for callers that fold all
    of it and only look at the end: a journal then opens much faster.

    `path` is a file (of a rotated recording the first, or a pattern: then all are read as one
    session), a folder with the CSV tables of one report, or the common prefix of their names.
    Raises JournalError, one line, if there is no session.
    """
    if path == "-":
        return JournalReader(standard_input(), "standard input", summed=summed)
    place = Path(path)
    # Imported where they are needed: both take as long to load as a recording to read.
    if not place.is_file() or place.suffix == ".csv":
        from gputui.imports.nsys.stats_csv import NsysTables

        tables = NsysTables.find(place)
        if tables is not None:
            return tables
    elif is_sqlite(place):
        from gputui.imports.nsys.report import NsysReport

        return NsysReport(place)
    return open_journal(place, summed=summed)


def remarks(recording: Recording) -> tuple[str, ...]:
    """Remarks about a recording after reading it, one line each."""
    found = [recording.damage] if recording.damage else []
    if recording.skipped:
        found.append(
            f"{recording.name}: {recording.skipped} events of kinds this version does not know "
            "were left out"
        )
    return tuple(found)


def is_sqlite(path: Path) -> bool:
    """Whether a file is SQLite, as an nsys export is; False if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except (JournalError, OSError):
        return False  # whoever opens it next reports why
