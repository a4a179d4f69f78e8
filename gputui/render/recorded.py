"""From a file to a file: a recording's newest run in any of the formats."""

from __future__ import annotations

from pathlib import Path


def export_recorded(name: str, format_name: str, out: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Write the newest run of what is at `name` to `out`, in one of the formats of `kinds`.

    Gives the files written and what was odd, a line each. Raises JournalError or ExportError, one
    line.
    """
    # Each format pays for itself alone: traces and parquet bring NumPy and more.
    if format_name in ("chrome", "nsys"):
        from gputui.render.traces import open_traced, write_trace

        with open_traced(name) as traced:
            return write_trace(traced, format_name, out), traced.remarks
    if format_name in ("openmetrics", "parquet"):
        from gputui.render.samples import export_openmetrics, export_parquet

        export = export_openmetrics if format_name == "openmetrics" else export_parquet
        return [out], export(name, None, out)
    if format_name == "snapshot":
        from gputui.render.snapshot import export_snapshot

        return [out], export_snapshot(name, None, out)
    from gputui.playback.loading import load
    from gputui.render.write import write

    loaded = load(name)
    write(loaded.session, loaded.run, format_name, out)
    return [out], loaded.remarks
