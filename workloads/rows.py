"""Rows of a table, each measured separately: a failure ends its row and not the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import nvtx
import torch

from .declaration import FigureValue, Row
from .devices import out_of_memory_explained, release_memory
from .errors import CannotRun, OutOfMemory
from .report import Report
from .stopping import Interrupted

Cells = dict[str, FigureValue]


class Unsupported(Exception):
    """The device or library does not support this: the reason for one row."""


class Rows:
    """Measures `total` rows one after another, each in its own range."""

    def __init__(self, total: int, device: torch.device, report: Report) -> None:
        self.rows: list[Cells] = []
        self.out_of_memory = 0
        self._labels: list[str] = []
        self._total, self._device, self._report = total, device, report
        self._done = 0

    @contextmanager
    def row(self, label: str, **head: FigureValue) -> Iterator[Cells]:
        """Cells to fill, `head` first. They are kept whatever happens inside, with `status`.

        Catches failed allocations, Unsupported and Interrupted. Releases memory afterwards.
        """
        self._report.progress("measure", self._done, self._total, "rows")
        cells: Cells = dict(head)
        try:
            with nvtx.annotate(label), out_of_memory_explained():
                yield cells
            cells.setdefault("status", "ok")
        except OutOfMemory as error:
            self.out_of_memory += 1
            cells["status"] = f"OOM: {error}"
        except (CannotRun, Unsupported) as error:
            cells["status"] = str(error)
        except Interrupted:
            cells["status"] = "the run was stopped"
        finally:
            self.rows.append(cells)
            self._labels.append(label)
            self._done += 1
        release_memory(self._device)
        self._report.say(f"{label}: {_summary(cells)}")
        self._report.progress("measure", self._done, self._total, "rows")

    @property
    def measured(self) -> list[Cells]:
        """The rows measured to their end, whose status is ok."""
        return [row for row in self.rows if row["status"] == "ok"]

    def why_none(self, **where: FigureValue) -> str:
        """Why there is no figure for rows whose cells equal `where`: the first failure among them.

        Without a failure, the run was stopped before them.
        """
        for label, row in zip(self._labels, self.rows, strict=True):
            if row["status"] != "ok" and _equals(row, where):
                return f"{label}: {row['status']}"
        return "the run was stopped earlier"


def _summary(cells: Cells) -> str:
    """The outcome of a row in a few words."""
    if cells["status"] != "ok":
        return str(cells["status"])
    figures = {name: f"{value:.4g}" for name, value in cells.items() if isinstance(value, float)}
    return ", ".join(f"{name} {value}" for name, value in list(figures.items())[:6])


def _equals(row: Row, where: Mapping[str, FigureValue]) -> bool:
    return all(row.get(name) == wanted for name, wanted in where.items())


def best(rows: Sequence[Row], column: str, **where: FigureValue) -> float | None:
    """The largest value of a column over rows whose cells equal `where`."""
    values = [
        value for row in rows if _equals(row, where) and isinstance(value := row.get(column), float)
    ]
    return max(values, default=None)
