"""What a table is: named columns, raw cells for programs, formats for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal

from gputui.model import units
from gputui.model.sketch import Accumulator
from gputui.report.statistics import TableRow

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, and how a person reads its figures."""

    header: str
    show: Callable[[float | None], str] | None = None
    """None shows text as it is, left-aligned."""
    decimals: int | None = None
    """Places that programs get a figure with, as nsys prints it; people see the figure itself."""
    spare: int = 0
    """On a narrow terminal the column with the highest goes first; 0 stays."""
    for_programs: bool = False
    """Whether people are spared it: the same in every row, or told by another column."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: raw cells for programs, column formats for people."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Header → why nothing stands under it in some row; "rows" → why there are none."""
    in_words: tuple[tuple[Cell, ...], ...] = ()
    """The rows as people read them, where how a figure is read depends on its row."""

    def for_people(self) -> Table:
        """The table in words, without the columns that are for programs."""
        rows = self.in_words or self.rows
        kept = [at for at, column in enumerate(self.columns) if not column.for_programs]
        if len(kept) == len(self.columns):
            return replace(self, rows=rows)
        columns = tuple(self.columns[at] for at in kept)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[at] for at in kept) for row in rows)
        )


def text(header: str) -> Column:
    """A column of names."""
    return Column(header)


def number(header: str) -> Column:
    """A column of numbers that count nothing: ids, ranks."""
    return Column(header, lambda value: units.MISSING if value is None else f"{value:.0f}")


def time(header: str) -> Column:
    """A column of nanoseconds."""
    return Column(header, units.duration)


def size(header: str) -> Column:
    """A column of bytes."""
    return Column(header, units.size)


def rate(header: str) -> Column:
    """A column of bytes a second."""
    return Column(header, units.rate)


def count(header: str) -> Column:
    """A column of counts."""
    return Column(header, units.quantity)


def figure(header: str) -> Column:
    """A column of figures that each have a unit of their own, by their row: see `in_words`."""
    return Column(header, units.quantity)


def percent(header: str, decimals: int = 1) -> Column:
    """A column of shares; `decimals` are what programs get."""
    return Column(header, units.percent, decimals)


def for_programs(column: Column, hidden: bool = True) -> Column:
    """The same column, where `hidden` left out of what people read."""
    return replace(column, for_programs=hidden)


def spare(order: int, column: Column) -> Column:
    """The same column, to be left out where there is no room: the highest `order` first."""
    return replace(column, spare=order)


TIMES = tuple(
    spare(order, time(f"{name} (ns)"))
    for name, order in (
        ("Total Time", 0),
        ("Avg", 2),
        ("Med", 1),
        ("Min", 4),
        ("Max", 3),
        ("StdDev", 5),
    )
)


def rounded(value: float, places: int) -> float:
    """Rounded as SQLite does for nsys: a half away from zero, where Python takes the even one."""
    if not math.isfinite(value):
        return value
    return float(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def statistics_columns(counted: str, *names: str) -> tuple[Column, ...]:
    """nsys's order: Time (%), Total Time, what is counted, Avg … StdDev, then names."""
    return (
        percent("Time (%)"),
        TIMES[0],
        count(counted),
        *TIMES[1:],
        *(text(name) for name in names),
    )


def statistics_cells(row: TableRow) -> tuple[Cell, ...]:
    """The cells under `statistics_columns`, names left out; times are rounded as nsys does."""
    return (
        row.percent,
        row.total,
        row.instances,
        rounded(row.average, 1),
        rounded(row.median, 1),
        row.minimum,
        row.maximum,
        rounded(row.deviation, 1),
    )


def spread_cells(times: Accumulator) -> tuple[Cell, ...]:
    """Average, median, least, most and deviation, rounded as nsys does."""
    return (
        rounded(times.average or 0.0, 1),
        rounded(times.median or 0.0, 1),
        times.minimum,
        times.maximum,
        rounded(times.deviation or 0.0, 1),
    )


def note(rows: Sequence[TableRow]) -> str:
    """What to say beside medians that are not exact."""
    return "" if all(row.exact for row in rows) else "medians within 1 %"
