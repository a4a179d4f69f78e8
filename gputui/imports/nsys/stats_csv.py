"""The CSV tables of `nsys stats`, as the events of a session.

They hold definitions and sums of one run, and no single records.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from gputui.base import VERSION, JournalError
from gputui.base.sanitize import sanitize
from gputui.model.events import (
    JOURNAL_SCHEMA,
    LAUNCH_UNKNOWN,
    NO_THREAD,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    Distribution,
    Header,
    HostFacts,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    ProcessAttached,
    RangeDefined,
    RangeDelta,
    RangeKernels,
    RunEnded,
    RunStarted,
)
from gputui.model.events.distributions import encoded_values
from gputui.model.naming import api_name

# What each CSV table of `nsys stats` has in a row.

Style = Literal["PushPop", "StartEnd"]


class Sum(NamedTuple):
    """A row of a table of names and amounts."""

    name: str
    amounts: Distribution


class Projected(NamedTuple):
    """A row of nvtx_gpu_proj_sum; the last four are sums over its instances."""

    style: Style
    name: str
    projected: Distribution
    range_ns: int
    operations: int
    levels: int
    children: int


class Inside(NamedTuple):
    """A row of nvtx_kern_sum: a kernel in a range; the name is empty outside every range."""

    style: Style
    name: str
    pid: int
    thread: int
    instances: int
    kernel: str
    time: Distribution
    repeats: int


class Launches(NamedTuple):
    """A row of nsys's table cuda_kern_exec_sum."""

    pid: int
    thread: int
    device: int
    call: str
    kernel: str
    total: Distribution
    calls: Distribution
    queue: Distribution | None
    kernel_time: Distribution


_NAMES = ("Range", "Name", "Operation", "Kernel Name")

_COUNTS = ("Instances", "Num Calls", "Count")

_TOTALS = ("Total Time", "Total")


def _sum(cells: CsvCells) -> Sum:
    total = cells.amount(*_TOTALS)
    if total is None:
        raise ValueError
    return Sum(cells.text(*_NAMES), cells.distribution(cells.whole(*_COUNTS), total))


def _style(cells: CsvCells) -> Style:
    return "StartEnd" if cells.text("Style") == "StartEnd" else "PushPop"


def _projected(cells: CsvCells) -> Projected:
    count = cells.whole("Range Instances")
    return Projected(
        _style(cells),
        cells.text("Range"),
        cells.distribution(count, cells.amount("Total Proj Time"), "Proj "),
        round(cells.amount("Total Range Time") or 0),
        cells.whole("Total GPU Ops"),
        *(round(count * (cells.amount(name) or 0)) for name in ("Avg Range Lvl", "Avg Num Child")),
    )


def _inside(cells: CsvCells) -> Inside:
    kernels = cells.whole("Kern Inst")
    total, average = cells.amount("Total Time"), cells.amount("Avg")
    # A kernel inside several ranges of one name is in the sum as often, but counted once.
    times = max(kernels, round(total / average)) if total and average else kernels
    unknown = not cells.text("PID")
    return Inside(
        _style(cells),
        cells.text("NVTX Range"),
        cells.whole("PID"),
        LAUNCH_UNKNOWN if unknown else cells.whole("TID"),
        cells.whole("NVTX Inst"),
        cells.text("Kernel Name"),
        cells.distribution(times, total),
        times - kernels,
    )


def _launches(cells: CsvCells) -> Launches:
    count, queued = cells.whole("Count"), cells.whole("QCount")
    return Launches(
        cells.whole("PID"),
        cells.whole("TID"),
        cells.whole("DevId"),
        api_name(cells.text("API Name")),
        cells.text("Kernel Name"),
        cells.distribution(count, prefix="T"),
        cells.distribution(count, prefix="A"),
        cells.distribution(queued, prefix="Q") if queued else None,
        cells.distribution(count, prefix="K"),
    )


class Report(NamedTuple):
    needed: tuple[tuple[str, ...], ...]
    parse: Callable[[CsvCells], Any]


_OF_SUMS = Report((_NAMES, _COUNTS, _TOTALS), _sum)

