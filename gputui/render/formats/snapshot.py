"""The memory snapshot of a run, for PyTorch's viewer: copied unchanged, never opened."""

from __future__ import annotations

from pathlib import Path

from gputui.render.formats import ExportSource, Format, Need, Written


def _write(source: ExportSource, path: Path | None) -> Written:
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


FORMAT = Format(
    key="snapshot",
    title="PyTorch's memory snapshot",
    suffix="pickle",
    order=90,
    needs=Need.SNAPSHOT,
    needs_path=True,
    write=_write,
)
