"""What a child reports about itself on its pipe: untrusted lines → events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.collect.child.reported_tables import ResultTables, TableReport
from gputui.model.events import AnyEvent, RunMetrics, RunOutput, RunProgress, RunResult

METRICS_LIMIT = 500
"""Distinct metric names kept per child."""

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


class Reports:
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

    def _scalars(self, found: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
        kept: dict[str, float | int | str | bool | None] = {}
        for name, value in found.items():
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
