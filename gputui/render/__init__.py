"""Text and files of sessions, a module for each family of formats; and here how files and folders
are written completely or not at all, and never over a recording.

Private to their owner, as recordings are: 0600, folders 0700. The errors of exports are here, too,
because writing raises most of them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from gputui.base import WRONG_USAGE, GputuiError, name_taken

# Errors of exports, in words.


class ExportError(GputuiError):
    """The export failed. One line for people."""


class NoRunError(ExportError):
    """The request needs a run, and the recording has none."""


class UnknownNameError(ExportError):
    """There is no table or format of that name."""

    exit_status = WRONG_USAGE


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path for a file that is written as a whole: it becomes `path` when the `with` is
    left without an error. A device or a pipe, such as /dev/stdout, is written directly. Raises
    ExportError, also for an OSError inside the `with`."""
    with os_errors_as(path), _whole(path) as place:
        yield place


def write_whole(path: Path, text: str) -> None:
    """Write a text file, completely or not at all. Raises ExportError."""
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(path: Path, *, may_exist: bool = False) -> Iterator[Path]:
    """A temporary folder for the files of the folder `path`, which it becomes when the `with` is
    left without an error. If that exists, they are moved into it one by one.

    Raises ExportError, also for an OSError inside the `with`.
    """
    if os.path.lexists(path) and not (may_exist and path.is_dir()):
        raise ExportError(name_taken(path))
    exists = path.is_dir()
    with (
        os_errors_as(path),
        tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", dir=path if exists else path.parent
        ) as place,
    ):
        made = Path(place, "made")
        made.mkdir(mode=0o700)
        yield made
        files = sorted(made.iterdir())
        for file in files:
            # Some are written by packages of others, which follow the umask.
            file.chmod(0o600)
            _refuse_recording(path / file.name)
        if not exists:
            made.rename(path)
            return
        for file in files:
            os.replace(file, path / file.name)


def file_names(names: Iterable[str], suffix: str) -> list[str]:
    """A file name for each of the untrusted `names`: all different, and none leads out of its
    folder.
    """
    chosen: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:60] or "table"
        number, free = 1, plain
        while f"{free}{suffix}".lower() in map(str.lower, chosen):
            number += 1
            free = f"{plain}-{number}"
        chosen.append(f"{free}{suffix}")
    return chosen


@contextlib.contextmanager
def os_errors_as(path: Path) -> Iterator[None]:
    """Turn an OSError inside the `with` into an ExportError saying that `path` cannot be
    written.
    """
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ExportError(f"cannot write {path}: {why}") from None


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    # As root an export to /dev/null replaced the device.
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    _refuse_recording(path)
    # In the same folder, so that one rename puts it in its place; and of mode 0600.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _refuse_recording(path: Path) -> None:
    if _is_recording(path):
        raise ExportError(f"{path} is a recording, which an export would overwrite: choose another")


def _is_recording(path: Path) -> bool:
    # Not above: text of the machine as it is now is written without the store (8 ms of a start).
    from gputui.store import SNAPSHOT_SUFFIX, SUFFIXES, TRACE_SUFFIX
    from gputui.store.journal.reader import HEADER_BEGINS

    if not path.is_file():
        return False
    if path.name.endswith((*SUFFIXES, TRACE_SUFFIX, SNAPSHOT_SUFFIX)):
        return True
    begins = HEADER_BEGINS.rstrip(b",")  # also of one that was cut off there
    with path.open("rb") as file:
        return file.read(len(begins)) == begins
