"""Reports that are no SQLite file yet: compressed exports, and nsys's own files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from gputui.base.sanitize import sanitize
from gputui.imports.nsys.report import NsysReport
from gputui.store.journal import JournalError
from gputui.store.journal.compression import CompressionError, expanded
from gputui.store.regular_file import open_regular
from gputui.store.trace import TraceWriter

MOST_BYTES = 64 << 30
"""Most of a compressed export that is unpacked."""

EXPORT_S = 3600
_PORTION_BYTES = 1 << 20


def unpacked_report(path: Path, trace: TraceWriter | None) -> NsysReport:
    """A compressed SQLite export, unpacked where temporary files go. Raises JournalError."""
    folder = tempfile.TemporaryDirectory(prefix="gputui-")
    place = Path(folder.name, "report.sqlite")
    try:
        with expanded(open_regular(path), str(path)) as stream, place.open("wb") as out:
            while data := stream.read(_PORTION_BYTES):
                out.write(data)
                if out.tell() > MOST_BYTES:
                    raise CompressionError(f"it is larger than {MOST_BYTES >> 30} GiB")
    except (CompressionError, OSError) as error:
        folder.cleanup()
        raise JournalError(f"{path} cannot be unpacked: {sanitize(str(error), 160)}") from None
    return _opened(place, path, folder, trace)


def exported_report(path: Path, trace: TraceWriter | None) -> NsysReport:
    """nsys's own file, exported by the nsys that is installed. Raises JournalError."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise JournalError(
            f"{path} can be read only by nsys, which is not installed here: where it is, run "
            f"nsys export --type sqlite {sanitize(path.name, 200)}"
        )
    open_regular(path).close()
    folder = tempfile.TemporaryDirectory(prefix="gputui-")
    place = Path(folder.name, "report.sqlite")
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output",
               str(place), str(path.resolve())]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=EXPORT_S, check=False
        )
        told = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        folder.cleanup()
        raise JournalError(f"{path}: nsys export failed: {sanitize(str(error), 160)}") from None
    if done.returncode or not place.is_file():
        folder.cleanup()
        why = sanitize(told[-1], 160) if told else f"exit status {done.returncode}"
        raise JournalError(f"{path}: nsys export failed: {why}")
    return _opened(place, path, folder, trace)


def _opened(
    place: Path, path: Path, folder: tempfile.TemporaryDirectory[str], trace: TraceWriter | None
) -> NsysReport:
    """The report under its own name; the folder goes when nobody reads it any more."""
    try:
        report = NsysReport(place, trace, name=str(path))
    except JournalError as error:
        folder.cleanup()
        raise JournalError(str(error).replace(str(place), str(path))) from None
    report.folder = folder
    return report
