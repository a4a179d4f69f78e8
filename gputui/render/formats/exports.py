"""What other tools read: every event on a time axis (chrome, nsys), stacks of GPU time for flame
graphs (collapsed, speedscope), every sample (openmetrics, parquet), and PyTorch's memory snapshot.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gputui.render.formats import ExportSource, Format, Need, Package, Written

if TYPE_CHECKING:
    from gputui.report.schema import AnyTable
    from gputui.state import Run, Session


def _write_chrome(source: ExportSource, path: Path | None) -> Written:
    """Several processes become a file each, `-rankN` or `-pidN` before the suffix; one whose name
    ends in `.gz` is compressed."""
    from gputui.render import ExportError
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
    from gputui.render import atomic_write

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
    from gputui.render import ExportError, atomic_write
    from gputui.store import snapshot_path

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


def _collapsed(_session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.base.sanitize import sanitize
    from gputui.report.tables.time import icicle

    if run is None:
        return ""
    # A semicolon would end a frame, and the last blank the stack.
    lines = [
        f"{';'.join(sanitize(name).replace(';', ':') for name in names)} {ns}\n"
        for names, ns in icicle(run).stacks()
    ]
    return "".join(lines)


_COLLAPSED = Format(
    key="collapsed",
    title="GPU time by phase and cause, for flame graphs",
    order=75,
    text=_collapsed,
)


def _speedscope(_session: Session, run: Run | None, _width: int | None) -> str:
    """One document of https://www.speedscope.app/file-format-schema.json: a profile whose samples
    are stacks of phases with a cause innermost, and whose weights are nanoseconds."""
    import json

    from gputui.base.sanitize import sanitize
    from gputui.report.tables.time import icicle

    stacks = [] if run is None else list(icicle(run).stacks())
    frames: dict[str, int] = {}
    samples = [[frames.setdefault(sanitize(name), len(frames)) for name in names]
               for names, _ in stacks]  # fmt: skip
    weights = [ns for _, ns in stacks]
    name = "gputui" if run is None else sanitize(run.started.name)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "gputui",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": f"{name}: GPU time by phase and cause",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


_SPEEDSCOPE = Format(
    key="speedscope",
    title="GPU time by phase and cause, for speedscope",
    order=76,
    text=_speedscope,
    suffix="speedscope.json",
)


def _write_openmetrics(source: ExportSource, path: Path | None) -> Written:
    from gputui.playback.opening import open_recording, remarks
    from gputui.render import atomic_write
    from gputui.render.columnar import span_of
    from gputui.render.prometheus import write_openmetrics

    span = span_of(source)
    # Not summed: the progress of each phase at each sample is needed.
    with closing(open_recording(source.name)) as recording:
        if path is None:
            write_openmetrics(sys.stdout, recording, span, raw_names=source.raw_names)
            return Written((), remarks(recording))
        with atomic_write(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
            write_openmetrics(file, recording, span, raw_names=source.raw_names)
    return Written((path,), remarks(recording))


_OPENMETRICS = Format(
    key="openmetrics",
    title="every sample, for Prometheus",
    suffix="prom",
    order=50,
    needs=Need.SAMPLES,
    write=_write_openmetrics,
)


def _write_parquet(source: ExportSource, path: Path | None) -> Written:
    """With a run's number, the samples and tables of that run; otherwise all samples and the tables
    of the newest run, or of the machine if there is none.
    """
    from gputui.playback.opening import chosen, open_recording, remarks
    from gputui.render.columnar import samples_of, span_of, write_parquet
    from gputui.render.summary import tables_with_rows
    from gputui.state import Session

    assert path is not None
    span = span_of(source)
    session = Session()

    def tables() -> tuple[Run | None, list[AnyTable]]:
        run = chosen(session, source.name, source.number)
        return run, tables_with_rows(session, run)

    with closing(open_recording(source.name, summed=True)) as recording:
        write_parquet(path, samples_of(recording, span, session), tables)
    return Written((path,), remarks(recording))


_PARQUET = Format(
    key="parquet",
    title="a folder of tables and samples",
    order=80,
    needs=Need.SAMPLES,
    needs_path=True,
    package=Package("pyarrow", "export"),
    write=_write_parquet,
)
FORMATS = (_OPENMETRICS, _CHROME, _NSYS, _COLLAPSED, _SPEEDSCOPE, _PARQUET, _SNAPSHOT)