REPORTS = {
    "nvtx_pushpop_sum": _OF_SUMS,
    "nvtx_startend_sum": _OF_SUMS,
    "cuda_gpu_kern_sum": _OF_SUMS,
    "cuda_api_sum": _OF_SUMS,
    "cuda_gpu_mem_time_sum": _OF_SUMS,
    "cuda_gpu_mem_size_sum": _OF_SUMS,
    "nvtx_gpu_proj_sum": Report(
        (("Range",), ("Style",), ("Total Proj Time",), ("Range Instances",), ("Total GPU Ops",)),
        _projected,
    ),
    "nvtx_kern_sum": Report(
        (("NVTX Range",), ("Style",), ("PID",), ("TID",), ("NVTX Inst",), ("Kern Inst",),
         ("Total Time",), ("Kernel Name",)),
        _inside,
    ),
    "cuda_kern_exec_sum": Report(
        (("PID",), ("TID",), ("DevId",), ("Count",), ("QCount",), ("TAvg",), ("AAvg",), ("KAvg",),
         ("API Name",), ("Kernel Name",)),
        _launches,
    ),
}  # fmt: skip
"""Reports that are read; those of kernels also with the suffix `_base` or `_mangled`."""


# Rows of a CSV table of `nsys stats`, by the names of its columns.

Row = TypeVar("Row")

MAX_ROWS = 100_000

MAX_BYTES = 256 << 20

_UNITS = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip

_LARGEST = 2**62

_HEADER_LINES = 200

# Place and unit of each column, by its name without the unit.
_Columns = dict[str, tuple[int, float]]


class CsvCells:
    """One row. Each method takes the names a column has had, and raises ValueError where the cell
    makes no sense, IndexError where the row ends before it."""

    def __init__(self, columns: _Columns, cells: list[str]) -> None:
        self._columns = columns
        self._cells = cells

    def text(self, *names: str) -> str:
        """As it stands, without control characters."""
        place, _ = self._columns[self._name(names)]
        return sanitize(self._cells[place])

    def whole(self, *names: str) -> int:
        """A count or a number; an empty cell is 0."""
        place, _ = self._columns[self._name(names)]
        value = int(self._cells[place].replace(",", "") or "0")
        if not 0 <= value < _LARGEST:
            raise ValueError(self._cells[place])
        return value

    def amount(self, *names: str) -> float | None:
        """In ns or bytes; None where the cell is empty or the table has no such column."""
        column = next((self._columns[name] for name in names if name in self._columns), None)
        if column is None or not self._cells[column[0]].strip():
            return None
        place, unit = column
        value = float(self._cells[place].replace(",", "")) * unit
        if not math.isfinite(value) or not 0 <= value < _LARGEST:
            raise ValueError(self._cells[place])
        return value

    def distribution(
        self, count: int, total: float | None = None, prefix: str = ""
    ) -> Distribution:
        """Of `count` values; their total is `count` averages where it is not given."""
        average = self.amount(f"{prefix}Avg") if total is None else total / max(1, count)
        if count <= 0 or average is None:
            raise ValueError(prefix)
        median, least, most, deviation = (
            self.amount(prefix + column) for column in ("Med", "Min", "Max", "StdDev")
        )
        middle = average if median is None else median
        return Distribution(
            count=count,
            total=round(average * count if total is None else total),
            squares=(deviation or 0.0) ** 2 * (count - 1),
            minimum=round(average if least is None else least),
            maximum=round(average if most is None else most),
            # Of the values, only the median is known.
            values=encoded_values(_around(middle, count)),
            exact=False,
        )

    def _name(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if name in self._columns)


