"""The last step of a run that is drawn, which stays for a while."""

from __future__ import annotations

from gputui.model.events import StepTimeline
from gputui.state import Run
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.timeline import LEAST_HEIGHT, timeline_rows

_SHOWN_NS = 3_000_000_000
"""A timeline stays at least this long: many colours are many bytes, and reading takes time."""


class LastStep:
    """What is drawn now."""

    def __init__(self) -> None:
        self._step: StepTimeline | None = None
        self._run: Run | None = None

    def rows(
        self, run: Run, colors: dict[str, int], width: int, height: int, *, libraries: bool
    ) -> list[Row]:
        """The timeline of the newest step in a part of `height` lines; none where they are few."""
        newest = max(run.steps.values(), key=lambda step: step.start_ns, default=None)
        known = self._step
        if (
            newest is None
            or known is None
            or self._run is not run
            or not run.is_active
            or newest.start_ns - known.start_ns >= _SHOWN_NS
        ):
            self._step, self._run = newest, run
        if self._step is None or height < LEAST_HEIGHT + 8:
            return []
        room = min(7, height - 8)
        return timeline_rows(self._step, run, colors, width, room, libraries=libraries)
