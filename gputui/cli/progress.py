"""A run's progress, on one line of a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from gputui.base.sanitize import cut_to_width, sanitize
from gputui.base.standard_streams import columns, draw
from gputui.model import units
from gputui.report.workload_metrics import metric_text
from gputui.state import Gpu, Run, Session

_LONGEST_ETA_NS = 1000 * 3600e9
_ENDS = "Ctrl-C ends"
MOST_GPUS = 8

EXPLAIN_S = 1.0
"""Seconds from one look at where the time goes to the next."""


class ProgressLine:
    """One line on a terminal, rewritten only if it changed; nothing if not a terminal."""

    def __init__(self, *, hidden: bool) -> None:
        self._active = sys.stderr.isatty() and not hidden
        self._shown = ""
        self._explained: tuple[float, list[str]] = (-EXPLAIN_S, [])

    def show(self, session: Session) -> None:
        """Show the session's progress."""
        if not self._active:
            return
        now_s = time.monotonic()
        if session.run is not None and now_s - self._explained[0] >= EXPLAIN_S:
            from gputui.report.answer import short_line  # a machine only needs none

            self._explained = now_s, short_line(session.run)
        text = progress_text(session, self._explained[1])
        if text != self._shown:
            self._draw(text)

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        self._shown = text
        try:
            # What is wider than the terminal would not be erased.
            draw(cut_to_width(sanitize(text), (columns(sys.stderr) or 80) - 1))
        except OSError:
            # The terminal is gone; the recording goes on.
            self._active = False


def progress_text(session: Session, explained: Sequence[str] = ()) -> str:
    """How long it runs, the stage, where the time goes as `explained` says, and the machine's
    newest figures, on one line."""
    run = session.run
    if run is None:
        gpus = [f"GPU {index} {_reading(gpu)}" for index, gpu in sorted(session.gpus.items())]
        return " · ".join([f"● {session.samples} samples", *gpus[:MOST_GPUS], _ENDS])
    parts = [f"● {run.started.name} {units.duration(run.duration_ns)}"]
    if run.progress:
        parts.append(progress_words(run))
    for name in ("tokens_per_s", "itl_ms"):
        value = run.metrics.get(name)
        if isinstance(value, int | float):
            parts.append(" ".join(metric_text(name, value)))
    parts += explained
    used = [index for index in run.devices if index in session.gpus]
    parts += [_reading(session.gpus[index]) for index in sorted(used)[:1]]
    if session.recorded_bytes:
        parts.append(units.size(session.recorded_bytes))
    return " · ".join([*filter(None, parts), _ENDS])


def _reading(gpu: Gpu) -> str:
    """What a GPU spends and holds now."""
    sample = gpu.sample
    if sample is None:
        return ""
    parts = [units.percent(sample.utilization_percent)]
    if sample.power_watts is not None:
        parts = [f"{sample.power_watts:.0f} W"]
    if sample.memory_used_bytes is not None:
        parts.append(units.size(sample.memory_used_bytes))
    return " · ".join(parts)


def progress_words(run: Run) -> str:
    """The run's progress as "decode 45/128 tokens 35 % ETA 3.20 s"."""
    progress = run.progress
    if progress is None:
        return ""
    unit = f" {progress.unit}" if progress.unit else ""
    if not progress.total:
        return f"{progress.stage} {progress.done:g}{unit}"
    share = min(1.0, max(0.0, progress.done / progress.total))
    words = f"{progress.stage} {progress.done:g}/{progress.total:g}{unit} {100 * share:.0f} %"
    spent_ns = run.updated_ns - run.stage_started_ns
    if 0 < share < 1 and run.is_active and spent_ns > 0:
        left_ns = spent_ns * (1 - share) / share
        if left_ns < _LONGEST_ETA_NS:
            words += f" ETA {units.duration(left_ns)}"
    return words
