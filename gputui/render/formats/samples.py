"""Every sample of every figure: for Prometheus, and as columns."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.render.formats import ExportSource, Format, Need, Package, Written

if TYPE_CHECKING:
    from gputui.report.schema import AnyTable
    from gputui.state import Run


def _write_openmetrics(source: ExportSource, path: Path | None) -> Written:
    from gputui.playback.opening import open_recording, remarks
    from gputui.render.atomic_write import atomic_write
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


FORMATS = (_OPENMETRICS, _PARQUET)
