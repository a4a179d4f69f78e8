"""Recording from the first run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from gputui.model.events import AnyEvent, RunStarted
from gputui.store.errors import JournalError, TakenError
from gputui.store.journal.rotation import Limits, Preamble
from gputui.store.journal.writer import JournalWriter
from gputui.store.places import make_folder


class RecordingWriter(Protocol):
    """What a live source writes its events to, whether it records every event or each run."""

    @property
    def path(self) -> Path | None:
        """The file; None if there is none."""

    @property
    def bytes_written(self) -> int | None:
        """Bytes written to disk so far; None before it begins."""

    @property
    def failure(self) -> str | None:
        """Why recording has stopped; None while it works."""

    @property
    def notices(self) -> Sequence[str]:
        """What was left out or removed to make room, one line each."""

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append events."""

    def close(self) -> None:
        """Finish the file."""


class RunRecorder:
    """Records each run in a file of its own, until the next one starts: a screen that only watches
    leaves no file behind.

    `path_of` returns the file's path for the run's name. The journal starts, like every journal,
    with the header and the reasons for missing readings.
    """

    def __init__(self, path_of: Callable[[str], Path], limits: Limits | None = None) -> None:
        self._path_of = path_of
        self._limits = limits
        self._preamble = Preamble()
        self._writer: JournalWriter | None = None
        self._refused: str | None = None

    @property
    def path(self) -> Path | None:
        """The recording's path; None before the first run."""
        return self._writer.path if self._writer else None

    @property
    def bytes_written(self) -> int | None:
        """Size of the file so far; None before the first run."""
        return self._writer.bytes_written if self._writer else None

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded; None while it works."""
        return self._refused or (self._writer.failure if self._writer else None)

    @property
    def notices(self) -> Sequence[str]:
        """See JournalWriter."""
        return self._writer.notices if self._writer else ()

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Append `events` once a run has started."""
        starts = [at for at, event in enumerate(events) if isinstance(event, RunStarted)]
        for first, last in pairwise([0, *starts, len(events)]):
            part = events[first:last]
            if part and isinstance(part[0], RunStarted):
                self.close()
                self._writer = None
                self._open(part[0].name)
                if self._writer is not None:
                    self._write([*self._preamble.events(), *part])
            else:
                self._write(part)
            self._preamble.see(part)

    def _write(self, events: Sequence[AnyEvent]) -> None:
        if self._writer is not None and events:
            self._writer.write(events)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, name: str) -> None:
        taken: Path | None = None
        while self._writer is None and self._refused is None:
            path = self._path_of(name)
            try:
                make_folder(path.parent)
                self._writer = JournalWriter(path, self._limits)
            except TakenError as error:
                # Another gputui was quicker: take the next name, unless there is only one.
                self._refused = str(error) if path == taken else None
                taken = path
            except JournalError as error:
                self._refused = str(error)
