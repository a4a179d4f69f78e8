"""Reading the files of a rotated recording, x.gputui, x.2.gputui, …, as one session."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from collections.abc import Generator
from pathlib import Path

import msgspec

from gputui.events import AnyEvent, Header
from gputui.journal.errors import JournalError
from gputui.journal.places import SUFFIXES, numbered
from gputui.journal.reader import JournalReader
from gputui.journal.rotation import Preamble

_encoder = msgspec.json.Encoder()

_NAMED = 3
"""Missing files that are named; of more the first and the last."""

_NUMBERED = re.compile(
    rf"(?P<stem>.+)\.(?P<number>[1-9]\d{{0,5}})(?P<suffix>{'|'.join(map(re.escape, SUFFIXES))})",
    re.DOTALL,
)


class RotatedReader:
    """The events of several files, oldest first, once, as a JournalReader gives those of one.

    What a file repeats of those before it is left out. `damage` also tells of files that are
    missing or cannot be read.
    """

    def __init__(self, path: Path, files: dict[int, Path], *, summed: bool = False) -> None:
        """`files` are those that follow `path`, by number, 1 for itself; at least one.

        Raises JournalError where none can be read.
        """
        self.name = str(path)
        self.skipped = 0
        self._summed = summed
        self._remarks: list[str] = []
        self._files: list[Path] = []
        header: Header | None = None
        numbers = []
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
                self._files.append(file)
                numbers.append(number)
        if header is None:
            raise JournalError(self._remarks[0])
        self.header = header
        unread = {number for number in files if number not in numbers}
        missing = sorted({*range(1, numbers[-1])} - {*numbers} - unread)
        if missing:
            self._remarks.append(_told(path, missing))

    @property
    def damage(self) -> str | None:
        """What was not read and why, None where all was."""
        return "; ".join(self._remarks) or None

    def __iter__(self) -> Generator[AnyEvent, None, None]:
        seen = Preamble()
        for file in self._files:
            try:
                reader = JournalReader.open(file, summed=self._summed)
            except JournalError as error:
                self._remarks.append(str(error))
                continue
            known = {_encoder.encode(event) for event in seen.events()}
            for event in reader:
                if known and _encoder.encode(event) in known:
                    continue
                if not isinstance(event, Preamble.KINDS):
                    known.clear()  # the file's own events begin
                seen.see((event,))
                yield event
            self.skipped += reader.skipped
            if reader.damage:
                self._remarks.append(reader.damage)


def open_journal(path: Path, *, summed: bool = False) -> JournalReader | RotatedReader:
    """The recording at `path`, with the files that follow it where it was rotated.

    `path` may also be a pattern, as x*.gputui, that matches the files of one recording. A file
    with a number is read by itself. `summed` as in JournalReader. Raises JournalError.
    """
    path = _first_of_pattern(path)
    files = _files(path)
    if not files or [*files] == [1]:
        return JournalReader.open(path, summed=summed)
    return RotatedReader(path, files, summed=summed)


def members(path: Path) -> list[Path]:
    """The files of the recording at `path` in order: itself, and those whose name and header say
    that they go on with it. Itself alone where it cannot be read, or was not rotated."""
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
    """What the first file is called that a file of this name would go on with; else `path`."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None or match["number"] == "1":
        return path
    return path.with_name(match["stem"] + match["suffix"])


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


@functools.lru_cache(maxsize=4096)
def _header(path: Path, identity: tuple[int, int]) -> Header:
    """The header of a file, which is written once: a folder is looked at every few seconds."""
    del identity
    reader = JournalReader.open(path)
    reader.close()
    return reader.header


def _files(path: Path) -> dict[int, Path]:
    """The files of a recording by number, as far as their names tell."""
    # Not Path.exists: in a folder that is somebody else's it raises.
    found = {1: path} if os.path.exists(path) else {}
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # whoever opens the file says why
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
