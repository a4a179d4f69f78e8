"""The available workloads: the built-in ones, and those of installed packages.

A package adds workloads through the entry-point group `gputui.workloads`:

    [project.entry-points."gputui.workloads"]
    mine = "my_package.workloads:MINE"

where `MINE` is a `workloads.declaration.Workload`. A package that fails to load is listed with
its error and does not hide others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from workloads.attention import ATTENTION
from workloads.bandwidth import BANDWIDTH
from workloads.checkpoint import CHECKPOINT
from workloads.compile import COMPILE
from workloads.cuda import CUDA
from workloads.declaration import Workload, suggestion
from workloads.errors import CannotRun, WrongUsage
from workloads.gemm import GEMM
from workloads.graphs import GRAPHS
from workloads.inference import INFERENCE
from workloads.memory import MEMORY
from workloads.precision import PRECISION
from workloads.streams import STREAMS
from workloads.train import TRAIN

GROUP = "gputui.workloads"

BUILT_IN: tuple[Workload, ...] = (
    INFERENCE,
    TRAIN,
    ATTENTION,
    PRECISION,
    CHECKPOINT,
    STREAMS,
    GRAPHS,
    COMPILE,
    MEMORY,
    GEMM,
    BANDWIDTH,
    CUDA,
)


@dataclass(frozen=True)
class Entry:
    """A workload and the package it comes from, "built-in" for ours."""

    workload: Workload
    source: str


@dataclass(frozen=True)
class Broken:
    """An entry point that gives no workload, and why in one line."""

    name: str
    error: str


def all_workloads() -> tuple[list[Entry], list[Broken]]:
    """Every workload that loads, and every entry point that does not."""
    entries = [Entry(workload, "built-in") for workload in BUILT_IN]
    broken = []
    for found in _third_party():
        if isinstance(found, Broken):
            broken.append(found)
        elif any(entry.workload.name == found.workload.name for entry in entries):
            taken = f"another workload is already named {found.workload.name!r}"
            broken.append(Broken(found.workload.name, f"{found.source}: {taken}"))
        else:
            entries.append(found)
    return entries, broken


def find(name: str) -> Workload:
    """The workload of that name. Loads other packages' code only if it is not built in.

    Raises WrongUsage for an unknown name, CannotRun for one whose package fails to load.
    """
    for workload in BUILT_IN:
        if workload.name == name:
            return workload
    entries, broken = all_workloads()
    for entry in entries:
        if entry.workload.name == name:
            return entry.workload
    for failed in broken:
        if failed.name == name:
            raise CannotRun(f"it fails to load: {failed.error}")
    names = [entry.workload.name for entry in entries]
    raise WrongUsage(
        f"there is no workload {name[:64]!r}{suggestion(name, names)}; there are {', '.join(names)}"
    )


def _third_party() -> Iterator[Entry | Broken]:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        yield _load(point)


def _load(point: EntryPoint) -> Entry | Broken:
    source = point.dist.name if point.dist else point.value
    # A module that calls sys.exit at import would end the catalogue: SystemExit is not an
    # Exception.
    try:
        workload = point.load()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Broken(point.name, f"{source}: {reason[:300]}")
    if not isinstance(workload, Workload):
        return Broken(point.name, f"{source}: {point.value} is not a Workload")
    return Entry(workload, source)
