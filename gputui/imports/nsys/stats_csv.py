"""The CSV tables of `nsys stats`, as the events of a session.

Files are named PREFIX_REPORT.csv, as `nsys stats --output PREFIX` and scripts around it name them.
The tables hold sums: their medians and deviations are taken over unchanged, and there is no time
axis and no tree.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gputui import __version__
from gputui.base.sanitize import sanitize
from gputui.model.cuda_names import api_name
from gputui.model.events import (
    JOURNAL_SCHEMA,
    NO_THREAD,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    Distribution,
    Header,
    HostFacts,
    KernelDefined,
    KernelDelta,
    MemoryOperationDelta,
    ProcessAttached,
    RangeDefined,
    RangeDelta,
    RunEnded,
    RunStarted,
)
from gputui.model.sketch import steps
from gputui.store.journal import JournalError

REPORTS = (
    "nvtx_pushpop_sum",
    "nvtx_startend_sum",
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
)
"""Reports that are read; kernels also with the suffix `_base` or `_mangled`."""

_LISTED = 8
"""Files that are not read, named in the reason for the end."""

MAX_ROWS = 100_000
MAX_BYTES = 256 << 20

_NAME_COLUMNS = ("Range", "Name", "Operation", "Kernel Name")
_COUNT_COLUMNS = ("Instances", "Num Calls", "Count")
_UNITS = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip
_LARGEST = 2**62
_HEADER_LINES = 200


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    amounts: Distribution


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
        self._tables = {report: self._read(path) for report, path in files.items()}
        self.header = Header(
            time_ns=self._time_ns,
            schema=JOURNAL_SCHEMA,
            gputui_version=__version__,
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

    def __iter__(self) -> Iterator[AnyEvent]:
        time_ns = self._time_ns
        yield self.header
        yield RunStarted(
            time_ns=time_ns,
            run=1,
            kind="command",
            name=sanitize(Path(self.name).name, 200) or "nsys stats",
            arguments=(),
            pid=None,
        )
        yield ProcessAttached(
            time_ns=time_ns,
            run=1,
            process=1,
            pid=0,
            parent_pid=0,
            command="",
            cuda_status="tracing",
        )
        yield from self._definitions()
        yield CaptureDelta(
            time_ns=time_ns,
            process=1,
            ranges=tuple(
                RangeDelta(range=number, cpu=row.amounts)
                for number, (_, _, row) in enumerate(self._ranges(), 1)
            ),
            kernels=tuple(
                KernelDelta(process=1, range=0, kernel=number, device=0, time=row.amounts)
                for number, row in enumerate(self._tables.get("cuda_gpu_kern_sum", ()), 1)
            ),
            memory_operations=tuple(self._memory_operations()),
            api=tuple(
                ApiDelta(process=1, range=0, name=api_name(row.name), time=row.amounts)
                for row in self._tables.get("cuda_api_sum", ())
            ),
        )
        reason = "tables of nsys stats: sums without a time axis"
        if self._ignored:
            named = ", ".join(sanitize(name, 80) for name in self._ignored[:_LISTED])
            more = f" and {len(self._ignored) - _LISTED} more"
            reason += f"; not read: {named}{more if len(self._ignored) > _LISTED else ''}"
        yield RunEnded(time_ns=time_ns, run=1, reason=reason)

    def _ranges(self) -> Iterator[tuple[str, str, _Row]]:
        """Style, domain and row of each range; of duplicate names the first counts."""
        for report, style in (("nvtx_pushpop_sum", "PushPop"), ("nvtx_startend_sum", "StartEnd")):
            for row in self._tables.get(report, ()):
                domain, colon, name = row.name.partition(":")
                if not colon or not name:
                    domain, name = "", row.name.removeprefix(":") or "(unnamed)"
                yield style, domain, _Row(name, row.amounts)

    def _definitions(self) -> Iterator[AnyEvent]:
        for number, (style, domain, row) in enumerate(self._ranges(), 1):
            yield RangeDefined(
                time_ns=self._time_ns,
                range=number,
                process=1,
                thread=NO_THREAD,
                parent=0,
                domain=domain,
                name=row.name,
                style="StartEnd" if style == "StartEnd" else "PushPop",
            )
        for number, row in enumerate(self._tables.get("cuda_gpu_kern_sum", ()), 1):
            yield KernelDefined(
                time_ns=self._time_ns, kernel=number, name=row.name, mangled=row.name
            )

    def _memory_operations(self) -> Iterator[MemoryOperationDelta]:
        times = {row.name: row.amounts for row in self._tables.get("cuda_gpu_mem_time_sum", ())}
        sizes = {row.name: row.amounts for row in self._tables.get("cuda_gpu_mem_size_sum", ())}
        nothing = Distribution(0, 0, 0.0, 0, 0, ())
        for name in {**times, **sizes}:
            yield MemoryOperationDelta(
                process=1,
                range=0,
                operation=name,
                device=0,
                time=times.get(name, nothing),
                size=sizes.get(name, nothing),
            )

    def _read(self, path: Path) -> tuple[_Row, ...]:
        try:
            if path.stat().st_size > MAX_BYTES:
                raise JournalError(f"{path} is too large for a table of nsys stats")
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                rows = csv.reader(line.replace("\0", "") for line in file)
                parse = _header(rows)
                if parse is None:
                    raise JournalError(
                        f"{path} is not a table of nsys stats: no line names the columns; "
                        "write it with: nsys stats --format csv"
                    )
                return tuple(self._rows(rows, parse))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise JournalError(f"cannot read {path}: {reason}") from None
        except csv.Error as error:
            raise JournalError(f"{path} is damaged CSV: {sanitize(str(error), 120)}") from None

    def _rows(
        self, rows: Iterator[list[str]], parse: Callable[[list[str]], _Row]
    ) -> Iterator[_Row]:
        kept = 0
        for cells in rows:
            if not any(cells):
                continue
            try:
                row = parse(cells)
            except (ValueError, IndexError, OverflowError):
                self.skipped += 1
                continue
            kept += 1
            if kept > MAX_ROWS:
                self.skipped += 1
                continue
            yield row


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


def _header(rows: Iterator[list[str]]) -> Callable[[list[str]], _Row] | None:
    """How to read the rows below the header line; lines before it are prose."""
    for cells in islice(rows, _HEADER_LINES):
        columns = {cell.strip().rpartition(" (")[0] or cell.strip(): i
                   for i, cell in enumerate(cells)}  # fmt: skip
        name = next((columns[name] for name in _NAME_COLUMNS if name in columns), None)
        count = next((columns[name] for name in _COUNT_COLUMNS if name in columns), None)
        total = columns.get("Total Time", columns.get("Total"))
        if name is not None and count is not None and total is not None:
            return _parser(cells, columns, name, count, total)
    return None


def _parser(
    headers: list[str], columns: dict[str, int], name: int, count: int, total: int
) -> Callable[[list[str]], _Row]:
    def unit(index: int) -> float:
        return _UNITS.get(headers[index].strip().rpartition("(")[2].rstrip(")").lower(), 1.0)

    def amount(cells: list[str], index: int | None) -> float | None:
        if index is None or not cells[index].strip():
            return None
        value = float(cells[index].replace(",", "")) * unit(index)
        if not math.isfinite(value) or not 0 <= value < _LARGEST:
            raise ValueError(cells[index])
        return value

    def parse(cells: list[str]) -> _Row:
        number = int(cells[count].replace(",", ""))
        sum_of = amount(cells, total)
        if not 0 < number < _LARGEST or sum_of is None:
            raise ValueError(cells[count])
        average = sum_of / number
        median, least, most, deviation = (
            amount(cells, columns.get(column)) for column in ("Med", "Min", "Max", "StdDev")
        )
        middle = round(average if median is None else median)
        return _Row(
            sanitize(cells[name]),
            Distribution(
                count=number,
                total=round(sum_of),
                squares=(deviation or 0.0) ** 2 * (number - 1),
                minimum=round(average if least is None else least),
                maximum=round(average if most is None else most),
                values=steps([(middle, number)]),
                # Of the values, only the median is known.
                exact=False,
            ),
        )

    return parse
