"""What a table is, declared once: its columns, its rows, and why figures are missing.

From a `TableSpec` come the terminal's table, CSV, Markdown, HTML, JSON, Parquet, the screen's
table, the JSON Schema and the reference page.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gputui.model import units
from gputui.model.steps import HELD_NS
from gputui.state import Run, Session

Cell = str | int | float | bool | None
Show = Callable[[float | None], str]
R = TypeVar("R")

ROWS = "rows"
"""Represents the whole table where the reasons for missing figures are given by column."""


def always(_cells: Sequence[Cell]) -> bool:
    """For `Column.seen`: people see the column whatever its cells are."""
    return True


def for_programs(_cells: Sequence[Cell]) -> bool:
    """The column is for programs."""
    return False


def if_any(cells: Sequence[Cell]) -> bool:
    """People see the column if it has values."""
    return any(cell is not None for cell in cells)


def if_differs(cells: Sequence[Cell]) -> bool:
    """People see the column unless all its values are equal."""
    return len({cell for cell in cells if cell is not None}) > 1


class Column(msgspec.Struct, Generic[R], frozen=True):
    """One column of a table of rows `R`."""

    title: str
    """Without the unit."""
    show: Show | None = None
    """How people read a value; None is text, left-aligned."""
    key: str = ""
    """The name in JSON, Parquet and data frames, ending in the unit; if empty, the header."""
    value: Callable[[R], Cell] | None = None
    """The cell of a row; None if rows are tuples, by position."""
    unit: str = ""
    meaning: str = ""
    kind: Any = str
    """The type of `document`'s values, as in an annotation."""
    document: Callable[[R], Any] | None = None
    """The value in JSON, if it is not the cell."""
    words: Callable[[R], str] | None = None
    """How people read the cell, if that needs the whole row."""
    decimals: int | None = None
    """Decimals in CSV, if nsys's table of this name has that many."""
    priority: int = 0
    """On a narrow screen or terminal the column with the highest priority is dropped first."""
    seen: Callable[[Sequence[Cell]], bool] = always
    """Whether people see it, depending on its cells."""
    in_table: bool = True
    """False where JSON has it, and the screen where it names it, and printed tables and CSV do
    not: a column of gputui's own in a table that has nsys's columns."""
    wide: bool = False
    """True where `--once` has it on a wide terminal and in a file only."""
    label: str = ""
    """The title on the screen, if different."""
    width: int = 0
    """Minimum width on the screen."""
    flexible: bool = False
    """May be cut with an ellipsis, takes the remaining room, and is dropped only by priority."""
    right: bool | None = None
    """Aligned right; None: like figures."""
    role: Callable[[R], str] | str = "text"
    """The style on the screen."""

    @property
    def header(self) -> str:
        """The title with the unit."""
        # A workload's column is named by its key, which ends in the unit.
        is_bare = not self.unit or self.title == self.key
        return self.title if is_bare else f"{self.title} ({self.unit})"

    @property
    def heading(self) -> str:
        """The title on the screen, in lower case but for names and abbreviations."""
        words = (word.lower() if word.istitle() else word for word in self.title.split(" "))
        return self.label or " ".join(words)

    @property
    def name(self) -> str:
        """The name of the column for programs."""
        return self.key or self.header

    @property
    def is_right(self) -> bool:
        """Whether it is aligned right."""
        return self.show is not None if self.right is None else self.right

    def cell(self, row: R) -> Cell:
        """The raw cell of a row that is not a tuple."""
        assert self.value is not None, self.title
        return self.value(row)

    def text(self, row: R) -> str:
        """The cell of a row that is not a tuple, as people read it."""
        return self.words(row) if self.words else shown(self, self.cell(row))


