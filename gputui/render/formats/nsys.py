"""Every event as SQLite in nsys's export schema."""

from __future__ import annotations

from pathlib import Path

from gputui.render.formats import ExportSource, Format, Need, Written


def _write(source: ExportSource, path: Path | None) -> Written:
    from gputui.render.nsys import write_nsys
    from gputui.render.traces import open_traced

    assert path is not None
    with open_traced(source.name, source.number) as traced:
        write_nsys(path, traced.session, traced.run, traced.trace)
        return Written((path,), traced.remarks)


FORMAT = Format(
    key="nsys",
    title="every event, as nsys exports SQLite",
    suffix="sqlite",
    order=70,
    needs=Need.TRACE,
    needs_path=True,
    write=_write,
)
