"""The recordings of a folder, kept up to date by a thread that reads what changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gputui.base.errors import JournalError
from gputui.store.library import Found, LibraryEntry, describe, files
from gputui.store.places import default_folder
from gputui.tui.threads import Threads

_BATCH = 25
"""Recordings shown at once while a large folder is read for the first time."""


class RecordingLibrary:
    """What is known about a folder. `changed` is called in the screen's thread on news."""

    def __init__(
        self, threads: Threads, changed: Callable[[], None], folder: Path | None = None
    ) -> None:
        """Of `folder`, or where runs are recorded without one."""
        self._threads = threads
        self._changed = changed
        self._known: dict[Found, LibraryEntry] = {}
        self._found: list[Found] | None = None
        self._is_reading = False
        self.folder = folder
        self.failure = ""
        try:
            self.folder = folder or default_folder()
        except JournalError as error:
            self.failure = str(error)

    @property
    def entries(self) -> list[LibraryEntry]:
        """The recordings read so far, newest first."""
        return [self._known[file] for file in self._found or () if file in self._known]

    @property
    def unread(self) -> int | None:
        """Files not read yet; None before the folder was."""
        if self._found is None:
            return None
        return sum(file not in self._known for file in self._found)

    def choose(self, folder: Path) -> None:
        """Switch to another folder."""
        self.folder, self.failure = folder, ""
        self._known, self._found, self._is_reading = {}, None, False
        self.look()

    def look(self) -> None:
        """Read new files, and those being written."""
        folder, known = self.folder, self._known
        if folder is None or self._is_reading:
            return
        self._is_reading = True

        def read() -> tuple[list[Found], dict[Found, LibraryEntry]]:
            found = files(folder)
            entries: dict[Found, LibraryEntry] = {}
            for file in found:
                old = known.get(file)
                entries[file] = describe(file.path) if old is None or old.is_written else old
                if old is None and len(entries) % _BATCH == 0:
                    self._threads.from_thread(partial(self._arrived, folder, found, dict(entries)))
            return found, entries

        def done(read: tuple[list[Found], dict[Found, LibraryEntry]]) -> None:
            if folder == self.folder:
                self._is_reading = False
            self._arrived(folder, *read)

        def failed(reason: str) -> None:
            if folder == self.folder:
                self._is_reading, self.failure, self._found = False, reason, []
                self._changed()

        self._threads.in_thread(read, done, failed)

    def _arrived(
        self, folder: Path, found: list[Found], entries: dict[Found, LibraryEntry]
    ) -> None:
        if folder == self.folder:
            self.failure, self._found, self._known = "", found, entries
            self._changed()