class Table(msgspec.Struct, Generic[R], frozen=True):
    """A table of one recording."""

    name: str
    title: str
    columns: tuple[Column[R], ...]
    rows: Sequence[R]
    note: str = ""
    unavailable: Mapping[str, str] = msgspec.field(default_factory=dict)
    """A column's name → why values are missing in some row; ROWS → why there are no rows."""

    @property
    def headed(self) -> list[tuple[int, Column[R]]]:
        """The columns of the table with their positions in rows that are tuples."""
        return [(index, column) for index, column in enumerate(self.columns) if column.in_table]

    @property
    def cells(self) -> list[tuple[Cell, ...]]:
        """The raw cells, row by row."""
        getters = [_getter(index, column) for index, column in self.headed]
        return [tuple([get(row) for get in getters]) for row in self.rows]

    def for_people(self) -> tuple[list[Column[R]], list[tuple[Cell, ...]], list[list[str]]]:
        """The columns that people see, with raw and with readable cells."""
        cells = self.cells
        kept = [
            (place, index, column)
            for place, (index, column) in enumerate(self.headed)
            if column.seen is always or column.seen([row[place] for row in cells])
        ]
        raw = [tuple([row[place] for place, _, _ in kept]) for row in cells]
        texts = [
            [
                column.words(row) if column.words else shown(column, cell)
                for (_, _, column), cell in zip(kept, line, strict=True)
            ]
            for row, line in zip(self.rows, raw, strict=True)
        ]
        return [column for _, _, column in kept], raw, texts

    def records(self) -> list[dict[str, Any]]:
        """The rows for programs: one object each, missing as None."""
        getters = [
            (column.name, column.document or _getter(index, column))
            for index, column in enumerate(self.columns)
        ]
        return [{name: get(row) for name, get in getters} for row in self.rows]


def _getter(index: int, column: Column[R]) -> Callable[[R], Any]:
    def cell(row: Any) -> Any:
        return row[index]

    return column.value or cell


def shown(column: Column[Any], cell: Cell) -> str:
    """A cell as people read it, with its unit."""
    if cell is None:
        return units.MISSING
    if column.show is not None and isinstance(cell, int | float):
        return column.show(cell)
    if isinstance(cell, float):
        return f"{cell:,.6g}" if abs(cell) < 1e6 else f"{cell:,.0f}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if abs(cell) >= 10000 else str(cell)
    return str(cell)


def columns_that_fit(
    columns: Sequence[Column[Any]], widths: Sequence[int], width: int, gap: int = 2
) -> list[int]:
    """The positions of the columns that fit into `width`. If not all fit, the column with the
    highest priority is dropped first, and of equal ones the last. Without priorities, columns whose
    text may be cut stay, and so do the first two others."""
    kept = list(range(len(columns)))
    rigid = [index for index in kept if not columns[index].flexible or columns[index].priority]
    first = [index for index in rigid if not columns[index].priority][:2]
    going = sorted(
        (index for index in rigid if index not in first),
        key=lambda index: (columns[index].priority, index),
    )
    needed = sum(widths) + gap * (len(kept) - 1)
    while going and needed > width:
        gone = going.pop()
        kept.remove(gone)
        needed -= widths[gone] + gap
    return kept


AnyColumn = Column[Any]
AnyTable = Table[Any]


def no_note(_run: Run, _rows: Sequence[Any]) -> str:
    """No note beside the table."""
    return ""


def all_measured(_run: Run, _rows: Sequence[Any]) -> Mapping[str, str]:
    """Nothing is missing that could have been measured."""
    return {}


