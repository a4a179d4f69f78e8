"""Reading the files of a rotated recording, x.gputui, x.2.gputui, …, as one session."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

from gputui.model.events import AnyEvent, Header
from gputui.store.errors import JournalError
from gputui.store.journal.reader import JournalReader, Stop
from gputui.store.journal.rotation import Repeats
from gputui.store.places import SUFFIXES, numbered

_NAMED = 3
"""Missing files that are named; of more, the first and the last."""

_NUMBERED = re.compile(
    rf"(?P<stem>.+)\.(?P<number>[1-9]\d{{0,5}})(?P<suffix>{'|'.join(map(re.escape, SUFFIXES))})",
    re.DOTALL,
)


class RotatedReader:
    """The events of several files, oldest first, once, like a JournalReader for one.

    What a file repeats from earlier ones is left out. `damage` also reports files that are missing
    or cannot be read.
    """

    def __init__(
        self,
        path: Path,
        files: dict[int, Path],
        *,
        summed: bool = False,
        stop: Stop | None = None,
    ) -> None:
        """`files` are those that continue `path`, by number, 1 for itself; at least one.

        With `stop`, waits at the end of the newest file and reads new ones, until that is set.
        Raises JournalError if none can be read.
        """
        self.name = str(path)
        self._path = path
        self._summed = summed
        self._stop = stop
        self._remarks: list[str] = []
        self._files: dict[int, Path] = {}
        self._opened: list[JournalReader] = []
        header: Header | None = None
        for number, file in sorted(files.items()):
            try:
                reader = JournalReader.open(file)
            except JournalError as error:
                if len(files) == 1:
                    raise
                self._remarks.append(str(error))
                continue
            reader.close()
            if header is None:
                header = reader.header
            if reader.header == header:
                # Another recording may have such a name too.
                self._files[number] = file
        if header is None:
            raise JournalError(self._remarks[0])
        self.header = header
        unread = {*files} - {*self._files}
        missing = sorted({*range(1, max(self._files))} - {*self._files} - unread)
        if missing:
            self._remarks.append(_told(path, missing))

    @property
    def damage(self) -> str | None:
        """What was not read and why, None if everything was."""
        damages = [piece.damage for piece in self._opened if piece.damage]
        return "; ".join([*self._remarks, *damages]) or None

    @property
    def skipped(self) -> int:
        """Events of kinds that this version does not know."""
        return sum(piece.skipped for piece in self._opened)

    def close(self) -> None:
        """Close the file that is read."""
        for piece in self._opened:
            piece.close()

    def pieces(self) -> Iterator[JournalReader]:
        """Its files, each open while it is the newest yielded."""
        read = 0
        while later := [number for number in self._files if number > read]:
            read = later[0]
            is_waited_at = self._stop is not None and len(later) == 1
            try:
                piece = JournalReader.open(
                    self._files[read],
                    _Superseded(self, self._stop) if self._stop and is_waited_at else None,
                    summed=self._summed,
                )
            except JournalError as error:
                self._remarks.append(str(error))
            else:
                self._opened.append(piece)
                yield piece
            if is_waited_at:
                self.look()

    def look(self) -> bool:
        """Whether there is a file after the newest known one, which it then becomes."""
        newest = max(self._files)
        for number, file in sorted(_files(self._path).items()):
            with contextlib.suppress(JournalError, OSError):
                # Wait for one whose header is incomplete.
                if number > newest and _header(file, _identity(file)) == self.header:
                    self._files[number] = file
        return max(self._files) > newest

    def __iter__(self) -> Generator[AnyEvent, None, None]:
        repeats = Repeats()
        for piece in self.pieces():
            repeats.begin()
            for event in piece:
                if not repeats.is_one(event):
                    yield event


class _Superseded:
    """Says when the newest file has been followed by another."""

    def __init__(self, reader: RotatedReader, stop: Stop) -> None:
        self._reader = reader
        self._stop = stop

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.wait(timeout) or self._reader.look()


def open_journal(
    path: Path, *, summed: bool = False, stop: Stop | None = None
) -> JournalReader | RotatedReader:
    """The recording at `path`, with the files that follow it if it was rotated.

    `path` may also be a pattern, such as x*.gputui, that matches the files of one recording. A file
    with a number is read by itself. `summed` as in JournalReader. With `stop`, a recording that is
    still being written is followed into its next files until that is set. Raises JournalError.
    """
    path = _first_of_pattern(path)
    files = _files(path)
    if stop is not None and files and all(map(os.path.isfile, files.values())):
        return RotatedReader(path, files, summed=summed, stop=stop)
    if not files or [*files] == [1]:
        return JournalReader.open(path, stop, summed=summed)
    return RotatedReader(path, files, summed=summed)


def members(path: Path) -> list[Path]:
    """The files of the recording at `path` in order: itself, and those whose name and header
    continue it. Only itself if it cannot be read, or was not rotated.
    """
    files = [file for _, file in sorted(_files(path).items())] or [path]
    if len(files) == 1:
        return files
    try:
        header = _header(files[0], _identity(files[0]))
    except (JournalError, OSError):
        return [path]
    found = files[:1]
    for file in files[1:]:
        with contextlib.suppress(JournalError, OSError):
            if _header(file, _identity(file)) == header:
                found.append(file)
    return found


def first_of(path: Path) -> Path:
    """The name of the first file that a file of this name would continue; else `path`."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None or match["number"] == "1":
        return path
    return path.with_name(match["stem"] + match["suffix"])


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


@functools.lru_cache(maxsize=4096)
def _header(path: Path, identity: tuple[int, int]) -> Header:
    """The header of a file, cached: a folder is scanned every few seconds."""
    del identity
    reader = JournalReader.open(path)
    reader.close()
    return reader.header


def _files(path: Path) -> dict[int, Path]:
    """The files of a recording by number, judging by their names."""
    # Not Path.exists: in another user's folder it raises.
    found = {1: path} if os.path.exists(path) else {}
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # whoever opens the file reports why
        return found
    for name in names:
        match = _NUMBERED.fullmatch(name)
        number = int(match["number"]) if match else 1
        if number > 1 and numbered(path, number).name == name:
            found[number] = path.with_name(name)
    return found


def _first_of_pattern(path: Path) -> Path:
    if os.path.exists(path) or not glob.has_magic(str(path)):
        return path
    firsts = set()
    for name in glob.iglob(str(path)):
        match = _NUMBERED.fullmatch(name)
        if match or name.endswith(SUFFIXES):
            firsts.add(match["stem"] + match["suffix"] if match else name)
    if len(firsts) > 1:
        some = ", ".join(sorted(firsts)[:_NAMED])
        raise JournalError(f"{path} matches several recordings ({some}, …): name one")
    return Path(firsts.pop()) if firsts else path


def _told(path: Path, missing: list[int]) -> str:
    names = [numbered(path, number).name for number in missing]
    if len(names) > _NAMED:
        names = [f"{names[0]} to {names[-1]}"]
    what = "is" if len(missing) == 1 else "are"
    return f"{', '.join(names)} {what} missing: what happened in that time is left out"
