"""The memory snapshot of a run, for PyTorch's viewer: copied as it is, never looked into."""

from __future__ import annotations

import shutil
from pathlib import Path

from gputui.playback.loading import load
from gputui.playback.opening import is_sqlite
from gputui.render.atomic_write import atomic_write
from gputui.render.errors import ExportError
from gputui.store.places import snapshot_path


def export_snapshot(name: str, number: int | None, out: Path) -> tuple[str, ...]:
    """Copy the snapshot that run `number` of the recording `name` left, that of the newest run
    where it is None, to `out`; what was odd about the recording.

    Raises ExportError where there is none, JournalError.
    """
    if name == "-":
        raise ExportError("a memory snapshot lies beside a recording: give its file")
    if is_sqlite(Path(name)):
        raise ExportError(
            f"{name} is a report of nsys, which takes no memory snapshots: record the program "
            "with gputui instead, a workload with -p snapshot=true"
        )
    loaded = load(name, number)
    run = loaded.needed_run().started.run
    made = snapshot_path(Path(name), run)
    if not made.is_file():
        raise ExportError(
            f"{name} has no memory snapshot of run {run} beside it ({made.name}): "
            "run a workload with -p snapshot=true on a GPU"
        )
    with atomic_write(out) as place:
        shutil.copyfile(made, place)
    return loaded.remarks
