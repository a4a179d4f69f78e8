"""A folder with one file per table, and one with every sample."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.render.formats import ExportSource, Format, Need, Package, Written

if TYPE_CHECKING:
    from gputui.report.schema import AnyTable
    from gputui.state import Run


def _write(source: ExportSource, path: Path | None) -> Written:
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


FORMAT = Format(
    key="parquet",
    title="a folder of tables and samples",
    order=80,
    needs=Need.SAMPLES,
    needs_path=True,
    package=Package("pyarrow", "export"),
    write=_write,
)
