"""A run's progress, on one line of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gputui.base.standard_streams import draw
from gputui.model import units
from gputui.state import Run, Session

_LONGEST_ETA_NS = 1000 * 3600e9


class ProgressLine:
    """One line on a terminal, rewritten only if it changed; nothing if not a terminal."""

    def __init__(self, *, hidden: bool) -> None:
        self._active = sys.stderr.isatty() and not hidden
        self._shown = ""

    def show(self, session: Session) -> None:
        """Show the session's progress."""
        if self._active and (text := progress_text(session)) != self._shown:
            self._draw(text)

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        self._shown = text
        try:
            draw(text)
        except OSError:
            # The terminal is gone; the recording goes on.
            self._active = False


def progress_text(session: Session) -> str:
    """Stage, share done, time left, and the newest figures of the run, on one line."""
    run = session.run
    parts: Sequence[str]
    if run is None:
        gpus = [
            f"GPU {index} {units.percent(gpu.sample.utilization_percent)}"
            for index, gpu in sorted(session.gpus.items())
            if gpu.sample
        ]
        parts = [f"{session.samples} samples", *gpus[:8]]
        return "recording: " + ", ".join(parts)
    parts = [run.started.name, units.duration(run.duration_ns)]
    if run.progress:
        parts = [*parts, progress_words(run)]
    for name in ("tokens_per_s", "itl_ms"):
        value = run.metrics.get(name)
        if isinstance(value, int | float):
            parts = [*parts, f"{name} {units.quantity(value)}"]
    return ", ".join(parts)


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
