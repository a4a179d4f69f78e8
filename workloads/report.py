"""How a workload reports its progress: JSON lines on a pipe, and a few words on stderr.

The pipe is the file descriptor named by the environment variable GPUTUI_REPORT_FD; without it
only stderr is used. One line is one message:

    {"type": "progress", "stage": str, "done": n, "total": n, "unit": str}
    {"type": "metrics", "metrics": {name: number | string | bool | null}}
    {"type": "table", "name": str, "title": str, "columns": [...], "rows": [[...]]}
    {"type": "result", "result": {...}}
    {"type": "error", "error": str, "detail": str}

Reports never slow the workload: progress and metrics are rate-limited, and dropped while
the pipe is full because its reader is stopped. Tables, result and error wait for the reader;
a table too long for a line is sent in several, each with some of its rows.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TextIO, cast

from .declaration import FigureValue
from .errors import MonitorGone, WrongUsage

FD_VARIABLE = "GPUTUI_REPORT_FD"
LINE_LIMIT_BYTES = 64 * 1024

_PROGRESS_INTERVAL_NS = 50_000_000
_METRICS_INTERVAL_NS = 200_000_000
_DETAIL_LIMIT = 2000
_ROWS_PER_LINE = 50


def reports_only(environment: MutableMapping[str, str]) -> bool:
    """Whether whoever reads the pipe shows the result, and printing it would show it twice."""
    return FD_VARIABLE in environment and environment.pop("GPUTUI_REPORT_ONLY", "") == "1"


def report_fd(environment: MutableMapping[str, str]) -> int | None:
    """Take the report pipe's descriptor out of `environment`, so that no child inherits it.

    None if none is named. Raises WrongUsage if it is not an open descriptor.
    """
    text = environment.pop(FD_VARIABLE, None)
    if text is None:
        return None
    try:
        fd = int(text)
        if fd <= 2:
            raise ValueError
        os.set_inheritable(fd, False)
    except (ValueError, OverflowError, OSError):
        raise WrongUsage(
            f"{FD_VARIABLE} is {text[:32]!r}, not the number of an open pipe; unset it"
        ) from None
    return fd


class Report:
    """Where a workload reports. `clock` returns monotonic nanoseconds.

    Every method raises MonitorGone once the pipe's reader has closed it.
    """

    def __init__(
        self,
        fd: int | None,
        narration: TextIO,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._fd = fd
        self._narration = narration
        self._rewrites_line = narration.isatty()
        self._line_is_open = False
        self._clock = clock
        self._stage = ""
        self._progress_sent_ns = -_PROGRESS_INTERVAL_NS
        self._metrics_sent_ns = -_METRICS_INTERVAL_NS
        self._waiting_metrics: dict[str, FigureValue] = {}
        self._room = select.poll()
        if fd is not None:
            self._room.register(fd, select.POLLOUT)

    def say(self, text: str) -> None:
        """Write `text` as one line to stderr, for people."""
        if self._line_is_open:
            text = "\n" + text
            self._line_is_open = False
        self._tell(text + "\n")

    def progress(self, stage: str, done: float, total: float, unit: str = "") -> None:
        """Report `done` of `total` `unit`s in `stage`. Call it at every step: most calls do
        nothing.

        The first and the last of a stage are always sent.
        """
        now_ns = self._clock()
        is_edge = stage != self._stage or done >= total
        if not is_edge and now_ns - self._progress_sent_ns < _PROGRESS_INTERVAL_NS:
            return
        self._stage = stage
        self._progress_sent_ns = now_ns
        line = {"type": "progress", "stage": stage, "done": done, "total": total, "unit": unit}
        self._send(line, must_arrive=is_edge)
        if self._rewrites_line:
            self._tell(f"\r\x1b[K{stage} {done:g}/{total:g} {unit}")
            self._line_is_open = True

    @property
    def metrics_due(self) -> bool:
        """Whether `metrics` would send now. Check it before computing expensive figures."""
        return self._clock() - self._metrics_sent_ns >= _METRICS_INTERVAL_NS

    def metrics(self, figures: Mapping[str, FigureValue]) -> None:
        """Report the newest value of each figure. Values that come too fast replace one another."""
        self._waiting_metrics.update(figures)
        if self.metrics_due:
            self._send_metrics(must_arrive=False)

    def table(self, table: Mapping[str, object]) -> None:
        """Report a table of the result that follows: `name`, `title`, `columns` and `rows`."""
        rows = cast(list[object], table["rows"])
        for first in range(0, len(rows), _ROWS_PER_LINE):
            part = rows[first : first + _ROWS_PER_LINE]
            self._send({"type": "table", **table, "rows": part}, must_arrive=True)

    def result(self, document: Mapping[str, object]) -> None:
        """Report the run's result, after any metrics still waiting. Raises ValueError if too
        long.
        """
        self._send_metrics(must_arrive=True)
        self._send({"type": "result", "result": document}, must_arrive=True)

    def error(self, error: str, detail: str) -> None:
        """Report why there is no result: a kind ("out of memory"), and one line that explains
        it.
        """
        self._send_metrics(must_arrive=True)
        self._send(
            {"type": "error", "error": error, "detail": detail[:_DETAIL_LIMIT]}, must_arrive=True
        )

    def _send_metrics(self, *, must_arrive: bool) -> None:
        if not self._waiting_metrics:
            return
        metrics = {name: finite(value) for name, value in self._waiting_metrics.items()}
        if self._send({"type": "metrics", "metrics": metrics}, must_arrive=must_arrive):
            self._waiting_metrics.clear()
            self._metrics_sent_ns = self._clock()

    def _send(self, message: Mapping[str, object], *, must_arrive: bool) -> bool:
        """Write one line. False if it was dropped because the pipe is full."""
        if self._fd is None:
            return True
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > LINE_LIMIT_BYTES:
            raise ValueError(f"a report of {len(line)} bytes; a line holds {LINE_LIMIT_BYTES}")
        # A pipe polls as writable while a page is free, and a write of up to a page is atomic.
        if not must_arrive and (len(line) > select.PIPE_BUF or not self._room.poll(0)):
            return False
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            raise MonitorGone from None
        return True

    def _tell(self, text: str) -> None:
        # A closed terminal ends nothing: the result is still reported through the pipe.
        try:
            self._narration.write(text)
            self._narration.flush()
        except OSError:
            self._rewrites_line = False


def finite(value: FigureValue) -> FigureValue:
    """JSON has no infinity and no NaN; both become missing values."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
