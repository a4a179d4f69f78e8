"""A snapshot of PyTorch's GPU memory: every block, and the preceding allocations and frees.

PyTorch's viewer (https://pytorch.org/memory_viz) opens it. It is written to the file named by the
environment variable GPUTUI_SNAPSHOT, else to NAME-PID.snapshot.pickle in the current folder.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from .devices import find_device
from .report import Report

VARIABLE = "GPUTUI_SNAPSHOT"

MAX_ENTRIES = 100_000
"""Allocations and frees kept, the newest: each takes a kilobyte or more in the file."""


class Recorder(Protocol):
    """The part of `torch.cuda.memory` used here."""

    def _record_memory_history(self, enabled: str | None, **options: Any) -> None: ...

    def _snapshot(self) -> Mapping[str, Any]: ...


@contextmanager
def memory_snapshot(
    name: str, device: str, report: Report, recorder: Recorder | None = None
) -> Iterator[None]:
    """Record inside the `with` and write a snapshot at its end, even if an allocation failed
    inside. If `device`, as typed, is not a GPU, say that there is none.
    """
    if recorder is None:
        if find_device(device).type != "cuda":
            report.say(f"{name}: no snapshot: PyTorch records only GPU memory")
            yield
            return
        torch.cuda.init()  # type: ignore[no-untyped-call]
        recorder = cast(Recorder, torch.cuda.memory)
    recorder._record_memory_history("all", stacks="python", max_entries=MAX_ENTRIES)
    try:
        yield
    finally:
        path = Path(os.environ.get(VARIABLE) or f"{name}-{os.getpid()}.snapshot.pickle")
        try:
            _write(recorder._snapshot(), path)
        except OSError as error:
            report.say(f"{name}: the snapshot cannot be written to {path}: {error.strerror}")
        else:
            report.say(f"{name}: wrote a snapshot of {path.stat().st_size:,} bytes")
        recorder._record_memory_history(None)


def _write(snapshot: Mapping[str, Any], path: Path) -> None:
    """Completely or not at all: a run may be killed while it writes."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            pickle.dump(snapshot, file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
