"""A child process: its start, what it reports, its output, its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from gputui.model.events.base import Amount, Event, Integer, Moment, Record


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A child process was started. `run` numbers the runs of one session from 1.

    `pid` is None when it could not be started; the RunEnded that follows says why.
    """

    run: Integer
    kind: Literal["workload", "command"]
    name: str
    arguments: tuple[str, ...]
    parameters: dict[str, str | Integer | float | bool] = msgspec.field(default_factory=dict)
    pid: Integer | None
    step_range: str | None = None
    """Name of the range that is one step, where the workload says so."""
    capture_unavailable_reason: str | None = None
    annotate: Literal["modules", "autograd"] | None = None
    """What of torch ranges were to be put around."""
    traced_step: str | None = None
    """Name of the range whose pushes are counted where kernels of some steps alone are traced."""


class RunProgress(Event, frozen=True, kw_only=True, tag="run_progress"):
    """How far the workload is: `done` of `total` `unit`s in `stage`."""

    run: Integer
    stage: str
    done: float
    total: float | None = None
    unit: str = ""


class RunMetrics(Event, frozen=True, kw_only=True, tag="run_metrics"):
    """Figures the workload reported; the newest value of a name wins."""

    run: Integer
    metrics: dict[str, float | Integer | str | bool | None]


class ResultColumn(Record, frozen=True, kw_only=True):
    """A column of a workload's table. The unit is also the suffix of the name."""

    name: str
    unit: str | None = None
    help: str = ""


class ResultTable(Record, frozen=True, kw_only=True):
    """A table the workload made; every row has a cell for each column, None where missing."""

    name: str
    title: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[str | Integer | float | bool | None, ...], ...] = ()


class RunResult(Event, frozen=True, kw_only=True, tag="run_result"):
    """What the workload came to. `results` are metrics too; `parameters` are those that held,
    defaults filled in; `complete` is False for what it had when it was stopped."""

    run: Integer
    complete: bool
    parameters: dict[str, str | Integer | float | bool | None]
    results: dict[str, float | Integer | str | bool | None]
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)
    tables: tuple[ResultTable, ...] = ()


class RunOutput(Event, frozen=True, kw_only=True, tag="run_output"):
    """Whole lines the child wrote, cleaned of control characters.

    `dropped_lines` counts those left out because the child wrote faster than is kept.
    """

    run: Integer
    stream: Literal["stdout", "stderr"]
    lines: tuple[str, ...]
    dropped_lines: Amount = 0


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The child is gone. One of `exit_code` and `signal` is set, neither where nobody knows.

    `reason` is one line for people ("killed by SIGKILL", "out of memory: …"); `stopped` tells
    that gputui ended it at the user's wish. `child_ended_ns` is when it ended: `time_ns` is when
    all that was captured of it had been read; None in older recordings and where it never ran.
    """

    run: Integer
    exit_code: Integer | None = None
    signal: Integer | None = None
    reason: str
    stopped: bool = False
    child_ended_ns: Moment | None = None
