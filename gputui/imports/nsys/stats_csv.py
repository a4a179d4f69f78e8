"""The CSV tables of `nsys stats`, as the events of a session.

Files are named PREFIX_REPORT.csv, as `nsys stats --output PREFIX` and scripts around it name them.
The tables hold sums: their medians and deviations are taken over unchanged, and there is no time
axis and no tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gputui.base.sanitize import sanitize
from gputui.base.version import VERSION
from gputui.imports.nsys.csv_events import StatsEvents
from gputui.imports.nsys.csv_reports import REPORTS
from gputui.imports.nsys.csv_rows import read_rows
from gputui.model.events import JOURNAL_SCHEMA, AnyEvent, Header, HostFacts, RunEnded, RunStarted
from gputui.store.journal import JournalError

_LISTED = 8
"""Files that are not read, named in the reason for the end."""


class NsysTables:
    """The events of one set of tables, read once. `skipped` counts malformed rows."""

    def __init__(self, files: dict[str, Path], name: str, ignored: Sequence[str] = ()) -> None:
        """`ignored` are names of tables beside these that are not read."""
        self.name = name
        self.damage: str | None = None
        self.skipped = 0
        self._ignored = ignored
        try:
            self._time_ns = max(0, *(path.stat().st_mtime_ns for path in files.values()))
        except OSError as error:
            raise JournalError(f"cannot read {name}: {(error.strerror or '').lower()}") from None
        self._tables: dict[str, list[Any]] = {}
        for report, path in files.items():
            self._tables[report], skipped = read_rows(path, *REPORTS[report])
            self.skipped += skipped
        self.header = Header(
            time_ns=self._time_ns,
            schema=JOURNAL_SCHEMA,
            gputui_version=VERSION,
            python_version="",
            monotonic_ns=0,
            arguments=("nsys", "stats"),
            interval_s=1.0,
            host=HostFacts(
                hostname="unknown host", system="unknown system", cpu_count=0, memory_total_bytes=0
            ),
            gpu_unavailable_reason="tables of nsys stats do not say",
        )

    @classmethod
    def find(cls, path: Path) -> NsysTables | None:
        """The tables at `path`: a folder, one CSV file, or a prefix of the files' names.

        None if there are none. Raises JournalError if a folder holds several sets.
        """
        if path.is_file():
            report = _report_of(path.name)
            return cls({report[1]: path}, str(path)) if report else None
        folder, prefix = (path, None) if path.is_dir() else (path.parent, path.name)
        sets: dict[str, dict[str, Path]] = {}
        try:
            found = sorted(folder.glob("*.csv"))
        except OSError:
            return None
        for file in found:
            report = _report_of(file.name)
            if report and (prefix is None or report[0] == prefix) and file.is_file():
                sets.setdefault(report[0], {}).setdefault(report[1], file)
        if len(sets) > 1:
            known = ", ".join(sanitize(str(folder / name), 80) for name in sorted(sets))
            raise JournalError(f"{path} holds tables of several reports; give one of: {known}")
        for name, files in sets.items():
            begins = f"{name}_" if name else ""
            ignored = [
                file.name
                for file in found
                if file.name.startswith(begins) and file not in files.values()
            ]
            return cls(files, str(path), ignored)
        return None

    def close(self) -> None:
        """Nothing: it was read when it was opened."""

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        yield RunStarted(
            time_ns=self._time_ns,
            run=1,
            kind="command",
            name=sanitize(Path(self.name).name, 200) or "nsys stats",
            arguments=(),
            pid=None,
        )
        yield from StatsEvents(self._time_ns, self._tables)
        reason = "tables of nsys stats: sums without a time axis"
        if self._ignored:
            named = ", ".join(sanitize(name, 80) for name in self._ignored[:_LISTED])
            more = f" and {len(self._ignored) - _LISTED} more"
            reason += f"; not read: {named}{more if len(self._ignored) > _LISTED else ''}"
        yield RunEnded(time_ns=self._time_ns, run=1, reason=reason)


def _report_of(file_name: str) -> tuple[str, str] | None:
    """Prefix and report of a file name, None for another kind of file."""
    stem = file_name.removesuffix(".csv")
    if stem == file_name:
        return None
    for ending in ("_base", "_mangled", ""):
        plain = stem.removesuffix(ending)
        if ending and plain == stem:
            continue
        for report in REPORTS:
            if plain == report or plain.endswith(f"_{report}"):
                return plain.removesuffix(report).removesuffix("_"), report
    return None
