"""The available workloads: the built-in ones, the user's own, and those of installed packages.

Built in is each folder here whose `__init__` declares a `Workload`. The user's own are files and
packages in the configuration folder (`gputui workloads --new NAME` writes one). A package adds
workloads through the entry-point group `gputui.workloads`:

    [project.entry-points."gputui.workloads"]
    mine = "my_package.workloads:MINE"

where `MINE` is a `gputui_workloads.declaration.Workload`. One that fails to load is listed with
its error and does not hide others.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from .declaration import Workload, suggestion
from .errors import CannotRun, WrongUsage
from .new import own_folder

GROUP = "gputui.workloads"
_BUILT_IN = "built-in"
# The package that the user's files are modules of.
_OWN = "gputui_own_workloads"


@dataclass(frozen=True)
class Entry:
    """A workload and the package it comes from, "built-in" for the folders here."""

    workload: Workload
    source: str


@dataclass(frozen=True)
class Broken:
    """A folder or an entry point that gives no workload, and why in one line."""

    name: str
    error: str


@cache
def built_in() -> tuple[Entry | Broken, ...]:
    """The workloads of the folders here, in their order of `rank`."""
    here = [str(Path(__file__).parent)]
    names = sorted(module.name for module in pkgutil.iter_modules(here) if module.ispkg)
    declared = [_declared(name) for name in names]
    return tuple(sorted(declared, key=_rank))


def _rank(entry: Entry | Broken) -> int:
    return entry.workload.rank if isinstance(entry, Entry) else 0


def all_workloads() -> tuple[list[Entry], list[Broken]]:
    """Every workload that loads, and every folder and entry point that does not."""
    entries: list[Entry] = []
    broken: list[Broken] = []
    for candidate in (*built_in(), *_own(), *_third_party()):
        if isinstance(candidate, Broken):
            broken.append(candidate)
            continue
        name = candidate.workload.name
        if any(entry.workload.name == name for entry in entries):
            error = f"{candidate.source}: another workload is already named {name!r}"
            broken.append(Broken(name, error))
        else:
            entries.append(candidate)
    return entries, broken


def find(name: str) -> Workload:
    """The workload of that name. Loads others' code only if it is not built in.

    Raises WrongUsage for an unknown name, CannotRun for one whose package fails to load.
    """
    for shipped in built_in():
        if isinstance(shipped, Entry) and shipped.workload.name == name:
            return shipped.workload
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


def _declared(folder: str) -> Entry | Broken:
    try:
        module = import_module(f".{folder}", __package__)
    except Exception as error:
        return Broken(folder, _why(_BUILT_IN, error))
    declared = [value for value in vars(module).values() if isinstance(value, Workload)]
    if len(declared) != 1:
        return Broken(folder, f"{_BUILT_IN}: {folder} declares {len(declared)} workloads, not one")
    return Entry(declared[0], _BUILT_IN)


def _own() -> Iterator[Entry | Broken]:
    """The workloads of the user's folder."""
    try:
        paths = sorted(own_folder().iterdir())
    except OSError:
        return
    for path in paths:
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and file.is_file() and path.stem.isidentifier():
            yield _of_file(path.stem, file, is_package=file is not path)


def _of_file(name: str, file: Path, *, is_package: bool) -> Entry | Broken:
    module_name = f"{_OWN}.{name}"
    places = [str(file.parent)] if is_package else None
    spec = spec_from_file_location(module_name, file, submodule_search_locations=places)
    try:
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a module")
        module = module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        return Broken(name, _why(str(file), error))
    ours = {id(entry.workload) for entry in built_in() if isinstance(entry, Entry)}
    declared = [
        value
        for value in vars(module).values()
        if isinstance(value, Workload) and id(value) not in ours  # it may import one of ours
    ]
    if len(declared) != 1:
        return Broken(name, f"{file} declares {len(declared)} workloads, not one")
    place = declared[0].run.partition(":")[0]
    if place != module_name and not place.startswith(f"{module_name}."):
        # It would run another module's function, and this one's never.
        return Broken(
            name, f'{file}: its run is {declared[0].run!r}: write run=f"{{__name__}}:run"'
        )
    return Entry(declared[0], str(file))


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
        return Broken(point.name, _why(source, error))
    if not isinstance(workload, Workload):
        return Broken(point.name, f"{source}: {point.value} is not a Workload")
    return Entry(workload, source)


def _why(source: str, error: BaseException) -> str:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{source}: {reason[:300]}"
