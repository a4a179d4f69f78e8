"""The formats in which a run can be written; gputui's own are in `declared`.

Any module of this package may declare formats in FORMATS, and that is all it takes to add one:
`gputui export --format`, its help and the screen's dialog read the declarations. Modules are
imported to be listed, so they import heavy modules only when a format is used.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeVar

from gputui.render import ExportError, UnknownNameError

if TYPE_CHECKING:
    from gputui.playback.opening import Loaded
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyColumn, AnyTable, Cell
    from gputui.state import Run, Session

T = TypeVar("T")

LAST = 1000
"""The order of formats that declare none."""


class Need(Enum):
    """What a format needs beyond a session, in words."""

    SAMPLES = "a recording"
    """Every sample; a session in memory keeps only the newest."""
    TRACE = "a recording with --trace"
    SNAPSHOT = "a run with -p snapshot=true"


class Package(NamedTuple):
    """A package that only this format needs, and gputui's extra that installs it."""

    name: str
    extra: str

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install 'gputui[{self.extra}]'"


class Written(NamedTuple):
    """The files that were written, and remarks about the recording, one line each."""

    paths: Sequence[Path]
    remarks: Sequence[str]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """What to write: run `number` of the recording `name` ("-" is standard input), the newest if
    None; or a session `at_hand`, which may still be growing. With `raw_names`, phases are called
    as their ranges are; with `table`, only that one.
    """

    name: str
    number: int | None = None
    at_hand: Loaded | None = None
    raw_names: bool = False
    table: str | None = None

    @classmethod
    def in_memory(cls, session: Session, run: Run | None) -> ExportSource:
        """The source for a session in memory, which may have no run, and may still grow."""
        from gputui.playback.opening import Loaded

        return cls("", None, Loaded("", session, run, ()))

    def load(self) -> Loaded:
        """The session and the run. Raises JournalError."""
        from gputui.playback.opening import load

        tables = (self.table,) if self.table is not None else ()
        return self.at_hand or load(self.name, self.number, raw_names=self.raw_names, tables=tables)


Render = Callable[["Session", "Run | None", int | None], str]
"""A complete summary as text; the terminal's columns, unlimited if None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one format is written: as `text`, or by `write` to a path, standard output if None.

    A text format may also write a single table, a comparison of runs, and rows as they come.
    `title` and `needs` are for people. `folder` writes one file per table.
    """

    key: str
    title: str
    suffix: str = ""
    """The suffix of its files, if different from the key."""
    order: int = LAST
    needs: Need | None = None
    needs_path: bool = False
    """Standard output is not possible."""
    package: Package | None = None
    text: Render | None = None
    write: Callable[[ExportSource, Path | None], Written] | None = None
    folder: Callable[[ExportSource, Path], Written] | None = None
    table: Callable[[AnyTable, int | None], str] | None = None
    tables: Callable[[Sequence[AnyTable]], str] | None = None
    """Several, where they are more than one after the other."""
    rows: Callable[[Sequence[AnyColumn], Iterable[Sequence[Cell]], TextIO], None] | None = None
    comparison: Callable[[Comparison, int | None], str] | None = None

    @property
    def ending(self) -> str:
        """The suffix of its files, with the dot."""
        return f".{self.suffix or self.key}"

    @property
    def requirements(self) -> str:
        """What it needs beyond a recording, for people; often nothing."""
        needed = [self.needs.value] if self.needs and self.needs is not Need.SAMPLES else []
        needed += [f"{self.package.name} ({self.package.command})"] if self.package else []
        return f"needs {' and '.join(needed)}" if needed else ""


def find(key: str) -> Format:
    """A format by its key. Raises ExportError."""
    for declared in every():
        if declared.key == key:
            return declared
    names = ", ".join(other.key for other in every())
    raise UnknownNameError(f"there is no format {key!r}; known: {names}")


@functools.cache
def every() -> tuple[Format, ...]:
    """All formats, in display order. Raises ValueError if two have one key."""
    modules = [
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    ]
    formats: list[Format] = [declared for module in modules for declared in module.FORMATS]
    if len({declared.key for declared in formats}) < len(formats):
        raise ValueError("two formats have one key: keys must differ")
    return tuple(sorted(formats, key=lambda each: (each.order, each.key)))


def export(source: ExportSource, key: str, out: str | os.PathLike[str] | None) -> Written:
    """Write `source` to `out`, completely or not at all; to standard output if None.

    A folder, or a name that ends in "/", gets one file per table if the format supports that.
    Raises ExportError and JournalError.
    """
    chosen = find(key)
    if chosen.package and find_spec(chosen.package.name) is None:
        raise ExportError(
            f"the {key} format needs the package {chosen.package.name}: {chosen.package.command}"
        )
    if source.at_hand and chosen.needs:
        raise ExportError(f"the {key} format needs {chosen.needs.value}")
    if out is None and chosen.needs_path:
        raise ExportError(f"the {key} format needs a file: standard output is not possible")
    path = None if out is None else Path(out)
    if source.table is not None:
        from gputui.render.summary import one_table as table_of

        loaded = source.load()
        table = table_of(loaded.session, loaded.run, source.table)
        return _written(one_table(table, key), path, loaded.remarks)
    if path and chosen.folder and (os.fspath(out or "").endswith("/") or path.is_dir()):
        return chosen.folder(source, path)
    if chosen.write:
        return chosen.write(source, path)
    loaded = source.load()
    return _written(summary(loaded.session, loaded.run, key), path, loaded.remarks)


def _written(text: str, path: Path | None, remarks: Sequence[str]) -> Written:
    if path is None:
        sys.stdout.write(text)
        return Written((), remarks)
    from gputui.render import write_whole

    write_whole(path, text)
    return Written((path,), remarks)


def summary(session: Session, run: Run | None, key: str, width: int | None = None) -> str:
    """The whole summary as text. Raises ExportError if the format does not exist."""
    return _able(find(key).text, key)(session, run, width)


def one_table(table: AnyTable, key: str, width: int | None = None) -> str:
    """A single table as text. Raises ExportError."""
    return _able(find(key).table, key)(table, width)


def tables(several: Sequence[AnyTable], key: str, width: int | None = None) -> str:
    """Tables as text: one by itself as by `one_table`. Raises ExportError."""
    together = find(key).tables
    if together is None or len(several) == 1:
        return "\n".join(one_table(table, key, width) for table in several)
    return together(several)


def comparison(compared: Comparison, key: str, width: int | None = None) -> str:
    """A comparison of runs as text. Raises ExportError."""
    return _able(find(key).comparison, key)(compared, width)


def _able(render: T | None, key: str) -> T:
    if render is None:
        raise ExportError(f"the format {key!r} cannot show this")
    return render