def read_rows(
    path: Path, needed: tuple[tuple[str, ...], ...], parse: Callable[[CsvCells], Row]
) -> tuple[list[Row], int]:
    """What `parse` makes of each row, and how many rows it could not read.

    `needed` are the columns without which a file is no such table, each by the names it has had.
    Raises JournalError, with a one-line reason.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise JournalError(f"{path} is too large for a table of nsys stats")
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.reader(line.replace("\0", "") for line in file)
            columns = _header(lines, needed)
            if columns is None:
                raise JournalError(
                    f"{path} is not a table of nsys stats: no line names the columns; "
                    "write it with: nsys stats --format csv"
                )
            return _rows(lines, columns, parse)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise JournalError(f"cannot read {path}: {reason}") from None
    except csv.Error as error:
        raise JournalError(f"{path} is damaged CSV: {sanitize(str(error), 120)}") from None


def _around(median: float, count: int) -> list[tuple[int, int]]:
    """`count` values with this median: of an even number it may lie between two."""
    least = math.floor(median)
    if least == median or count % 2:
        return [(round(median), count)]
    return [(least, count // 2), (least + 1, count // 2)]


def _header(lines: Iterator[list[str]], needed: tuple[tuple[str, ...], ...]) -> _Columns | None:
    """The columns that the header line names; lines before it are prose."""
    for cells in islice(lines, _HEADER_LINES):
        columns: _Columns = {}
        for place, cell in enumerate(cells):
            name, _, unit = cell.strip().rpartition(" (")
            factor = _UNITS.get(unit.rstrip(")").lower(), 1.0) if name else 1.0
            columns.setdefault(name or cell.strip(), (place, factor))
        if all(any(name in columns for name in names) for names in needed):
            return columns
    return None


def _rows(
    lines: Iterator[list[str]], columns: _Columns, parse: Callable[[CsvCells], Row]
) -> tuple[list[Row], int]:
    rows: list[Row] = []
    skipped = 0
    for cells in lines:
        if not any(cells):
            continue
        try:
            row = parse(CsvCells(columns, cells))
        except (ValueError, IndexError, OverflowError):
            skipped += 1
            continue
        if len(rows) < MAX_ROWS:
            rows.append(row)
        else:
            skipped += 1
    return rows, skipped


# Rows of the tables of `nsys stats`, as definitions and sums of one run's processes.


class _Range:
    """A range of one name, process and thread, with what the tables hold of it."""

    def __init__(self, process: int, thread: int, style: Style, name: str) -> None:
        self.process = process
        self.thread = thread
        self.style: Style = style
        domain, colon, own = name.partition(":")
        self.domain, self.name = (
            (domain, own) if colon and own else ("", name.removeprefix(":") or "(unnamed)")
        )
        self.cpu: Distribution | None = None
        self.projected: Projected | None = None


class StatsEvents:
    """What the tables hold, as one delta a process and the definitions before it.

    Few tables name processes and threads. The others are of the only process that is named; where
    there are several, or none, of one whose pid is not known (0).
    """

    def __init__(self, time_ns: int, tables: dict[str, list[Any]]) -> None:
        self._time_ns = time_ns
        self._tables = tables
        self._inside: list[Inside] = tables.get("nvtx_kern_sum", [])
        self._launches: list[Launches] = tables.get("cuda_kern_exec_sum", [])
        pids = {row.pid for row in self._inside} | {row.pid for row in self._launches}
        named = sorted(pids - {0})
        self._pids = named if len(named) == 1 else [0, *named]
        self._kernels: dict[str, int] = {}
        self._ranges: dict[tuple[int, int, Style, str], _Range] = {}
        self._numbers: dict[_Range, int] = {}
        self._find_ranges()

    def __iter__(self) -> Iterator[AnyEvent]:
        deltas = [self._sums(), *map(self._delta, range(1, len(self._pids) + 1))]
        for number, pid in enumerate(self._pids, 1):
            yield ProcessAttached(
                time_ns=self._time_ns,
                run=1,
                process=number,
                pid=pid,
                parent_pid=0,
                command="",
                cuda_status="tracing",
            )
        for number, node in enumerate(self._ranges.values(), 1):
            yield RangeDefined(
                time_ns=self._time_ns,
                range=number,
                process=node.process,
                thread=node.thread,
                parent=0,
                domain=node.domain,
                name=node.name,
                style=node.style,
            )
        for name, number in self._kernels.items():
            yield KernelDefined(time_ns=self._time_ns, kernel=number, name=name, mangled=name)
        yield from deltas

    def _process(self, pid: int) -> int:
        return self._pids.index(pid) + 1 if pid in self._pids else 1

    def _kernel(self, name: str) -> int:
        return self._kernels.setdefault(name, len(self._kernels) + 1)

    def _range(self, process: int, thread: int, style: Style, name: str) -> _Range:
        key = process, thread, style, name
        if key not in self._ranges:
            node = self._ranges[key] = _Range(*key)
            self._numbers[node] = len(self._ranges)
        return self._ranges[key]

    def _find_ranges(self) -> None:
        threads: dict[tuple[Style, str], set[tuple[int, int]]] = {}
        for row in self._inside:
            if row.name:
                place = self._process(row.pid), row.thread
                self._range(*place, row.style, row.name)
                threads.setdefault((row.style, row.name), set()).add(place)

        def only_range(style: Style, name: str) -> _Range:
            places = threads.get((style, name), set())
            only = next(iter(places)) if len(places) == 1 else (1, NO_THREAD)
            return self._range(*only, style, name)

        styles: tuple[tuple[str, Style], ...] = (
            ("nvtx_pushpop_sum", "PushPop"), ("nvtx_startend_sum", "StartEnd")
        )  # fmt: skip
        for report, style in styles:
            for sums in self._tables.get(report, ()):
                node = only_range(style, sums.name)
                node.cpu = node.cpu or sums.amounts
        for row in self._tables.get("nvtx_gpu_proj_sum", ()):
            node = only_range(row.style, row.name)
            node.projected = node.projected or row

    def _delta(self, process: int) -> CaptureDelta:
        inside = [row for row in self._inside if self._process(row.pid) == process]
        return CaptureDelta(
            time_ns=self._time_ns,
            process=process,
            ranges=tuple(
                self._range_delta(node) for node in self._ranges.values() if node.process == process
            ),
            # Nobody knows which ranges lie in which: a kernel stands in each around its launch.
            secondary_domain_kernels=tuple(
                KernelDelta(
                    process=process,
                    range=self._number(row) if row.name else 0,
                    kernel=self._kernel(row.kernel),
                    device=0,
                    thread=0 if row.name else row.thread,
                    time=row.time,
                    repeats=row.repeats,
                )
                for row in inside
            ),
            range_kernels=tuple(
                RangeKernels(self._number(row), self._kernel(row.kernel), row.instances)
                for row in inside
                if row.name
            ),
            launches=tuple(
                LaunchDelta(
                    process=process,
                    thread=row.thread,
                    device=row.device,
                    name=row.call,
                    kernel=self._kernel(row.kernel),
                    total=row.total,
                    call=row.calls,
                    queue=row.queue,
                    kernel_time=row.kernel_time,
                )
                for row in self._launches
                if self._process(row.pid) == process
            ),
        )

    def _sums(self) -> CaptureDelta:
        """Of the tables that name neither ranges nor threads."""
        nothing = Distribution(0, 0, 0.0, 0, 0, ())
        times, sizes = (
            {row.name: row.amounts for row in self._tables.get(f"cuda_gpu_mem_{kind}_sum", ())}
            for kind in ("time", "size")
        )
        return CaptureDelta(
            time_ns=self._time_ns,
            process=1,
            kernels=tuple(
                KernelDelta(
                    process=1, range=0, kernel=self._kernel(row.name), device=0, time=row.amounts
                )
                for row in self._tables.get("cuda_gpu_kern_sum", ())
            ),
            memory_operations=tuple(
                MemoryOperationDelta(
                    process=1,
                    range=0,
                    operation=name,
                    device=0,
                    time=times.get(name, nothing),
                    size=sizes.get(name, nothing),
                )
                for name in {**times, **sizes}
            ),
            api=tuple(
                ApiDelta(process=1, range=0, name=api_name(row.name), time=row.amounts)
                for row in self._tables.get("cuda_api_sum", ())
            ),
        )

    def _number(self, row: Inside) -> int:
        return self._numbers[self._range(self._process(row.pid), row.thread, row.style, row.name)]

    def _range_delta(self, node: _Range) -> RangeDelta:
        on_gpu = node.projected
        if on_gpu is None:
            return RangeDelta(range=self._numbers[node], cpu=node.cpu)
        return RangeDelta(
            range=self._numbers[node],
            cpu=node.cpu,
            projected=on_gpu.projected,
            projected_range_ns=on_gpu.range_ns,
            gpu_operations=on_gpu.operations,
            levels=on_gpu.levels,
            children_with_work=on_gpu.children,
        )


# The CSV tables of `nsys stats`, as the events of a session.
#
# Files are named PREFIX_REPORT.csv, as `nsys stats --output PREFIX` and scripts around it name
# them. The tables hold sums: their medians and deviations are taken over unchanged, and there is
# no time axis and no tree.

# Files that are not read, named in the reason for the end.
_LISTED = 8


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
            tables = sorted(folder.glob("*.csv"))
        except OSError:
            return None
        for file in tables:
            report = _report_of(file.name)
            if report and (prefix is None or report[0] == prefix) and file.is_file():
                sets.setdefault(report[0], {}).setdefault(report[1], file)
        if len(sets) > 1:
            prefixes = ", ".join(sanitize(str(folder / name), 80) for name in sorted(sets))
            raise JournalError(f"{path} holds tables of several reports; give one of: {prefixes}")
        for name, files in sets.items():
            begins = f"{name}_" if name else ""
            ignored = [
                file.name
                for file in tables
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
