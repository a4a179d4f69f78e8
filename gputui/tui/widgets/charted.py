"""Shared by views with charts: the displayed time, and the moment being read."""

from __future__ import annotations

from datetime import datetime

from gputui.tui.model import Model
from gputui.tui.source import Playback
from gputui.tui.times import clock_text
from gputui.tui.widgets.series import NOW, Look
from gputui.tui.widgets.view import (
    View,
)

_MARKS = 40
"""Starts of phases on a time axis: there is no room for more."""


class ChartedView(View):
    """A view whose charts have one time axis, in `look`."""

    CHARTS = True
    SCALES = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.look = Look()

    def zoom(self, step: int) -> str:
        text = self.look.zoom(step)
        self.draw()
        return text

    def step(self, columns: int) -> None:
        session = self.model.session
        kept = [gpu.samples.history for gpu in session.gpus.values()]
        last = next(filter(None, kept), session.host_samples.history).newest
        if last:
            self.look.step(columns, last[0])
        self.draw()

    def follow(self) -> None:
        self.look.at_ns = None

    def mark_phases(self) -> None:
        """Mark on the time axes when phases of the run began, and where they end."""
        run, source = self.model.run, self.model.source
        self.look.end = NOW
        self.look.own_scale = self.model.own_scale
        if isinstance(source, Playback):
            self.look.end = clock_text(source.position_s).partition(".")[0]
        self.look.marks = tuple(run.phase_starts)[-_MARKS:] if run is not None else ()

    def moment_note(self) -> str:
        """The moment at which charts are read, "" if that is the newest."""
        if self.look.at_ns is None:
            return ""
        when = datetime.fromtimestamp(self.look.at_ns / 1e9).astimezone()
        return f"charts at {when:%H:%M:%S}, 0 is {self.look.end}"
