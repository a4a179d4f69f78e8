"""Rows of a CSV table of `nsys stats`, by the names of its columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from gputui.base.sanitize import sanitize
from gputui.model.events import Distribution
from gputui.model.sketch import steps
from gputui.store.journal import JournalError

Row = TypeVar("Row")

MAX_ROWS = 100_000
MAX_BYTES = 256 << 20

_UNITS = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip
_LARGEST = 2**62
_HEADER_LINES = 200

_Columns = dict[str, tuple[int, float]]
"""Place and unit of each column, by its name without the unit."""


class Cells:
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
        known = next((self._columns[name] for name in names if name in self._columns), None)
        if known is None or not self._cells[known[0]].strip():
            return None
        value = float(self._cells[known[0]].replace(",", "")) * known[1]
        if not math.isfinite(value) or not 0 <= value < _LARGEST:
            raise ValueError(self._cells[known[0]])
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
            values=steps(_around(middle, count)),
            exact=False,
        )

    def _name(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if name in self._columns)


def read_rows(
    path: Path, needed: tuple[tuple[str, ...], ...], parse: Callable[[Cells], Row]
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
            known = _UNITS.get(unit.rstrip(")").lower(), 1.0)
            columns.setdefault(name or cell.strip(), (place, known if name else 1.0))
        if all(any(name in columns for name in names) for names in needed):
            return columns
    return None


def _rows(
    lines: Iterator[list[str]], columns: _Columns, parse: Callable[[Cells], Row]
) -> tuple[list[Row], int]:
    rows: list[Row] = []
    skipped = 0
    for cells in lines:
        if not any(cells):
            continue
        try:
            row = parse(Cells(columns, cells))
        except (ValueError, IndexError, OverflowError):
            skipped += 1
            continue
        if len(rows) < MAX_ROWS:
            rows.append(row)
        else:
            skipped += 1
    return rows, skipped
