"""Every sample of every figure, for Prometheus."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from gputui.render.formats import ExportSource, Format, Need, Written


def _write(source: ExportSource, path: Path | None) -> Written:
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


FORMAT = Format(
    key="openmetrics",
    title="every sample, for Prometheus",
    suffix="prom",
    order=50,
    needs=Need.SAMPLES,
    write=_write,
)
