"""Formats of one run over time: every event on an axis, for trace viewers and tools made for
nsys, and PyTorch's memory snapshot."""

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


def _write_chrome(source: ExportSource, path: Path | None) -> Written:
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
            out = path if len(processes) == 1 else _file_of_process(path, traced.run, process)
            with _gzipped_where_named(out) as file:
                write_chrome(
                    file, traced.session, traced.run, traced.trace, process, traced.samples()
                )
            written.append(out)
        return Written(written, traced.remarks)


def _file_of_process(out: Path, run: Run, process: int) -> Path:
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
def _gzipped_where_named(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name once it is complete."""
    from gputui.render.atomic_write import atomic_write

    with atomic_write(path) as place, place.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, raw) as packed, io.TextIOWrapper(packed) as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text


_CHROME = Format(
    key="chrome",
    title="every event, for Perfetto",
    suffix="trace.json",
    order=60,
    needs=Need.TRACE,
    needs_path=True,
    write=_write_chrome,
)


def _write_nsys(source: ExportSource, path: Path | None) -> Written:
    from gputui.render.nsys import write_nsys
    from gputui.render.traces import open_traced

    assert path is not None
    with open_traced(source.name, source.number) as traced:
        write_nsys(path, traced.session, traced.run, traced.trace)
        return Written((path,), traced.remarks)


_NSYS = Format(
    key="nsys",
    title="every event, as nsys exports SQLite",
    suffix="sqlite",
    order=70,
    needs=Need.TRACE,
    needs_path=True,
    write=_write_nsys,
)


def _write_snapshot(source: ExportSource, path: Path | None) -> Written:
    import shutil

    from gputui.playback.opening import import_kind, load
    from gputui.render.atomic_write import ExportError, atomic_write
    from gputui.store.places import snapshot_path

    assert path is not None
    name = source.name
    if name == "-":
        raise ExportError("a memory snapshot is a file beside a recording: name the recording")
    if kind := import_kind(Path(name)):
        made_by = "a trace of torch.profiler" if kind == "chrome" else "a report of nsys"
        raise ExportError(
            f"{name} is {made_by}, which takes no memory snapshots: record the program with gputui "
            "instead, a workload with -p snapshot=true"
        )
    loaded = load(name, source.number)
    run = loaded.needed_run().started.run
    made = snapshot_path(Path(name), run)
    if not made.is_file():
        raise ExportError(
            f"{name} has no memory snapshot of run {run} beside it ({made.name}): "
            "run a workload with -p snapshot=true on a GPU"
        )
    with atomic_write(path) as place:
        shutil.copyfile(made, place)
    return Written((path,), loaded.remarks)


_SNAPSHOT = Format(
    key="snapshot",
    title="PyTorch's memory snapshot",
    suffix="pickle",
    order=90,
    needs=Need.SNAPSHOT,
    needs_path=True,
    write=_write_snapshot,
)


FORMATS = (_CHROME, _NSYS, _SNAPSHOT)
