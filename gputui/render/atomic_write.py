"""Files that are there whole or not at all, and never in the place of a recording."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gputui.render.errors import ExportError
from gputui.store.places import SNAPSHOT_SUFFIX, SUFFIXES, TRACE_SUFFIX

_JOURNAL_BEGINS = b'{"event":"header"'


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write what is to be `path`: it takes that name when the `with` is left in peace.

    A device or a pipe, as /dev/stdout, is written to as it is. Raises ExportError, also for an
    OSError inside the `with`.
    """
    with os_errors_as(path), _whole(path) as place:
        yield place


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. Raises ExportError."""
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def os_errors_as(path: Path) -> Iterator[None]:
    """An OSError inside the `with` becomes an ExportError: that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ExportError(f"cannot write {path}: {why}") from None


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if _is_recording(path):
        raise ExportError(f"{path} is a recording, which an export would replace: choose another")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _is_recording(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.name.endswith((*SUFFIXES, TRACE_SUFFIX, SNAPSHOT_SUFFIX)):
        return True
    with path.open("rb") as file:
        return file.read(len(_JOURNAL_BEGINS)) == _JOURNAL_BEGINS