class TableSpec(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A declared table, valid for every run that has such rows."""

    key: str
    """The name it is requested by."""
    title: str
    meaning: str
    """A sentence for the reference page."""
    columns: tuple[Column[R], ...]
    rows: Callable[[Session, Any], Sequence[R]]
    """The rows of a run, or of the machine if none was recorded."""
    order: int
    """The table's place among all tables."""
    in_summary: bool = False
    """Whether the summary prints it; the others are printed on request."""
    document: str = ""
    """The name under which the summary's JSON document has its rows."""
    note: Callable[[Any, Sequence[R]], str] = no_note
    """The note beside the title."""
    unavailable: Callable[[Any, Sequence[R]], Mapping[str, str]] = all_measured
    """Why figures are missing: see `Table.unavailable`."""
    is_traced: bool = False
    """Whether the rows are of kernels or calls, which may be traced part of the time."""

    def table(self, session: Session, run: Run | None) -> Table[R]:
        """The table of one run, or of the machine if none was recorded."""
        rows = self.rows(session, run)
        missing = self.unavailable(run, rows)
        notes = [self.note(run, rows), missing.get(ROWS, "")]
        if self.is_traced and run is not None and run.traced_share < 1.0 and rows:
            share = units.percent(100 * run.traced_share)
            part = run.started.captured_part
            notes.insert(
                0, f"of {part}" if part else f"kernels and calls traced {share} of the time"
            )
        note = "; ".join(filter(None, notes))
        return Table(self.key, self.title, self.columns, rows, note, missing)

    def records(self, session: Session, run: Run | None) -> list[dict[str, Any]] | None:
        """The rows for the summary's document; None where they were not measured."""
        table = self.table(session, run)
        return None if ROWS in table.unavailable else table.records()

    def column(self, key: str) -> Column[R]:
        """The column with this key. Raises KeyError."""
        return {column.key: column for column in self.columns}[key]


class Make(Protocol):
    """Makes columns of one kind."""

    def __call__(
        self, title: str, key: str = "", value: Callable[[R], Cell] | None = None,
        meaning: str = "", **more: Any,
    ) -> Column[R]:  # fmt: skip
        """A column, with more of its fields by name."""


def _columns_of(show: Show | None, unit: str, kind: type, **usual: Any) -> Make:
    def make(
        title: str, key: str = "", value: Callable[[R], Cell] | None = None, meaning: str = "",
        **more: Any,
    ) -> Column[R]:  # fmt: skip
        return Column(title, show, key, value, unit, meaning, **{"kind": kind, **usual, **more})

    return make


def whole_number(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.0f}"


text = _columns_of(None, "", str, flexible=True)
"""Names, which may be cut."""
number = _columns_of(whole_number, "", int)
"""Numbers that are not quantities: ids, ranks."""
time = _columns_of(units.duration, "ns", int)
size = _columns_of(units.size, "bytes", int)
rate = _columns_of(units.rate, "bytes/s", float)
count = _columns_of(units.quantity, "", int)
percent = _columns_of(units.percent, "%", float)

RANK: Column[Any] = number(
    "Rank", "rank", lambda row: row.rank, "The process's rank", kind=int | None, seen=if_any
)


# Floats from here on have no fraction to round, and may have more digits than Decimal takes.
_WHOLE = 2.0**53


@functools.lru_cache(1 << 12)  # sizes of launches come again and again
def rounded(value: float, places: int) -> float:
    """Rounded as SQLite does for nsys: a half away from zero, where Python takes the even one."""
    if not math.isfinite(value) or abs(value) >= _WHOLE:
        return value
    # Imported here: the screen, which needs no decimals, starts sooner.
    from decimal import ROUND_HALF_UP, Decimal

    return float(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


# --- Why a recording lacks figures: never 0, never without a reason.
#
# Reports of other tools lack figures that gputui records, a run may have ended before some were
# known, and records may have been lost. The reason is deduced from what a recording has, not from
# the kind of file.

REASON = "not measured when this was recorded"
"""Why a figure is missing."""


def has_idle_times(run: Run, process: int, device: int) -> bool:
    """Whether gaps and overlap of a process's work on a device were measured.

    A device of which neither is there had no gap and one stream, or it was not measured: then the
    figures of single streams, which came with them, are missing too.
    """
    use = run.timing.devices.get((process, device))
    if use is None or not use.operations:
        return True
    return (
        # Gaps that a recording has are shown, also where its streams were cut out of it.
        bool(use.idle is not None and use.idle.count)
        or bool(use.overlap_ns)
        or any(
            (stream.process, stream.device) == (process, device)
            for stream in run.timing.streams.values()
        )
    )


def why_unaccounted(run: Run) -> str:
    """Why it is not known where the time of a run went in which kernels ran."""
    if run.is_active:
        # Or was, where the recording ends before the run.
        return f"The steps are not known yet: that takes up to {HELD_NS / 1e9:g} s of GPU work."
    return f"Where the time went was {REASON}."


def why_empty(run: Run) -> str:
    """Why no GPU work is listed, in words."""
    if run.leaf_times and not run.kernels:
        return "No kernels were kept in this recording; the time tree has where the time went."
    statuses = {process.attached.cuda_status for process in run.processes.values()}
    reasons = sorted(status for status in statuses if status != "tracing")
    if run.unseen_reason:
        # Without access to CUDA this cannot be known.
        reasons = [run.unseen_reason, *(status for status in reasons if status != "no CUDA")]
    if reasons == ["no CUDA"]:
        return "No GPU work is seen in this run: the program did not load CUDA."
    if reasons:
        return f"No GPU work is seen in this run: {'; '.join(reasons)}"
    if run.is_active:
        return "No GPU work so far."
    return "The program ran nothing on a GPU."


def has_streams(run: Run) -> bool:
    """Whether streams, and the launches of threads, were measured if anything ran."""
    return bool(run.timing.streams) or not run.devices


def has_idle_ranges(run: Run) -> bool:
    """Whether the range in which a GPU was idle was recorded, if one was idle."""
    return bool(run.timing.idle_by_range() or not run.ranges) or all(
        has_idle_times(run, use.process, use.device) and not (use.idle and use.idle.total)
        for use in run.timing.devices.values()
    )


def has_shapes(run: Run) -> bool:
    """Whether the launch shapes of kernels were recorded, if there are kernels."""
    return bool(run.shapes) or not run.kernels


def empty_of_kernels(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    """Why a table is empty though kernels ran."""
    return {ROWS: REASON} if run.kernels and not rows else {}


def no_rows_unless(measured: Callable[[Run], bool]) -> Callable[[Run, object], Mapping[str, str]]:
    """Why a table is empty if its subject was not `measured`."""
    return lambda run, _rows: {} if measured(run) else {ROWS: REASON}


# Why records of a run were lost, in words.

# Domains named in one sentence; the others are counted. Chosen for its length.
_MOST_DOMAINS = 4

_WORDS = {
    "ring": "because the ring was full",
    "unread": "left in the ring at the end",
    "cupti": "because CUPTI's buffers were full",
    "domains": "a thread had ranges open in 32 others",
    "deferred": "deferred events are not supported",
    # In sentences: people read them.
    "places": "because more ranges were open at once than are followed",
}


def lost_count(run: Run) -> int:
    """How many were lost, for any reason."""
    return sum(process.dropped for process in run.processes.values())


# Causes by which records of kernels, copies and calls are lost; the others are of ranges.
_ON_GPUS = ("ring", "unread", "cupti")


def lost_share(run: Run) -> float:
    """Which share of the GPU work and calls that should have been captured was lost, 0 to 1."""
    lost = records = 0
    for process in run.processes.values():
        records += process.records
        lost_on_gpus = [loss.records for loss in process.losses.values() if loss.cause in _ON_GPUS]
        lost += sum(lost_on_gpus) if process.losses else process.dropped
    return lost / (lost + records) if lost else 0.0


def why_lost(run: Run) -> str:
    """The causes, largest first: "12 because the ring was full; 8 in domains a, b: …"; empty for
    an older recording, which lacks them.
    """
    causes: Counter[str] = Counter()
    domains: dict[str, Counter[str]] = {"domains": Counter(), "deferred": Counter()}
    for process in run.processes.values():
        for loss in process.losses.values():
            causes[loss.cause] += loss.records
            if loss.cause in domains:
                domains[loss.cause][loss.domain or "default"] += loss.records
    return "; ".join(
        f"{units.count(records)} "
        f"{_of_domains(domains[cause]) if cause in domains else ''}{_WORDS[cause]}"
        for cause, records in causes.most_common()
    )


def _of_domains(domains: Counter[str]) -> str:
    names = ", ".join(name for name, _ in domains.most_common(_MOST_DOMAINS))
    more = len(domains) - _MOST_DOMAINS
    return (
        f"in {'domain' if len(domains) == 1 else 'domains'} {names}"
        f"{f' and {more} more' if more > 0 else ''}: "
    )


# Rows in the order of a column.


def sorted_rows(rows: Iterable[R], by: Column[R] | None, *, other_way: bool = False) -> list[R]:
    """Rows by a column, figures from the largest, texts from A, those without last; without a
    column as they come. All but these the other way round, if asked."""
    if by is None:
        return [*rows][:: -1 if other_way else 1]
    cells = [(by.cell(row), row) for row in rows]
    filled = [pair for pair in cells if pair[0] is not None]
    is_falling = (by.show is not None) != other_way
    filled.sort(key=lambda pair: _place_of(pair[0]), reverse=is_falling)
    return [row for _, row in [*filled, *(pair for pair in cells if pair[0] is None)]]


def _place_of(cell: Cell) -> tuple[bool, float, str]:
    """Where it stands in a column: figures by size, then texts by letters."""
    if isinstance(cell, int | float):
        return False, float(cell), ""
    return True, 0.0, str(cell).lower()
