"""Every event on a time axis, for Perfetto and Holistic Trace Analysis."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gputui.render.formats import ExportSource, Format, Need, Written

if TYPE_CHECKING:
    from gputui.state import Run


def _write(source: ExportSource, path: Path | None) -> Written:
    """Several processes become a file each, `-rankN` or `-pidN` before the suffix; one whose name
    ends in `.gz` is compressed."""
    from gputui.render.atomic_write import ExportError
    from gputui.render.chrome import processes_of, write_chrome
    from gputui.render.traces import open_traced

    assert path is not None
    with open_traced(source.name, source.number) as traced:
        # A session may have had other runs before this one.
        processes = [p for p in processes_of(traced.trace) if p in traced.run.processes]
        if not processes:
            number = traced.run.started.run
            raise ExportError(f"the trace of {traced.name} has nothing of run {number}")
        written = []
        for process in processes:
            out = path if len(processes) == 1 else _of_process(path, traced.run, process)
            with _whole(out) as file:
                write_chrome(
                    file, traced.session, traced.run, traced.trace, process, traced.samples()
                )
            written.append(out)
        return Written(written, traced.remarks)


def _of_process(out: Path, run: Run, process: int) -> Path:
    of_number = run.processes.get(process)
    rank = of_number.attached.rank if of_number else None
    label = (
        f"rank{rank}"
        if rank is not None
        else f"pid{of_number.attached.pid if of_number else process}"
    )
    stem, dot, suffix = out.name.partition(".")
    return out.with_name(f"{stem}-{label}{dot}{suffix}")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name once it is complete."""
    from gputui.render.atomic_write import atomic_write

    with atomic_write(path) as place, place.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, raw) as packed, io.TextIOWrapper(packed) as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text


FORMAT = Format(
    key="chrome",
    title="every event, for Perfetto",
    suffix="trace.json",
    order=60,
    needs=Need.TRACE,
    needs_path=True,
    write=_write,
)
