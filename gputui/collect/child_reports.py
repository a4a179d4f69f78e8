"""What a run reports of itself: its reports as events, tables among them, and the memory snapshot
that it may leave.

For `traced_run`, with lines that `child` has read.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gputui.base import reason
from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.model.events import (
    AnyEvent,
    ResultColumn,
    ResultTable,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunResult,
)
from gputui.store import snapshot_path

# Tables reported by a workload: untrusted lines of a pipe → bounded, sanitized records.

TABLES_LIMIT = 50
ROWS_LIMIT = 2000
"""Rows kept per table."""

# More columns fit neither a screen nor a page.
COLUMNS_LIMIT = 64
CELLS_LIMIT = 40_000
"""Cells kept per run, so that its result stays one line of the journal."""

_TEXT_LIMIT = 512
"""Characters of a cell: paths in the caches of Triton and Inductor have up to 200."""

Cell = str | int | float | bool | None


class _Column(msgspec.Struct):
    name: str
    unit: str | None = None
    help: str = ""


class TableReport(msgspec.Struct, tag_field="type", tag="table"):
    """Rows of one table. A second report of the same name appends rows to the first."""

    name: str
    columns: list[_Column]
    rows: list[list[Any]]
    title: str = ""


class ResultTables:
    """The tables one run has reported so far."""

    def __init__(self) -> None:
        self._heads: dict[str, ResultTable] = {}
        self._rows: dict[str, list[tuple[Cell, ...]]] = {}
        self._cells = 0

    def add(self, report: TableReport) -> bool:
        """Add what fits. False if it is not a table, or its columns differ from the first
        report.
        """
        name = sanitize(report.name, 100)
        columns = tuple(
            ResultColumn(
                name=sanitize(column.name, 100),
                unit=None if column.unit is None else sanitize(column.unit, 40),
                help=sanitize(column.help, 500),
            )
            for column in report.columns
        )
        if not 0 < len(columns) <= COLUMNS_LIMIT:
            return False
        head = self._heads.get(name)
        if head is None:
            if len(self._heads) >= TABLES_LIMIT:
                return True
            title = sanitize(report.title, 200) or name
            head = self._heads[name] = ResultTable(name=name, title=title, columns=columns)
        elif [column.name for column in head.columns] != [column.name for column in columns]:
            return False
        rows = self._rows.setdefault(name, [])
        sound = True
        for row in report.rows:
            if len(row) != len(columns):
                sound = False
            elif len(rows) < ROWS_LIMIT and self._cells + len(row) <= CELLS_LIMIT:
                self._cells += len(row)
                rows.append(tuple(map(_cell, row)))
        return sound

    def freeze(self) -> tuple[ResultTable, ...]:
        """The tables, in the order they were first reported."""
        return tuple(
            msgspec.structs.replace(head, rows=tuple(self._rows[name]))
            for name, head in self._heads.items()
        )


def _cell(value: Any) -> Cell:
    """A scalar, its text sanitized; None for anything else."""
    if isinstance(value, str):
        return sanitize(value, _TEXT_LIMIT)
    return value if isinstance(value, int | float) else None


# The memory snapshot a run may leave: moved beside the recording, never opened.
#
# It is a pickle, which can run code, for PyTorch's viewer (https://pytorch.org/memory_viz). The
# workloads write one with `-p snapshot=true`; any command may write one with
# `torch.cuda.memory._dump_snapshot(path)` to the file named by the environment variable
# GPUTUI_SNAPSHOT.

SNAPSHOT_VARIABLE = "GPUTUI_SNAPSHOT"

SNAPSHOT_FILE = "snapshot.pickle"

SNAPSHOT_ROOM_BYTES = 1 << 62
"""Not in shared memory: a snapshot may be larger than that, so it goes to disk."""


def keep_snapshot(made: Path, recording: Path | None, run: int) -> str | None:
    """Move the snapshot of run `run` from `made` to beside its recording.

    Gives a line saying where it is or why it was not kept; None if the run left none.
    """
    try:
        facts = made.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return "the memory snapshot was not kept: it is not a file"
    if recording is None:
        return "the memory snapshot was not kept: this session is not recorded to a file"
    target = snapshot_path(recording, run)
    try:
        if os.path.lexists(target):
            return f"the memory snapshot was not kept: {target} already exists"
        made.chmod(0o600)
        shutil.move(made, target)
    except OSError as error:
        return f"the memory snapshot was not kept: {reason(error)}"
    return f"the memory snapshot is {target}"


METRICS_LIMIT = 500
"""Distinct metric names kept per child."""

# Recordings hold whole numbers of 64 bits.
_LARGEST = 1 << 63


class _Progress(msgspec.Struct, tag_field="type", tag="progress"):
    stage: str
    done: float
    total: float | None = None
    unit: str = ""


class _Metrics(msgspec.Struct, tag_field="type", tag="metrics"):
    metrics: dict[str, Any]


class _Document(msgspec.Struct):
    results: dict[str, Any]
    parameters: dict[str, Any] = {}
    unavailable: dict[str, str] = {}
    complete: bool = True


class _Result(msgspec.Struct, tag_field="type", tag="result"):
    result: _Document


class _Error(msgspec.Struct, tag_field="type", tag="error"):
    error: str
    detail: str = ""


_report = json_decoder(_Progress | _Metrics | TableReport | _Result | _Error)


class RunReports:
    """The reports of one run, bounded and sanitized. `error` is the child's own reason for
    failing.
    """

    def __init__(self, run: int) -> None:
        self._run = run
        self._metric_names: set[str] = set()
        self._tables = ResultTables()
        self.error: str | None = None

    def read(self, lines: list[str]) -> list[AnyEvent]:
        """The events of a batch of lines; only the newest progress of a batch is kept."""
        progress: RunProgress | None = None
        result: RunResult | None = None
        metrics: dict[str, float | int | str | bool | None] = {}
        unreadable = 0
        for line in lines:
            try:
                report = _report.decode(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeError):
                unreadable += 1
                continue
            if isinstance(report, _Progress):
                progress = RunProgress(
                    time_ns=time.time_ns(),
                    run=self._run,
                    stage=sanitize(report.stage, 100),
                    done=report.done,
                    total=report.total,
                    unit=sanitize(report.unit, 40),
                )
            elif isinstance(report, _Error):
                self.error = sanitize(": ".join(filter(None, (report.error, report.detail))), 500)
            elif isinstance(report, _Metrics):
                metrics.update(self._scalars(report.metrics))
            elif isinstance(report, TableReport):
                unreadable += not self._tables.add(report)
            else:
                result = self._result(report.result)
        events: list[AnyEvent] = [progress] if progress else []
        now = time.time_ns()
        if metrics:
            events.append(RunMetrics(time_ns=now, run=self._run, metrics=metrics))
        if result:
            events.append(result)
        if unreadable:
            text = f"{unreadable} lines on the report pipe are not reports and were left out"
            events.append(RunOutput(time_ns=now, run=self._run, stream="stderr", lines=(text,)))
        return events

    def _result(self, document: _Document) -> RunResult:
        return RunResult(
            time_ns=time.time_ns(),
            run=self._run,
            complete=document.complete,
            parameters=self._scalars(document.parameters),
            results=self._scalars(document.results),
            unavailable={
                sanitize(name, 100): sanitize(reason, 500)
                for name, reason in document.unavailable.items()
            },
            tables=self._tables.freeze(),
        )

    def _scalars(self, figures: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
        kept: dict[str, float | int | str | bool | None] = {}
        for name, value in figures.items():
            name = sanitize(name, 100)
            if name not in self._metric_names and len(self._metric_names) >= METRICS_LIMIT:
                continue
            if isinstance(value, str):
                value = sanitize(value, 500)
            if isinstance(value, int) and abs(value) >= _LARGEST:
                continue  # beyond any counter, and more than readers of the recording can hold
            if value is None or isinstance(value, str | int | float):
                self._metric_names.add(name)
                kept[name] = value
        return kept
